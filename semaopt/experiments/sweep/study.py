"""An experiment from its spec to its finding: tune all methods alike, then run the selected settings."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace

from semaopt.experiments.commands import without
from semaopt.experiments.data import DataError
from semaopt.experiments.data.files import root_folder
from semaopt.experiments.data.load import find
from semaopt.experiments.fingerprint import environment, fingerprint
from semaopt.experiments.results import records
from semaopt.experiments.results.model import Final, Finding, Origin, Results, Session, StudyResult
from semaopt.experiments.results.trials import Point, Trial, Tuning
from semaopt.experiments.spec.errors import SpecError
from semaopt.experiments.spec.schema import FIGURES, Method, Spec, load, shipped
from semaopt.experiments.spec.search import STUDY_STRIDE
from semaopt.experiments.sweep import tuning
from semaopt.experiments.sweep.engines.local import Engine
from semaopt.experiments.sweep.reproduction import Parts, missing
from semaopt.experiments.sweep.run import make
from semaopt.experiments.sweep.runner import Runner, Watch, Workspace
from semaopt.experiments.sweep.theorem_checks import TheoremChecks
from semaopt.experiments.training import loop
from semaopt.experiments.training.run import Machine, Purpose, Unit


class Study:
    """One repetition of an experiment: its own points, its own selection, its own final runs.

    Study k uses the seeds of the spec plus k times ``STUDY_STRIDE``. If a spec has several studies, each has one split
    of the data for tuning and another one for its final runs.

    Args:
        spec: the experiment.
        runner: executes the runs.
        methods: the methods to run.
        number: the number of the study.
    """

    def __init__(self, spec: Spec, runner: Runner, methods: Sequence[Method], number: int = 0) -> None:
        self.spec, self.runner, self.methods, self.number = spec, runner, methods, number
        halving = spec.tuning is not None and spec.tuning.pruner == "halving"
        # Pruning would change the runs that share a unit, and so their rounding, from rung to rung.
        self.vectorize = 1 if halving or runner.workspace.machine.ranks > 1 else spec.vectorize
        self.units: dict[str, Unit] = {}
        """All units, by key: a later rung replaces the earlier ones."""
        self.run_keys: dict[str, None] = {}
        """Keys of all runs, every rung included."""
        self.plugins: dict[str, str] = {}
        """Hashes of the plug-ins of all runs."""

    def _make_units(
        self, asked: Sequence[tuple[Method, Point]], seeds: Sequence[int], purpose: Purpose, until: int, vectorize: int
    ) -> list[Unit]:
        """Return the units of these points, each with all seeds."""
        spec, machine = _with_split(self.spec, self.number, purpose), self.runner.workspace.machine
        runs = [
            make(
                spec,
                method,
                point,
                seed=self.number * STUDY_STRIDE + seed,
                purpose=purpose,
                machine=machine,
                until=until,
            )
            for method, point in asked
            for seed in seeds
        ]
        found = self.runner.units(runs, vectorize)
        self.units.update((unit.key, unit) for unit in found)
        for run in (run for unit in found for run in unit.runs):
            self.run_keys[run.key] = None
            self.plugins.update(run.plugins)
        return found

    def tuning_units(
        self, asked: Sequence[tuple[Method, Point]], until: int, seeds: Sequence[int] | None = None
    ) -> list[Unit]:
        """Return the units of these trials, each with all tuning seeds (or the given ones)."""
        seeds = self.spec.seeds.tuning if seeds is None else seeds
        return self._make_units(asked, seeds, "tune", until, self.vectorize * len(seeds) if self.vectorize > 1 else 1)

    def final_units(self, chosen: Sequence[tuple[Method, Point]]) -> list[Unit]:
        """Return the units of the final runs of these settings."""
        seeds = self.spec.seeds.final
        return self._make_units(chosen, seeds, "final", self.spec.epochs, len(seeds) if self.vectorize > 1 else 1)

    def announce(self) -> None:
        """Plan the runs that are known before tuning, so that the remaining time is estimated from the start."""
        options = self.spec.tuning
        if options is None:
            self.runner.plan(self.final_units([(method, {}) for method in self.methods]))
        elif options.sampler in ("grid", "sobol"):
            asked = [
                (search.method, point)
                for search in tuning.searches(self.spec, self.methods, self.number)
                for _, point in search.points.ask(search.space(options.grid), options.budget or 0)
            ]
            until = next(iter(tuning.rungs(self.spec)), self.spec.epochs)
            self.runner.plan(self.tuning_units(asked, until))

    def tune(self) -> Tuning:
        """Run all trials and return them."""
        options, rerank_seeds = self.spec.tuning, self.spec.seeds.rerank
        assert options is not None  # the caller has checked

        def measure(asked: tuning.Asked, until: int, seeds: Sequence[int]) -> list[tuple[float, ...]]:
            results = self.runner.results(self.tuning_units(asked, until, seeds))
            values = [result.end(options.metric, self.spec.final_epochs) for result in results]
            return [tuple(values[i : i + len(seeds)]) for i in range(0, len(values), len(seeds))]

        def evaluate(asked: tuning.Asked, until: int) -> list[tuple[float, ...]]:
            after = "" if until == self.spec.epochs else f", to epoch {until}"
            self._say(f"{_count(len(asked), 'tuning trial')} of {_count(_methods(asked), 'method')}{after}")
            return measure(asked, until, self.spec.seeds.tuning)

        def rerank(asked: tuning.Asked) -> list[tuple[float, ...]]:
            self._say(f"the best {_count(len(asked), 'trial')} again with {_count(len(rerank_seeds), 'more seed')}")
            return measure(asked, self.spec.epochs, rerank_seeds)

        again = rerank if rerank_seeds else None
        return tuning.tune(self.spec, evaluate, self.methods, study=self.number, rerank=again)

    def conduct(self) -> StudyResult:
        """Tune, then run the selected settings with the final seeds."""
        found = None if self.spec.tuning is None else self.tune()
        chosen: list[Trial | None] = [None if found is None else found.best(method.name) for method in self.methods]
        points = [{} if trial is None else trial.values for trial in chosen]
        seeds = len(self.spec.seeds.final)
        self._say(f"final runs, {_count(seeds, 'seed')} per method")
        units = self.final_units(list(zip(self.methods, points, strict=True)))
        results = self.runner.results(units)
        keys = [run.key for unit in units for run in unit.runs]
        finals = tuple(
            Final(method, trial, tuple(results[i : i + seeds]), tuple(keys[i : i + seeds]))
            for method, trial, i in zip(self.methods, chosen, range(0, len(keys), seeds), strict=True)
        )
        self.runner.clean(list(self.units.values()))
        return StudyResult(finals, found, self.number, folder=str(self.runner.workspace.out))

    def _say(self, text: str) -> None:
        which = f", study {self.number + 1} of {self.spec.studies}" if self.spec.studies > 1 else ""
        self.runner.watch.say(f"{self.spec.name}{which}: {text}")


def _with_split(spec: Spec, study: int, purpose: Purpose) -> Spec:
    """Return the spec with the data split of a study; final runs have a split that tuning has not seen."""
    if spec.studies == 1:
        return spec
    seed = spec.data.seed + 2 * study + (purpose == "final")
    return spec.model_copy(update={"data": spec.data.model_copy(update={"seed": seed})})


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _methods(asked: tuning.Asked) -> int:
    return len({method.name for method, _ in asked})


class Experiment:
    """The studies of one spec.

    Args:
        spec: the experiment.
        runner: executes the runs.
        only: names of the methods to run; by default all.
        numbers: numbers of the studies to conduct, from 0; by default all.
    """

    def __init__(self, spec: Spec, runner: Runner, only: Sequence[str] = (), numbers: Sequence[int] = ()) -> None:
        self.methods = [method for method in spec.methods if not only or method.name in only]
        self.spec, self.runner = spec, runner
        self.studies = [Study(spec, runner, self.methods, k) for k in numbers or range(spec.studies)]

    def announce(self) -> None:
        """See :meth:`Study.announce`."""
        for study in self.studies:
            study.announce()

    def tune(self) -> list[Tuning]:
        """Return the tuning of each study."""
        return [study.tune() for study in self.studies]

    def conduct(self, command: str) -> Finding:
        """Conduct the studies, and store the finding after each of them.

        Studies of the same spec that the store contains already are part of the finding.
        """
        store, key = self.runner.store, records.key(self.spec, [method.name for method in self.methods])
        finding = self._stored(key)
        for study in self.studies:
            finding = finding.updated(replace(study.conduct(), origin=self._origin(study, command)))
            if store is not None:
                store.put_record(records.STUDY, finding.name, key, records.to_record(finding))
        return finding

    def _stored(self, key: str) -> Finding:
        """Return the finding in the store; without studies if there is none, or only one of another spec."""
        store = self.runner.store
        content = None if store is None else store.records(records.STUDY).get(key)
        if store is not None and content is not None:
            with suppress(records.UnreadableError):
                found = records.read_finding(content, store.get, self.runner.workspace.out)
                if found.spec == self.spec:
                    return replace(found, spec=self.spec)  # a store does not keep the order of options
        return Finding(self.spec, loop.task(self.spec.data).describe(), ())

    def _origin(self, study: Study, command: str) -> Origin:
        machine = self.runner.workspace.machine
        rerun = without(command, "--study")
        if _is_shipped(self.spec):
            some = self.methods if len(self.methods) < len(self.spec.methods) else []
            options = [f"--scale {self.spec.scale}", *(f"--only {method.name}" for method in some), *machine.options()]
            rerun = " ".join([f"semaopt run {self.spec.name}", *options])
        code = {"code": fingerprint()["code"][:12], **{name: known[:12] for name, known in study.plugins.items()}}
        found = {**environment(), **code, **{name: str(value) for name, value in asdict(machine).items()}}
        return Origin(command, rerun, found, *self.runner.times(list(study.run_keys)))


def _is_shipped(spec: Spec) -> bool:
    """Return whether this is the shipped spec of its name; a user's file may have the same name."""
    try:
        return spec.name in shipped() and spec == load(FIGURES / f"{spec.name}.toml", spec.scale)
    except SpecError:  # the shipped spec has no such scale
        return False


