"""SBMA: equations, clipping and convergence."""

import copy
import math

import pytest
import torch
from torch import nn

import semaopt
from semaopt.hypergradient import CG, Neumann
from semaopt.hypergradient.inverses import uniform
from semaopt.problems import QuadraticBilevel


def bed(**options):
    problem = QuadraticBilevel(**options)
    x, y = problem.start()
    return problem, x, y, (problem.outer(x, y), problem.inner(x, y))


def clipped(matrix, radius):
    u, s, vh = torch.linalg.svd(matrix, full_matrices=False)
    return u @ torch.diag(s.clamp_max(radius)) @ vh


def test_four_steps_equal_the_equations():
    problem, x, y, closures = bed()
    k, C, beta, lam, c_fy, c_gxy = 4, 2.2, 0.6, 0.8, 1.5, 1.0
    optimizer = semaopt.SBMA(
        [x],
        [y],
        lr=0.1,
        lower_lr=0.3,
        beta=beta,
        lam=lam,
        c_fy=c_fy,
        c_gxy=c_gxy,
        inverse=Neumann(k, C, seed=1),
        bias_correction=False,
    )
    A, B, b, c = problem.A, problem.B, problem.b, problem.c
    X, Y, old = x.detach()[0].clone(), y.detach()[0].clone(), None
    eye = torch.eye(len(A), dtype=A.dtype)
    for t in range(4):
        h = k / C * torch.linalg.matrix_power(eye - A / C, uniform(k, 1, t))
        new = (problem.mu * X, Y - c, -B.T, h)
        old = new if old is None else tuple(beta * o + (1 - beta) * n for o, n in zip(old, new, strict=True))
        u, v, V, H = old
        v = v * min(1.0, c_fy / torch.linalg.vector_norm(v).item())
        V, H = clipped(V, c_gxy), clipped(H, 1 / lam)
        old = (u, v, V, H)
        X, Y = X - 0.1 * (u - V @ H @ v), Y - 0.3 * (A @ Y - B @ X - b)
        optimizer.step(*closures)
        torch.testing.assert_close(x.detach()[0], X)
        for name, value in zip(("f_x", "f_y", "g_xy", "h"), old, strict=True):
            torch.testing.assert_close(optimizer.algorithm_state[name], value)


def test_clipping_bounds_the_singular_values():
    _, x, y, closures = bed(noise=0.5, sigma2=1.25)
    optimizer = semaopt.SBMA(
        [x], [y], lr=0.01, lower_lr=0.1, beta=0.3, lam=0.7, c_fy=0.9, c_gxy=0.8, inverse=Neumann(6)
    )
    touched = dict.fromkeys(("f_y", "g_xy", "h"), False)
    for _ in range(40):
        optimizer.step(*closures)
        state = optimizer.algorithm_state
        for name, radius, order in (("f_y", 0.9, None), ("g_xy", 0.8, 2), ("h", 1 / 0.7, 2)):
            norm = torch.linalg.norm(state[name], order).item()
            assert norm <= radius * (1 + 1e-9)
            touched[name] |= norm > radius * (1 - 1e-9)
    assert all(touched.values()), "each clip must have been at work"


def test_without_bounds_nothing_is_clipped():
    problem, x, y, closures = bed()
    optimizer = semaopt.SBMA([x], [y], lr=0.0, lower_lr=0.1, beta=0.0, inverse=Neumann(1, 0.1))
    optimizer.step(*closures)
    torch.testing.assert_close(optimizer.algorithm_state["h"], 10 * torch.eye(problem.d_y, dtype=problem.dtype))


@pytest.mark.parametrize("scaling", ["shb", "adam"])
def test_sbma_solves_the_test_problem(scaling):
    problem, x, y, closures = bed(mu=0.3, C_gxy=2.0)
    optimizer = semaopt.SBMA(
        [x], [y], lr=0.05 if scaling == "shb" else 0.02, lower_lr=0.5, beta=0.95, scaling=scaling, lam=0.5,
        inverse=Neumann(12),
    )  # fmt: skip
    start = torch.linalg.vector_norm(problem.grad(x))
    for _ in range(400):
        optimizer.step(*closures)
    assert torch.linalg.vector_norm(problem.grad(x)) < 0.15 * start


def test_bound_is_the_largest_spectral_norm_so_far():
    problem, x, y, closures = bed(noise=0.5, sigma2=1.25)
    optimizer = semaopt.SBMA([x], [y], inverse=Neumann(5))
    largest = problem.C_gyy / 1.5
    for _ in range(30):
        optimizer.step(*closures)
        bound = optimizer.algorithm_state["bound"]
        assert 0.5 * largest * (1 - 1e-9) <= bound <= problem.C_gyy * (1 + 1e-9)
    assert bound > 1.3 * largest


def test_several_tensors_act_as_one_vector():
    problem, x, y, closures = bed()
    optimizer = semaopt.SBMA([x], [y], lr=0.1, lower_lr=0.2, lam=0.5, inverse=Neumann(4, 2.0))
    xs = [nn.Parameter(part.clone()) for part in (x.detach()[:, :1], x.detach()[:, 1:])]
    ys = [nn.Parameter(part.clone()) for part in (y.detach()[:, :2], y.detach()[:, 2:])]

    def outer():
        return problem.outer(torch.cat(xs, 1), torch.cat(ys, 1))()

    def inner():
        return problem.inner(torch.cat(xs, 1), torch.cat(ys, 1))()

    split = semaopt.SBMA(xs, ys, lr=0.1, lower_lr=0.2, lam=0.5, inverse=Neumann(4, 2.0))
    for _ in range(4):
        optimizer.step(*closures)
        split.step(outer, inner)
    torch.testing.assert_close(torch.cat(xs, 1), x)
    torch.testing.assert_close(torch.cat(ys, 1), y)


