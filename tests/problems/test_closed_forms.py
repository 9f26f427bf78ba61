"""Compare gradients with autograd, minimizers with their definition, and constants with sampled points."""

import math
from dataclasses import replace

import pytest
import torch

from semaopt import scalings, theory
from semaopt.problems import (
    Additive,
    Bounded,
    DualPL,
    LeastSquares,
    LogisticBilevel,
    QuadraticBilevel,
    QuadraticComposition,
    RandomCoordinate,
    StronglyConcave,
    Wavy,
)

MINIMIZATION = [Bounded(d=3), Wavy(d=3), LeastSquares(d=4, rank=2, L=2.0, mu=0.3, residual=0.1)]
MINMAX = [StronglyConcave(d=3, lam=0.7), DualPL(d=3, lam=0.7)]
QUADRATIC = QuadraticBilevel(d_x=3, d_y=4, lam=0.7, C_gxy=0.7, mu=0.3, rho=0.5, noise=0.2, sigma2=0.3)
LOGISTIC = LogisticBilevel(n=6, m=5)


def points(n, d, scale=3.0, seed=0):
    return scale * torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def slope(f, *at, of=0):
    at = [a.clone().requires_grad_() for a in at]
    return torch.autograd.grad(f(*at).sum(), at[of])[0]


def name(problem):
    return type(problem).__name__


