"""An experiment from its spec to its finding: tune each method alike, run what was chosen; nothing is done twice."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from semaopt.checks.figures import slug
from semaopt.experiments import models
from semaopt.experiments.data import DataError
from semaopt.experiments.data.files import root_folder
from semaopt.experiments.data.load import find
from semaopt.experiments.files import finite, owned, write_whole
from semaopt.experiments.report import figures, html, markdown, style, theorem_figure
from semaopt.experiments.report.section import count
from semaopt.experiments.results import records
from semaopt.experiments.results.model import Final, Finding, Origin, Results, Session, to_json
from semaopt.experiments.spec.errors import SpecError
from semaopt.experiments.spec.rules import axes_of
from semaopt.experiments.spec.schema import FIGURES, Method, Spec, load, shipped
from semaopt.experiments.sweep import tuning
from semaopt.experiments.sweep.engines.local import Engine
from semaopt.experiments.sweep.run import Run, Unit, environment, make
from semaopt.experiments.sweep.runner import Place, Runner, Watch
from semaopt.experiments.sweep.store import Store
from semaopt.experiments.sweep.theorems import Parts, Theorems
from semaopt.experiments.results.trials import Point, Trial, Tuning
from semaopt.experiments.training import distributed, libauc, loop

STORE = "runs.sqlite"


class Study:
    """One spec on one runner."""

    def __init__(self, spec: Spec, runner: Runner, only: Sequence[str] = ()) -> None:
        self.spec, self.runner = spec, runner
        self.methods = [method for method in spec.methods if not only or method.name in only]
        halving = spec.tuning is not None and spec.tuning.pruner == "halving"
        # The company of a vectorised run would change from rung to rung.
        self.together = 1 if halving or runner.place.machine.ranks > 1 else spec.together
        self.touched: dict[str, Unit] = {}
        self.final_keys: list[list[str]] = []
        """Of each method, in the order of the seeds."""

    def tuning_units(self, asked: Sequence[tuple[Method, Point]], until: int) -> list[Unit]:
        """The points asked for, in that order, each from all tuning seeds."""
        seeds, machine = self.spec.seeds.tuning, self.runner.place.machine
        work = [
            make(self.spec, method, point, seed=seed, purpose="tune", machine=machine, until=until)
            for method, point in asked
            for seed in seeds
        ]
        return self._units(work, self.together * len(seeds) if self.together > 1 else 1)

    def final_units(self, chosen: Sequence[tuple[Method, Point]]) -> list[Unit]:
        """What was chosen, from all final seeds."""
        seeds, machine = self.spec.seeds.final, self.runner.place.machine
        work = [
            make(self.spec, method, point, seed=seed, purpose="final", machine=machine)
            for method, point in chosen
            for seed in seeds
        ]
        return self._units(work, len(seeds) if self.together > 1 else 1)

    def _units(self, work: Sequence[Run], together: int) -> list[Unit]:
        found = self.runner.units(work, together)
        self.touched.update((unit.key, unit) for unit in found)
        return found

    def announce(self) -> None:
        """Plan what is known before anything is tuned, so that the time left is told from the start."""
        if self.spec.tuning is None:
            self.runner.plan(self.final_units([(method, {}) for method in self.methods]))
        elif self.spec.tuning.sampler == "grid" and self.spec.tuning.pruner == "none":
            self.runner.plan(self.tuning_units(self._first_grid(), self.spec.epochs))

    def _first_grid(self) -> list[tuple[Method, Point]]:
        found = [tuning.Search(self.spec, method) for method in self.methods]
        axes = [axes_of(self.spec, method) for method in self.methods]
        return [(s.method, point) for s, mine in zip(found, axes, strict=True) for _, point in s.ask(mine, 0)]

    def tune(self) -> Tuning:
        """The tuning table of all methods."""
        options = self.spec.tuning
        assert options is not None  # asked by those who have looked

        def evaluate(asked: list[tuple[Method, Point]], until: int) -> list[tuple[float, ...]]:
            methods = count(len({method.name for method, _ in asked}), "method")
            after = "" if until == self.spec.epochs else f", to epoch {until}"
            self.runner.watch.say(f"{self.spec.name}: {count(len(asked), 'tuning trial')} of {methods}{after}")
            results = self.runner.results(self.tuning_units(asked, until))
            seeds = len(self.spec.seeds.tuning)
            values = [result.last(options.metric) for result in results]
            return [tuple(values[i : i + seeds]) for i in range(0, len(values), seeds)]

        return tuning.tune(self.spec, evaluate, self.methods)

    def conduct(self, command: str) -> Finding:
        """Tune, then run what was chosen, and keep a record of it."""
        found, finals = self.work()
        self.runner.clean(list(self.touched.values()))
        keys = [run.key for unit in self.touched.values() for run in unit.runs]
        place = "".join(f" {option}" for option in self.runner.place.machine.options())
        again = f"semaopt run {self.spec.name} --scale {self.spec.scale}{place}" if _is_shipped(self.spec) else command
        origin = Origin(command, again, environment(), *self.runner.times(keys))
        facts = loop.task(self.spec.data.model_dump()).describe()
        finding = Finding(self.spec, facts, finals, found, origin)
        if self.runner.store is not None:
            records.keep(self.runner.store, finding, self.final_keys)
        return finding

    def work(self) -> tuple[Tuning | None, tuple[Final, ...]]:
        """The tuning, and the final runs of what was chosen."""
        found = None if self.spec.tuning is None else self.tune()
        chosen: list[Trial | None] = [None if found is None else found.best(method.name) for method in self.methods]
        points = [{} if trial is None else trial.values for trial in chosen]
        seeds = len(self.spec.seeds.final)
        self.runner.watch.say(f"{self.spec.name}: final runs, {seeds} seeds for each method")
        units = self.final_units(list(zip(self.methods, points, strict=True)))
        results = self.runner.results(units)
        keys = [run.key for unit in units for run in unit.runs]
        self.final_keys = [keys[i : i + seeds] for i in range(0, len(keys), seeds)]
        each = [tuple(results[i : i + seeds]) for i in range(0, len(results), seeds)]
        return found, tuple(Final(*row) for row in zip(self.methods, chosen, each, strict=True))


def _is_shipped(spec: Spec) -> bool:
    """Whether it is the shipped spec of its name; a file of the user's may have the same name."""
    try:
        return spec.name in shipped() and spec == load(FIGURES / f"{spec.name}.toml", spec.scale)
    except SpecError:  # that one has no such scale
        return False


