"""The results model: everything that reports, figures and JSON files are made from."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cached_property
from statistics import median
from typing import Any

from semaopt.checks.result import CheckResult as Check
from semaopt.experiments.results.statistics import (
    Comparison,
    Direction,
    geometric_mean,
    probability_of_improvement,
)
from semaopt.experiments.results.trials import Trial, Tuning
from semaopt.experiments.spec.schema import Method, Spec
from semaopt.experiments.spec.search import STUDY_STRIDE
from semaopt.experiments.training import objectives
from semaopt.experiments.training.metrics import is_share
from semaopt.experiments.training.objectives import Objective
from semaopt.experiments.training.run import Result


@dataclass(frozen=True)
class Final:
    """A method with its selected hyper-parameters and its final runs, one per seed."""

    method: Method
    chosen: Trial | None
    """The selected trial; None if nothing was tuned."""
    runs: tuple[Result, ...]
    keys: tuple[str, ...] = ()
    """The keys of the runs in the store."""

    def curves(self, metric: str) -> list[list[float]]:
        """Return the values after each epoch, one list per run."""
        return [run.curves[metric] for run in self.runs]

    def last(self, metric: str) -> list[float]:
        """Return the value after the last epoch of each run."""
        return [run.last(metric) for run in self.runs]

    def ends(self, metric: str, epochs: int) -> list[float]:
        """Return the mean over the last ``epochs`` epochs of each run; NaN if it diverged."""
        return [run.end(metric, epochs) for run in self.runs]

    @property
    def values(self) -> dict[str, Any]:
        """The tuned hyper-parameters."""
        return {} if self.chosen is None else dict(self.chosen.values)


@dataclass(frozen=True)
class Origin:
    """Origin of the runs of one or more studies, with the command that repeats them."""

    command: str = ""
    """The command that was typed."""
    rerun: str = ""
    """The command that repeats this experiment alone, with all its studies."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Versions, a digest of the code, and the machine."""
    runs: int = 0
    """Number of runs, every rung of every trial counted."""
    seconds: float = 0.0
    """Compute time of all runs."""
    wall_seconds: float = 0.0
    """Time from the start of the first run to the end of the last, pauses included."""
    finished: str = ""
    """End of the last run, UTC."""

    @classmethod
    def joined(cls, origins: Sequence[Origin]) -> Origin:
        """Return the origin of several studies together: the last command and the environment that they share."""
        last = max(origins, key=lambda one: one.finished)
        shared = [one.environment.items() for one in origins]
        ends = [(datetime.fromisoformat(one.finished), one.wall_seconds) for one in origins if one.finished]
        start = min((end - timedelta(seconds=wall) for end, wall in ends), default=None)
        return cls(
            last.command,
            last.rerun,
            {name: value for name, value in last.environment.items() if all((name, value) in one for one in shared)},
            sum(one.runs for one in origins),
            sum(one.seconds for one in origins),
            0.0 if start is None else (max(ends)[0] - start).total_seconds(),
            last.finished,
        )


@dataclass(frozen=True)
class StudyResult:
    """One repetition of an experiment: its tuning and the final runs of each method."""

    finals: tuple[Final, ...]
    tuning: Tuning | None
    number: int = 0
    """The number of the study, from 0; reports, tables and commands count from 1."""
    origin: Origin = field(default_factory=Origin)
    folder: str = ""
    """The output folder that holds its runs."""


@dataclass(frozen=True)
class TimeToTarget:
    """When the runs of a method first reach a target value of the claim's metric."""

    method: str
    target: float
    reached: int
    """Number of runs that reach it."""
    runs: int
    epochs: float
    """Median over the runs; infinite if fewer than half reach it."""
    seconds: float
    """Median compute time, that of measuring the metrics included.

    A run that continues a beginning which it shares with another counts only its own part.
    """


