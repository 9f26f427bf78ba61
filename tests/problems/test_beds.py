"""Gradients against autograd, minimizers against the definition, constants against sampled points."""

import math

import pytest
import torch

from semaopt import scalings, theory
from semaopt.problems import (
    Additive,
    Bounded,
    Compositional,
    DualPL,
    LeastSquares,
    LogisticBilevel,
    QuadraticBilevel,
    RandomCoordinate,
    StronglyConcave,
    Wavy,
)

MINIMIZATION = [Bounded(d=3), Wavy(d=3), LeastSquares(d=4, rank=2, L=2.0, mu=0.3, residual=0.1)]
MINMAX = [StronglyConcave(d=3, lam=0.7), DualPL(d=3, lam=0.7)]
BILEVEL = [QuadraticBilevel(d=3, curvature=2.0, b=0.7, alpha=0.3), LogisticBilevel(n=6, m=5)]


def points(n, d, scale=3.0, seed=0):
    return scale * torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def slope(f, *at, of=0):
    at = [a.clone().requires_grad_() for a in at]
    return torch.autograd.grad(f(*at).sum(), at[of])[0]


def name(bed):
    return type(bed).__name__


@pytest.mark.parametrize("bed", [*MINIMIZATION, *MINMAX, BILEVEL[0], Compositional(d=3)], ids=name)
def test_grad_is_the_gradient_of_f(bed):
    x = points(50, bed.d)
    torch.testing.assert_close(bed.grad(x), slope(bed.F, x), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("bed", [*MINIMIZATION, *MINMAX, BILEVEL[0]], ids=name)
def test_lipschitz_constant(bed):
    L = bed.constants().L if bed is BILEVEL[0] else bed.L
    x, y = points(2000, bed.d), points(2000, bed.d, seed=1)
    for step in (1.0, 1e-2, 1e-4):
        z = x + step * (y - x)
        ratio = (bed.grad(x) - bed.grad(z)).norm(dim=1) / (x - z).norm(dim=1)
        assert float(ratio.max()) <= L * (1 + 1e-6)
    origin = torch.zeros(1, bed.d, dtype=torch.float64)  # where it is attained, for those with a bump at 0
    if not isinstance(bed, LeastSquares):
        near = origin.clone()
        near[0, 0] = 1e-5
        assert float((bed.grad(near) - bed.grad(origin)).norm()) / 1e-5 == pytest.approx(L, rel=1e-3)


@pytest.mark.parametrize("bed", MINIMIZATION, ids=name)
def test_smallest_value_and_slopes(bed):
    x = points(2000, bed.d)
    assert float(bed.F(x).min()) >= bed.smallest - 1e-12
    assert float(bed.grad(x).abs().max()) <= bed.steepest
    x = bed.start()
    for _ in range(20_000):
        x = x - bed.grad(x) / bed.L
    assert float(bed.F(x)) == pytest.approx(bed.smallest, abs=1e-9)


def test_mu_of_the_wavy_function_on_a_fine_grid():
    x = torch.linspace(1e-3, 4, 400_001, dtype=torch.float64).unsqueeze(1)
    bed = Wavy(d=1)
    ratio = bed.grad(x).square().squeeze(1) / (2 * bed.F(x))
    # Between grid points: the second derivative of F'^2 is at most a few hundred, the grid is 1e-5.
    assert bed.mu <= float(ratio.min()) - 1e-4
    assert float(ratio.min()) == pytest.approx(0.17553, abs=1e-4)
    far = torch.linspace(4, 1000, 100_000, dtype=torch.float64)
    assert float(((2 * far - 3).square() / (2 * far.square() + 6)).min()) > 0.6


def test_least_squares_is_pl_and_not_strongly_convex():
    bed = MINIMIZATION[2]
    eigenvalues = torch.linalg.eigvalsh(bed.gram)
    assert eigenvalues.tolist() == pytest.approx([0, 0, 0.3, 2.0], abs=1e-12)
    x = points(500, 4)
    assert bool((bed.grad(x).square().sum(1) >= 2 * bed.mu * (bed.F(x) - bed.smallest) - 1e-9).all())
    assert float(bed.F(bed.start())) - bed.smallest == pytest.approx(1.0)


def test_constants_of_a_bed():
    c = Bounded(d=4).constants(RandomCoordinate(2.0))
    assert (c.L, c.sigma2, c.c, c.delta_f) == (2.0, 2.0, 1.5, 2.0)
    c = Bounded(d=4).constants(Additive(1.0), scalings.Adam(g0=1.0))
    assert c.c_l == pytest.approx(1 / (1 + 3 * math.sqrt(3) / 8 + 0.5))
    c = Bounded(d=4).constants(Additive(1.0), scalings.AdamPlus(g0=1.0))
    assert c.c_l == pytest.approx(1 / (1 + math.sqrt(2 * (3 * math.sqrt(3) / 8 + 0.5))))
    with pytest.raises(ValueError, match=r"its c_l needs bounded gradients, and these are not; pass clip=\(c_l, c_u\)"):
        Wavy().constants(Additive(1.0), "adam")
    assert Wavy().constants(Additive(1.0), "adam", clip=(0.5, 2.0)).c_u == 2.0


@pytest.mark.parametrize("bed", MINMAX, ids=name)
def test_a_min_max_bed(bed):
    x = points(200, bed.d)
    y = bed.project_(points(200, bed.start()[1].shape[1], scale=1.0, seed=1))
    gx, gy = bed.grads(x, y)
    torch.testing.assert_close(gx, slope(bed.f, x, y, of=0))
    torch.testing.assert_close(gy, slope(bed.f, x, y, of=1))
    best = bed.y_star(x, y)
    torch.testing.assert_close(bed.f(x, best), bed.F(x))
    torch.testing.assert_close(best, bed.project_(best.clone()))
    assert bool((bed.f(x, y) <= bed.F(x) + 1e-12).all())
    # lambda-PL, with equality where f is quadratic in y; grad F is the gradient in x at y*.
    gap = bed.F(x) - bed.f(x, y)
    assert bool((gy.square().sum(1) >= 2 * bed.lam * gap * (1 - 1e-9)).all())
    torch.testing.assert_close(bed.grads(x, best)[0], bed.grad(x))


@pytest.mark.parametrize("bed", MINMAX, ids=name)
def test_the_lipschitz_constant_of_the_gradient_of_f(bed):
    d = bed.start()[1].shape[1]
    x, y = points(2000, bed.d, scale=2.0), bed.project_(points(2000, d, scale=1.0, seed=1))
    for step in (1.0, 1e-3):
        x2 = x + step * points(2000, bed.d, scale=1.0, seed=2)
        y2 = bed.project_(y + step * points(2000, d, scale=1.0, seed=3))
        change = torch.cat([a - b for a, b in zip(bed.grads(x, y), bed.grads(x2, y2), strict=True)], 1).norm(dim=1)
        moved = torch.cat([x - x2, y - y2], 1).norm(dim=1)
        assert float((change / moved).max()) <= bed.L_f * (1 + 1e-9)


def test_kappa_can_be_turned_without_changing_f():
    x = points(10, 3)
    near, far = StronglyConcave(d=3, lam=1.0), StronglyConcave(d=3, lam=0.01)
    torch.testing.assert_close(near.F(x), far.F(x))
    assert far.kappa > 50 * near.kappa


def test_the_nearest_of_many_maximizers():
    bed = MINMAX[1]
    x, y = points(50, 3), points(50, 6, seed=1)
    nearest = bed.y_star(x, y)
    for other in (bed.y_star(x, points(50, 6, seed=2)), bed.y_star(x)):
        assert bool(((y - nearest).norm(dim=1) <= (y - other).norm(dim=1) + 1e-12).all())


def test_the_quadratic_lower_problem():
    bed = BILEVEL[0]
    x = points(20, 3)

    def g(x, y):
        return (bed.h * y.square() / 2 - bed.b * x * y).sum(-1)

    assert float(slope(g, x, bed.y_star(x), of=1).abs().max()) < 1e-12
    c = bed.constants()
    assert (c.lam, c.L_gy, c.C_gxy, c.C_gyy) == (1.0, 2.0, 0.7, pytest.approx(2.2))
    assert c.L_F == c.L == pytest.approx(2 * 0.49 + 0.6)


def test_samples_of_the_quadratic_lower_problem():
    bed, k = BILEVEL[0], 4
    x, y = points(1, 3), points(1, 3, seed=1)
    rows, columns = 20_000, 3
    like = x.expand(rows, columns)
    noise = tuple(part[0] for part in bed.draw(1, like, k, torch.Generator().manual_seed(0)))
    pieces = bed.sample(like, y.expand(rows, columns), noise)
    mean_h = sum((1 - bed.h / bed.C_gyy) ** p for p in range(k)) / bed.C_gyy
    close = 5 / math.sqrt(rows)
    torch.testing.assert_close(pieces.h.mean(0), mean_h, rtol=0, atol=close * k / bed.C_gyy)
    assert bool(((mean_h - 1 / bed.h).abs() <= (1 - bed.lam / bed.C_gyy) ** k / bed.lam + 1e-12).all())
    assert float(pieces.h.max()) <= k / bed.C_gyy
    torch.testing.assert_close(pieces.gy.mean(0), (bed.h * y - bed.b * x)[0], rtol=0, atol=close)
    torch.testing.assert_close(pieces.gxy.mean(0), torch.full((3,), -bed.b, dtype=x.dtype), rtol=0, atol=close)
    for piece in (pieces.fx, pieces.fy, pieces.gxy, pieces.gy):
        assert float((piece - piece.mean(0)).square().sum(1).mean()) == pytest.approx(bed.sigma2, rel=1e-2)
    of_x, of_y = (slope(lambda t: (t.square() / (1 + t.square())).sum(-1), t)[0] for t in (x, y))
    expected = bed.alpha * of_x + bed.b * mean_h * of_y
    torch.testing.assert_close(pieces.hypergradient.mean(0), expected, rtol=0, atol=10 * close)


def test_the_logistic_lower_problem():
    bed = BILEVEL[1]
    x = points(4, 6, scale=1.0)

    def g(x, y):
        return (x.sigmoid() * torch.nn.functional.softplus(-y @ bed.noisy.T)).mean(-1) + bed.lam / 2 * y.square().sum(
            -1
        )

    assert float(slope(g, x, bed.y_star(x), of=1).abs().max()) < 1e-14
    eps = 1e-6
    for j in range(6):
        step = torch.zeros(6, dtype=x.dtype)
        step[j] = eps
        by_difference = (bed.F(x + step) - bed.F(x - step)) / (2 * eps)
        torch.testing.assert_close(bed.grad(x)[:, j], by_difference, rtol=0, atol=1e-9)


def test_the_constants_of_the_logistic_lower_problem():
    bed = BILEVEL[1]
    c, n = bed.constants(), 6
    x, y = points(300, n, scale=2.0), points(300, 3, scale=2.0, seed=1)
    x2, y2 = x + 0.1 * points(300, n, seed=2), y + 0.1 * points(300, 3, seed=3)

    def second(x, y):
        margins = y @ bed.noisy.T
        weights = x.sigmoid()
        mixed = -(weights * (1 - weights) * (-margins).sigmoid()).unsqueeze(-1) * bed.noisy / n
        return bed._gyy(weights, margins), mixed

    gyy, gxy = second(x, y)
    gyy2, gxy2 = second(x2, y2)
    moved = torch.cat([x - x2, y - y2], 1).norm(dim=1)
    eigenvalues = torch.linalg.eigvalsh(gyy)
    assert c.lam <= float(eigenvalues.min()) <= float(eigenvalues.max()) <= c.L_gy
    assert float(torch.linalg.matrix_norm(gxy, 2).max()) <= c.C_gxy
    assert float((torch.linalg.matrix_norm(gyy - gyy2) / moved).max()) <= c.L_gyy
    assert float((torch.linalg.matrix_norm(gxy - gxy2) / moved).max()) <= c.L_gxy


def test_the_estimate_of_the_logistic_hypergradient():
    bed, k, rows = BILEVEL[1], 6, 20_000
    x = points(1, 6, scale=1.0)
    y = bed.y_star(x)
    like = x.expand(rows, 6)
    noise = tuple(part[0] for part in bed.draw(1, like, k, torch.Generator().manual_seed(0)))
    estimate, gy = bed.estimate(like, y.expand(rows, 3), noise)
    c = bed.constants()
    bias = c.C_gxy * c.C_fy * (1 - c.lam / c.C_gyy) ** k / c.lam
    spread = float(estimate.std(0).norm()) / math.sqrt(rows)
    assert float((estimate.mean(0) - bed.grad(x)[0]).norm()) <= bias + 5 * spread
    assert float(gy.mean(0).norm()) <= 5 * float(gy.std(0).norm()) / math.sqrt(rows)
    assert float((gy - gy.mean(0)).square().sum(1).mean()) <= c.sigma2
    plan = theory.bilevel(c, T=10)
    assert float((estimate - estimate.mean(0)).square().sum(1).mean()) <= plan.bound().noise / plan.gamma
