"""What a study found: the record that the figures, the page and the JSON file are made from."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from semaopt.checks.result import Result as Check
from semaopt.experiments.results import statistics as compare
from semaopt.experiments.results.statistics import Comparison
from semaopt.experiments.spec.schema import Method, Spec
from semaopt.experiments.sweep.trials import Trial, Tuning
from semaopt.experiments.training.metrics import is_share
from semaopt.experiments.training.run import Result

FORMAT = 4
_PARTS = {"train": "training", "valid": "validation", "test": "test"}
_WORDS = {"auc": "AUC", "ap": "average precision"}
_BOUNDS = {"s_min": "smallest s", "s_median": "median s", "s_max": "largest s"}


@dataclass(frozen=True)
class Final:
    """A method with the values chosen for it, and its final runs, one for each seed."""

    method: Method
    chosen: Trial | None
    """None where nothing was tuned."""
    runs: tuple[Result, ...]

    def curves(self, metric: str) -> list[list[float]]:
        """Per seed, after each epoch."""
        return [run.curves[metric] for run in self.runs]

    def last(self, metric: str) -> list[float]:
        """Per seed, after the last epoch."""
        return [run.last(metric) for run in self.runs]

    @property
    def values(self) -> dict[str, Any]:
        """What was tuned."""
        return {} if self.chosen is None else dict(self.chosen.values)


@dataclass(frozen=True)
class Origin:
    """Where a finding comes from: how its runs were made, and how to make them again."""

    command: str
    """What was typed."""
    rerun: str
    """What makes this figure alone."""
    environment: Mapping[str, str]
    runs: int
    seconds: float
    """Of computing, all runs together."""
    wall_seconds: float
    """From the start of the first run to the end of the last one, pauses included."""
    finished: str
    """When the last run ended, UTC."""


@dataclass(frozen=True)
class Finding:
    """A finished study."""

    spec: Spec
    facts: Mapping[str, Any]
    """Of the data."""
    finals: tuple[Final, ...]
    tuning: Tuning | None
    origin: Origin

    @property
    def name(self) -> str:
        """Also that of its files."""
        return self.spec.name

    @property
    def seeds(self) -> tuple[int, ...]:
        """Of the final runs."""
        return tuple(self.spec.seeds.final)

    @property
    def decay_epochs(self) -> tuple[int, ...]:
        """Where a rate is cut, if all methods that cut one do it there."""
        lengths = {
            {**final.method.options, **final.values}.get("every")
            for final in self.finals
            if final.method.decays or "every" in final.method.options or "every" in final.values
        }
        if len(lengths) != 1:
            return ()
        (every,) = lengths
        return tuple(range(int(every), self.spec.epochs, int(every))) if isinstance(every, int) else ()

    def metric_name(self, metric: str) -> str:
        """As people read it."""
        if metric in _BOUNDS:
            return _BOUNDS[metric]
        part, _, what = metric.partition("_")
        if self.spec.loss == "cleaning":
            return f"{what} on clean data" if part == "train" else f"{_PARTS[part]} {what}"
        if what == "loss" and self.spec.loss == "auc":
            what = "objective"
        elif what == "loss" and self.spec.data.noise:
            what = "excess loss"
        return f"{_PARTS[part]} {_WORDS.get(what, what)}"

    def better(self, metric: str) -> str:
        """Whether lower or higher is better."""
        return "higher" if is_share(metric) else "lower"

    def compare(self, metric: str, method: str, against: str) -> Comparison:
        """Two methods, paired over the seeds: the ratio of losses, which fall by decades, else the difference."""
        a, b = (self.final(name).last(metric) for name in (method, against))
        is_ratio = metric in _BOUNDS or (metric.endswith("_loss") and self.spec.loss != "auc")
        interval = compare.paired_ratio(a, b) if is_ratio else compare.paired_difference(a, b)
        return Comparison(method, against, metric, interval, is_ratio, compare.deviations(a, b, is_ratio))

    def comparisons(self, metric: str) -> list[Comparison]:
        """Each later method against each earlier one."""
        names = [final.method.name for final in self.finals]
        return [self.compare(metric, a, b) for i, b in enumerate(names) for a in names[i + 1 :]]

    @property
    def order(self) -> list[str]:
        """The methods from the worst to the best as the claim has it, those that were run."""
        there = {final.method.name for final in self.finals}
        return [name for name in self.spec.claim.order if name in there]

    def claimed(self) -> list[Comparison]:
        """The comparisons that the claim is made of, as far as the methods were run."""
        order, there = self.order, [final.method.name for final in self.finals]
        pairs = [(name, order[0]) for name in order[1:]]
        pairs += [(order[k], order[j]) for k in range(2, len(order)) for j in range(1, k)]
        beats = self.spec.claim.beats
        pairs += [(name, other) for name in there for other in there if other in beats.get(name, [])]
        return [self.compare(self.spec.claim.metric, name, other) for name, other in pairs]

    @property
    def headline(self) -> str:
        """The one message of the figure."""
        order, metric = self.order, self.spec.claim.metric
        whose = "the paper's" if self.spec.claim.source == "paper" else "the expected"
        better = self.better(metric)
        if self.spec.claim.beats and self.claimed():
            found = [one.verdict for one in self.claimed()]
            said = compare.counted(found.count(better), len(found), whose.removesuffix(" expected"))
            best = {"lower": min, "higher": max}[better](self._means(metric))
            ends = f"{ {'lower': 'lowest', 'higher': 'highest'}[better] } {self.metric_name(metric)}"
            return f"{self.spec.title}: {said}. The {ends} has {best[1]}, {compare.number_text(best[0], 3)} in the mean"
        if len(order) < 2:
            means = self._means(metric)
            (low, least), (high, most) = min(means), max(means)
            ends = f"from {compare.number_text(low)} ({least}) to {compare.number_text(high)} ({most})"
            return f"{self.spec.title}: the {self.metric_name(metric)} after the last epoch runs {ends}"
        first = [self.compare(metric, name, order[0]) for name in order[1:]]
        steps = [self.compare(metric, b, a) for a, b in pairwise(order)]
        labels = [self.label(name) for name in order]
        said = compare.headline(labels, self.metric_name(metric), first, steps, better, whose=whose)
        return f"{self.spec.title}: {said}"

    def _means(self, metric: str) -> list[tuple[float, str]]:
        """Of the last values, with the label of each method; those that diverged are left out, unless all did."""
        found = [(compare.mean_and_std(final.last(metric))[0], final.method.label) for final in self.finals]
        return [one for one in found if math.isfinite(one[0])] or found

    @property
    def evidence(self) -> str:
        """The numbers behind the message."""
        order, metric = self.order, self.spec.claim.metric
        what = f"Final {self.metric_name(metric)}"
        if len(order) < 2:
            digits = 4 if is_share(metric) else 2  # shares are close to each other
            means = (compare.number_text(compare.mean_and_std(final.last(metric))[0], digits) for final in self.finals)
            found = ", ".join(f"{final.method.label} {mean}" for final, mean in zip(self.finals, means, strict=True))
            return f"{what}: {found}; means over {len(self.seeds)} seeds"
        first = [self.compare(metric, name, order[0]) for name in order[1:]]
        return compare.evidence([self.label(name) for name in order], what, first, len(self.seeds))

    def final(self, name: str) -> Final:
        """Of the method of this name."""
        return {final.method.name: final for final in self.finals}[name]

    def label(self, name: str) -> str:
        """A method's name as people read it."""
        return self.final(name).method.label


