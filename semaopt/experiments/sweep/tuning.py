"""Equal tuning: every method gets the same number of trials, selected on validation or training data only."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from semaopt.experiments.files import canonical, digest
from semaopt.experiments.results.statistics import mean_and_std
from semaopt.experiments.results.trials import Extension, Point, Trial, Tuning
from semaopt.experiments.spec.schema import Method, Spec
from semaopt.experiments.spec.search import axes_of, ranges_of
from semaopt.experiments.sweep.points import Grid, Points, Sobol, Space, Tree
from semaopt.experiments.training import objectives
from semaopt.experiments.training.algorithms import is_number, rounded

Asked = list[tuple[Method, Point]]
Evaluate = Callable[[Asked, int], list[tuple[float, ...]]]
"""Returns the tuning metric of each point after that many epochs, one value per tuning seed."""
Rerank = Callable[[Asked], list[tuple[float, ...]]]
"""Returns the tuning metric of each point after the last epoch, one value per additional seed."""
_AT_ONCE = 4  # proposals of the tree estimators per method before they see results, for any number of workers
_REDUCTION = 4  # successive halving keeps a quarter; so does the selection of trials to rank again
_EDGE = 0.1  # share of a logarithmic range that counts as its edge


class Search:
    """The trials of one method.

    Args:
        spec: the experiment.
        method: the method.
        points: proposes the points.
    """

    def __init__(self, spec: Spec, method: Method, points: Points) -> None:
        assert spec.tuning is not None  # a spec without [tuning] is not tuned
        self.spec, self.method, self.options, self.points = spec, method, spec.tuning, points
        self.sign = 1 if self.options.direction == "minimize" else -1
        self.geometric = objectives.find(spec.loss).compares_by_ratio(self.options.metric)
        self.trials: dict[str, Trial] = {}
        self.round = 0
        self._reached: dict[int, list[float]] = {}
        self._passed: dict[str, dict[int, tuple[float, ...]]] = {}

    def space(self, grid: Mapping[str, Sequence[Any]]) -> Space:
        """Return the space of the method, given the values of the shared axes."""
        tuned = self.spec.model_copy(update={"tuning": self.options.model_copy(update={"grid": dict(grid)})})
        axes = axes_of(tuned, self.method)
        ranges = ranges_of(tuned, self.method)
        continuous = set(self.options.extend) & axes.keys() if self.options.sampler == "tpe" else set()
        return Space({**axes, **ranges}, frozenset(ranges.keys() | continuous))

    def promoted(self, rung: int, reached: Sequence[tuple[Point, tuple[float, ...]]]) -> list[bool]:
        """Return which trials continue: those in the best quarter of all trials that ever reached the rung.

        Optuna's own successive halving judges a trial against earlier ones only, so the first always continue.
        """
        means = [self._trial(point, measured).mean for point, measured in reached]
        scores = [self.sign * mean if math.isfinite(mean) else math.inf for mean in means]
        known = self._reached.setdefault(rung, [])
        known += scores
        limit = sorted(known)[math.ceil(len(known) / _REDUCTION) - 1]
        found = [score <= limit and score < math.inf for score in scores]
        for (point, measured), continues in zip(reached, found, strict=True):
            if continues:
                self._passed.setdefault(canonical(point), {})[rung] = measured
        return found

    def tell(self, token: Any, point: Point, measured: tuple[float, ...], pruned: int | None) -> None:
        """Record the result of a point."""
        found = self._trial(point, measured, pruned)
        self.trials.setdefault(canonical(point), found)  # a grown grid contains known points
        self.points.tell(token, found.mean, pruned is not None)

    def _trial(self, point: Point, measured: tuple[float, ...], pruned: int | None = None) -> Trial:
        passed = self._passed.get(canonical(point), {})
        return Trial(self.method.name, point, measured, self.sign, pruned, passed, self.round, self.geometric)


Pending = tuple[Search, Any, Point]


def searches(spec: Spec, methods: Sequence[Method], study: int = 0) -> list[Search]:
    """Return the search of each method; study k has its own Sobol scrambling, different for each data set."""
    assert spec.tuning is not None  # a spec without [tuning] is not tuned
    options = spec.tuning
    axes = sorted({axis for method in spec.methods for axis in {**axes_of(spec, method), **ranges_of(spec, method)}})
    data = spec.data.model_dump(exclude={"seed"})
    scramble = int(digest([data, study, options.seed])[:8], 16)

    def points() -> Points:
        if options.sampler == "grid":
            return Grid()
        return Tree(options.direction, options.seed + study) if options.sampler == "tpe" else Sobol(axes, scramble)

    return [Search(spec, method, points()) for method in methods]


def last_decay(spec: Spec) -> int:
    """Return the last epoch after which a rate of any method of the spec can decay; 0 if none does.

    ``every`` is the number of epochs between two decays. A ``schedule`` or ``gamma_schedule`` that is not constant
    changes rates until the last epoch.
    """
    found = 0
    for method in spec.methods:
        values = {**{name: [value] for name, value in method.options.items()}, **axes_of(spec, method)}
        shapes = [*values.get("schedule", []), *values.get("gamma_schedule", [])]
        if any(shape != "constant" for shape in shapes):
            return spec.epochs
        for every in values.get("every", []):
            if is_number(every) and every >= 1:
                found = max(found, int((spec.epochs - 1) // every * every))
    return found


def rungs(spec: Spec) -> list[int]:
    """Return the epochs after which successive halving prunes.

    The first is ``first_rung`` of the spec (by default a sixteenth of the epochs), and each later one comes four
    times as late. If rates decay, the first is late enough that all measured epochs come after the last decay of any
    method.
    """
    options = spec.tuning
    if options is None or options.pruner == "none":
        return []
    first = max(1, spec.epochs // _REDUCTION**2) if options.first_rung is None else options.first_rung
    decay = last_decay(spec)
    found = [max(first, decay + spec.final_epochs) if decay else first]
    while found[-1] * _REDUCTION < spec.epochs:
        found.append(found[-1] * _REDUCTION)
    return [epoch for epoch in found if epoch < spec.epochs]


def tune(
    spec: Spec,
    evaluate: Evaluate,
    methods: Sequence[Method] | None = None,
    *,
    study: int = 0,
    rerank: Rerank | None = None,
) -> Tuning:
    """Tune every method with the same number of trials.

    While a best value lies on the edge of an axis that may grow, that axis is extended for all methods.

    Args:
        spec: the experiment.
        evaluate: trains points.
        methods: the methods to tune; by default all.
        study: number of the study.
        rerank: trains points with additional seeds. If given, the best quarter of the trials of each method is ranked
            again with them, and the winner is selected from that quarter.
    """
    options = spec.tuning
    assert options is not None  # a spec without [tuning] is not tuned
    found = searches(spec, methods or spec.methods, study)
    tuning = Tuning(dict(options.grid), {search.method.name: search.trials for search in found})
    pruning = rungs(spec)
    budget = options.budget or 0
    for grown in range(options.rounds + 1):
        spaces = [search.space(tuning.grid) for search in found]
        _search(found, spaces, budget, evaluate, pruning)
        bound = _edges(found, spaces, options.extend)
        if not bound or grown == options.rounds:
            break
        for (axis, end), because in bound.items():
            tuning.grid[axis] = extended(tuning.grid[axis], end)
            tuning.extensions.append(Extension(axis, tuning.grid[axis][end], because))
        budget = math.ceil((options.budget or 0) / len(options.grid[options.extend[0]]))
        for search in found:
            search.round = grown + 1
    if rerank is not None:
        _rank_again(found, rerank)
    tuning.spaces = {
        s.method.name: {a: list(v) for a, v in space.axes.items()} for s, space in zip(found, spaces, strict=True)
    }
    numbers = [axis for axis in dict.fromkeys(axis for space in spaces for axis in space.axes) if _shared(axis, spec)]
    tuning.on_edge = _edges(found, spaces, numbers)
    return tuning


def _shared(axis: str, spec: Spec) -> bool:
    """Return whether edges of an axis are reported: shared axes of numbers and all ranges."""
    assert spec.tuning is not None  # a spec without [tuning] is not tuned
    if any(axis in ranges_of(spec, method) for method in spec.methods):
        return True
    return axis in spec.tuning.grid and all(map(is_number, spec.tuning.grid[axis]))


def _search(
    found: Sequence[Search], spaces: Sequence[Space], budget: int, evaluate: Evaluate, pruning: Sequence[int]
) -> None:
    """Run one round: a grid or Sobol points at once, tree estimators a few points at a time, all methods together."""
    left = budget
    at_once = _AT_ONCE if found[0].options.sampler == "tpe" else budget
    while True:
        pending = [
            (search, token, point)
            for search, space in zip(found, spaces, strict=True)
            for token, point in search.points.ask(space, min(left, at_once))
        ]
        _settle(pending, found[0].spec.epochs, evaluate, pruning)
        left -= at_once
        if left <= 0:
            return


def _settle(pending: list[Pending], epochs: int, evaluate: Evaluate, pruning: Sequence[int]) -> None:
    """Evaluate the new points, pruning at each rung, and record the results."""
    fresh: dict[tuple[str, str], Pending] = {}
    known = []
    for search, token, point in pending:
        key = search.method.name, canonical(point)
        if key[1] in search.trials or key in fresh:
            known.append((search, token, point))
        else:
            fresh[key] = search, token, point
    running = list(fresh.values())
    for rung in pruning:
        running = _promote(running, rung, evaluate) if running else []
    if running:
        for (search, token, point), measured in zip(running, evaluate(_points(running), epochs), strict=True):
            search.tell(token, point, measured, None)
    for search, token, point in known:
        trial = search.trials[canonical(point)]
        search.points.tell(token, trial.mean, trial.pruned is not None)


def _promote(running: list[Pending], rung: int, evaluate: Evaluate) -> list[Pending]:
    """Train to a rung; record the pruned trials and return the others."""
    left = []
    reached = list(zip(running, evaluate(_points(running), rung), strict=True))
    for search in dict.fromkeys(one[0] for one in running):
        own = [(token, point, measured) for (by, token, point), measured in reached if by is search]
        promoted = search.promoted(rung, [(point, measured) for _, point, measured in own])
        for (token, point, measured), continues in zip(own, promoted, strict=True):
            search.points.report(token, sum(measured) / len(measured), rung)
            if continues:
                left.append((search, token, point))
            else:
                search.tell(token, point, measured, rung)
    return left


def _points(running: list[Pending]) -> Asked:
    return [(search.method, point) for search, _, point in running]


def _rank_again(found: Sequence[Search], rerank: Rerank) -> None:
    """Measure the best quarter of each method with additional seeds."""
    best: list[tuple[Search, Trial]] = []
    for search in found:
        finished = [trial for trial in search.trials.values() if math.isfinite(trial.score)]
        finished.sort(key=lambda trial: trial.order)
        best += [(search, trial) for trial in finished[: math.ceil(len(search.trials) / _REDUCTION)]]
    more = rerank([(search.method, trial.values) for search, trial in best]) if best else []
    for (search, trial), measured in zip(best, more, strict=True):
        again = replace(trial, measured=(*trial.measured, *measured), reranked=True)
        search.trials[canonical(trial.values)] = again


def extended(values: list[float], end: int) -> list[float]:
    """Return an axis with one more value below (``end=0``) or above (``end=-1``), continuing its ratio.

    >>> extended([0.01, 0.1], -1)
    [0.01, 0.1, 1.0]
    """
    if end == 0:
        return [rounded(values[0] * values[0] / values[1]), *values]
    return [*values, rounded(values[-1] * values[-1] / values[-2])]


def _edges(
    found: Sequence[Search], spaces: Sequence[Space], axes: Sequence[str]
) -> dict[tuple[str, int], tuple[str, ...]]:
    edges = {
        (axis, end): tuple(
            search.method.name
            for search, space in zip(found, spaces, strict=True)
            if axis in space.axes and binding(search.trials, space.axes[axis], axis, end, by_range=axis in space.ranges)
        )
        for axis in axes
        for end in (0, -1)
    }
    return {edge: names for edge, names in edges.items() if names}


def binding(
    trials: Mapping[str, Trial], values: Sequence[float], axis: str, end: int, *, by_range: bool = False
) -> bool:
    """Return whether the best trial lies on this end of ``axis`` and clearly beats the values inside.

    It must be better than inside by 1% of the loss (of 1 - AUC for an AUC) and by two standard errors of the paired
    difference over the tuning seeds: below some G0 nothing changes, and then chance decides between equal values.
    "Inside" is the neighbour that differs in nothing else or, if that was not tried, the best of all others.
    """
    best = min(trials.values(), key=lambda trial: trial.order)
    if len(values) < 2 or not math.isfinite(best.score) or not _at_end(best.values[axis], values, end, by_range):
        return False
    next_in = sorted(values)[1 if end == 0 else -2]
    inner = trials.get(canonical({**best.values, axis: next_in}))
    if inner is None or inner.pruned is not None:
        others = [t for t in trials.values() if not _at_end(t.values[axis], values, end, by_range)]
        if not others:
            return True
        inner = min(others, key=lambda trial: trial.order)
    compared = best.at(inner.pruned)  # after the same number of epochs
    # Trials that were ranked again have more seeds; the first ones are the same for all.
    gains = [best.sign * (a - b) for a, b in zip(inner.measured, compared, strict=False)]
    gain, spread = mean_and_std(gains)
    if not math.isfinite(gain):
        return True
    noise = 0.0 if math.isnan(spread) else 2 * spread / math.sqrt(len(gains))
    mean = mean_and_std(compared)[0]
    return gain > max(noise, 0.01 * abs(mean if best.sign > 0 else 1 - mean))


def _at_end(value: float, values: Sequence[float], end: int, by_range: bool) -> bool:
    low, high = min(values), max(values)
    if not by_range:
        return value == (low if end == 0 else high)
    place = math.log(value / low) / math.log(high / low)
    return place <= _EDGE if end == 0 else place >= 1 - _EDGE