@pytest.mark.parametrize("problem", [*MINIMIZATION, *MINMAX], ids=name)
def test_grad_is_the_gradient_of_f(problem):
    x = points(50, problem.d)
    torch.testing.assert_close(problem.grad(x), slope(problem.F, x), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("problem", [*MINIMIZATION, *MINMAX], ids=name)
def test_lipschitz_constant(problem):
    L = problem.L
    x, y = points(2000, problem.d), points(2000, problem.d, seed=1)
    for step in (1.0, 1e-2, 1e-4):
        z = x + step * (y - x)
        ratio = (problem.grad(x) - problem.grad(z)).norm(dim=1) / (x - z).norm(dim=1)
        assert float(ratio.max()) <= L * (1 + 1e-6)
    origin = torch.zeros(
        1, problem.d, dtype=torch.float64
    )  # the Lipschitz constant is attained here, except by LeastSquares
    if not isinstance(problem, LeastSquares):
        near = origin.clone()
        near[0, 0] = 1e-5
        assert float((problem.grad(near) - problem.grad(origin)).norm()) / 1e-5 == pytest.approx(L, rel=1e-3)


@pytest.mark.parametrize("problem", MINIMIZATION, ids=name)
def test_smallest_value_and_slopes(problem):
    x = points(2000, problem.d)
    assert float(problem.F(x).min()) >= problem.smallest - 1e-12
    assert float(problem.grad(x).abs().max()) <= problem.steepest
    x = problem.start()
    for _ in range(20_000):
        x = x - problem.grad(x) / problem.L
    assert float(problem.F(x)) == pytest.approx(problem.smallest, abs=1e-9)


def test_mu_of_the_wavy_function_on_a_fine_grid():
    x = torch.linspace(1e-3, 4, 400_001, dtype=torch.float64).unsqueeze(1)
    problem = Wavy(d=1)
    ratio = problem.grad(x).square().squeeze(1) / (2 * problem.F(x))
    # Between grid points (distance 1e-5) the ratio changes little: the second derivative of F'^2 is a few hundred.
    assert problem.mu <= float(ratio.min()) - 1e-4
    assert float(ratio.min()) == pytest.approx(0.17553, abs=1e-4)
    far = torch.linspace(4, 1000, 100_000, dtype=torch.float64)
    assert float(((2 * far - 3).square() / (2 * far.square() + 6)).min()) > 0.6


def test_least_squares_is_pl_and_not_strongly_convex():
    problem = MINIMIZATION[2]
    eigenvalues = torch.linalg.eigvalsh(problem.gram)
    assert eigenvalues.tolist() == pytest.approx([0, 0, 0.3, 2.0], abs=1e-12)
    x = points(500, 4)
    assert bool((problem.grad(x).square().sum(1) >= 2 * problem.mu * (problem.F(x) - problem.smallest) - 1e-9).all())
    assert float(problem.F(problem.start())) - problem.smallest == pytest.approx(1.0)


def test_constants_of_a_minimization_problem():
    c = Bounded(d=4).constants(RandomCoordinate(2.0))
    assert (c.L, c.sigma2, c.c, c.delta_f) == (2.0, 2.0, 1.5, 2.0)
    c = Bounded(d=4).constants(Additive(1.0), scalings.Adam(g0=1.0))
    assert c.c_l == pytest.approx(1 / (1 + 3 * math.sqrt(3) / 8 + 0.5))
    c = Bounded(d=4).constants(Additive(1.0), scalings.AdamPlus(g0=1.0))
    assert c.c_l == pytest.approx(1 / (1 + math.sqrt(2 * (3 * math.sqrt(3) / 8 + 0.5))))
    with pytest.raises(
        ValueError, match=r"its c_l needs bounded gradients, but these are not\. Pass clip=\(c_l, c_u\)"
    ):
        Wavy().constants(Additive(1.0), "adam")
    assert Wavy().constants(Additive(1.0), "adam", clip=(0.5, 2.0)).c_u == 2.0


@pytest.mark.parametrize("problem", MINMAX, ids=name)
def test_a_min_max_problem(problem):
    x = points(200, problem.d)
    y = problem.project_(points(200, problem.start()[1].shape[1], scale=1.0, seed=1))
    gx, gy = problem.grads(x, y)
    torch.testing.assert_close(gx, slope(problem.f, x, y, of=0))
    torch.testing.assert_close(gy, slope(problem.f, x, y, of=1))
    best = problem.y_star(x, y)
    torch.testing.assert_close(problem.f(x, best), problem.F(x))
    torch.testing.assert_close(best, problem.project_(best.clone()))
    assert bool((problem.f(x, y) <= problem.F(x) + 1e-12).all())
    # lambda-PL, with equality where f is quadratic in y; grad F is the gradient in x at y*.
    gap = problem.F(x) - problem.f(x, y)
    assert bool((gy.square().sum(1) >= 2 * problem.lam * gap * (1 - 1e-9)).all())
    torch.testing.assert_close(problem.grads(x, best)[0], problem.grad(x))


@pytest.mark.parametrize("problem", MINMAX, ids=name)
def test_the_lipschitz_constant_of_the_gradient_of_f(problem):
    d = problem.start()[1].shape[1]
    x, y = points(2000, problem.d, scale=2.0), problem.project_(points(2000, d, scale=1.0, seed=1))
    for step in (1.0, 1e-3):
        x2 = x + step * points(2000, problem.d, scale=1.0, seed=2)
        y2 = problem.project_(y + step * points(2000, d, scale=1.0, seed=3))
        change = torch.cat([a - b for a, b in zip(problem.grads(x, y), problem.grads(x2, y2), strict=True)], 1).norm(
            dim=1
        )
        moved = torch.cat([x - x2, y - y2], 1).norm(dim=1)
        assert float((change / moved).max()) <= problem.L_f * (1 + 1e-9)


def test_kappa_can_be_varied_without_changing_f():
    x = points(10, 3)
    near, far = StronglyConcave(d=3, lam=1.0), StronglyConcave(d=3, lam=0.01)
    torch.testing.assert_close(near.F(x), far.F(x))
    assert far.kappa > 50 * near.kappa


def test_the_nearest_of_many_maximizers():
    problem = MINMAX[1]
    x, y = points(50, 3), points(50, 6, seed=1)
    nearest = problem.y_star(x, y)
    for other in (problem.y_star(x, points(50, 6, seed=2)), problem.y_star(x)):
        assert bool(((y - nearest).norm(dim=1) <= (y - other).norm(dim=1) + 1e-12).all())


def by_differences(problem, x, eps=1e-6):
    steps = eps * torch.eye(x.shape[1], dtype=x.dtype)
    return torch.stack([(problem.F(x + e) - problem.F(x - e)) / (2 * eps) for e in steps], 1)


@pytest.mark.parametrize("problem", [QUADRATIC, QuadraticBilevel(mu=0.2), LOGISTIC, QuadraticComposition()], ids=name)
def test_grad_by_differences_of_f(problem):
    d = problem.d if isinstance(problem, QuadraticComposition) else problem.d_x
    x = points(5, d, scale=1.0)
    torch.testing.assert_close(problem.grad(x), by_differences(problem, x), rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("problem", [QUADRATIC, LogisticBilevel(n=6, m=5, batch=None)], ids=name)
def test_the_lower_solution_is_stationary(problem):
    x = points(4, problem.d_x, scale=1.0)
    y = problem.y_star(x).requires_grad_()
    assert not QUADRATIC.F(points(2, 3)).requires_grad
    exact = problem if problem is not QUADRATIC else replace(problem, noise=0.0, sigma2=0.0, C_gyy=problem.C_gyy / 1.2)
    (g_y,) = torch.autograd.grad(exact.inner(x, y)(), y)
    assert float(g_y.abs().max()) < 1e-12
    torch.testing.assert_close(exact.outer(x, y)().detach(), problem.F(x).sum())


def test_constants_of_the_quadratic_lower_problem():
    problem, c = QUADRATIC, QUADRATIC.constants()
    values = torch.linalg.eigvalsh(problem.A)
    assert (c.lam, c.L_gy, c.C_gyy, c.L_fx, c.L_fy) == (
        pytest.approx(float(values[0])), pytest.approx(float(values[-1])), 2.0, 0.3, 1.0,
    )  # fmt: skip
    assert c.L_gy == pytest.approx(2.0 / 1.2)
    assert c.C_gxy == pytest.approx(float(torch.linalg.svdvals(problem.B)[0])) == 0.7
    assert c.delta_f == pytest.approx(float(problem.F(torch.ones(1, 3, dtype=torch.float64))))
    x, y = points(4000, 3), points(4000, 4, seed=1)
    for step in (1.0, 1e-3):
        z = x + step * points(4000, 3, seed=2)
        ratio = (problem.grad(x) - problem.grad(z)).norm(dim=1) / (x - z).norm(dim=1)
        assert float(ratio.max()) <= c.L * (1 + 1e-9)
    f_y = slope(problem.f, x, y, of=1)
    assert float(f_y.norm(dim=1).max()) <= c.C_fy
    steepest = problem.c + 1 / math.sqrt(3 * 0.5)  # where phi' is largest, in all four coordinates
    assert float(slope(problem.f, x[:1], steepest.expand(1, 4), of=1).norm()) == pytest.approx(c.C_fy)
    with pytest.raises(
        ValueError, match=r"rho=0\.0 is invalid: it must be > 0: the theorems need a bounded f_y\. Pass"
    ):
        QuadraticBilevel().constants()


def test_samples_of_the_quadratic_lower_problem():
    problem, k, rows = QUADRATIC, 4, 20_000
    x, y = (points(1, d, seed=d).expand(rows, d) for d in (3, 4))
    noise = tuple(part[0] for part in problem.draw(1, rows, k, torch.Generator().manual_seed(0)))
    pieces = problem.sample(x, y, noise)
    values = torch.linalg.eigvalsh(problem.A)
    mean_h = sum((1 - values / problem.C_gyy) ** p for p in range(k)) / problem.C_gyy
    close = 5 / math.sqrt(rows)
    torch.testing.assert_close(pieces.h.mean(0), mean_h, rtol=0, atol=close * k / problem.C_gyy)
    assert bool(((mean_h - 1 / values).abs() <= (1 - problem.lam / problem.C_gyy) ** k / problem.lam + 1e-12).all())
    assert float(pieces.h.max()) <= k / problem.C_gyy
    exact = {
        "fx": slope(problem.f, x[:1], y[:1], of=0)[0],
        "fy": slope(problem.f, x[:1], y[:1], of=1)[0],
        "gxy": -problem.B.T,
        "gy": problem.A @ y[0] - problem.B @ x[0] - problem.b,
    }
    for key, expected in exact.items():
        piece = getattr(pieces, key)
        torch.testing.assert_close(piece.mean(0), expected, rtol=0, atol=close)
        assert float((piece - expected).flatten(1).square().sum(1).mean()) == pytest.approx(problem.sigma2, rel=1e-2)
    estimate, gy = problem.estimate(x, y, noise)
    assert torch.equal(gy, pieces.gy)
    expected = exact["fx"] - exact["gxy"] @ problem.apply(mean_h, exact["fy"])
    torch.testing.assert_close(estimate.mean(0), expected, rtol=0, atol=10 * close)


def test_closures_have_the_distribution_of_the_simulator():
    """Means and variances of the first and second derivatives of the closures."""
    problem, rows = QUADRATIC, 20_000
    x, y = (points(1, d, seed=d).expand(rows, d).clone().requires_grad_() for d in (3, 4))
    fx, fy = torch.autograd.grad(problem.outer(x, y)(), (x, y))
    (gy,) = torch.autograd.grad(problem.inner(x, y)(), y, create_graph=True)
    w = points(1, 4, scale=1.0, seed=9).expand(rows, 4)
    gxy_w, gyy_w = torch.autograd.grad((gy * w).sum(), (x, y))
    clean = [slope(problem.f, x[:1], y[:1], of=k)[0] for k in range(2)]
    clean.append((problem.A @ y[0] - problem.B @ x[0] - problem.b).detach())
    close = 5 / math.sqrt(rows)
    for piece, expected in zip((fx, fy, gy.detach()), clean, strict=True):
        torch.testing.assert_close(piece.mean(0), expected, rtol=0, atol=close)
        assert float((piece - expected).square().sum(1).mean()) == pytest.approx(problem.sigma2, rel=1e-2)
    size = float(w[0].square().sum())
    error = gxy_w + w @ problem.B
    torch.testing.assert_close(error.mean(0), torch.zeros(3, dtype=x.dtype), rtol=0, atol=close * size)
    assert float(error.square().sum(1).mean()) == pytest.approx(problem.sigma2 * size / 4, rel=3e-2)
    ratio = gyy_w / (w @ problem.A)  # 1 + s in every coordinate
    torch.testing.assert_close(ratio, ratio[:, :1].expand_as(ratio))
    assert 0.8 <= float(ratio.min()) < 0.801
    assert 1.199 < float(ratio.max()) <= 1.2
    assert float(ratio.mean()) == pytest.approx(1.0, abs=0.2 * close)


def test_second_derivatives_and_samples_of_the_logistic_lower_problem():
    problem, whole = LOGISTIC, LogisticBilevel(n=6, m=5, batch=None)
    x, y = points(1, 6, scale=1.0), points(1, 3, seed=1)
    H = torch.autograd.functional.hessian(lambda y: whole.inner(x, y)(), y)[0, :, 0]
    torch.testing.assert_close(problem.hessian(x, y)[0], H)
    n = 4000
    with torch.no_grad():
        found = problem.inner(x.expand(n, 6), y.expand(n, 3))() / n
        assert float(found) == pytest.approx(float(whole.inner(x, y)()), abs=0.02)
    with pytest.raises(ValueError, match=r"batch=None: the simulator samples examples\. Pass batch=1 or more"):
        whole.draw(1, 1, 1, torch.Generator())
    with pytest.raises(ValueError, match=r"batch=0 is invalid: it must be at least 1"):
        LogisticBilevel(batch=0)


def test_the_constants_of_the_logistic_lower_problem():
    problem = LOGISTIC
    c, n = problem.constants(), 6
    x, y = points(300, n, scale=2.0), points(300, 3, scale=2.0, seed=1)
    x2, y2 = x + 0.1 * points(300, n, seed=2), y + 0.1 * points(300, 3, seed=3)

    def second(x, y):
        margins = y @ problem.noisy.T
        weights = x.sigmoid()
        mixed = -(weights * (1 - weights) * (-margins).sigmoid()).unsqueeze(-1) * problem.noisy / n
        return problem._gyy(weights, margins), mixed

    gyy, gxy = second(x, y)
    gyy2, gxy2 = second(x2, y2)
    moved = torch.cat([x - x2, y - y2], 1).norm(dim=1)
    eigenvalues = torch.linalg.eigvalsh(gyy)
    assert c.lam <= float(eigenvalues.min()) <= float(eigenvalues.max()) <= c.L_gy
    assert float(torch.linalg.matrix_norm(gxy, 2).max()) <= c.C_gxy
    assert float((torch.linalg.matrix_norm(gyy - gyy2) / moved).max()) <= c.L_gyy
    assert float((torch.linalg.matrix_norm(gxy - gxy2) / moved).max()) <= c.L_gxy


def test_the_estimate_of_the_logistic_hypergradient():
    problem, k, rows = LOGISTIC, 6, 20_000
    x = points(1, 6, scale=1.0)
    y = problem.y_star(x)
    like = x.expand(rows, 6)
    noise = tuple(part[0] for part in problem.draw(1, rows, k, torch.Generator().manual_seed(0)))
    estimate, gy = problem.estimate(like, y.expand(rows, 3), noise)
    c = problem.constants()
    bias = c.C_gxy * c.C_fy * (1 - c.lam / c.C_gyy) ** k / c.lam
    spread = float(estimate.std(0).norm()) / math.sqrt(rows)
    assert float((estimate.mean(0) - problem.grad(x)[0]).norm()) <= bias + 5 * spread
    assert float(gy.mean(0).norm()) <= 5 * float(gy.std(0).norm()) / math.sqrt(rows)
    assert float((gy - gy.mean(0)).square().sum(1).mean()) <= c.sigma2
    plan = theory.bilevel(c, T=10)
    assert float((estimate - estimate.mean(0)).square().sum(1).mean()) <= plan.bound().noise / plan.gamma


def test_composition_minimizers():
    problem = QuadraticComposition(noise=0.4)
    assert problem.grad(problem.minimizer()).abs().max() < 1e-12
    x = problem.naive_minimizer()
    inner, n = problem.inner(x.requires_grad_()), 4000
    # The mean gradient of f(g(x; xi)) vanishes at the naive minimizer.
    total = torch.autograd.grad(sum(problem.outer(inner()) for _ in range(n)), x)[0]
    assert (total / n).abs().max() < 0.06
    assert problem.grad(x).abs().max() > 0.1


def test_invalid_options():
    with pytest.raises(ValueError, match=r"lam=3\.0 is invalid: it must lie in \(0, 2\]"):
        QuadraticBilevel(lam=3.0)
    with pytest.raises(ValueError, match=r"noise=1\.0 is invalid: it must lie in \[0, 1\)"):
        QuadraticBilevel(noise=1.0)
    with pytest.raises(ValueError, match=r"d=9 is invalid: it must lie in 1\.\.5"):
        QuadraticComposition(d=9)


@pytest.mark.parametrize("batch", [0, 401])
def test_hyper_cleaning_has_no_batch_larger_than_its_data(batch):
    pytest.importorskip("sklearn", reason="scikit-learn is an extra")
    from semaopt.problems.cleaning import HyperCleaning

    with pytest.raises(
        ValueError, match=rf"batch={batch} is invalid: it must lie in 1\.\.400\. The smaller set has that many examples"
    ):
        HyperCleaning(batch=batch)


def test_hyper_cleaning_is_as_described():
    pytest.importorskip("sklearn", reason="scikit-learn is an extra")
    from semaopt.problems.cleaning import HyperCleaning, load_digits

    problem = HyperCleaning(seed=3)
    assert [len(b) for _, b in problem.data.values()] == [1000, 400, 397]
    assert problem.wrong.sum() == 400
    images, digits = load_digits()
    a, b = problem.data["train"]
    where = {tuple(image.tolist()): digit.item() for image, digit in zip(images, digits, strict=True)}
    truth = torch.tensor([where[tuple(image.tolist())] for image in a])
    assert torch.equal(b, torch.where(problem.wrong, (truth + 1) % 10, truth))
    twin = HyperCleaning(seed=3)
    assert [problem.inner().item() for _ in range(20)] == [twin.inner().item() for _ in range(20)]
    assert problem.inner().item() == pytest.approx(0.5 * torch.log(torch.tensor(10.0)).item())
    assert problem.accuracy("test") < 0.2
    with pytest.raises(ValueError, match=r"corruption=1 is invalid: it must lie in \[0, 1\)"):
        HyperCleaning(corruption=1)
