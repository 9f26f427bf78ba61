"""Compare every inverse with the exact implicit gradient (in mean where it is sampled), and test its safeguards."""

import math
from inspect import signature

import pytest
import torch

import semaopt
from semaopt.hypergradient import CG, Exact, FirstOrder, Neumann, NeumannSeries, TrackedSystem, compare, inverses
from semaopt.hypergradient.closures import Oracles
from semaopt.hypergradient.inverses import Memory, uniform
from semaopt.hypergradient.linalg import curvature, power_iteration
from semaopt.optimizers._bilevel import BilevelOptimizer
from semaopt.problems import LogisticBilevel, QuadraticBilevel


def quadratic(copies=1, **options):
    problem = QuadraticBilevel(**options)
    x, y = problem.start(copies)
    y.data = torch.randn(y.shape, generator=torch.Generator().manual_seed(9), dtype=y.dtype)
    return problem, x, y


def logistic():
    problem = LogisticBilevel(n=40, m=20, d_y=4, lam=0.1, batch=None)
    x, y = problem.start()
    y.data = torch.randn(1, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    return problem, x, y


def memory_for(rate=None):
    return Memory(states=[{}], rates=[rate] if rate else [])


def estimate(inverse, problem, x, y, memory=None):
    """Return f_x - g_xy w from one call of the inverse."""
    oracles = Oracles(problem.outer(x, y), problem.inner(x, y), [x], [y])
    _, (f_x,), f_y = oracles.f()
    g_y, (g_xy_w,) = inverse(oracles, f_y, memory or memory_for())
    assert g_y[0].shape == y.shape
    return -g_xy_w if f_x is None else f_x - g_xy_w


def truncated(problem, x, y, k, C=None):
    """Return the hypergradient with sum_{i<k} (I - A/C)^i / C in place of the inverse of A."""
    C = C or problem.C_gyy
    eye = torch.eye(problem.d_y, dtype=problem.dtype)
    series = sum(torch.linalg.matrix_power(eye - problem.A / C, i) for i in range(k)) / C
    return problem.mu * x.detach() + (y.detach() - problem.c) @ series @ problem.B


def bias_bound(problem, y, k):
    """Return |g_xy| (1/lambda) (1 - lambda/C)^k |f_y|, from lem:ghadimi_h_to_g."""
    f_y = torch.linalg.vector_norm(y.detach() - problem.c).item()
    return problem.C_gxy / problem.lam * (1 - problem.lam / problem.C_gyy) ** k * f_y


@pytest.mark.parametrize("make", [quadratic, logistic])
@pytest.mark.parametrize("inverse", [Exact(), CG(steps=20)], ids=["exact", "cg"])
def test_exact_and_converged_cg_give_the_implicit_gradient(make, inverse):
    problem, x, y = make()
    torch.testing.assert_close(estimate(inverse, problem, x, y), problem.hypergradient(x, y), rtol=1e-9, atol=1e-11)


def test_cg_error_falls_at_its_rate():
    problem, x, y = quadratic(d_y=30, lam=0.05)
    exact, kappa = problem.hypergradient(x, y), 2.0 / 0.05
    rate = (math.sqrt(kappa) - 1) / (math.sqrt(kappa) + 1)
    f_y = torch.linalg.vector_norm(y.detach() - problem.c).item()
    for steps in (2, 5, 10, 20):
        error = torch.linalg.vector_norm(estimate(CG(steps), problem, x, y) - exact).item()
        assert error <= 2 * problem.C_gxy * math.sqrt(kappa) * rate**steps * f_y / problem.lam
    assert error < 0.02 * torch.linalg.vector_norm(exact)


@pytest.mark.parametrize("k", [1, 2, 7, 30])
def test_series_is_the_truncated_series_within_its_stated_bias(k):
    problem, x, y = quadratic()
    found = estimate(NeumannSeries(k, bound=problem.C_gyy), problem, x, y)
    torch.testing.assert_close(found, truncated(problem, x, y, k), rtol=1e-12, atol=1e-13)
    assert torch.linalg.vector_norm(found - problem.hypergradient(x, y)) <= bias_bound(problem, y, k)


def test_series_and_sampled_series_on_the_logistic_bed():
    problem, x, y = logistic()
    H = problem.hessian(x, y)[0]
    C, lam = torch.linalg.eigvalsh(H)[[-1, 0]].tolist()
    exact = problem.hypergradient(x, y)
    for k in (3, 12):
        found = estimate(NeumannSeries(k, bound=C), problem, x, y)
        f_y = torch.autograd.grad(problem.outer(x, y)(), y)[0].norm().item()
        bound = problem.constants().C_gxy / lam * (1 - lam / C) ** k * f_y
        assert torch.linalg.vector_norm(found - exact) <= bound
        mean = average_over_p(Neumann(k, bound=C), problem, x, y)
        torch.testing.assert_close(mean, found, rtol=1e-10, atol=1e-12)


def average_over_p(inverse, problem, x, y):
    """Return the mean over one draw of each p; with deterministic closures it is exact."""
    ts = {uniform(inverse.terms, inverse.seed, t): t for t in range(100 * inverse.terms)}
    assert sorted(ts) == list(range(inverse.terms))
    found = []
    for t in ts.values():
        memory = memory_for()
        memory.numbers["t"] = t
        found.append(estimate(inverse, problem, x, y, memory))
    return sum(found) / inverse.terms


@pytest.mark.parametrize("k", [1, 4])
def test_the_mean_over_p_is_the_truncated_series(k):
    problem, x, y = quadratic()
    mean = average_over_p(Neumann(k, bound=problem.C_gyy), problem, x, y)
    torch.testing.assert_close(mean, truncated(problem, x, y, k), rtol=1e-12, atol=1e-13)


COPIES = 4000


def many(sigma2=0.8):
    """Return a problem with ``COPIES`` independent samples side by side, at the same x and y."""
    problem, x, y = quadratic(noise=0.4, sigma2=sigma2, copies=COPIES)
    x.data[:], y.data[:] = x.data[:1].clone(), y.data[:1].clone()
    return problem, x, y


def mean_and_error(estimates):
    return estimates.mean(0), estimates.std(0) / math.sqrt(len(estimates))


@pytest.mark.parametrize("kind", [Neumann, NeumannSeries])
def test_sampled_series_is_unbiased_for_the_truncated_series(kind):
    problem, x, y = many()
    inverse = kind(4, bound=problem.C_gyy)
    found = average_over_p(inverse, problem, x, y) if kind is Neumann else estimate(inverse, problem, x, y)
    mean, error = mean_and_error(found)
    assert ((mean - truncated(problem, x, y, 4)[0]).abs() <= 4.5 * error).all()


def test_p_from_one_to_k_would_be_caught(monkeypatch):
    """With the paper's p in 1..k the mean tends to the inverse minus I/C, and the test above would fail."""
    problem, x, y = many()
    monkeypatch.setattr(inverses, "uniform", lambda k, seed, t: 1 + uniform(k, seed, t))
    mean, error = mean_and_error(average_over_p(Neumann(4, bound=problem.C_gyy), problem, x, y))
    assert ((mean - truncated(problem, x, y, 4)[0]).abs() > 10 * error).any()
    shifted = truncated(problem, x, y, 5)[0] - ((y.detach()[0] - problem.c) / problem.C_gyy) @ problem.B
    assert ((mean - shifted).abs() <= 4.5 * error).all()


def test_one_sample_for_all_factors_would_be_caught():
    """A product of one sample with itself is biased by its variance, so each factor needs its own sample."""
    problem, x, y = many(sigma2=0.0)
    inner, s = problem.inner(x, y), problem.generator.get_state()

    def same():
        problem.generator.set_state(s)
        return inner()

    problem.inner = lambda x, y: same
    mean, error = mean_and_error(estimate(NeumannSeries(4, bound=problem.C_gyy), problem, x, y))
    assert ((mean - truncated(problem, x, y, 4)[0]).abs() > 4.5 * error).any()


def test_all_terms_have_less_variance_at_the_same_cost():
    spread = {}
    for inverse in (Neumann(11, bound=2.0), NeumannSeries(6, bound=2.0)):  # 5 products: on average, and exactly
        problem, x, y = quadratic(noise=0.2, sigma2=0.2, lam=0.2, copies=20)
        memory, found = memory_for(), []
        for t in range(60):
            memory.numbers["t"] = t
            found.append(estimate(inverse, problem, x, y, memory))
        spread[type(inverse)] = torch.stack(found).var(0).mean().sqrt()
    assert spread[NeumannSeries] < 0.5 * spread[Neumann]


@pytest.mark.parametrize(
    ("inverse", "calls"),
    [(NeumannSeries(5, 2.0), 5), (CG(3), 2), (Exact(), 2), (TrackedSystem(), 1), (NeumannSeries(5), 15)],
)
def test_every_product_has_the_fresh_sample_of_the_contract(inverse, calls):
    problem, x, y = quadratic(noise=0.1, sigma2=0.05)
    seen, inner = [], problem.inner(x, y)

    def counted():
        seen.append(x.requires_grad)
        return inner()

    oracles = Oracles(problem.outer(x, y), counted, [x], [y])
    inverse(oracles, oracles.f()[2], memory_for(0.5))
    assert len(seen) == calls
    assert x.requires_grad
    assert seen[-1] is True, "g_xy needs x in the graph"


def test_neumann_draws_p_samples_and_one_more():
    problem, x, y = quadratic(noise=0.1, sigma2=0.05)
    inner, calls = problem.inner(x, y), []
    oracles = Oracles(problem.outer(x, y), lambda: (calls.append(0), inner())[1], [x], [y])
    for t in range(20):
        calls.clear()
        memory = memory_for()
        memory.numbers["t"] = t
        Neumann(6, 2.0, seed=5)(oracles, oracles.f()[2], memory)
        assert len(calls) == uniform(6, 5, t) + 1


def test_p_is_uniform_on_zero_to_k_minus_one():
    for seed, k in ((0, 10), (1, 7), (2**70, 3)):
        counts = torch.bincount(torch.tensor([uniform(k, seed, t) for t in range(10_000)]), minlength=k)
        assert len(counts) == k
        chi2 = ((counts - 10_000 / k) ** 2 / (10_000 / k)).sum().item()
        assert chi2 < k - 1 + 5 * math.sqrt(2 * (k - 1))
    assert [uniform(1, 0, t) for t in range(5)] == [0] * 5
    assert [uniform(10, 0, t) for t in range(30)] != [uniform(10, 1, t) for t in range(30)]


def test_tracked_system_converges_at_its_rate_and_uses_the_old_w():
    problem, x, y = quadratic()
    memory, rho = memory_for(1 / problem.C_gyy), 1 / problem.C_gyy
    exact = problem.hypergradient(x, y)
    f_y = y.detach() - problem.c
    first = estimate(TrackedSystem(), problem, x, y, memory)
    torch.testing.assert_close(first, problem.mu * x.detach() + rho * f_y @ problem.B)  # w_0 = rho f_y
    torch.testing.assert_close(memory.states[0]["w"], 2 * rho * f_y - rho * rho * f_y @ problem.A)
    for n in range(1, 40):
        error = torch.linalg.vector_norm(estimate(TrackedSystem(), problem, x, y, memory) - exact)
        assert error <= bias_bound(problem, y, n + 1) + 1e-12
    assert error < 1e-4


def test_tracked_system_takes_its_own_step_size_over_that_of_the_group():
    problem, x, y = quadratic()
    memory = memory_for(1e-9)
    estimate(TrackedSystem(lr=0.5), problem, x, y, memory)
    twin = memory_for(0.5)
    estimate(TrackedSystem(), problem, x, y, twin)
    assert torch.equal(memory.states[0]["w"], twin.states[0]["w"])


def test_tracked_system_shortens_a_step_that_would_diverge():
    problem, x, y = quadratic()
    memory = memory_for(100.0)  # 2/C is 1
    memory.projected = True
    exact = problem.hypergradient(x, y)
    f_y, lengths = torch.linalg.vector_norm(y.detach() - problem.c).item(), []
    for _ in range(300):
        found = estimate(TrackedSystem(), problem, x, y, memory)
        lengths.append(torch.linalg.vector_norm(memory.states[0]["w"]).item())
    torch.testing.assert_close(found, exact)
    assert max(lengths) <= 2 * f_y / problem.lam, "w stays bounded on the way"
    assert problem.C_gyy / 2 <= memory.numbers["bound"] <= problem.C_gyy * (1 + 1e-9)


def curved(*diagonal):
    """Return f = sum y and g = sum of diagonal (y - x)^2/2. Every entry of the hypergradient is 1 at any x and y."""
    x, y = (torch.nn.Parameter(torch.zeros(len(diagonal), dtype=torch.float64)) for _ in range(2))
    h = torch.tensor(diagonal, dtype=torch.float64)
    return x, y, (lambda: y.sum()), (lambda: (h * (y - x).square()).sum() / 2)


@pytest.mark.parametrize(
    ("diagonal", "inverse", "options"),
    [
        ([10.0], TrackedSystem(1.0), {}),
        ([10.0], TrackedSystem(), {"lower_lr": 0.3, "project": semaopt.projections.Box(-1.0, 1.0)}),
        ([1.0, 10.0], TrackedSystem(0.5), {}),
        ([1.0, 0.4, 10.0], TrackedSystem(0.25), {}),
        ([1.0, 10.0], TrackedSystem(1e3), {}),
    ],
    ids=["one", "box", "two", "three", "huge"],
)
def test_tracked_system_is_right_with_an_expansive_step_size(diagonal, inverse, options):
    x, y, outer, inner = curved(*diagonal)
    optimizer = semaopt.SMB([x], [y], lr=0.0, inverse=inverse, **options)
    optimizer.step(outer, inner)
    assert x.grad.abs().max() <= 2.0, "w_0 is not too long"
    for _ in range(400):
        optimizer.step(outer, inner)
    torch.testing.assert_close(x.grad, torch.ones_like(x))
    assert compare(outer, inner, [x], [y], inverse).relative_error < 1e-6


def test_tracked_system_is_right_when_one_of_two_groups_is_expansive():
    x, y, *_ = curved(1.0, 10.0)
    ys = [torch.nn.Parameter(part.clone()) for part in y.detach()]
    lower = [{"params": ys[:1], "lr": 0.1}, {"params": ys[1:], "lr": 5.0}]
    optimizer = semaopt.SMB([x], lower, lr=0.0, project=semaopt.projections.Box(-1.0, 1.0))
    h = torch.tensor([1.0, 10.0], dtype=torch.float64)
    for _ in range(400):
        optimizer.step(lambda: sum(ys), lambda: (h * (torch.stack(ys) - x).square()).sum() / 2)
    torch.testing.assert_close(x.grad, torch.ones_like(x))


def test_a_stable_step_of_the_tracked_system_is_the_formula_to_the_bit():
    problem, x, y = quadratic()
    memory, rho = memory_for(0.7), 0.7  # above 1/C, below 2/C
    oracles = Oracles(problem.outer(x, y), problem.inner(x, y), [x], [y])
    w = None
    for _ in range(5):
        (f_y,) = oracles.f()[2]
        w = f_y * rho if w is None else w
        (hw,) = oracles.draw(mixed=True).both([w])[0]
        w = w.add(f_y, alpha=rho).sub(hw, alpha=rho)
        TrackedSystem()(oracles, [f_y], memory)
        assert torch.equal(memory.states[0]["w"], w)
    assert memory.numbers["bound"] is None


def test_tracked_system_keeps_w_where_the_curvature_is_negative():
    x, y = torch.nn.Parameter(torch.tensor([1.0])), torch.nn.Parameter(torch.tensor([2.0]))
    oracles = Oracles(lambda: y.sum(), lambda: (x * y - 5 * y.square()).sum(), [x], [y])
    memory = Memory(states=[{}], rates=[0.1])
    memory.numbers["bound"] = 3.0
    for _ in range(200):
        TrackedSystem()(oracles, oracles.f()[2], memory)
    assert memory.states[0]["w"].item() == pytest.approx(0.1)
    assert memory.numbers["bound"] is None


@pytest.mark.parametrize("kind", [Neumann, NeumannSeries])
def test_too_small_a_bound_is_an_error_that_names_the_curvature(kind):
    problem, x, y = quadratic(lam=1.0, C_gyy=2.0)
    memory = memory_for()
    memory.numbers["t"] = next(t for t in range(20) if uniform(10, 0, t) > 2)
    with pytest.raises(RuntimeError, match=r"bound=0\.1: a product of \d+ factors .* diverges.*curvature (1\.9|2)"):
        estimate(kind(10, bound=0.1), problem, x, y, memory)


def test_a_measured_bound_is_near_the_largest_curvature_and_is_kept():
    problem, x, y = quadratic(d_y=20)
    memory = memory_for()
    estimate(NeumannSeries(3), problem, x, y, memory)
    assert 0.8 * problem.C_gyy <= memory.numbers["bound"] <= problem.C_gyy * (1 + 1e-9)
    kept = memory.numbers["bound"]
    estimate(NeumannSeries(3), problem, x, y, memory)
    assert memory.numbers["bound"] == kept


def test_a_measured_bound_rises_when_the_curvature_does():
    problem, x, y = quadratic()
    memory = memory_for()
    estimate(NeumannSeries(8), problem, x, y, memory)
    problem.A *= 50
    problem._inverse /= 50
    found = estimate(NeumannSeries(8), problem, x, y, memory)
    assert memory.numbers["bound"] >= 0.8 * 50 * problem.C_gyy
    assert torch.isfinite(found).all()
    expected = truncated(problem, x, y, 8, memory.numbers["bound"])
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("terms", [10, 400])
@pytest.mark.parametrize("bound", [None, 40.0])
def test_a_concave_lower_problem_ends_in_an_error_not_in_nan_or_a_large_bound(terms, bound):
    x, y = torch.nn.Parameter(torch.tensor([1.0])), torch.nn.Parameter(torch.tensor([2.0]))
    oracles = Oracles(lambda: y.sum(), lambda: (x * y - 5 * y.square()).sum(), [x], [y])
    memory = Memory(states=[{}])
    text = r"Nothing was changed\. inner\(\) has curvature -10 along that .*not convex in the lower parameters: reg"
    with pytest.raises(RuntimeError, match=text):
        NeumannSeries(terms, bound)(oracles, oracles.f()[2], memory)
    assert memory.numbers["bound"] is None


def test_one_negative_direction_among_many_is_found_after_a_bound_was_measured():
    diagonal = torch.tensor([1.0, 2.0, 3.0, 0.5])
    x, y = torch.nn.Parameter(torch.ones(4)), torch.nn.Parameter(torch.zeros(4))
    oracles = Oracles(lambda: y.sum(), lambda: (x * y + diagonal / 2 * y.square()).sum(), [x], [y])
    memory = Memory(states=[{}])
    NeumannSeries(20)(oracles, oracles.f()[2], memory)
    measured = memory.numbers["bound"]
    diagonal[3] = -1.0
    with pytest.raises(RuntimeError, match=r"curvature -(0\.9\d*|1) along that product"):
        NeumannSeries(20)(oracles, oracles.f()[2], memory)
    assert memory.numbers["bound"] == measured


def test_a_bound_that_stays_too_small_is_put_back(monkeypatch):
    problem, x, y = quadratic()
    memory = memory_for()
    memory.numbers["bound"] = 1e-3
    monkeypatch.setattr(inverses, "TRIES", 2)
    monkeypatch.setattr(inverses, "power_iteration", lambda oracles, v: 1e-3)
    with pytest.raises(RuntimeError, match=r"bound=0\.002: .*Nothing was changed\. inner\(\) has curvature 0\.001"):
        estimate(NeumannSeries(8), problem, x, y, memory)
    assert memory.numbers["bound"] == 1e-3


def test_cg_stops_at_negative_curvature():
    x, y = torch.nn.Parameter(torch.tensor([1.0])), torch.nn.Parameter(torch.tensor([2.0, 1.0]))
    weights = torch.tensor([1.0, -1.0])
    oracles = Oracles(lambda: y.sum(), lambda: (x * y + weights * y.square()).sum(), [x], [y])
    _, (product,) = CG(10)(oracles, oracles.f()[2], Memory(states=[{}]))
    assert torch.isfinite(product).all()


def test_curvature_of_a_product():
    v = [torch.tensor([3.0, 0.0]), torch.tensor([4.0])]
    assert curvature(v, [2 * part for part in v]) == 2.0
    assert curvature(v, [-2 * part for part in v]) == -2.0
    assert curvature(v, [0 * part for part in v]) == 0.0
    assert curvature([torch.tensor([1.0, 0.0])], [torch.tensor([0.0, 1.0])]) == math.inf
    with pytest.raises(RuntimeError, match="not finite; nothing was changed"):
        curvature(v, [math.nan * part for part in v])


def test_power_iteration_starts_anywhere_and_refuses_a_flat_problem():
    problem, x, y = quadratic()
    oracles = Oracles(problem.outer(x, y), problem.inner(x, y), [x], [y])
    assert power_iteration(oracles, [torch.zeros_like(y)], 30) == pytest.approx(problem.C_gyy, rel=0.05)
    flat = Oracles(lambda: y.sum(), lambda: (0 * y.square()).sum(), [x], [y])
    with pytest.raises(
        ValueError, match=r"bound=0\.0 is invalid: inner\(\) has no curvature in the lower level\. Add a regularizer"
    ):
        power_iteration(flat, [y.detach()])


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Neumann(0), r"terms=0 is invalid: it must be a whole number >= 1\. Try 10"),
        (lambda: NeumannSeries(2.5), r"terms=2\.5 is invalid: it must be a whole number >= 1"),
        (lambda: Neumann(3, bound=-1.0), r"bound=-1\.0 is invalid: it must be a number > 0\. Pass C >= \|O_gyy\|"),
        (lambda: Neumann(3, bound=math.nan), r"bound=nan is invalid: it must be a number > 0"),
        (
            lambda: TrackedSystem(lr=0.0),
            r"lr=0\.0 is invalid: it must be a number > 0\. Pass a number below 2/\|g_yy\|",
        ),
        (lambda: CG(steps=True), r"steps=True is invalid: it must be a whole number >= 1"),
        (lambda: CG(tolerance=1.0), r"tolerance=1\.0 is invalid: it must lie in \[0, 1\)"),
        (lambda: Exact(limit=0), r"limit=0 is invalid: it must be a whole number >= 1"),
    ],
)
def test_invalid_options_name_the_rule(make, text):
    with pytest.raises(ValueError, match=text):
        make()


