"""Feed inputs to a target; the seed, the name of the target and the number of an input determine it."""

from __future__ import annotations

import signal
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tests.fuzz.targets import FIRED, Target

SECONDS = 30  # CPU time; an input that takes longer counts as a hang


class Hangs(BaseException):
    """An input took too long; derived from BaseException so that the library cannot catch it."""


@dataclass
class Found:
    """Counts and findings of a target."""

    target: str
    inputs: int = 0
    accepted: int = 0
    seconds: float = 0.0
    kinds: Counter[str] = field(default_factory=Counter)
    """Number of findings by kind."""
    examples: dict[str, str] = field(default_factory=dict)


@contextmanager
def _limited() -> Iterator[None]:
    def stop(*_: object) -> None:
        raise Hangs(f"more than {SECONDS} s")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def fuzz(target: Target, numbers: range, seed: int) -> Found:
    """Run these inputs and collect all findings."""
    found = Found(target.name)
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        for number in numbers:
            given = target.make(Random(f"{seed}/{target.name}/{number}"))
            found.inputs += 1
            try:
                with _limited():
                    found.accepted += target.verify(given, Path(folder))
            except BaseException as error:  # any exception is a finding
                if isinstance(error, (KeyboardInterrupt, GeneratorExit)):
                    raise
                _note(found, number, given, error)
            finally:
                FIRED.clear()
    found.seconds = time.perf_counter() - started
    return found


def _note(found: Found, number: int, given: object, error: BaseException) -> None:
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "/fuzz/" not in f.filename]
    last = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "the harness"
    ours = [f for f in frames if "semaopt" in f.filename]
    where = f"{Path(ours[-1].filename).name}:{ours[-1].lineno}" if ours else last
    kind = f"{type(error).__name__} at {where}"
    found.kinds[kind] += 1
    shown = repr(given)
    shown = shown if len(shown) <= 400 else f"{shown[:200]} ... {shown[-200:]}"
    found.examples.setdefault(kind, f"input {number}: {str(error)[:300]} (raised at {last})\n    {shown}")
