"""Gives the results of runs: from the store where it has them, else by having them done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Protocol

from semaopt.experiments.sweep.checkpoint import Checkpoint
from semaopt.experiments.sweep.engines.local import Engine, Failure, count_epoch
from semaopt.experiments.sweep.run import units
from semaopt.experiments.sweep.store import Row, Store
from semaopt.experiments.training import distributed, loop
from semaopt.experiments.training.run import Machine, Result, Run, Unit


class Watch(Protocol):
    """Who is told how it goes, counted in epochs of units of work."""

    def plan(self, epochs: int) -> None:
        """So many more (or, below 0, fewer) are to be trained than was known."""

    def done(self, epochs: int) -> None:
        """So many more are trained; below 0: they must be trained again."""

    def say(self, text: str) -> None:
        """Something worth a line."""


class Silent:
    """Watches and says nothing; see :class:`Watch`."""

    def plan(self, epochs: int) -> None:
        """Nothing to show."""

    def done(self, epochs: int) -> None:
        """Nothing to show."""

    def say(self, text: str) -> None:
        """Nothing to say."""


class RunsError(RuntimeError):
    """Some runs could not be done; the text names each and says why. All others are in the store."""

    again = True
    """Whether the same command may well come to another end."""

    @classmethod
    def of(cls, count: str, failed: Sequence[tuple[str, Failure]]) -> RunsError:
        """The error of these failures; its cause is the first that has one."""
        lines = [f"{name}: {one.reason}" for name, one in failed]
        error = cls("\n".join([f"{len(failed)} of {count} could not be done:", *lines]))
        error.again = any(one.again for _, one in failed)
        error.__cause__ = next((one.error for _, one in failed if one.error is not None), None)
        return error


@dataclass(frozen=True)
class Place:
    """Where runs are done and kept."""

    out: Path
    machine: Machine
    every: float = 10.0
    """Seconds between checkpoints."""

    @property
    def checkpoints(self) -> Path:
        """The folder of runs that are under way."""
        return self.out / "checkpoints"


def perform(unit: Unit, *, folder: Path, every: float) -> list[Result]:
    """Train a unit with its checkpoint in ``folder``, saved every so many seconds: the work of a worker process."""
    return loop.train(unit, Checkpoint(folder, unit.key, every), count_epoch)


def spent(rows: Sequence[Row]) -> tuple[int, float, float, str]:
    """How many runs, seconds of computing, seconds from the start of the first to the end of the last, and that end."""
    ends = [datetime.fromisoformat(row.finished) for row in rows]
    starts = [end - timedelta(seconds=row.seconds) for end, row in zip(ends, rows, strict=True)]
    wall = (max(ends) - min(starts)).total_seconds() if rows else 0.0
    return len(rows), sum(row.seconds for row in rows), wall, max((row.finished for row in rows), default="")


class Runner:
    """Looks runs up, does what is missing, keeps it."""

    def __init__(self, store: Store | None, engine: Engine, watch: Watch, place: Place) -> None:
        self.store, self.engine, self.watch, self.place = store, engine, watch, place
        self.group = distributed.current()
        self.computed = self.reused = 0
        self.seconds = 0.0
        self._known: dict[str, Result] = {}
        self._looked: set[str] = set()

    def units(self, runs: Sequence[Run], together: int = 1) -> list[Unit]:
        """The units of work that these runs are."""
        return units(runs, together)

    def plan(self, work: Sequence[Unit]) -> list[Unit]:
        """Look up which are stored, and announce the others; these are returned."""
        missing = []
        for unit in work:
            new = [run for run in unit.runs if run.key not in self._looked]
            found = self.group.share([self._stored(run) for run in new] if self.group.first else None)
            for run, result in zip(new, found, strict=True):
                self._looked.add(run.key)
                if result is not None:
                    self._known[run.key] = result
                    self.reused += 1
                    self.seconds += result.seconds
            if any(run.key not in self._known for run in unit.runs):
                missing.append(unit)
                if new:
                    self.watch.plan(unit.epochs)
        return missing

    def results(self, work: Sequence[Unit]) -> list[Result]:
        """The results of all runs of all units, in their order."""
        missing = self.plan(work)
        failed: list[tuple[str, Failure]] = []
        shown = whole = 0

        def tick(epochs: int) -> None:
            nonlocal shown
            self.watch.done(epochs - shown)
            shown = epochs

        work_on = partial(perform, folder=self.place.checkpoints, every=self.place.every)
        for unit, done in self.engine.do(work_on, missing, tick):
            whole += unit.epochs
            if isinstance(done, Failure):
                failed.append((str(unit), done))
                self.watch.say(f"failed: {unit}: {done.reason}")
            else:
                self._keep(unit, done)
        tick(whole)  # one that continued, or diverged, has trained fewer than were planned
        if failed:
            raise RunsError.of(str(len(missing)), failed)
        return [self._known[run.key] for unit in work for run in unit.runs]

    def _keep(self, unit: Unit, results: Sequence[Result]) -> None:
        if self.store is not None:
            self.store.put([(run.row(), result) for run, result in zip(unit.runs, results, strict=True)])
            if not unit.may_continue:
                Checkpoint(self.place.checkpoints, unit.key).remove()
        for run, result in zip(unit.runs, results, strict=True):
            self._known[run.key] = result
            self.computed += 1
            self.seconds += result.seconds
        for note in dict.fromkeys(note for result in results for note in result.notes):
            self.watch.say(f"{unit}: {note}")

    def _stored(self, run: Run) -> Result | None:
        assert self.store is not None  # asked of the first process alone
        damaged = len(self.store.damaged)
        result = self.store.get(run.key)
        if len(self.store.damaged) > damaged:
            self.watch.say(f"{run}: its row in the store is damaged; it is done again")
        return result

    def times(self, keys: Sequence[str]) -> tuple[int, float, float, str]:
        """Of so many stored runs: how many, seconds of computing, from the first start to the last end, the end."""
        wanted = set(keys)
        rows = [] if self.store is None else [row for row in self.store.rows() if row.key in wanted]
        return spent(rows)

    def clean(self, work: Sequence[Unit]) -> None:
        """Remove the checkpoints of units that are in the store, or that nobody will ask for again."""
        if self.group.first and self.place.checkpoints.is_dir():
            for unit in work:
                Checkpoint(self.place.checkpoints, unit.key).remove()
            if not any(self.place.checkpoints.iterdir()):
                self.place.checkpoints.rmdir()