def test_exact_refuses_large_and_singular_problems():
    problem, x, y = quadratic()
    with pytest.raises(
        ValueError, match=r"lower parameters=5 is invalid: it must be at most 3 for a dense Hessian\. Use CG or Tracked"
    ):
        estimate(Exact(limit=3), problem, x, y)
    z = torch.nn.Parameter(torch.tensor([1.0, 2.0]))
    singular = Oracles(lambda: z.sum(), lambda: x.sum() * z[0] + z[0].square() + 0 * z[1].square(), [x], [z])
    with pytest.raises(RuntimeError, match=r"singular: add a regularizer to inner"):
        Exact()(singular, singular.f()[2], memory_for())


def test_resolve_names_the_choices():
    assert inverses.resolve(None) == TrackedSystem()
    with pytest.raises(TypeError, match=r"inverse=<class .*CG'>: must be an object .*Neumann\(\), NeumannSeries\(\)"):
        inverses.resolve(CG)
    with pytest.raises(TypeError, match=r"inverse='cg': must be an object of semaopt\.hypergradient"):
        inverses.resolve("cg")


@pytest.mark.parametrize("inverse", [Neumann(3, 2.0, 1), NeumannSeries(4), TrackedSystem(0.5), CG(3), Exact(10)])
def test_description_restores_the_inverse(inverse):
    assert inverses.restore(inverses.describe(inverse), TrackedSystem()) == inverse


