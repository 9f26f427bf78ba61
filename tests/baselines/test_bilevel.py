"""BSA, TTSA, stocBiO and SOBA compared with their formulas."""

import math

import pytest
import torch

import semaopt
from semaopt.baselines import BSA, SOBA, TTSA, StocBiO
from semaopt.hypergradient import Exact, Neumann, NeumannSeries, TrackedSystem
from semaopt.problems import QuadraticBilevel


def bed(**options):
    problem = QuadraticBilevel(**options)
    x, y = problem.start()
    return problem, x, y, (problem.outer(x, y), problem.inner(x, y))


def lower_gradient(problem, x, y):
    return y @ problem.A - x @ problem.B.T - problem.b


def test_soba_equals_smb_with_a_tracked_system_and_gamma_one():
    results = []
    for make in (
        lambda x, y: SOBA([x], [y], lr=0.05, lower_lr=0.3, system_lr=0.2),
        lambda x, y: semaopt.SMB([x], [y], lr=0.05, lower_lr=0.3, beta=0.0, inverse=TrackedSystem(0.2)),
    ):
        _, x, y, closures = bed(noise=0.2, sigma2=0.2)
        optimizer = make(x, y)
        losses = [optimizer.step(*closures) for _ in range(6)]
        results.append((x, y, torch.stack(losses)))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_ttsa_updates_y_first_on_two_timescales():
    problem, x, y, closures = bed()
    optimizer = TTSA([x], [y], lr=0.2, lower_lr=0.4, inverse=Exact())
    X, Y = x.detach().clone(), y.detach().clone()
    for t in range(4):
        Y = Y - 0.4 * (t + 1) ** -0.4 * lower_gradient(problem, X, Y)
        X = X - 0.2 * (t + 1) ** -0.6 * problem.hypergradient(X, Y)
        optimizer.step(*closures)
        torch.testing.assert_close(x.detach(), X)
        torch.testing.assert_close(y.detach(), Y)
    assert optimizer.param_groups[0]["lr"] == 0.2


@pytest.mark.parametrize(("kind", "decay"), [(BSA, lambda s: 2 / (s + 2)), (StocBiO, lambda s: 1.0)])
def test_double_loops(kind, decay):
    problem, x, y, closures = bed()
    optimizer = kind([x], [y], lr=0.2, lower_lr=0.4, inverse=Exact(), lower_steps=5)
    X, Y = x.detach().clone(), y.detach().clone()
    for _ in range(3):
        for s in range(5):
            Y = Y - 0.4 * decay(s) * lower_gradient(problem, X, Y)
        X = X - 0.2 * problem.hypergradient(X, Y)
        optimizer.step(*closures)
        torch.testing.assert_close(x.detach(), X)
        torch.testing.assert_close(y.detach(), Y)


def test_default_inverses():
    _, x, y, _ = bed()
    assert BSA([x], [y]).inverse == TTSA([x], [y]).inverse == Neumann()
    assert StocBiO([x], [y]).inverse == NeumannSeries()
    assert SOBA([x], [y]).inverse == TrackedSystem()
    for kind in (BSA, TTSA, StocBiO):
        optimizer = kind([x], [y], inverse=Exact())
        optimizer.inverse = None
        assert optimizer.inverse == kind([x], [y]).inverse


@pytest.mark.parametrize("policy", [None, "error", "skip"])
@pytest.mark.parametrize("kind", [BSA, TTSA, StocBiO])
@pytest.mark.parametrize("fault", ["f infinite", "g_yy nan", "bound too small", "no coupling", "interrupt"])
def test_failed_step_restores_y(kind, policy, fault):
    x, y = (torch.nn.Parameter(torch.full((2,), value)) for value in (1.0, 0.0))
    optimizer = kind([x], [y], lr=0.1, lower_lr=0.5, inverse=NeumannSeries(8, bound=3.0), on_nonfinite=policy)
    optimizer.step(lambda: y.sum(), lambda: (y - x).square().sum())
    before = [t.detach().clone() for t in (x, y)], str(optimizer.state_dict())

    def outer():
        if fault == "interrupt":
            raise KeyboardInterrupt
        return y.sum() * (math.inf if fault == "f infinite" else 1.0)

    def inner():
        z = y - (0 if fault == "no coupling" else x)
        bad = (y - y.detach()).abs().pow(1.5).sum() if fault == "g_yy nan" else 0.0  # its gradient is 0
        return (50 if fault == "bound too small" else 1) * z.square().sum() + bad

    if policy == "skip" and fault in ("f infinite", "g_yy nan"):
        optimizer.step(outer, inner)
        assert optimizer.skipped_steps == 1
    else:
        with pytest.raises((RuntimeError, KeyboardInterrupt)):
            optimizer.step(outer, inner)
    assert all(torch.equal(a, b) for a, b in zip((x, y), before[0], strict=True))
    assert str(optimizer.state_dict()) == before[1]


@pytest.mark.parametrize(
    ("kind", "options", "steps"),
    [
        (SOBA, {"lr": 0.1}, 300),
        (TTSA, {"lr": 0.5, "inverse": NeumannSeries(15)}, 150),
        (BSA, {"lr": 0.1, "inverse": NeumannSeries(15)}, 100),
        (StocBiO, {"lr": 0.1, "inverse": NeumannSeries(15)}, 100),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_baselines_solve_the_test_problem(kind, options, steps):
    problem, x, y, closures = bed(mu=0.3)
    optimizer = kind([x], [y], lower_lr=0.5, **options)
    start = torch.linalg.vector_norm(problem.grad(x))
    for _ in range(steps):
        optimizer.step(*closures)
    assert torch.linalg.vector_norm(problem.grad(x)) < 0.1 * start


def test_schedules_do_not_set_beta_of_methods_without_averages():
    _, x, y, closures = bed()
    optimizer = SOBA([x], [y], lr=0.1, lower_lr=0.4)
    with pytest.raises(ValueError, match=r"SOBA: no param group is averaged, .*, or on=\('lr',\)"):
        semaopt.schedules.Stagewise(optimizer, every=1, factor=0.5, on=("gamma",))
    schedule = semaopt.schedules.Stagewise(optimizer, every=1, factor=0.5)
    optimizer.step(*closures)
    schedule.step()
    assert [(group["lr"], group["beta"]) for group in optimizer.param_groups] == [(0.05, None), (0.2, None)]
    optimizer.step(*closures)


def test_invalid_options():
    _, x, y, _ = bed()
    with pytest.raises(ValueError, match="lower_steps=0 is invalid: it must be a whole number >= 1"):
        BSA([x], [y], lower_steps=0)
    with pytest.raises(ValueError, match=r"powers=\(0\.4,\) is invalid: it must be two numbers >= 0, for y and for x"):
        TTSA([x], [y], powers=(0.4,))
    with pytest.raises(ValueError, match=r"scaling='adam': an upper group has no such option"):
        SOBA([{"params": [x], "scaling": "adam"}], [y])
    with pytest.raises(ValueError, match=r"scaling='adam': a primal group has no such option"):
        semaopt.baselines.SGDA([{"params": [x], "scaling": "adam"}], [y])
    with pytest.raises(
        ValueError, match=r"beta=0\.5 is invalid: the upper variables of SOBA are not averaged\. Leave beta out"
    ):
        SOBA([{"params": [x], "beta": 0.5}], [y])