@dataclass(frozen=True)
class Session:
    """What this invocation did; all else in the results is the same however often it was interrupted."""

    command: str
    wall_seconds: float
    run_seconds: float
    """Of all runs, also those that were reused."""
    computed: int
    """How many runs were trained."""
    reused: int
    damaged: tuple[str, ...]


@dataclass(frozen=True)
class Results:
    """All findings of one command."""

    scale: str
    findings: tuple[Finding, ...]
    environment: dict[str, str]
    session: Session
    checks: tuple[Check, ...] = ()
    notes: tuple[str, ...] = ()
    """What was left out, and why."""


def to_json(results: Results) -> dict[str, Any]:
    """All of it as plain values."""
    return {
        "format": FORMAT,
        "scale": results.scale,
        "experiments": {finding.name: _finding(finding) for finding in results.findings},
        "checks": [_check(check) for check in results.checks],
        "environment": results.environment,
        "session": {
            **asdict(results.session),
            "notes": results.notes,
            "seconds_of_checks": {check.name: check.seconds for check in results.checks},
            "origins": {finding.name: asdict(finding.origin) for finding in results.findings},
        },
    }


def _check(check: Check) -> dict[str, Any]:
    return {name: value for name, value in check.plain().items() if name != "seconds"}


def _finding(finding: Finding) -> dict[str, Any]:
    comparisons = [c for metric in finding.spec.metrics for c in finding.comparisons(metric)]
    return {
        "title": finding.spec.title,
        "headline": finding.headline,
        "evidence": finding.evidence,
        "spec": finding.spec.model_dump(),
        "data": dict(finding.facts),
        "methods": {final.method.name: _final(final, finding) for final in finding.finals},
        "comparisons": [{**asdict(c), "verdict": c.verdict} for c in comparisons],
        "tuning": None if finding.tuning is None else _tuning(finding.tuning),
    }


def _final(final: Final, finding: Finding) -> dict[str, Any]:
    metrics = finding.spec.metrics
    return {
        "label": final.method.label,
        "tuned": dict(final.values),
        "tuning_metric": None if final.chosen is None else final.chosen.mean,
        "summary": {
            name: dict(zip(("mean", "std"), compare.mean_and_std(final.last(name)), strict=True)) for name in metrics
        },
        "runs": [
            {"seed": seed, "status": run.status, "curves": run.curves}
            for seed, run in zip(finding.seeds, final.runs, strict=True)
        ],
    }


def _tuning(tuning: Tuning) -> dict[str, Any]:
    return {
        "grid": tuning.grid,
        "trials_per_method": {name: len(trials) for name, trials in tuning.trials.items()},
        "extensions": [asdict(extension) for extension in tuning.extensions],
        "still_on_edge": [
            {"axis": axis, "value": tuning.edge(axis, end), "methods": names}
            for (axis, end), names in tuning.on_edge.items()
        ],
        "trials": [
            {"method": t.method, "values": dict(t.values), "measured": t.measured, "mean": t.mean, "pruned": t.pruned}
            for trials in tuning.trials.values()
            for t in trials.values()
        ],
    }
