"""Equal budgets, the choice by validation loss, grids that grow for all alike."""

import math

import pytest
from semaopt.experiments.digits import Point

from semaopt.experiments.tuning import GRID, METHODS, Grid, Trial, binding, tune

LOW, HIGH = (0, -1)


def best_at(best_lr, best_g0=1e-5, noise=(0.0, 0.0, 0.0)):
    """Losses that grow with the distance from the best point on a logarithmic scale; beta plays no part."""

    def evaluate(asked):
        far = [math.log(p.lr / best_lr) ** 2 + 0.1 * math.log(p.g0 / best_g0) ** 2 for _, p in asked]
        return [tuple(1 + d + e for e in noise) for d in far]

    return evaluate


def budgets(tuning):
    return {len(trials) for trials in tuning.trials.values()}


def test_every_method_gets_as_many_trials():
    assert {len(set(GRID.points(method))) for method in METHODS} == {27}
    grown = GRID.extended("lr", HIGH).extended("lr", LOW).extended("g0", HIGH)
    assert {len(set(grown.points(method))) for method in METHODS} == {60}


def test_adam_keeps_its_beta_and_the_others_try_the_papers():
    adam, *others = METHODS
    assert {point.beta for point in GRID.points(adam)} == {0.9}
    assert len({point.lr for point in GRID.points(adam)}) == 9
    for method in others:
        assert {point.beta for point in GRID.points(method)} == {0.99, 0.9, 0.5}
        assert {point.lr for point in GRID.points(method)} <= {point.lr for point in GRID.points(adam)}


def test_a_best_value_inside_needs_no_extension():
    tuning = tune(METHODS, GRID, best_at(1e-2))
    assert tuning.extensions == []
    assert tuning.on_edge == {}
    assert tuning.grid == GRID
    assert tuning.best("adam").point == Point(lr=1e-2, g0=1e-5, beta=0.9)


def test_the_grid_grows_for_all_when_one_lies_on_its_edge():
    adam_only = METHODS[0].name

    def evaluate(asked):
        far, near = best_at(0.1)(asked), best_at(1e-2)(asked)
        return [a if method.name == adam_only else b for (method, _), a, b in zip(asked, far, near, strict=True)]

    tuning = tune(METHODS, GRID, evaluate)
    assert [(e.axis, e.because) for e in tuning.extensions] == [("lr", (adam_only,))]
    assert tuning.extensions[0].value == pytest.approx(0.1)
    assert budgets(tuning) == {36}
    assert tuning.best(adam_only).point.lr == pytest.approx(0.1)
    assert tuning.on_edge == {}


def test_downwards_too_and_both_grids_at_once():
    tuning = tune(METHODS, GRID, best_at(1e-3, best_g0=0.1), rounds=3)
    added = {axis: [e.value for e in tuning.extensions if e.axis == axis] for axis in ("lr", "g0")}
    assert added == {"lr": [1e-3, 3.16228e-4], "g0": [0.1, 10.0]}  # one beyond the best shows that it is the best
    assert len(budgets(tuning)) == 1


def test_an_edge_that_remains_is_recorded():
    tuning = tune(METHODS, GRID, best_at(100.0), rounds=1)
    assert len(tuning.extensions) == 1
    assert tuning.on_edge == {("lr", HIGH): tuple(method.name for method in METHODS)}


def test_no_trial_is_done_twice():
    seen = []

    def evaluate(asked):
        seen.extend((method.name, point) for method, point in asked)
        return best_at(0.1)(asked)

    tune(METHODS, GRID, evaluate)
    assert len(seen) == len(set(seen)) == 3 * 45


@pytest.mark.parametrize(
    ("inner", "binds"),
    [
        ((1.2, 1.2, 1.2), True),
        ((1.005, 1.005, 1.005), False),  # less than 1%
        ((1.5, 0.9, 1.05), False),  # better by luck
        ((math.nan, 1.0, 1.0), True),
    ],
)
def test_an_edge_binds_when_the_loss_falls_towards_it(inner, binds):
    on_edge, inside = Point(1e-1, 1e-7, 0.9), Point(1e-2, 1e-7, 0.9)
    best = Trial("adam", on_edge, (1.0, 1.0, 1.0))
    trials = {on_edge: best, inside: Trial("adam", inside, inner)}
    assert binding(trials, best, "lr", HIGH) is binds
    assert binding(trials, best, "lr", LOW) is False
    assert binding(trials, best, "g0", HIGH) is False  # a single value has no inside


def test_one_seed_has_no_noise_to_compare_with():
    on_edge, inside = Point(1e-1, 1e-7, 0.9), Point(1e-2, 1e-7, 0.9)
    best = Trial("adam", on_edge, (1.0,))
    assert binding({on_edge: best, inside: Trial("adam", inside, (1.1,))}, best, "lr", HIGH)


def test_a_trial_that_diverged_is_never_chosen():
    def evaluate(asked):
        return [(0.0, math.nan) if point.lr > 5e-3 else (2.0, 2.0) for _, point in asked]

    tuning = tune(METHODS, Grid(lr=(1e-3, 1e-2), g0=(1e-7,)), evaluate, rounds=0)
    assert all(tuning.best(method.name).point.lr < 5e-3 for method in METHODS)


def test_equal_losses_go_to_the_smaller_lr():
    tuning = tune(METHODS, GRID, lambda asked: [(1.0,)] * len(asked))
    assert tuning.best("beta").point == min(GRID.points(METHODS[1]))