@pytest.mark.parametrize("inverse", [Exact(), CG(5), NeumannSeries(5), TrackedSystem()], ids=lambda i: type(i).__name__)
def test_an_empty_lower_tensor_changes_nothing(inverse):
    results = []
    for shape in (None, (0,), (0, 4)):
        x, y = torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(3))
        extra = [] if shape is None else [torch.nn.Parameter(torch.zeros(shape))]

        def outer(y=y, extra=extra):
            return y.square().sum() + sum(e.sum() for e in extra)

        def inner(x=x, y=y, extra=extra):
            return (y[:2] - x).square().sum() + y.square().sum() + sum(e.square().sum() for e in extra)

        results.append(compare(outer, inner, [x], [y, *extra], inverse))
    for found in results[1:]:
        torch.testing.assert_close(found.exact, results[0].exact)
        torch.testing.assert_close(found.estimate, results[0].estimate)


def test_only_empty_lower_tensors_are_an_error():
    x, y = torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.zeros(0, 4))
    with pytest.raises(ValueError, match=r"all lower tensors are empty\. Pass tensors with elements as lower="):
        compare(lambda: y.sum(), lambda: y.sum() * x.sum() + y.square().sum(), [x], [y], Exact())


@pytest.mark.parametrize("inverse", [TrackedSystem(), NeumannSeries(3)], ids=["tracked", "series"])
def test_too_large_a_lower_lr_is_a_warning_with_the_curvature(inverse):
    x, y, outer, inner = curved(10.0)
    text = r"lower_lr=0\.5 is too large: inner\(\) has curvature 10, .* 2/curvature = 0\.2 diverge\. Use lower_lr=0\.1"
    with pytest.warns(RuntimeWarning, match=text):
        semaopt.SMB([x], [y], lower_lr=0.5, inverse=inverse).step(outer, inner)
    box = semaopt.projections.Box(-1.0, 1.0)
    semaopt.SMB([x], [y], lower_lr=0.5, inverse=inverse, project=box).step(outer, inner)  # y cannot diverge
    semaopt.SMB([x], [y], lower_lr=0.19, inverse=inverse).step(outer, inner)


