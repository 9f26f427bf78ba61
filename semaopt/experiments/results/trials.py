"""Tuning results: the trials of each method, the selected one, and how the search space grew."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from semaopt.experiments.results.statistics import geometric_mean

Point = Mapping[str, Any]
"""Values of the tuned hyper-parameters by name."""


@dataclass(frozen=True)
class Trial:
    """One point of one method with the tuning metric of each tuning seed."""

    method: str
    values: Point
    measured: tuple[float, ...]
    sign: int = 1
    """-1 if larger values are better."""
    pruned: int | None = None
    """The epoch after which the trial was pruned, if it was."""
    passed: Mapping[int, tuple[float, ...]] = field(default_factory=dict)
    """The values measured at the rungs that the trial passed, by epoch."""
    round: int = 0
    """Number of times the grid had been extended before this trial."""
    geometric: bool = False
    """Whether seeds are averaged geometrically, as losses are."""
    reranked: bool = False
    """Whether the trial was measured again with the additional seeds. If any was, only such trials are selected."""

    @property
    def mean(self) -> float:
        """The mean of the metric over the seeds."""
        return geometric_mean(self.measured) if self.geometric else sum(self.measured) / len(self.measured)

    @property
    def score(self) -> float:
        """The mean, signed so that smaller is better; infinite if a seed diverged or the trial was pruned."""
        score = self.sign * self.mean
        return score if math.isfinite(score) and self.pruned is None else math.inf

    @property
    def order(self) -> tuple[Any, ...]:
        """Sort key, best first: finished trials, pruned ones (the latest first), diverged ones.

        Reranked trials precede the others; ties go to the smaller values.
        """
        values = ((isinstance(v, (str, list)), v) for _, v in sorted(self.values.items(), reverse=True))
        if not math.isfinite(self.mean):
            return 2, 0, 0, 0.0, *values
        pruned = int(self.pruned is not None)
        return pruned, -(self.pruned or 0), int(not self.reranked), self.sign * self.mean, *values

    def at(self, rung: int | None) -> tuple[float, ...]:
        """Return the values measured at a rung, or at the end if ``rung`` is None."""
        return self.measured if rung is None else self.passed.get(rung, self.measured)


@dataclass(frozen=True)
class Extension:
    """A value added to an axis for all methods, and the methods whose best value was at that edge."""

    axis: str
    value: float
    because: tuple[str, ...]


@dataclass
class Tuning:
    """All trials of a study and how its grid grew."""

    grid: dict[str, list[Any]]
    trials: dict[str, dict[str, Trial]]
    extensions: list[Extension] = field(default_factory=list)
    spaces: dict[str, dict[str, list[Any]]] = field(default_factory=dict)
    """For each method and axis, the values of the grid or the two ends of the range."""
    on_edge: dict[tuple[str, int], tuple[str, ...]] = field(default_factory=dict)
    """Axes whose best value is at an edge after the last round: (axis, end) to the names of the methods."""

    def edge(self, axis: str, end: int) -> float:
        """Return the smallest (``end=0``) or largest (``end=-1``) value of an axis for the methods in ``on_edge``."""
        names = self.on_edge.get((axis, end), tuple(self.spaces))
        ends = [sorted(self.spaces[name][axis])[end] for name in names if axis in self.spaces.get(name, {})]
        value: float = ends[0] if ends else sorted(self.grid[axis])[end]
        return value

    def best(self, method: str) -> Trial:
        """Return the selected trial of a method."""
        return min(self.trials[method].values(), key=lambda trial: trial.order)

    def best_before(self, method: str) -> Trial:
        """Return the trial that would have been selected from the grid before it grew."""
        return min((trial for trial in self.trials[method].values() if trial.round == 0), key=lambda trial: trial.order)
