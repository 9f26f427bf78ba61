"""Equal tuning: as many trials for each method, chosen by the validation or the training part, never by the test part.

Optuna proposes (its grid, or its tree of Parzen estimators), the store remembers: a study lives in memory, and when
the work is resumed it is told the same results in the same order, so that it proposes the same again.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import optuna
from optuna.trial import TrialState

from semaopt.experiments.files import canonical
from semaopt.experiments.results.statistics import mean_and_std
from semaopt.experiments.spec.rules import axes_of
from semaopt.experiments.spec.schema import Method, Spec
from semaopt.experiments.sweep.trials import Extension, Point, Trial, Tuning
from semaopt.experiments.training.algorithms import is_number, rounded

Evaluate = Callable[[list[tuple[Method, Point]], int], list[tuple[float, ...]]]
"""The tuning metric after so many epochs, one value for each tuning seed, of each point asked for."""
_AT_ONCE = 4  # proposals that tree estimators make for each method before they hear of results, however many workers
_REDUCTION = 4  # of successive halving: a quarter goes on
_EDGE = 0.1  # of the logarithmic range, where a range and not a list is searched

optuna.logging.set_verbosity(optuna.logging.WARNING)


class _Grid(optuna.samplers.GridSampler):
    """Optuna's grid; it does not try to stop a loop that is not Optuna's."""

    def after_trial(self, *_: Any, **__: Any) -> None:
        return


class Search:
    """The trials of one method."""

    def __init__(self, spec: Spec, method: Method) -> None:
        assert spec.tuning is not None  # a spec without [tuning] is not tuned
        self.method, self.options, self.epochs = method, spec.tuning, spec.epochs
        self.sign = 1 if self.options.direction == "minimize" else -1
        self.trials: dict[str, Trial] = {}
        self._study: optuna.Study | None = None
        self._reached: dict[int, list[float]] = {}
        self._passed: dict[str, dict[int, tuple[float, ...]]] = {}
        self.round = 0

    @property
    def by_tree(self) -> bool:
        """Whether ranges are searched, not lists."""
        return self.options.sampler == "tpe"

    def ranged(self, axis: str) -> bool:
        """Whether an axis is searched between its ends, not value by value."""
        return self.by_tree and axis in self.options.extend

    def ask(self, axes: Mapping[str, list[Any]], count: int) -> list[tuple[optuna.Trial, Point]]:
        """So many new points (of a grid all of them)."""
        study = self._started(axes)
        asked = [study.ask() for _ in range(count if self.by_tree else math.prod(map(len, axes.values())))]
        return [(trial, {name: self._suggest(trial, name, values) for name, values in axes.items()}) for trial in asked]

    def _started(self, axes: Mapping[str, list[Any]]) -> optuna.Study:
        if self._study is None or not self.by_tree:  # a grid that has grown is a new one; what is known is not rerun
            seed = self.options.seed
            sampler = optuna.samplers.TPESampler(seed=seed) if self.by_tree else _Grid(axes, seed=seed)
            self._study = optuna.create_study(sampler=sampler, direction=self.options.direction)
        return self._study

    def _suggest(self, trial: optuna.Trial, name: str, values: list[Any]) -> Any:
        if self.ranged(name):
            return rounded(trial.suggest_float(name, values[0], values[-1], log=True))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of choices that are lists, which nothing here stores
            return trial.suggest_categorical(name, values)

    def promoted(self, rung: int, reached: Sequence[tuple[Point, tuple[float, ...]]]) -> list[bool]:
        """Which of these go on: those in the best quarter of all that have ever come to the rung.

        Optuna's own successive halving judges each trial against those before it, and a study of a grid that has grown
        knows none: it lets the first go on whatever they are.
        """
        means = [sum(measured) / len(measured) for _, measured in reached]
        scores = [self.sign * mean if math.isfinite(mean) else math.inf for mean in means]
        known = self._reached.setdefault(rung, [])
        known += scores
        limit = sorted(known)[math.ceil(len(known) / _REDUCTION) - 1]
        found = [score <= limit and score < math.inf for score in scores]
        for (point, measured), goes_on in zip(reached, found, strict=True):
            if goes_on:
                self._passed.setdefault(canonical(point), {})[rung] = measured
        return found

    def tell(self, trial: optuna.Trial, point: Point, measured: tuple[float, ...], pruned: int | None) -> None:
        """What became of a point."""
        key = canonical(point)
        found = Trial(self.method.name, point, measured, self.sign, pruned, self._passed.get(key, {}), self.round)
        self.trials.setdefault(key, found)  # what is known is told again where a grid has grown
        assert self._study is not None  # it was asked before
        if pruned is not None:
            self._study.tell(trial, state=TrialState.PRUNED)
        elif math.isfinite(found.mean):
            self._study.tell(trial, found.mean)
        else:
            self._study.tell(trial, state=TrialState.FAIL)


Asked = tuple[Search, optuna.Trial, Point]


def rungs(epochs: int, first: int | None = None) -> list[int]:
    """The epochs after which successive halving looks.

    >>> rungs(60), rungs(60, first=15), rungs(1)
    ([3, 12, 48], [15], [])
    """
    found = [max(1, epochs // _REDUCTION**2) if first is None else first]
    while found[-1] * _REDUCTION < epochs:
        found.append(found[-1] * _REDUCTION)
    return [epoch for epoch in found if epoch < epochs]


def tune(spec: Spec, evaluate: Evaluate, only: Sequence[Method] | None = None) -> Tuning:
    """Try every method alike; while a best value lies on an edge, extend that axis for all of them."""
    options = spec.tuning
    assert options is not None  # a spec without [tuning] is not tuned
    searches = [Search(spec, method) for method in only or spec.methods]
    tuning = Tuning(dict(options.grid), {search.method.name: search.trials for search in searches})
    budget = options.budget or 0
    for grown in range(options.rounds + 1):
        now = spec.model_copy(update={"tuning": options.model_copy(update={"grid": tuning.grid})})
        axes = [axes_of(now, search.method) for search in searches]
        _search(searches, axes, budget, evaluate)
        bound = _edges(searches, axes, options.extend)
        if not bound or grown == options.rounds:
            break
        for (axis, end), because in bound.items():
            tuning.grid[axis] = extended(tuning.grid[axis], end)
            tuning.extensions.append(Extension(axis, tuning.grid[axis][end], because))
        budget = math.ceil((options.budget or 0) / len(options.grid[options.extend[0]]))
        for search in searches:
            search.round = grown + 1
    numbers = [name for name, values in tuning.grid.items() if all(map(is_number, values))]
    tuning.on_edge = _edges(searches, axes, numbers)
    return tuning


def _search(
    searches: Sequence[Search], axes: Sequence[Mapping[str, list[Any]]], budget: int, evaluate: Evaluate
) -> None:
    """One round: a grid at once, tree estimators a few points at a time, all methods side by side."""
    left = budget
    while True:
        asked = [
            (search, trial, point)
            for search, mine in zip(searches, axes, strict=True)
            for trial, point in search.ask(mine, min(left, _AT_ONCE))
        ]
        _settle(asked, evaluate)
        left -= _AT_ONCE
        if left <= 0:
            return


def _settle(asked: list[Asked], evaluate: Evaluate) -> None:
    """Evaluate what is not known, rung by rung if it is to be pruned, and tell it."""
    fresh = []
    for search, trial, point in asked:
        known = search.trials.get(canonical(point))
        if known is None:
            fresh.append((search, trial, point))
        else:
            search.tell(trial, point, known.measured, known.pruned)
    if not fresh:
        return
    epochs, options = fresh[0][0].epochs, fresh[0][0].options
    for rung in rungs(epochs, options.first_rung) if options.pruner == "halving" else []:
        fresh = _promoted(fresh, rung, evaluate)
        if not fresh:
            return
    for (search, trial, point), measured in zip(fresh, evaluate(_points(fresh), epochs), strict=True):
        search.tell(trial, point, measured, None)


def _promoted(asked: list[Asked], rung: int, evaluate: Evaluate) -> list[Asked]:
    """Those that go on from the rung; of the others it is told that they were given up."""
    left = []
    reached = list(zip(asked, evaluate(_points(asked), rung), strict=True))
    for search in dict.fromkeys(one[0] for one in asked):
        own = [(trial, point, measured) for (by, trial, point), measured in reached if by is search]
        found = search.promoted(rung, [(point, measured) for _, point, measured in own])
        for (trial, point, measured), goes_on in zip(own, found, strict=True):
            trial.report(sum(measured) / len(measured), rung)  # tree estimators learn from a trial that is given up
            if goes_on:
                left.append((search, trial, point))
            else:
                search.tell(trial, point, measured, rung)
    return left


def _points(asked: list[Asked]) -> list[tuple[Method, Point]]:
    return [(search.method, point) for search, _, point in asked]


def extended(values: list[float], end: int) -> list[float]:
    """One more value, below (``end=0``) or above (``end=-1``), as far away as its neighbours are from each other.

    >>> extended([0.01, 0.1], -1)
    [0.01, 0.1, 1.0]
    """
    if end == 0:
        return [rounded(values[0] * values[0] / values[1]), *values]
    return [*values, rounded(values[-1] * values[-1] / values[-2])]


def _edges(
    searches: Sequence[Search], axes: Sequence[Mapping[str, list[Any]]], extend: Sequence[str]
) -> dict[tuple[str, int], tuple[str, ...]]:
    found = {
        (axis, end): tuple(
            search.method.name
            for search, mine in zip(searches, axes, strict=True)
            if axis in mine and binding(search.trials, mine[axis], axis, end, by_range=search.ranged(axis))
        )
        for axis in extend
        for end in (0, -1)
    }
    return {edge: names for edge, names in found.items() if names}


def binding(
    trials: Mapping[str, Trial], values: Sequence[float], axis: str, end: int, *, by_range: bool = False
) -> bool:
    """Whether the best trial lies on this end of ``axis`` and is better than inside by 1% and by more than its noise.

    1% is of the loss, or of what a share that is maximized lacks to 1: an AUC of 0.905 instead of 0.900 is 5% better.

    Inside is the neighbour that differs in nothing else, or, if that was not tried, the best of all others. The noise
    is two standard errors of the paired difference over the tuning seeds: below some G0 nothing changes any more, and
    which of two equal values is best is a matter of luck.
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
    compared = best.at(inner.pruned)  # after as many epochs
    gains = [best.sign * (a - b) for a, b in zip(inner.measured, compared, strict=True)]
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
