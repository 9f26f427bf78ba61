"""Common beginnings: runs that are identical up to the first decay of a rate are trained only once up to it.

The first of these runs saves its state at the end of that epoch, before its rates decay; the others start from it.
Their results are those of training from scratch, to the bit.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from semaopt.experiments.files import digest
from semaopt.experiments.training import algorithms, objectives
from semaopt.experiments.training.algorithms import DECAY
from semaopt.experiments.training.run import Run, Unit


def shared(units: Sequence[Unit]) -> tuple[list[Unit], list[Unit]]:
    """Return the units to train first, and those that start from a state that one of the first has saved.

    A run without decays may share the beginning of runs with equal values that decay.
    """
    branches = sorted({epoch for unit in units if (epoch := _first_decay(unit.runs[0])) < unit.epochs})
    groups: dict[tuple[str, int], list[Unit]] = defaultdict(list)
    for unit in units:
        own = _first_decay(unit.runs[0])
        for epoch in branches if own == 0 else [own]:
            if 0 < epoch < unit.epochs and _can_share(unit.runs[0]):
                groups[_key(unit), epoch].append(unit)
    found: dict[str, Unit] = {}
    for (key, epoch), members in groups.items():
        decaying = [unit for unit in members if _first_decay(unit.runs[0])]
        free = [unit for unit in members if unit.key not in found]
        if decaying and len(free) > 1:
            for unit in free:
                found[unit.key] = replace(unit, beginning=digest([key, epoch]), branch=epoch, leads=unit is free[0])
    all_units = [found.get(unit.key, unit) for unit in units]
    later = [unit for unit in all_units if unit.beginning and not unit.leads]
    return [unit for unit in all_units if unit not in later], later


def beginning(unit: Unit) -> str:
    """Return the key of the checkpoint that a unit may share, or an empty string if its rates do not decay."""
    epoch = _first_decay(unit.runs[0])
    return digest([_key(unit), epoch]) if epoch else ""


def _first_decay(run: Run) -> int:
    """Return the epoch after which a rate first decays; 0 if none does."""
    every = run.values.get("every")
    return every if run.algorithm.decays and isinstance(every, int) else 0


def _can_share(run: Run) -> bool:
    """Whether the state of the algorithm before its first decay is independent of the schedule.

    It is independent for the algorithms of the package. For torch's Adam it is not: schedules of gamma store the past
    betas in its state.
    """
    sampled = issubclass(objectives.find(run.loss), objectives.Sampled)
    return run.algorithm.name in algorithms.ALGORITHMS and not sampled


def _key(unit: Unit) -> str:
    """Return the digest of everything that the state of a unit depends on before the first decay."""
    paths = []
    for run in unit.runs:
        values = {name: value for name, value in run.values.items() if name not in DECAY}
        algorithm = run.algorithm.model_copy(update={"decays": [], "values": values})
        paths.append(replace(run, algorithm=algorithm, vectorized_with="").path)
    return digest(["beginning", *paths])
