"""From a spec to runs, and from runs to units of work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from semaopt.experiments.files import digest
from semaopt.experiments.spec.schema import Method, Spec
from semaopt.experiments.training import algorithms, metrics, objectives
from semaopt.experiments.training.run import Algorithm, Machine, Purpose, Run, Unit


def make(
    spec: Spec,
    method: Method,
    values: Mapping[str, Any],
    *,
    seed: int,
    purpose: Purpose,
    machine: Machine,
    until: int | None = None,
) -> Run:
    """Return the run of a method with these values of its tuned hyper-parameters."""
    wanted = [*spec.metrics, *([spec.tuning.metric] if spec.tuning is not None else [])]
    return Run(
        experiment=spec.name,
        method=method.name,
        purpose=purpose,
        seed=seed,
        data=spec.data,
        model=spec.model,
        loss=spec.loss,
        algorithm=Algorithm(name=method.algorithm, decays=method.decays, values={**method.options, **values}),
        batch=spec.batch,
        epochs=spec.epochs,
        metrics=tuple(metrics.for_purpose(wanted, purpose)),
        until=until or spec.epochs,
        measured=spec.final_epochs,
        objective=dict(method.objective),
        positives=method.positives,
        machine=machine,
    )


def units(runs: Sequence[Run], vectorize: int = 1) -> list[Unit]:
    """Split runs into units: one run each, or up to ``vectorize`` consecutive runs of one method."""
    if vectorize == 1:
        return [Unit((run,)) for run in runs]
    parts: list[list[Run]] = []
    for run in runs:
        if parts and len(parts[-1]) < vectorize and _compatible(parts[-1][0], run):
            parts[-1].append(run)
        else:
            parts.append([run])
    found = []
    for part in parts:
        mark = digest([run.path for run in part]) if len(part) > 1 else ""
        found.append(Unit(tuple(replace(run, vectorized_with=mark) for run in part)))
    return found


def _compatible(a: Run, b: Run) -> bool:
    """Return whether two runs can share a unit: only seeds and rates of parameter groups may differ."""
    same = (
        *("method", "purpose", "data", "model", "loss", "objective", "positives", "batch", "epochs", "metrics"),
        *("measured", "until", "machine"),
    )
    info = algorithms.find(a.algorithm.name)
    return (
        info.vectorizes
        and objectives.find(a.loss).vectorizes_with(a.objective)
        and all(getattr(a, name) == getattr(b, name) for name in same)
        and all(a.values.get(name) == b.values.get(name) for name in info.shared)
    )