def test_curvature_that_cancels_is_no_reason_for_a_smaller_lower_lr():
    """With curvatures 1 and -1, |Hw|^2/(w.Hw) is 1000 for this w, but steps of 0.5 on y do not diverge along it."""
    x, y, _, inner = curved(1.0, -1.0)
    optimizer = semaopt.SMB([x], [y], lower_lr=0.5, inverse=TrackedSystem())
    optimizer.step(lambda: y[0] + 0.999 * y[1], inner)  # a warning is an error here
    assert optimizer.algorithm_state["bound"] == pytest.approx(1000, rel=0.01)


BILEVEL = [
    semaopt.SMB,
    semaopt.SBMA,
    *(
        kind
        for kind in vars(semaopt.baselines).values()
        if isinstance(kind, type) and issubclass(kind, BilevelOptimizer)
    ),
]


@pytest.mark.parametrize("kind", BILEVEL)
@pytest.mark.parametrize("bounded", [False, True])
def test_an_exploding_lower_variable_is_an_error_before_x_moves(kind, bounded):
    x, y = torch.nn.Parameter(torch.tensor([1.0])), torch.nn.Parameter(torch.tensor([0.0]))
    options = {"inverse": Neumann(1, bound=1.0)} if "inverse" in signature(kind).parameters else {}
    options |= {"system_lr": 0.5} if "system_lr" in signature(kind).parameters else {}
    options |= {"samples": (1, 1)} if "samples" in signature(kind).parameters else {}
    optimizer, states = kind([x], [y], lr=1e-30, lower_lr=30.0, **options), []

    def outer(i=0):
        return (y.sin() if bounded else y.square()).sum() / 2 + x.sum()

    def run():
        for _ in range(40):
            states.append([x.item(), y.item(), optimizer.algorithm_state["t"]])
            optimizer.step(outer, lambda i=0: (y - x).square().sum() / 2)

    with pytest.raises(
        RuntimeError, match=r"the lower variable diverges: .*; nothing was changed\. Use a smaller lower"
    ):
        run()
    assert [x.item(), y.item(), optimizer.algorithm_state["t"]] == states[-1]
    assert torch.isfinite(y).all()


