"""The training loop of a unit of work: epochs, metrics and checkpoints."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Protocol

import torch

from semaopt.experiments import data
from semaopt.experiments.data.settings import Data
from semaopt.experiments.training import distributed, networks, objectives
from semaopt.experiments.training.run import Result, Run, Unit
from semaopt.experiments.training.sampled import SampledRun
from semaopt.experiments.training.single import SingleRun
from semaopt.experiments.training.vectorized import VectorizedRuns


class Trainee(Protocol):
    """One run, or several trained as one, with random numbers of its own."""

    @property
    def steps(self) -> int:
        """Steps in an epoch."""

    def draw(self) -> None:
        """Draw the order of the next epoch, and its labels."""

    def step(self, k: int) -> None:
        """Take step k of the epoch."""

    def end_epoch(self) -> list[bool]:
        """Decay the rates; return for each run whether its parameters are finite."""

    def measure(self) -> list[dict[str, float]]:
        """Return the metrics of each run."""

    def state_dict(self) -> dict[str, Any]:
        """Return everything the next step depends on, as tensors and plain values."""

    def load_state_dict(self, state: Mapping[str, Any], branch: int | None = None) -> None:
        """Resume from a state, to the bit.

        Args:
            state: the result of :meth:`state_dict`.
            branch: the number of finished epochs if the state comes from another run with the same beginning.
        """


class Checkpoint(Protocol):
    """The saved state of an unfinished unit."""

    notes: list[str]
    """Messages about damaged files."""

    def load(self) -> dict[str, Any] | None:
        """Return the last saved state, or None."""

    def due(self) -> bool:
        """Whether enough time has passed since the last save."""

    def save(self, state: dict[str, Any]) -> None:
        """Replace the saved state."""


class NoCheckpoint:
    """Saves nothing; see :class:`Checkpoint`."""

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
    """The current epoch and step of a unit, its curves so far and the seconds it took."""

    def __init__(self, unit: Unit) -> None:
        self.epoch = self.step = 0
        self.until, self.seconds = unit.epochs, 0.0
        self.finite = [True] * len(unit.runs)
        self.curves: list[dict[str, list[float]]] = [{name: [] for name in run.metrics} for run in unit.runs]

    def add(self, measured: Sequence[Mapping[str, float]]) -> None:
        """Append the metrics of an epoch to the curves; the metrics of a diverged run are NaN."""
        for curves, values, ok in zip(self.curves, measured, self.finite, strict=True):
            for name, curve in curves.items():
                curve.append(values[name] if ok else math.nan)


def train(
    unit: Unit,
    checkpoint: Checkpoint | None = None,
    on_epoch: Callable[[], None] = lambda: None,
    beginning: Checkpoint | None = None,
) -> list[Result]:
    """Train the runs of a unit and return their results in order.

    Args:
        unit: the runs.
        checkpoint: holds the state; training resumes from it, to the bit. By default nothing is saved.
        on_epoch: called after each epoch.
        beginning: holds a state that units with a common beginning share. The first of them saves it at the end of
            epoch ``unit.branch``, before its rates decay; the others start from it if ``checkpoint`` is empty.

    Torch's global random state is left as it was.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(unit.runs[0].seed)
        return _train(unit, checkpoint or NoCheckpoint(), beginning or NoCheckpoint(), on_epoch)


def _train(unit: Unit, checkpoint: Checkpoint, beginning: Checkpoint, on_epoch: Callable[[], None]) -> list[Result]:
    started = time.perf_counter()
    first = unit.runs[0]
    group = distributed.current()
    loaded = group.share(checkpoint.load() if group.first else None)
    common = group.share(beginning.load() if group.first and loaded is None and not unit.leads else None)
    trainee = _trainee(unit, task(first.data))
    at = _resume(unit, trainee, loaded, common)
    started -= at.seconds

    def save(to: Checkpoint = checkpoint) -> None:
        at.seconds = time.perf_counter() - started
        to.save({"trainee": trainee.state_dict(), "progress": vars(at)})

    def save_if_due() -> None:
        if group.first and checkpoint.due():
            save()

    def save_if_branching() -> None:
        if group.first and unit.leads and at.epoch + 1 == unit.branch:
            save(beginning)

    while at.epoch < unit.epochs and any(at.finite):
        _finish_epoch(trainee, at, save_if_due, save_if_branching)
        if first.purpose == "final" or at.epoch > unit.epochs - first.measured:
            at.add(trainee.measure())
        on_epoch()
        save_if_due()
    if group.first and unit.may_continue:
        save()
    seconds = (time.perf_counter() - started) / len(unit.runs)
    length = unit.epochs if first.purpose == "final" else min(first.measured, unit.epochs)
    return [
        _result(curves, ok, length, seconds, tuple(checkpoint.notes))
        for curves, ok in zip(at.curves, at.finite, strict=True)
    ]


def _resume(
    unit: Unit, trainee: Trainee, loaded: Mapping[str, Any] | None, common: Mapping[str, Any] | None
) -> Progress:
    """Load the unit's own state or, if it has none, the state of its shared beginning; return the progress."""
    at = Progress(unit)
    if loaded is not None and loaded["progress"]["until"] <= unit.epochs:  # otherwise it is past the requested epoch
        trainee.load_state_dict(loaded["trainee"])
        vars(at).update(loaded["progress"])
        if at.until < unit.epochs:  # that rung's result already includes the time so far
            at.until, at.seconds = unit.epochs, 0.0
    elif common is not None:  # the result of the unit that saved it includes the time so far
        vars(at).update(common["progress"], until=unit.epochs, seconds=0.0)
        trainee.load_state_dict(common["trainee"], at.epoch)
    return at


def rehearse(run: Run) -> None:
    """Load the data and build the model of a run; raise if they do not fit the loss, before anything is trained."""
    content = task(run.data)
    objectives.find(run.loss).validate_data(content, run.metrics, run.loss)
    networks.build(run, content)


def _trainee(unit: Unit, content: data.Task) -> Trainee:
    first = unit.runs[0]
    objective = objectives.find(first.loss)
    objective.validate_data(content, first.metrics, first.loss)
    if issubclass(objective, objectives.Sampled):
        return SampledRun(first, content, objective)
    return SingleRun(first, content) if len(unit.runs) == 1 else VectorizedRuns(unit.runs, content)


def _finish_epoch(
    trainee: Trainee, at: Progress, save_if_due: Callable[[], None], before_decay: Callable[[], None]
) -> None:
    """Train to the end of the current epoch; ``before_decay`` is called after its last step."""
    if at.step == 0:
        trainee.draw()
    while at.step < trainee.steps:
        trainee.step(at.step)
        at.step += 1
        if at.step < trainee.steps:
            save_if_due()
    before_decay()
    finite = trainee.end_epoch()
    at.finite = [was and now for was, now in zip(at.finite, finite, strict=True)]
    at.epoch, at.step = at.epoch + 1, 0


def _result(curves: dict[str, list[float]], ok: bool, length: int, seconds: float, notes: tuple[str, ...]) -> Result:
    """Return the result of a run; the curves of a diverged run end in NaN, even if an earlier rung measured it."""
    curves = {name: curve[-length:] for name, curve in curves.items()}
    if not ok:
        kept = {name: curve[: length - 1] for name, curve in curves.items()}
        curves = {name: curve + [math.nan] * (length - len(curve)) for name, curve in kept.items()}
    return Result(curves, seconds, "done" if ok else "diverged", notes)
