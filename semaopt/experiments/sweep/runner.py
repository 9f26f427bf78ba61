"""The runner: returns results of runs from the store and computes those that are missing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Protocol

from semaopt.experiments.files import locked
from semaopt.experiments.sweep.beginnings import beginning, shared
from semaopt.experiments.sweep.checkpoint import Checkpoint
from semaopt.experiments.sweep.engines.local import Engine, Failure, count_epoch
from semaopt.experiments.sweep.run import units
from semaopt.experiments.sweep.store import STORE_FILE, Row, Store
from semaopt.experiments.training import distributed, loop
from semaopt.experiments.training.run import Machine, Result, Run, Unit


class Watch(Protocol):
    """Receives progress, counted in epochs, and messages."""

    def plan(self, epochs: int) -> None:
        """Add epochs to the total; a negative number removes them."""

    def done(self, epochs: int) -> None:
        """Add trained epochs; a negative number means that epochs must be trained again."""

    def say(self, text: str) -> None:
        """Show a message."""


class Silent:
    """Ignores everything; see :class:`Watch`."""

    def plan(self, epochs: int) -> None:
        """Do nothing."""

    def done(self, epochs: int) -> None:
        """Do nothing."""

    def say(self, text: str) -> None:
        """Do nothing."""


class RunsError(RuntimeError):
    """Some jobs failed; the message names each with its reason. The results of all others are stored."""

    transient = True
    """Whether running the same command again may succeed."""

    @classmethod
    def from_failures(cls, total: str, failed: Sequence[tuple[str, Failure]]) -> RunsError:
        """Return the error for these failures; its cause is the first exception among them."""
        lines = [f"{name}: {one.reason}" for name, one in failed]
        error = cls("\n".join([f"{len(failed)} of {total} failed:", *lines]))
        error.transient = any(one.transient for _, one in failed)
        error.__cause__ = next((one.error for _, one in failed if one.error is not None), None)
        return error


@dataclass(frozen=True)
class Workspace:
    """An output folder and the machine that computes its runs."""

    out: Path
    machine: Machine
    checkpoint_seconds: float = 10.0
    """Seconds between two checkpoints of a run."""

    @property
    def checkpoints(self) -> Path:
        """The folder with the checkpoints of unfinished runs."""
        return self.out / "checkpoints"

    @contextmanager
    def open_store(self) -> Iterator[Store | None]:
        """Lock the folder and open its store; None in all processes of a group but the first."""
        if not distributed.current().first:
            yield None
            return
        with locked(self.out), Store(self.out / STORE_FILE) as store:
            yield store


def perform(unit: Unit, *, folder: Path, checkpoint_seconds: float) -> list[Result]:
    """Train a unit with its checkpoint in ``folder``; worker processes call this function."""
    beginning = Checkpoint(folder, unit.beginning) if unit.beginning else None
    return loop.train(unit, Checkpoint(folder, unit.key, checkpoint_seconds), count_epoch, beginning)


def times(rows: Sequence[Row]) -> tuple[int, float, float, str]:
    """Return (count, compute seconds, wall seconds, finish time) of these runs; wall time includes pauses."""
    ends = [datetime.fromisoformat(row.finished) for row in rows]
    starts = [end - timedelta(seconds=row.seconds) for end, row in zip(ends, rows, strict=True)]
    wall = (max(ends) - min(starts)).total_seconds() if rows else 0.0
    return len(rows), sum(row.seconds for row in rows), wall, max((row.finished for row in rows), default="")


class Runner:
    """Looks runs up in the store, computes the missing ones and stores them."""

    def __init__(self, store: Store | None, engine: Engine, watch: Watch, workspace: Workspace) -> None:
        self.store, self.engine, self.watch, self.workspace = store, engine, watch, workspace
        self.group = distributed.current()
        self.computed = self.reused = 0
        self.seconds = 0.0
        self._known: dict[str, Result] = {}
        self._looked_up: set[str] = set()

    def units(self, runs: Sequence[Run], vectorize: int = 1) -> list[Unit]:
        """Split runs into units of work."""
        return units(runs, vectorize)

    def plan(self, work: Sequence[Unit]) -> list[Unit]:
        """Look the units up, announce those that are not stored, and return them."""
        missing = []
        for unit in work:
            new = [run for run in unit.runs if run.key not in self._looked_up]
            found = self.group.share([self._stored(run) for run in new] if self.group.first else None)
            for run, result in zip(new, found, strict=True):
                self._looked_up.add(run.key)
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
        """Return the results of all runs of these units, in order."""
        missing = self.plan(work)
        failed: list[tuple[str, Failure]] = []
        shown = planned = before = 0

        def on_progress(epochs: int) -> None:
            nonlocal shown
            self.watch.done(before + epochs - shown)
            shown = before + epochs

        job = partial(perform, folder=self.workspace.checkpoints, checkpoint_seconds=self.workspace.checkpoint_seconds)
        for part in shared(missing):
            before = shown
            for unit, done in self.engine.run(job, part, on_progress):
                planned += unit.epochs
                if isinstance(done, Failure):
                    failed.append((str(unit), done))
                    self.watch.say(f"failed: {unit}: {done.reason}")
                else:
                    self._save(unit, done)
        on_progress(planned - before)  # a unit that resumed, diverged or started later trained fewer than planned
        if failed:
            raise RunsError.from_failures(str(len(missing)), failed)
        return [self._known[run.key] for unit in work for run in unit.runs]

    def _save(self, unit: Unit, results: Sequence[Result]) -> None:
        if self.store is not None:
            self.store.put([(run.row(), result) for run, result in zip(unit.runs, results, strict=True)])
            if not unit.may_continue:
                Checkpoint(self.workspace.checkpoints, unit.key).remove()
        for run, result in zip(unit.runs, results, strict=True):
            self._known[run.key] = result
            self.computed += 1
            self.seconds += result.seconds
        for note in dict.fromkeys(note for result in results for note in result.notes):
            self.watch.say(f"{unit}: {note}")

    def _stored(self, run: Run) -> Result | None:
        assert self.store is not None  # only the first process looks runs up
        damaged = len(self.store.damaged)
        result = self.store.get(run.key)
        if len(self.store.damaged) > damaged:
            self.watch.say(f"{run}: its row in the store is damaged; the run is computed again")
        return result

    def times(self, keys: Sequence[str]) -> tuple[int, float, float, str]:
        """Return (count, compute seconds, wall seconds, finish time) for these run keys."""
        wanted = set(keys)
        return times([] if self.store is None else [row for row in self.store.rows() if row.key in wanted])

    def clean(self, work: Sequence[Unit]) -> None:
        """Remove the checkpoints of these units: they are stored, or will not be continued."""
        folder = self.workspace.checkpoints
        if self.group.first and folder.is_dir():
            for unit in work:
                for key in filter(None, (unit.key, beginning(unit))):
                    Checkpoint(folder, key).remove()
            if not any(folder.iterdir()):
                folder.rmdir()