def test_a_first_step_that_explodes_is_undone():
    x, y = torch.nn.Parameter(torch.tensor([1.0])), torch.nn.Parameter(torch.tensor([0.0]))
    optimizer = semaopt.baselines.BSA([x], [y], lower_lr=30.0, lower_steps=15, inverse=Neumann(1, bound=1.0))
    with pytest.raises(
        RuntimeError, match=r"diverges: its norm is .*, and it was 0 before the first step; nothing was changed"
    ):
        optimizer.step(lambda: y.sin().sum() + x.sum(), lambda: (y - x).square().sum() / 2)
    assert (x.item(), y.item(), optimizer.algorithm_state["t"]) == (1.0, 0.0, 0)


@pytest.mark.parametrize(
    ("curvatures", "terms", "text"),
    [
        ((2.0, -1.0), 1, r"has curvature -1, so it is not convex"),
        ((1.0, 9.0), 9, r"bound=3: inner\(\) has curvature 9.*at least 9"),
    ],
)
def test_sbma_tests_the_curvature(curvatures, terms, text):
    x, y, outer, inner = curved(*curvatures)
    seed = next(k for k in range(100) if (uniform(terms, k, 0) > 0) is (terms > 1))
    before = x.detach().clone()
    with pytest.raises(RuntimeError, match=text):
        semaopt.SBMA([x], [y], inverse=Neumann(terms, bound=3.0, seed=seed)).step(outer, inner)
    assert torch.equal(x, before)


