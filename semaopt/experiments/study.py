"""Tune each method alike, run what was chosen, write it down; what is done already is not done again."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, Protocol

import semaopt
from semaopt.experiments import digits, figure, report
from semaopt.experiments.digits import STAGES, Outcome, Point, Run
from semaopt.experiments.results import Final, Finding, Results, Session, environment, to_json
from semaopt.experiments.runs import Store, Workers, finite, write_whole
from semaopt.experiments.tuning import GRID, METHODS, Grid, Method, Tuning, tune


@dataclass(frozen=True)
class Study:
    """The three methods of the paper's Figure 1 on digits, each tuned and then run from fresh seeds."""

    name: str = "digits"
    title: str = "Digits"
    about: str = ""
    noise: float = 0.0
    epochs: int = 30
    batch: int = 32
    hidden: int = 64
    factor: float = 0.2
    tuning_seeds: tuple[int, ...] = (100, 101, 102)
    final_seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    methods: tuple[Method, ...] = METHODS
    grid: Grid = GRID
    rounds: int = 2
    """How often the grid may grow."""
    together: int = 9
    """Points of one method that are trained at once; how they are grouped is part of a run's identity."""

    def run(self, purpose: Literal["tune", "final"], method: Method, points: Sequence[Point]) -> Run:
        """Some points of a method from all seeds."""
        return Run(
            purpose=purpose,
            method=method.name,
            decays=method.decays,
            points=tuple(points),
            seeds=self.final_seeds if purpose == "final" else self.tuning_seeds,
            epochs=self.epochs,
            noise=self.noise,
            batch=self.batch,
            hidden=self.hidden,
            factor=self.factor,
        )

    def tuning_runs(self, asked: Sequence[tuple[Method, Point]]) -> list[Run]:
        """The points asked for, in that order, those of one method at once as far as they go."""
        runs = []
        for method in self.methods:
            points = [point for of, point in asked if of == method]
            parts = [points[i : i + self.together] for i in range(0, len(points), self.together)]
            runs += [self.run("tune", method, part) for part in parts]
        return runs


class Watch(Protocol):
    """Who is told how it goes, counted in points."""

    def plan(self, points: int) -> None:
        """So many more (or, below 0, fewer) are to be trained than was known."""

    def done(self, points: int) -> None:
        """So many of them are finished and stored."""

    def say(self, text: str) -> None:
        """Something worth a line."""


@lru_cache(maxsize=1)
def fingerprint() -> dict[str, str]:
    """What a stored run depends on besides its configuration: reusing it after an update would mix two programs."""
    root = Path(semaopt.__file__).parent
    mine = root / "experiments"
    sources = [p for p in sorted(root.rglob("*")) if p.suffix in {".py", ".c", ".h"} and mine not in p.parents]
    code = hashlib.sha256()
    for path in (*sources, mine / "digits.py"):
        code.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    versions = environment()
    return {"code": code.hexdigest(), **{name: versions[name] for name in ("torch", "numpy", "scikit-learn")}}


class Runner:
    """Gives the outcomes of runs, from the store where it has them."""

    def __init__(self, store: Store, workers: Workers, watch: Watch) -> None:
        self.store, self.workers, self.watch = store, workers, watch
        self.computed = self.reused = 0
        self.seconds = 0.0
        self._known: dict[Run, dict[str, Any] | None] = {}

    def plan(self, runs: Sequence[Run], guessed: int = 0) -> None:
        """Look up which runs are stored and announce the others; ``guessed`` points were announced before."""
        for run in runs:
            if run not in self._known:
                self._known[run] = found = self._stored(run)
                if found is None:
                    self.watch.plan(len(run.points))
                else:
                    self.reused += len(run.points)
                    self.seconds += found["seconds"]
        self.watch.plan(-guessed)

    def outcomes(self, runs: Sequence[Run]) -> list[Outcome]:
        """The outcomes of all points of all runs, in their order."""
        self.plan(runs)
        missing = [run for run in runs if self._known[run] is None]
        for run, result in self.workers.do(digits.perform, missing):
            self.store.put(_config(run), result)
            self._known[run] = finite(result)
            self.computed += len(run.points)
            self.seconds += result["seconds"]
            self.watch.done(len(run.points))
        found = [self._known[run] or {} for run in runs]
        return [Outcome.from_json(outcome) for result in found for outcome in result["outcomes"]]

    def _stored(self, run: Run) -> dict[str, Any] | None:
        damaged = len(self.store.damaged)
        result = self.store.get(_config(run))
        for path in self.store.damaged[damaged:]:
            self.watch.say(f"{path} is damaged; its run is done again")
        return result