def preflight(spec: Spec, only: Sequence[str] = ()) -> None:
    """Load the data and build the model once, so that errors appear before anything is written.

    Data sets that have to be downloaded are not checked.
    """
    for method in spec.methods:
        command = missing(spec, method)
        if command is not None and (not only or method.name in only):
            raise SpecError(f"{spec.name}: {method.name} needs a package that is not installed. Install it: {command}")
    if find(spec.data.name).missing(root_folder()):
        return
    purposes: tuple[Purpose, ...] = ("final",) if spec.tuning is None else ("tune", "final")
    for purpose in purposes:  # tuning and final runs measure different parts of the data
        run = make(spec, spec.methods[0], {}, seed=0, purpose=purpose, machine=Machine())
        try:
            loop.rehearse(run)
        except DataError as error:
            raise DataError(f"{spec.name}: {error}") from error
        except (TypeError, ValueError, RuntimeError) as error:  # torch raises RuntimeError for impossible sizes
            text = f"{spec.name}: model {run.model.name!r} cannot be built with options={run.model.options}"
            raise SpecError(f"{text} ({error}). Correct the options, or remove them.") from error


def conduct(
    specs: Sequence[Spec],
    workspace: Workspace,
    engine: Engine,
    watch: Watch,
    *,
    command: str,
    only: Sequence[str] = (),
    numbers: Sequence[int] = (),
    parts: Parts | None = None,
) -> Results:
    """Conduct experiments, and the theorem checks of ``parts``, with one runner.

    ``only`` and ``numbers`` choose methods and studies, as for :class:`Experiment`.
    """
    started = time.perf_counter()
    with workspace.open_store() as store:
        runner = Runner(store, engine, watch, workspace)
        experiments = [Experiment(spec, runner, only, numbers) for spec in specs]
        parts = Parts(tuple(specs)) if parts is None else parts
        checks = TheoremChecks(parts.checks, parts.quick, runner)
        checks.announce()
        for experiment in experiments:
            experiment.announce()
        if runner.reused:
            watch.say(f"{_count(runner.reused, 'finished run')} found in the store and reused")
        checked = checks.conduct()
        findings = tuple(experiment.conduct(command) for experiment in experiments)
        damaged = tuple(dict.fromkeys(store.damaged)) if store is not None else ()
    wall = time.perf_counter() - started
    session = Session(command, wall, runner.seconds, runner.computed, runner.reused, damaged)
    scales = dict.fromkeys(spec.scale for spec in specs)
    return Results(", ".join(scales), findings, environment(), session, checked, parts.notes)