def test_sbma_reports_a_lower_problem_that_is_not_convex():
    x, y, outer, inner = curved(2.0, -1.0)
    optimizer, places = semaopt.SBMA([x], [y], inverse=Neumann(10, bound=3.0)), []

    def run():
        for _ in range(10):
            places.append(x.detach().clone())
            optimizer.step(outer, inner)

    with pytest.raises(RuntimeError, match=r"inner\(\) has curvature -1, so it is not convex .*\(lower_weight_decay\)"):
        run()
    assert torch.equal(x, places[-1])


def test_sbma_computes_with_its_matrices_in_full_precision_under_autocast():
    def run(autocast):
        problem, x, y = quadratic(dtype=torch.float32)
        optimizer = semaopt.SBMA([x], [y], lr=0.1, lam=problem.lam, c_gxy=0.5, inverse=Neumann(4, bound=2.0))
        outer, inner = problem.outer(x, y), problem.inner(x, y)

        def exactly(closure):
            with torch.autocast("cpu", enabled=False):
                return closure()

        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            for _ in range(5):
                optimizer.step(lambda: exactly(outer), lambda: exactly(inner))
        return x.detach()

    torch.testing.assert_close(run(True), run(False), rtol=1e-5, atol=1e-6)


def penalized(problem, x, y, penalty):
    """Return the penalty hypergradient of a quadratic problem: A + I/lambda in place of A."""
    shifted = problem.A + torch.eye(problem.d_y, dtype=problem.dtype) / penalty
    return problem.mu * x.detach() + torch.linalg.solve(shifted, (y.detach() - problem.c).T).T @ problem.B


