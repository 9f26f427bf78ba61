"""What was tried for each method, what came of it, and how the grid grew."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Point = Mapping[str, Any]


@dataclass(frozen=True)
class Trial:
    """One point of one method, and the metric that is tuned for, from each tuning seed."""

    method: str
    values: Point
    measured: tuple[float, ...]
    sign: int = 1
    """-1 where larger is better."""
    pruned: int | None = None
    """The epoch after which it was given up, if it was."""
    passed: Mapping[int, tuple[float, ...]] = field(default_factory=dict)
    """What was measured at the rungs that it went on from."""
    round: int | None = 0
    """How often the grid had grown before; None if that is not known."""

    @property
    def mean(self) -> float:
        """Of the metric over the seeds."""
        return sum(self.measured) / len(self.measured)

    @property
    def score(self) -> float:
        """Smaller is better; infinite if a seed diverged or it was given up, so that it is never chosen over others."""
        score = self.sign * self.mean
        return score if math.isfinite(score) and self.pruned is None else math.inf

    @property
    def order(self) -> tuple[Any, ...]:
        """Best first: those that finished, those that were given up, the latest first, those that diverged.

        Where they are equal the smaller values come first.
        """
        values = ((isinstance(v, (str, list)), v) for _, v in sorted(self.values.items(), reverse=True))
        if not math.isfinite(self.mean):
            return 2, 0, 0.0, *values
        return int(self.pruned is not None), -(self.pruned or 0), self.sign * self.mean, *values

    def at(self, rung: int | None) -> tuple[float, ...]:
        """What was measured at a rung, or at the end."""
        return self.measured if rung is None else self.passed.get(rung, self.measured)


@dataclass(frozen=True)
class Extension:
    """A value that an axis was extended to, for all methods alike, and the methods whose best lay on that edge."""

    axis: str
    value: float
    because: tuple[str, ...]


@dataclass
class Tuning:
    """The whole table, what was chosen, and how the grid grew."""

    grid: dict[str, list[Any]]
    trials: dict[str, dict[str, Trial]]
    extensions: list[Extension] = field(default_factory=list)
    on_edge: dict[tuple[str, int], tuple[str, ...]] = field(default_factory=dict)
    """Where the best value lies on an edge in the end, of all shared axes: (axis, end) to the methods."""

    def edge(self, axis: str, end: int) -> float:
        """The lowest or the highest value of an axis of numbers, in whatever order the grid has them."""
        value: float = sorted(self.grid[axis])[end]
        return value

    def best(self, method: str) -> Trial:
        """The trial with the best metric."""
        return min(self.trials[method].values(), key=lambda trial: trial.order)

    def best_before(self, method: str) -> Trial | None:
        """The same as if the grid had not grown; None if it is not known which trials came first."""
        trials = self.trials[method].values()
        if any(trial.round is None for trial in trials):
            return None
        return min((trial for trial in trials if trial.round == 0), key=lambda trial: trial.order)
