"""One unit of work from beginning to end: epochs, measurements, checkpoints."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Protocol

import torch

from semaopt.experiments import data
from semaopt.experiments.data.settings import Data
from semaopt.experiments.training import distributed
from semaopt.experiments.training.run import Result, Unit
from semaopt.experiments.training.sampled import Cleaner, Ranker
from semaopt.experiments.training.single import Member
from semaopt.experiments.training.vectorized import Members


class Trainee(Protocol):
    """What is trained: one model, or several as one. Its random numbers are its own."""

    @property
    def steps(self) -> int:
        """Of one epoch."""

    def draw(self) -> None:
        """Draw the order of the next epoch, and its labels."""

    def step(self, k: int) -> None:
        """Step k of the epoch."""

    def end_epoch(self) -> list[bool]:
        """Move the rates; say of each run whether it is still finite."""

    def measure(self) -> list[dict[str, float]]:
        """The metrics of each run now."""

    def state_dict(self) -> dict[str, Any]:
        """All that the next step depends on, as tensors and plain values."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there, to the bit."""


class Checkpoint(Protocol):
    """Where the state of an unfinished unit is kept."""

    notes: list[str]
    """Messages about damaged files."""

    def load(self) -> dict[str, Any] | None:
        """Return the last saved state, or None."""

    def due(self) -> bool:
        """Whether enough time has passed since the last save."""

    def save(self, state: dict[str, Any]) -> None:
        """Replace the saved state."""


class NoCheckpoint:
    """Keeps nothing; see :class:`Checkpoint`."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def load(self) -> dict[str, Any] | None:
        """Return None."""
        return None

    def due(self) -> bool:
        """Return False."""
        return False

    def save(self, state: dict[str, Any]) -> None:
        """Do nothing."""


@lru_cache(maxsize=2)
def task(settings: Data) -> data.Task:
    """Return the data of a run; a worker that trains many runs on one data set reads it once."""
    return data.load(**settings.model_dump())


class Progress:
    """Where a unit stands: the epoch, the step in it, the curves, the seconds that it took so far to its end."""

    def __init__(self, unit: Unit) -> None:
        self.epoch = self.step = 0
        self.until, self.seconds = unit.epochs, 0.0
        self.finite = [True] * len(unit.runs)
        self.curves: list[dict[str, list[float]]] = [{name: [] for name in run.metrics} for run in unit.runs]

    def add(self, measured: Sequence[Mapping[str, float]]) -> None:
        """What each run measures after an epoch; of one that has diverged nothing means anything."""
        for curves, values, ok in zip(self.curves, measured, self.finite, strict=True):
            for name, curve in curves.items():
                curve.append(values[name] if ok else math.nan)


def train(
    unit: Unit, checkpoint: Checkpoint | None = None, on_epoch: Callable[[], None] = lambda: None
) -> list[Result]:
    """Train the runs of a unit and return their results in order.

    Args:
        unit: the runs.
        checkpoint: where the state is kept; a state that is there is resumed, to the bit. None keeps nothing.
        on_epoch: called after each epoch.

    Torch's global random state is left as it was.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(unit.runs[0].seed)
        return _train(unit, checkpoint or NoCheckpoint(), on_epoch)


def _train(unit: Unit, kept: Checkpoint, on_epoch: Callable[[], None]) -> list[Result]:
    started = time.perf_counter()
    first = unit.runs[0]
    group = distributed.current()
    loaded = group.share(kept.load() if group.first else None)
    content = task(first.data)
    trainee = _trainee(unit, content)
    at = Progress(unit)
    if loaded is not None and loaded["progress"]["until"] <= unit.epochs:  # else it is beyond what is asked for
        trainee.load_state_dict(loaded["trainee"])
        vars(at).update(loaded["progress"])
        if at.until < unit.epochs:  # the seconds to that rung are in its own result
            at.until, at.seconds = unit.epochs, 0.0
        started -= at.seconds

    def save() -> None:
        at.seconds = time.perf_counter() - started
        kept.save({"trainee": trainee.state_dict(), "progress": vars(at)})

    def checkpoint() -> None:
        if group.first and kept.due():
            save()

    while at.epoch < unit.epochs and any(at.finite):
        _epoch(trainee, at, checkpoint)
        if first.purpose == "final" or at.epoch == unit.epochs:
            at.add(trainee.measure())
        on_epoch()
        checkpoint()
    if group.first and unit.may_continue:
        save()
    seconds = (time.perf_counter() - started) / len(unit.runs)
    return [
        _result(curves, ok, unit.epochs if first.purpose == "final" else 1, seconds, tuple(kept.notes))
        for curves, ok in zip(at.curves, at.finite, strict=True)
    ]


def check_classes(loss: str, content: data.Task) -> None:
    """Refuse data that are not the loss's."""
    if loss in ("auc", "average_precision") and content.classes != 2:
        raise data.DataError(f"loss = {loss!r}: {content.name} has {content.classes} classes; set data.binary = true")


def _trainee(unit: Unit, content: data.Task) -> Trainee:
    first, loss = unit.runs[0], unit.runs[0].loss
    check_classes(loss, content)
    if loss == "cleaning":
        return Cleaner(first, content)
    if loss == "average_precision":
        return Ranker(first, content)
    return Member(first, content) if len(unit.runs) == 1 else Members(unit.runs, content)


def _epoch(trainee: Trainee, at: Progress, checkpoint: Any) -> None:
    """The rest of the epoch that is under way."""
    if at.step == 0:
        trainee.draw()
    while at.step < trainee.steps:
        trainee.step(at.step)
        at.step += 1
        if at.step < trainee.steps:
            checkpoint()
    alive = trainee.end_epoch()
    at.finite = [was and now for was, now in zip(at.finite, alive, strict=True)]
    at.epoch, at.step = at.epoch + 1, 0


def _result(curves: dict[str, list[float]], ok: bool, length: int, seconds: float, notes: tuple[str, ...]) -> Result:
    """A run that diverged is a result: its curves end in NaN, also where an earlier rung has measured it."""
    curves = {name: curve[-length:] for name, curve in curves.items()}
    if not ok:
        kept = {name: curve[: length - 1] for name, curve in curves.items()}
        curves = {name: curve + [math.nan] * (length - len(curve)) for name, curve in kept.items()}
    return Result(curves, seconds, "done" if ok else "diverged", notes)