@pytest.mark.parametrize("penalty", [1.0, 10.0, 1e4])
def test_first_order_has_the_bias_of_its_closed_form(penalty):
    problem, x, y = quadratic()
    memory, before = memory_for(0.5), y.detach().clone()
    for _ in range(200):
        found = estimate(FirstOrder(penalty), problem, x, y, memory)
    torch.testing.assert_close(found, penalized(problem, x, y, penalty), rtol=1e-8, atol=1e-9)
    bias = torch.linalg.vector_norm(found - problem.hypergradient(x, y)).item()
    f_y = torch.linalg.vector_norm(y.detach() - problem.c).item()
    assert 0 < bias <= problem.C_gxy * f_y / (penalty * problem.lam * (problem.lam + 1 / penalty))
    assert torch.equal(y, before)


def test_first_order_is_the_gradient_of_the_penalty_function():
    """At y = y*(x), even if f_x depends on y: differentiate min_y f + lambda g - lambda min_y g, all in x."""
    lam, H = 7.0, torch.tensor([[2.0, 0.3], [0.3, 1.0]], dtype=torch.float64)
    x = torch.nn.Parameter(torch.tensor([0.4, -1.0], dtype=torch.float64))
    y = torch.nn.Parameter(torch.linalg.solve(H, x.detach()))  # the minimizer of g

    def outer(at=y):
        return (at * x).sum() + at.square().sum() / 2 + x.square().sum()

    def inner(at=y):
        return at @ H @ at / 2 - at @ x

    free = torch.linalg.solve(torch.eye(2, dtype=torch.float64) + lam * H, (lam - 1) * x)  # 0 = y + x + lam (H y - x)
    value = outer(free) + lam * (inner(free) - inner(torch.linalg.solve(H, x)))
    (exact,) = torch.autograd.grad(value, x)
    oracles, memory = Oracles(outer, inner, [x], [y]), memory_for(0.4)
    for _ in range(200):
        _, (f_x,), f_y = oracles.f()
        _, (implicit,) = FirstOrder(lam)(oracles, f_y, memory)
    torch.testing.assert_close(f_x - implicit, exact, rtol=1e-10, atol=1e-12)