def _config(run: Run) -> dict[str, Any]:
    return {"experiment": "digits", **asdict(run), **fingerprint()}


def tune_all(study: Study, runner: Runner) -> Tuning:
    """The tuning table of all methods, from the validation set."""

    def evaluate(asked: list[tuple[Method, Point]]) -> list[tuple[float, ...]]:
        each = len(asked) // len(study.methods)
        runner.watch.say(f"{study.name}: {len(asked)} tuning trials, {each} for each method")
        outcomes = runner.outcomes(study.tuning_runs(asked))
        return [tuple(curve[-1] for curve in outcome.held_out_loss) for outcome in outcomes]

    return tune(study.methods, study.grid, evaluate, study.rounds)


def conduct_one(study: Study, runner: Runner) -> Finding:
    """Tune, then run what was chosen."""
    tuning = tune_all(study, runner)
    chosen = [tuning.best(method.name) for method in study.methods]
    runner.watch.say(f"{study.name}: final runs, {len(study.final_seeds)} seeds for each method")
    last = [study.run("final", method, [trial.point]) for method, trial in zip(study.methods, chosen, strict=True)]
    runner.plan(last, guessed=len(last))
    outcomes = runner.outcomes(last)
    settings = asdict(study)
    return Finding(
        name=study.name,
        title=study.title,
        about=study.about,
        settings={k: v for k, v in settings.items() if k not in ("name", "title", "about", "methods", "grid")},
        sizes={name: len(examples.y) for name, examples in digits.load()._asdict().items()},
        decay_epochs=tuple(study.epochs * k // STAGES for k in range(1, STAGES)),
        finals=tuple(Final(*row) for row in zip(study.methods, chosen, outcomes, strict=True)),
        tuning=tuning,
    )


def conduct(studies: Sequence[Study], out: Path, watch: Watch, *, scale: str, command: str, workers: int) -> Results:
    """All studies; leaves results.json, the figures and report.html in ``out``, and the runs in ``out/runs``."""
    started = time.perf_counter()
    store = Store(out / "runs")
    with Workers(workers) as pool:
        runner = Runner(store, pool, watch)
        for study in studies:
            first = [(method, point) for method in study.methods for point in study.grid.points(method)]
            runner.plan(study.tuning_runs(first))
            watch.plan(len(study.methods))
        if runner.reused:
            watch.say(f"{runner.reused} tuning trials were finished before and are reused")
        findings = tuple(conduct_one(study, runner) for study in studies)
    damaged = tuple(path.name for path in store.damaged)
    wall = time.perf_counter() - started
    session = Session(command, wall, runner.seconds, runner.computed, runner.reused, damaged)
    results = Results(scale, findings, environment(), session)
    write(results, out)
    return results


def write(results: Results, out: Path) -> None:
    """Write everything that people look at; the page comes last, so that it never shows what is not there."""
    for finding in results.findings:
        whole = figure.whole(finding)
        write_whole(out / f"{finding.name}.svg", whole.svg)
        write_whole(out / f"{finding.name}.png", whole.png)
    write_whole(out / "results.json", json.dumps(finite(to_json(results)), indent=1, allow_nan=False) + "\n")
    panels = {finding.name: figure.panels(finding) for finding in results.findings}
    write_whole(out / "report.html", report.page(results, panels))