def rehearse(spec: Spec, only: Sequence[str] = ()) -> None:
    """Read the data and build the model once: what is missing or does not fit is told before anything is written.

    Data that would have to be downloaded are left to the runs.
    """
    for method in spec.methods:
        if method.algorithm == libauc.PESG and (not only or method.name in only) and not libauc.installed():
            raise SpecError(f"{spec.name}: {method.name} is LibAUC's PESG, which is not here; {libauc.REMEDY}")
    if find(spec.data.name).missing(root_folder()):
        return
    content = loop.task(spec.data.model_dump())
    loop.check_classes(spec.loss, content)
    options: dict[str, Any] = dict(spec.model.options)
    try:
        models.build(spec.model.name, content, seed=0, **options)
    except DataError:
        raise
    except (TypeError, ValueError, RuntimeError) as error:  # of torch, for sizes that are none
        text = f"{spec.name}: model.options={options}: {spec.model.name} cannot be built of them"
        raise SpecError(f"{text} ({error}); correct the values, or leave them out") from error


@contextmanager
def opened(place: Place) -> Iterator[Store | None]:
    """The store of an output folder that is now this process's own; None in all processes of a group but the first."""
    if not distributed.current().first:
        yield None
        return
    with owned(place.out), Store(place.out / STORE) as store:
        yield store


def conduct(
    specs: Sequence[Spec],
    place: Place,
    engine: Engine,
    watch: Watch,
    *,
    command: str,
    only: Sequence[str] = (),
    parts: Parts | None = None,
) -> Results:
    """All of them, and the theorem checks of ``parts``, on one runner."""
    started = time.perf_counter()
    with opened(place) as store:
        runner = Runner(store, engine, watch, place)
        studies = [Study(spec, runner, only) for spec in specs]
        theorems = Theorems(parts, runner)
        theorems.announce()
        for study in studies:
            study.announce()
        if runner.reused:
            watch.say(f"{runner.reused} runs were finished before and are reused")
        checked = theorems.conduct()
        findings = tuple(study.conduct(command) for study in studies)
        damaged = tuple(store.damaged) if store is not None else ()
    wall = time.perf_counter() - started
    session = Session(command, wall, runner.seconds, runner.computed, runner.reused, damaged)
    scales = dict.fromkeys(spec.scale for spec in specs)
    notes = () if parts is None else tuple(parts.notes)
    return Results(", ".join(scales), findings, environment(), session, checked, notes)


def write(results: Results, out: Path) -> None:
    """Write everything that people look at; the page comes last, so that it never shows what is not there."""
    for finding in results.findings:
        whole = figures.whole(finding)
        write_whole(out / f"{finding.name}.svg", whole.svg)
        write_whole(out / f"{finding.name}.png", whole.png)
    drawn = {}
    for check in results.checks:
        svg = theorem_figure.element(check)
        drawn[check.name] = theorem_figure.panel(check, svg)
        write_whole(out / f"check-{slug(check.name)}.svg", style.standalone(svg))
    write_whole(out / "results.json", json.dumps(finite(to_json(results)), indent=1, allow_nan=False) + "\n")
    write_whole(out / "results.md", markdown.text(results))
    panels = {finding.name: figures.panels(finding) for finding in results.findings}
    write_whole(out / "report.html", html.page(results, panels, drawn))