@dataclass(frozen=True)
class Finding:
    """The results of one experiment."""

    spec: Spec
    facts: Mapping[str, Any]
    """Facts about the data: sizes, classes."""
    studies: tuple[StudyResult, ...]
    """The finished studies, in the order of their numbers."""

    def updated(self, study: StudyResult) -> Finding:
        """Return the finding with this study added, or replaced if it has one of that number."""
        found = {one.number: one for one in (*self.studies, study)}
        return replace(self, studies=tuple(found[number] for number in sorted(found)))

    @property
    def replicated(self) -> bool:
        """Whether intervals are over studies; those of a spec with one study are over its seeds."""
        return self.spec.studies > 1

    @property
    def missing(self) -> tuple[int, ...]:
        """The numbers of the studies that are not finished."""
        finished = {study.number for study in self.studies}
        return tuple(number for number in range(self.spec.studies) if number not in finished)

    @property
    def origin(self) -> Origin:
        """The origin of the runs of all studies."""
        return Origin.joined([study.origin for study in self.studies])

    @property
    def environments(self) -> list[tuple[dict[str, str], list[int]]]:
        """Each environment of the studies, with the numbers of its studies."""
        found: list[tuple[dict[str, str], list[int]]] = []
        for study in self.studies:
            own = dict(study.origin.environment)
            numbers = next((numbers for known, numbers in found if known == own), None)
            if numbers is None:
                found.append((own, [study.number]))
            else:
                numbers.append(study.number)
        return found

    @property
    def name(self) -> str:
        """The name of the experiment and of its files."""
        return self.spec.name

    @cached_property
    def finals(self) -> tuple[Final, ...]:
        """Each method with its final runs of all studies; ``chosen`` is the setting chosen in the first study."""
        first = self.studies[0].finals
        return tuple(
            Final(one.method, one.chosen, tuple(run for study in self.studies for run in study.finals[k].runs))
            for k, one in enumerate(first)
        )

    @property
    def tuning(self) -> Tuning | None:
        """The tuning of the first study."""
        return self.studies[0].tuning

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds of the final runs of all studies."""
        seeds = self.spec.seeds.final
        return tuple(study.number * STUDY_STRIDE + seed for study in self.studies for seed in seeds)

    @property
    def decay_epochs(self) -> tuple[int, ...]:
        """The epochs after which rates decay, if all methods that decay share them."""
        lengths = {
            {**final.method.options, **final.values}.get("every")
            for study in self.studies
            for final in study.finals
            if final.method.decays or "every" in final.method.options or "every" in final.values
        }
        if len(lengths) != 1:
            return ()
        (every,) = lengths
        return tuple(range(int(every), self.spec.epochs, int(every))) if isinstance(every, int) else ()

    def metric_name(self, metric: str) -> str:
        """Return the readable name of a metric."""
        return self.objective.metric_title(metric, self.spec.data.noise)

    @property
    def objective(self) -> type[Objective]:
        """The objective of the spec's loss."""
        return objectives.find(self.spec.loss)

    def better(self, metric: str) -> Direction:
        """Return whether lower or higher values are better."""
        return "higher" if is_share(metric) else "lower"

    def is_ratio(self, metric: str) -> bool:
        """Return whether methods are compared by the ratio of this metric, as losses are, or by the difference."""
        return self.objective.compares_by_ratio(metric)

    def final(self, name: str) -> Final:
        """Return the pooled final runs of a method."""
        return {final.method.name: final for final in self.finals}[name]

    def label(self, name: str) -> str:
        """Return the label of a method or of a group of methods."""
        group = self.spec.claim.groups.get(name)
        return self.final(name).method.label if group is None else group.label

    def members(self, name: str) -> list[str]:
        """Return the methods of a group; a method is a group of its own."""
        group = self.spec.claim.groups.get(name)
        return [name] if group is None else group.methods

    def ends(self, name: str, metric: str) -> list[float]:
        """Return the mean over the last ``spec.final_epochs`` epochs of each final run; NaN if it diverged."""
        return self.final(name).ends(metric, self.spec.final_epochs)

    def scores(self, name: str, metric: str) -> list[float]:
        """Return :meth:`ends` with the worst possible result for runs that diverged."""
        ends = [value for one in self.members(name) for value in self.ends(one, metric)]
        return [value if math.isfinite(value) else self._worst(metric) for value in ends]

    def _worst(self, metric: str) -> float:
        """Return the value that stands for a diverged run.

        It is the largest loss of any epoch of any run. For an AUC it is the chance level 0.5, or the lowest final
        value of any run if that is lower. For other shares it is 0.
        """
        if is_share(metric):
            ends = [value for final in self.finals for value in final.ends(metric, self.spec.final_epochs)]
            return min([0.5, *filter(math.isfinite, ends)]) if metric.endswith("_auc") else 0.0
        curves = (curve for final in self.finals for curve in final.curves(metric))
        return max((value for curve in curves for value in curve if math.isfinite(value)), default=math.nan)

    def units(self, name: str, metric: str) -> tuple[float, ...]:
        """Return the values that intervals are made from: one per study, or one per seed if the spec has one study.

        The value of a group is the mean over its methods.
        """
        if name in self.spec.claim.groups:
            average = geometric_mean if self.is_ratio(metric) else _mean
            columns = zip(*(self.units(one, metric) for one in self.members(name)), strict=True)
            return tuple(average(column) for column in columns)
        scores, seeds = self.scores(name, metric), len(self.spec.seeds.final)
        if not self.replicated:
            return tuple(scores)
        average = geometric_mean if self.is_ratio(metric) else _mean
        return tuple(average(scores[k : k + seeds]) for k in range(0, len(scores), seeds))

    def compare(self, metric: str, method: str, against: str) -> Comparison:
        """Compare two methods, paired by study (or by seed if the spec has one study)."""
        better = self.better(metric)
        return Comparison(
            method,
            against,
            metric,
            better,
            self.is_ratio(metric),
            self.units(method, metric),
            self.units(against, metric),
            probability_of_improvement(self.scores(method, metric), self.scores(against, metric), better),
            both_diverged=not any(
                math.isfinite(value)
                for name in (*self.members(method), *self.members(against))
                for value in self.ends(name, metric)
            ),
        )

    def comparisons(self, metric: str) -> list[Comparison]:
        """Compare each method with each one listed before it."""
        names = [final.method.name for final in self.finals]
        return [self.compare(metric, a, b) for i, b in enumerate(names) for a in names[i + 1 :]]

    @property
    def order(self) -> list[str]:
        """The methods of the claimed order that were run, from the worst to the best."""
        run = {final.method.name for final in self.finals}
        return [name for name in self.spec.claim.order if name in run]

    def claimed(self) -> list[Comparison]:
        """Return the comparisons that the claim consists of, for the methods that were run."""
        order = self.order
        pairs = [(name, order[0]) for name in order[1:]]
        pairs += [(order[k], order[j]) for k in range(2, len(order)) for j in range(1, k)]
        found = [self.compare(self.spec.claim.metric, name, other) for name, other in pairs]
        return found + self._compared(self.spec.claim.beats)

    def controls(self) -> list[Comparison]:
        """Return the comparisons with control arms, for the methods that were run."""
        return self._compared(self.spec.claim.controls)

    def _compared(self, beats: Mapping[str, Sequence[str]]) -> list[Comparison]:
        known = [final.method.name for final in self.finals]
        groups = self.spec.claim.groups
        run = [*known, *(name for name in groups if set(groups[name].methods) <= set(known))]
        pairs = [(name, other) for name in run for other in run if other in beats.get(name, [])]
        return [self.compare(self.spec.claim.metric, name, other) for name, other in pairs]

    def times_to_target(self) -> list[TimeToTarget]:
        """Return when the runs of each method first reach the final value of the claim's target method."""
        claim, last = self.spec.claim, {final.method.name: final for final in self.finals}
        if claim.target is None or claim.target not in last:
            return []
        value = _mean(self.scores(claim.target, claim.metric))
        sign = 1 if self.better(claim.metric) == "higher" else -1
        found = []
        for name, final in last.items():
            epochs = []
            for curve in final.curves(claim.metric):
                reached = (k for k, one in enumerate(curve, start=1) if sign * one >= sign * value)
                epochs.append(float(next(reached, math.inf)))
            seconds = [k * run.seconds / self.spec.epochs for k, run in zip(epochs, final.runs, strict=True)]
            count = sum(map(math.isfinite, epochs))
            found.append(TimeToTarget(name, value, count, len(epochs), median(epochs), median(seconds)))
        return found


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


@dataclass(frozen=True)
class Session:
    """Statistics of one invocation; everything else in the results is independent of interruptions."""

    command: str
    wall_seconds: float
    run_seconds: float
    """Compute time of all runs, reused ones included."""
    computed: int
    """Number of runs trained."""
    reused: int
    damaged: tuple[str, ...]
    """Keys of damaged rows that were computed again."""


@dataclass(frozen=True)
class Results:
    """All findings of one command."""

    scale: str
    findings: tuple[Finding, ...]
    environment: dict[str, str]
    session: Session
    checks: tuple[Check, ...] = ()
    notes: tuple[str, ...] = ()
    """Skipped parts and the reasons."""