def test_first_order_tracks_as_the_linear_system_does_for_a_large_penalty():
    problem, x, y = quadratic()
    ours, theirs = memory_for(0.5), memory_for(0.5)
    for _ in range(5):
        found = estimate(FirstOrder(1e6), problem, x, y, ours)
        torch.testing.assert_close(found, estimate(TrackedSystem(), problem, x, y, theirs), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("steps", [1, 3])
def test_first_order_takes_gradients_only(steps):
    problem, x, y = quadratic()
    optimizer = semaopt.SMB([x], [y], inverse=FirstOrder(20.0, steps=steps))
    with semaopt.hypergradient.count_calls() as calls:
        loss = optimizer.step(problem.outer(x, y), problem.inner(x, y))
    assert (calls.gradients, calls.hessian_products, calls.mixed_products) == (2 + 2 * steps, 0, 0)
    twin, u, v = quadratic()
    assert loss.item() == twin.outer(u, v)().item(), "the loss at y, not at the penalized point"

    class Once(torch.autograd.Function):
        @staticmethod
        def forward(ctx, y):
            return y.square().sum()

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx, g):
            return g * y.detach() * 2

    semaopt.SMB([x], [y], inverse=FirstOrder()).step(lambda: Once.apply(y), lambda: Once.apply(y) + (x.sum() * y).sum())


def test_first_order_with_more_steps_repeats_the_step_on_w():
    problem, x, y = quadratic()
    one, three = memory_for(0.3), memory_for(0.3)
    for _ in range(3):
        single = estimate(FirstOrder(5.0), problem, x, y, one)
    torch.testing.assert_close(estimate(FirstOrder(5.0, steps=3), problem, x, y, three), single)
    torch.testing.assert_close(three.states[0]["w"], one.states[0]["w"])


def test_first_order_respects_a_projection_of_the_lower_variable():
    """y* = min(x, 1) is at the bound, so y does not depend on x, and the hypergradient is f_x."""
    x, y = torch.nn.Parameter(torch.tensor([2.0])), torch.nn.Parameter(torch.tensor([1.0]))
    box = semaopt.projections.Box(-1.0, 1.0)
    optimizer = semaopt.SMB([x], [y], lr=0.0, lower_lr=0.5, project=box, inverse=FirstOrder(100.0))
    for _ in range(50):
        optimizer.step(lambda: y.sum() + 3 * x.sum(), lambda: (y - x).square().sum() / 2)
    torch.testing.assert_close(x.grad, torch.tensor([3.0]))
    x.data.fill_(0.5)  # in the interior: y* = x, F = 4x
    for _ in range(200):
        optimizer.step(lambda: y.sum() + 3 * x.sum(), lambda: (y - x).square().sum() / 2)
    torch.testing.assert_close(x.grad, torch.tensor([4.0]), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("given", [{"penalty": 0.0}, {"penalty": math.inf}, {"steps": 0}, {"lr": -1.0}])
def test_first_order_refuses_invalid_options(given):
    with pytest.raises(ValueError, match=f"{next(iter(given))}=.* is invalid"):
        FirstOrder(**given)
