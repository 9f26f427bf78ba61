"""Results as plain values for ``results.json``."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from semaopt.checks.result import CheckResult as Check
from semaopt.experiments.results import claims
from semaopt.experiments.results.model import Final, Finding, Results
from semaopt.experiments.results.statistics import Comparison, mean_and_std
from semaopt.experiments.results.trials import Tuning

FORMAT = 5


def to_json(results: Results) -> dict[str, Any]:
    """Convert results to plain values; only ``session`` depends on interruptions and reuse."""
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
            "origins": {finding.name: _origins(finding) for finding in results.findings},
        },
    }


def _check(check: Check) -> dict[str, Any]:
    return {name: value for name, value in check.plain().items() if name != "seconds"}


def _origins(finding: Finding) -> dict[str, Any]:
    """Convert the origin of all runs, and that of each study by its number."""
    studies = {study.number + 1: asdict(study.origin) for study in finding.studies}
    return {**asdict(finding.origin), "studies": studies}


def _finding(finding: Finding) -> dict[str, Any]:
    verdict = claims.verdict(finding)
    return {
        "title": finding.spec.title,
        "verdict": {
            "outcome": verdict.outcome,
            "rows": [_comparison(row.comparison) for row in verdict.rows],
            "controls": [_comparison(row.comparison) for row in verdict.controls],
        },
        "spec": finding.spec.model_dump(),
        "studies": [study.number + 1 for study in finding.studies],
        "data": dict(finding.facts),
        "methods": {final.method.name: _final(final, finding) for final in finding.finals},
        "comparisons": [_comparison(one) for metric in finding.spec.metrics for one in finding.comparisons(metric)],
        "tuning": [None if study.tuning is None else _tuning(study.tuning) for study in finding.studies],
    }


def _comparison(one: Comparison) -> dict[str, Any]:
    return {
        "method": one.method,
        "against": one.against,
        "metric": one.metric,
        "kind": "ratio" if one.is_ratio else "difference",
        "better": one.better,
        "interval": None if one.interval is None else asdict(one.interval),
        "confidence": one.confidence,
        "margin": one.margin,
        "probability": one.probability,
        "outcome": one.outcome,
    }


def _final(final: Final, finding: Finding) -> dict[str, Any]:
    name = final.method.name
    per_study = [next(one for one in study.finals if one.method.name == name) for study in finding.studies]
    ends = {metric: mean_and_std(finding.ends(name, metric)) for metric in finding.spec.metrics}
    return {
        "label": final.method.label,
        "tuned": [one.values for one in per_study],
        "tuning_metric": [None if one.chosen is None else one.chosen.mean for one in per_study],
        "summary": {metric: {"mean": mean, "std": std} for metric, (mean, std) in ends.items()},
        "runs": [
            {
                "seed": seed,
                "status": run.status,
                "curves": run.curves,
            }
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
