"""The theorem checks among the runs of a reproduction: done once, kept, counted in the same progress."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from semaopt import checks
from semaopt.checks.result import Result as Check
from semaopt.experiments.files import digest
from semaopt.experiments.fingerprint import fingerprint
from semaopt.experiments.results import records
from semaopt.experiments.spec.schema import Spec
from semaopt.experiments.sweep.engines.local import Failure
from semaopt.experiments.sweep.runner import Runner, RunsError
from semaopt.experiments.sweep.store import Store

_EPOCHS = 20  # what a check counts for in the progress


@dataclass(frozen=True)
class Parts:
    """What a reproduction consists of, and what was left out."""

    specs: tuple[Spec, ...]
    checks: tuple[str, ...] = ()
    quick: bool = True
    """Whether the checks are the short ones."""
    notes: tuple[str, ...] = ()


def stored(store: Store, names: Iterable[str], quick: bool) -> dict[str, Check]:
    """Those of the checks that this program has done, by their names."""
    kept, found = store.records(records.CHECK), {}
    for name in names:
        with suppress(KeyError, records.UnreadableError):  # not there, or of another version
            found[name] = records.check(kept[_key(name, quick)])
    return found


def keep(store: Store, done: Check, quick: bool) -> None:
    """Keep what came of a check."""
    store.keep(records.CHECK, done.name, _key(done.name, quick), done.plain())


def _key(name: str, quick: bool) -> str:
    return digest([records.CHECK, name, quick, fingerprint()])


class Theorems:
    """The checks of a reproduction on one runner."""

    def __init__(self, parts: Parts | None, runner: Runner) -> None:
        # Of a group of processes only the first has a store; the others have no part in it.
        self.names = parts.checks if parts is not None and runner.store is not None else ()
        self.quick, self.runner = parts is None or parts.quick, runner
        self.found: dict[str, Check] = {}

    def announce(self) -> None:
        """Look up which are stored, and plan the others."""
        if not self.names or self.runner.store is None:
            return
        self.found = stored(self.runner.store, self.names, self.quick)
        for _ in range(len(self.names) - len(self.found)):
            self.runner.watch.plan(_EPOCHS)

    def conduct(self) -> tuple[Check, ...]:
        """The results of all, in their order; those that are missing are run."""
        missing = [name for name in self.names if name not in self.found]
        if missing:
            self.runner.watch.say(f"{len(missing)} theorem checks")
        failed = []
        work = partial(checks.run_one, quick=self.quick)
        for name, done in self.runner.engine.do(work, missing, lambda _: None):
            if isinstance(done, Failure):
                failed.append((f"check {name}", done))
                continue
            assert self.runner.store is not None  # else there are no names
            keep(self.runner.store, done, self.quick)
            self.found[name] = done
            self.runner.watch.done(_EPOCHS)
        if failed:
            raise RunsError.of(f"{len(missing)} checks", failed)
        return tuple(self.found[name] for name in self.names)