def test_iterates_estimate_uses_only_the_upper_averages():
    _, x, y, closures = bed()
    optimizer = semaopt.SBMA([x], [y], inverse=Neumann(3, 2.0))
    iterates = semaopt.Iterates(optimizer)
    optimizer.step(*closures)
    torch.testing.assert_close(iterates.estimate(), [x.grad, torch.zeros_like(y)])
    iterates.load_state_dict(iterates.state_dict())


def test_refused_average_restores_the_others():
    _, x, y, closures = bed()
    optimizer = semaopt.SBMA([x], [y], inverse=Neumann(3, 2.0))
    optimizer.step(*closures)
    late = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    optimizer.add_param_group({"params": [late], "role": "lower"})
    before, place = copy.deepcopy(optimizer.algorithm_state), x.detach().clone()
    with pytest.raises(
        ValueError, match=r"f_y=\(6,\) is invalid: it had shape \(5,\) before\. No parameter may be added or frozen"
    ):
        optimizer.step(closures[0], lambda: closures[1]() + late.square().sum())
    torch.testing.assert_close(optimizer.algorithm_state, before, rtol=0, atol=0)
    assert torch.equal(x, place)


def test_frozen_first_lower_parameter_is_refused():
    x, *ys = (nn.Parameter(torch.ones(2, dtype=torch.float64)) for _ in range(3))
    optimizer = semaopt.SBMA([x], ys)

    def outer():
        return (ys[0] + ys[1] - x).square().sum()

    def inner():
        return (ys[0] - x).square().sum() + (ys[1] + x).square().sum()

    optimizer.step(outer, inner)
    ys[0].requires_grad_(False)
    with pytest.raises(
        ValueError, match=r"f_y=\(2,\) is invalid: it had shape \(4,\) before\. No parameter may be added or frozen"
    ):
        optimizer.step(outer, inner)


def test_invalid_options():
    _, x, y, closures = bed()
    for name in ("lam", "c_fy", "c_gxy"):
        with pytest.raises(ValueError, match=rf"{name}=-1\.0 is invalid: it must be a number > 0. None does not clip"):
            semaopt.SBMA([x], [y], **{name: -1.0})
    with pytest.raises(TypeError, match=r"inverse=CG.*: SBMA averages samples of h; pass Neumann"):
        semaopt.SBMA([x], [y], inverse=CG())
    with pytest.raises(TypeError, match=r"inverse=CG.*: SBMA averages samples of h; pass Neumann"):
        semaopt.SBMA([x], [y]).inverse = CG()
    with pytest.raises(ValueError, match=r"beta=0\.5 is invalid: all pieces are averaged with one beta"):
        semaopt.SBMA([{"params": [x], "beta": 0.5}], [y])
    optimizer = semaopt.SBMA([x], [y])
    optimizer.step(*closures)
    late = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    optimizer.add_param_group({"params": [late], "role": "upper"})
    with pytest.raises(ValueError, match=r"had shape \(4,\) before. No parameter may be added or frozen"):
        optimizer.step(lambda: closures[0]() + late.sum(), closures[1])
    frozen, other = (nn.Parameter(torch.zeros(1, dtype=torch.float64)) for _ in range(2))
    optimizer = semaopt.SBMA([frozen, other], [y])
    optimizer.step(lambda: (frozen + other).sum() + closures[0](), closures[1])
    frozen.requires_grad_(False)
    with pytest.raises(ValueError, match=r"had shape \(2,\) before. No parameter may be added or frozen"):
        optimizer.step(lambda: other.sum() + closures[0](), closures[1])
    with pytest.raises(
        ValueError, match=r"bound=0\.0 is invalid: inner\(\) has no curvature in the lower level\. Add a regularizer"
    ):
        semaopt.SBMA([x], [y]).step(closures[0], lambda: (y - y.detach()).pow(3).sum() + 0 * x.sum())
    tiny = semaopt.SBMA([x], [y], inverse=Neumann(200, bound=1e-200))
    with pytest.raises(RuntimeError, match=r"bound=1e-200: inner\(\) has curvature 2, .* Pass a bound of at least 2"):
        tiny.step(*closures)
    assert math.isfinite(x.sum().item())


def test_parameters_of_two_dtypes_are_refused():
    x, y = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2, dtype=torch.float64))
    with pytest.raises(TypeError, match=r"must have one dtype; got torch\.float32, torch\.float64"):
        semaopt.SBMA([x], [y])


@pytest.mark.parametrize("beta", [0.5, 0.9])
def test_bias_correction_normalizes_the_weights(beta):
    """Without clipping, u is the mean of the samples so far with weights beta^(t-i)."""
    x, y = nn.Parameter(torch.zeros(1, dtype=torch.float64)), nn.Parameter(torch.zeros(1, dtype=torch.float64))
    optimizer = semaopt.SBMA([x], [y], lr=0.0, lower_lr=0.0, beta=beta, inverse=Neumann(1, 1.0))
    samples = [1.0, -2.0, 5.0, 3.0]
    for t, sample in enumerate(samples):
        optimizer.step(lambda a=sample: (a * x).sum() + y.square().sum(), lambda: (y - x).square().sum() / 2)
        weights = torch.tensor([beta ** (t - i) for i in range(t + 1)], dtype=torch.float64)
        expected = (weights * torch.tensor(samples[: t + 1], dtype=torch.float64)).sum() / weights.sum()
        torch.testing.assert_close(optimizer.algorithm_state["f_x"].squeeze(), expected)
