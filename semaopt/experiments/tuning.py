"""Equal tuning: as many trials for each method, judged on the validation loss alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from semaopt.experiments.compare import mean_and_std
from semaopt.experiments.digits import Point

_HALF, _SIXTH = 10 ** (1 / 2), 10 ** (1 / 6)  # of a decade


@dataclass(frozen=True)
class Method:
    """What a method decays, and its three variants of each point (lr, G0) of the grid.

    The paper tunes the first beta of the two decaying methods in {.99, .9, .5} and fixes Adam's. So that Adam is
    tried as often, it gets three step sizes where the others get three betas.
    """

    name: str
    label: str
    decays: tuple[str, ...]
    betas: tuple[float, ...] = (0.99, 0.9, 0.5)
    finer: tuple[float, ...] = (1.0,)
    """Multiples of each lr of the grid."""


METHODS = (
    Method("adam", "folklore Adam", (), betas=(0.9,), finer=(1 / _SIXTH, 1.0, _SIXTH)),
    Method("beta", "increasing β", ("gamma",)),
    Method("both", "increasing β + decreasing lr", ("lr", "gamma")),
)


@dataclass(frozen=True)
class Grid:
    """The values of lr and G0 that all methods share; it grows when the best value lies on its edge.

    G0 is the paper's. Its lr, 1e-5 to 1e-2, suit larger networks; this starts around the upper end.
    """

    lr: tuple[float, ...] = (1e-2 / _HALF, 1e-2, 1e-2 * _HALF)
    g0: tuple[float, ...] = (1e-7, 1e-5, 1e-3)

    def points(self, method: Method) -> list[Point]:
        """All trials of a method."""
        lrs = [_round(lr * finer) for lr in self.lr for finer in method.finer]
        return [Point(lr, g0, beta) for lr in lrs for g0 in self.g0 for beta in method.betas]

    def extended(self, axis: str, end: int) -> Grid:
        """The grid with one more value of ``axis``, below (``end=0``) or above (``end=-1``)."""
        values: tuple[float, ...] = getattr(self, axis)
        ratio = values[1] / values[0]
        grown = (_round(values[0] / ratio), *values) if end == 0 else (*values, _round(values[-1] * ratio))
        return replace(self, **{axis: grown})


def _round(value: float) -> float:
    return float(f"{value:.6g}")


GRID = Grid()


@dataclass(frozen=True)
class Trial:
    """One point of one method, and its validation loss after the last epoch for each tuning seed."""

    method: str
    point: Point
    losses: tuple[float, ...]

    @property
    def loss(self) -> float:
        """The mean; infinite if any seed diverged, so that it is never chosen over one that did not."""
        mean = sum(self.losses) / len(self.losses)
        return mean if math.isfinite(mean) else math.inf


@dataclass(frozen=True)
class Extension:
    """A value that the grid was extended by, for all methods alike, and the methods whose best lay on that edge."""

    axis: str
    value: float
    because: tuple[str, ...]


@dataclass
class Tuning:
    """The whole table, what was chosen, and how the grid grew."""

    grid: Grid
    trials: dict[str, dict[Point, Trial]] = field(default_factory=dict)
    extensions: list[Extension] = field(default_factory=list)
    on_edge: dict[tuple[str, int], tuple[str, ...]] = field(default_factory=dict)
    """Where the best value still lies on an edge: (axis, end) to the methods."""

    def best(self, method: str) -> Trial:
        """The trial with the smallest validation loss (the smaller lr, then G0, where they are equal)."""
        return min(self.trials[method].values(), key=lambda trial: (trial.loss, trial.point))


def binding(trials: Mapping[Point, Trial], best: Trial, axis: str, end: int) -> bool:
    """Whether ``best`` lies on this end of ``axis`` and the loss falls towards it by 1%, and by more than its noise.

    The noise is two standard errors of the paired difference over the tuning seeds. Below some G0 nothing changes any
    more, and which of two equal values is best is a matter of luck.
    """
    values = sorted({getattr(point, axis) for point in trials})
    if len(values) < 2 or getattr(best.point, axis) != values[end]:
        return False
    inner = trials[replace(best.point, **{axis: values[end + (1 if end == 0 else -1)]})]
    fall, spread = mean_and_std([a - b for a, b in zip(inner.losses, best.losses, strict=True)])
    if not math.isfinite(fall):
        return True
    noise = 0.0 if math.isnan(spread) else 2 * spread / math.sqrt(len(best.losses))
    return fall > max(noise, 0.01 * best.loss)


def tune(
    methods: Sequence[Method],
    grid: Grid,
    evaluate: Callable[[list[tuple[Method, Point]]], list[tuple[float, ...]]],
    rounds: int = 2,
) -> Tuning:
    """Try every point of every method; while a best value lies on an edge, extend the grid for all of them.

    Args:
        methods: each is tried at as many points as every other.
        grid: the first one.
        evaluate: validation losses, one per tuning seed, for each point asked for.
        rounds: how often the grid may grow.
    """
    tuning = Tuning(grid, {method.name: {} for method in methods})
    for grown in range(rounds + 1):
        asked = [(m, p) for m in methods for p in tuning.grid.points(m) if p not in tuning.trials[m.name]]
        for (method, point), losses in zip(asked, evaluate(asked), strict=True):
            tuning.trials[method.name][point] = Trial(method.name, point, losses)
        tuning.on_edge = _edges(tuning)
        if not tuning.on_edge or grown == rounds:
            break
        for (axis, end), because in tuning.on_edge.items():
            tuning.grid = tuning.grid.extended(axis, end)
            tuning.extensions.append(Extension(axis, getattr(tuning.grid, axis)[end], because))
    return tuning


def _edges(tuning: Tuning) -> dict[tuple[str, int], tuple[str, ...]]:
    found = {
        (axis, end): tuple(
            name for name, trials in tuning.trials.items() if binding(trials, tuning.best(name), axis, end)
        )
        for axis in ("lr", "g0")
        for end in (0, -1)
    }
    return {edge: names for edge, names in found.items() if names}
