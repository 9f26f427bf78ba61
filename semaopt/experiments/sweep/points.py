"""Points of a search space: a whole grid, scrambled Sobol points, or proposals of tree estimators (TPE).

Each class proposes points for one method: ``ask`` returns points with a token, ``tell`` reports the result of a token.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import optuna
from optuna.trial import TrialState
from torch.quasirandom import SobolEngine

from semaopt.experiments.results.trials import Point
from semaopt.experiments.training.algorithms import rounded

optuna.logging.set_verbosity(optuna.logging.WARNING)


@dataclass(frozen=True)
class Space:
    """The search space of one method.

    Attributes:
        axes: the values of each axis; of a range, its two ends (or more values between them).
        ranges: names of the axes that are searched continuously between their ends, on a logarithmic scale.
    """

    axes: Mapping[str, Sequence[Any]]
    ranges: frozenset[str] = field(default_factory=frozenset)

    def value(self, axis: str, coordinate: float) -> Any:
        """Map a coordinate in [0, 1) to a value of an axis.

        >>> space = Space({"lr": [1e-4, 1e-2], "beta": [0.0, 0.5, 0.9]}, frozenset({"lr"}))
        >>> space.value("lr", 0.5), space.value("beta", 0.5)
        (0.001, 0.5)
        """
        values = self.axes[axis]
        if axis in self.ranges:
            low, high = values[0], values[-1]
            return rounded(low * (high / low) ** coordinate)
        return values[int(coordinate * len(values))]


class Points(Protocol):
    """Proposes points of one method."""

    def ask(self, space: Space, count: int) -> list[tuple[Any, Point]]:
        """Return up to ``count`` new points (of a grid, all), each with a token."""

    def report(self, token: Any, mean: float, epoch: int) -> None:
        """Report the mean at a rung."""

    def tell(self, token: Any, mean: float, pruned: bool) -> None:
        """Report the final mean, NaN if the trial diverged, and whether it was pruned."""


class Grid:
    """All combinations of the values."""

    def ask(self, space: Space, count: int) -> list[tuple[Any, Point]]:
        """See :class:`Points`."""
        combinations = itertools.product(*space.axes.values())
        return [(None, dict(zip(space.axes, values, strict=True))) for values in combinations]

    def report(self, token: Any, mean: float, epoch: int) -> None:
        """See :class:`Points`."""

    def tell(self, token: Any, mean: float, pruned: bool) -> None:
        """See :class:`Points`."""


class Sobol:
    """Scrambled Sobol points.

    Methods that share an axis share its coordinates: point k of every method has the same position on that axis.

    Args:
        axes: the axes of all methods; the order determines the dimensions.
        seed: seed of the scrambling.

    >>> space = Space({"lr": [1e-4, 1.0]}, frozenset({"lr"}))
    >>> [point["lr"] for _, point in Sobol(["lr"], 0).ask(space, 4)] == [
    ...     point["lr"] for _, point in Sobol(["lr"], 0).ask(space, 4)
    ... ]
    True
    """

    def __init__(self, axes: Sequence[str], seed: int) -> None:
        self._columns = {axis: k for k, axis in enumerate(axes)}
        self._engine = SobolEngine(max(len(axes), 1), scramble=True, seed=seed)  # type: ignore[no-untyped-call]

    def ask(self, space: Space, count: int) -> list[tuple[Any, Point]]:
        """See :class:`Points`."""
        rows = self._engine.draw(count).double().clamp(0, math.nextafter(1, 0)).tolist()
        return [(None, {axis: space.value(axis, row[self._columns[axis]]) for axis in space.axes}) for row in rows]

    def report(self, token: Any, mean: float, epoch: int) -> None:
        """See :class:`Points`."""

    def tell(self, token: Any, mean: float, pruned: bool) -> None:
        """See :class:`Points`."""


class Tree:
    """Optuna's tree-structured Parzen estimators.

    The study lives in memory. A resumed sweep reports the same results in the same order and gets the same proposals.
    """

    def __init__(self, direction: Literal["minimize", "maximize"], seed: int) -> None:
        self._study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed), direction=direction)

    def ask(self, space: Space, count: int) -> list[tuple[Any, Point]]:
        """See :class:`Points`."""
        asked = [self._study.ask() for _ in range(count)]
        return [(trial, {axis: self._suggest(trial, axis, space) for axis in space.axes}) for trial in asked]

    def _suggest(self, trial: optuna.Trial, axis: str, space: Space) -> Any:
        values = list(space.axes[axis])
        if axis in space.ranges:
            return rounded(trial.suggest_float(axis, values[0], values[-1], log=True))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # Optuna cannot store lists; here it stores nothing
            return trial.suggest_categorical(axis, values)

    def report(self, token: Any, mean: float, epoch: int) -> None:
        """See :class:`Points`; the estimators also learn from trials that are pruned."""
        token.report(mean, epoch)

    def tell(self, token: Any, mean: float, pruned: bool) -> None:
        """See :class:`Points`."""
        if pruned:
            self._study.tell(token, state=TrialState.PRUNED)
        elif math.isfinite(mean):
            self._study.tell(token, mean)
        else:
            self._study.tell(token, state=TrialState.FAIL)
