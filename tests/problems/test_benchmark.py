"""Problems of benchmark_bilevel: value function, gradient, oracle counts."""

import pytest
import torch

import semaopt
from semaopt.hypergradient import CG, Exact, Neumann, NeumannSeries, TrackedSystem, count_calls
from semaopt.hypergradient.inverses import uniform
from semaopt.problems import RegularizationSelection, SoftmaxCleaning, benchmark


def examples(n, d, seed):
    generator = torch.Generator().manual_seed(seed)
    a = torch.randn(n, d, generator=generator)
    noise = torch.randn(n, generator=generator)
    return a, (a.sum(1) + noise).sign()


def regularization(**options):
    return RegularizationSelection(examples(200, 5, 0), examples(150, 5, 1), **{"batch": 20, **options})


def cleaning(**options):
    parts = []
    for seed, n in enumerate((120, 60, 90)):
        a, b = examples(n, 4, seed)
        parts.append((3 * a + 1, (b > 0).long() + (a[:, 0] > 1).long()))
    return SoftmaxCleaning(*parts, **{"batch": 20, **options})


@pytest.mark.parametrize("make", [regularization, cleaning])
def test_the_gradient_is_that_of_the_value_function(make):
    problem = make()
    problem.upper.data = problem.upper.data.double()  # float32 is too coarse for differences
    _, gradient = problem.value()
    start = problem.upper.detach().clone()
    for i in (0, 2, 4):
        values = []
        for step in (1e-4, -1e-4):
            problem.upper.data = start.clone()
            problem.upper.data[i] += step
            values.append(problem.value()[0])
        assert (values[0] - values[1]) / 2e-4 == pytest.approx(gradient[i].item(), rel=1e-5, abs=1e-10)


@pytest.mark.parametrize("make", [regularization, cleaning])
def test_the_lower_solution_is_stationary_and_the_value_is_f_there(make):
    problem = make()
    y = problem.solve_lower().requires_grad_()
    x = problem.upper.detach().double()
    (g_y,) = torch.autograd.grad(problem.g(x, y), y)
    assert g_y.abs().max() < 1e-7
    assert problem.value()[0] == pytest.approx(problem.f(x, y).item())


@pytest.mark.parametrize("make", [regularization, cleaning])
def test_the_value_does_not_depend_on_y(make):
    problem = make()
    value, gradient = problem.value()
    with torch.no_grad():
        problem.lower.fill_(1e30)  # a lower variable that has exploded
    again, same = problem.value()
    assert again == pytest.approx(value, rel=1e-7)
    torch.testing.assert_close(same, gradient, rtol=1e-4, atol=1e-8)


def test_newton_and_lbfgs_agree(monkeypatch):
    problem = regularization()
    value, gradient = problem.value()
    monkeypatch.setattr(benchmark, "NEWTON", 0)
    slow_value, slow_gradient = problem.value()
    assert slow_value == pytest.approx(value, rel=1e-8)
    torch.testing.assert_close(slow_gradient, gradient, rtol=1e-5, atol=1e-8)


def test_regularization_selection_as_stated():
    problem = regularization()
    y, x = problem.lower.detach().double(), problem.upper.detach().double()
    a, b = problem.lower_data
    by_hand = torch.log(1 + torch.exp(-b * (a.double() @ y))).mean() + 0.5 * (torch.exp(x) * y**2).sum()
    torch.testing.assert_close(problem.g(x, y), by_hand)
    assert (x < 0).all(), "logarithms of numbers below 1"
    assert torch.equal(regularization(seed=1).upper, regularization(seed=1).upper)
    assert not torch.equal(regularization(seed=1).upper, regularization(seed=2).upper)
    with pytest.raises(ValueError, match=r"labels of train=\[0\.0, 1\.0\] is invalid: it must be -1 or 1"):
        RegularizationSelection((a, (b > 0).float()), (a, b))


def test_cleaning_as_stated():
    problem = cleaning(corruption=0.5, seed=3)
    a, b = problem.lower_data
    clean = cleaning(corruption=0.0, seed=3).lower_data[1]
    assert torch.equal(b[~problem.corrupted], clean[~problem.corrupted])
    assert 0.3 < problem.corrupted.double().mean() < 0.7
    assert not torch.equal(b, clean)
    torch.testing.assert_close(a.mean(0), torch.zeros(4), atol=1e-5, rtol=0)
    torch.testing.assert_close(a.std(0, correction=0), torch.ones(4))
    assert problem.upper.unique().tolist() == [-2.0]
    y = torch.randn(4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    losses = torch.nn.functional.cross_entropy(a.double() @ y, b, reduction="none")
    by_hand = (torch.sigmoid(torch.tensor(-2.0)) * losses).mean() + 0.2 * y.square().sum()
    torch.testing.assert_close(problem.g(problem.upper.double(), y), by_hand)
    with pytest.raises(ValueError, match=r"corruption=1\.0 is invalid: it must lie in \[0, 1\)"):
        cleaning(corruption=1.0)
    with pytest.raises(ValueError, match=r"batch=61 is invalid: it must lie in 1\.\.60"):
        cleaning(batch=61)


@pytest.mark.parametrize("batch", [20, 17])
@pytest.mark.parametrize("make", [regularization, cleaning])
def test_batches_average_to_the_whole(make, batch):
    problem = make(batch=batch)
    upper, lower = problem.upper.detach().double(), problem.lower.detach().double()
    with torch.no_grad():
        for closure, whole, n in zip(
            (problem.outer, problem.inner), (problem.f, problem.g), problem.samples, strict=True
        ):
            numbered = [closure(i).item() for i in range(n)]
            epoch = [closure().item() for _ in range(n)]
            assert sorted(epoch) == sorted(numbered), "an epoch has every batch once"
            assert sum(numbered) / n == pytest.approx(whole(upper, lower).item(), rel=1e-5)
    sizes = [len(problem.lower_data[1][rows]) for rows in problem._lower_batches]
    assert max(sizes) <= batch
    assert max(sizes) - min(sizes) <= 1


def test_smb_lowers_the_value_function_and_the_error():
    problem = regularization()
    before, gradient = problem.value()
    optimizer = semaopt.SMB([problem.upper], [problem.lower], lr=0.5, lower_lr=0.05)
    for _ in range(600):
        optimizer.step(problem.outer, problem.inner)
    after, last = problem.value()
    assert after < before
    assert last.norm() < 0.5 * gradient.norm()
    problem = cleaning()
    error = problem.error()
    optimizer = semaopt.SMB([problem.upper], [problem.lower], lr=1.0, lower_lr=0.3)
    for _ in range(200):
        optimizer.step(problem.outer, problem.inner)
    assert problem.error() < 0.7 * error


@pytest.mark.parametrize(
    ("inverse", "gradients", "hessian", "mixed"),
    [
        (TrackedSystem(), 2, 1, 1),
        (NeumannSeries(5, bound=10.0), 6, 4, 1),
        (CG(3, tolerance=0.0), 3, 3, 1),
        (Exact(), 3, 5, 1),  # one product per lower parameter
    ],
    ids=["tracked", "series", "cg", "exact"],
)
def test_oracle_calls_are_counted(inverse, gradients, hessian, mixed):
    problem = regularization()
    optimizer = semaopt.SMB([problem.upper], [problem.lower], lower_lr=0.01, inverse=inverse)
    with count_calls() as calls:
        optimizer.step(problem.outer, problem.inner)
        optimizer.step(problem.outer, problem.inner)
    assert (calls.gradients, calls.hessian_products, calls.mixed_products) == (2 * gradients, 2 * hessian, 2 * mixed)
    optimizer.step(problem.outer, problem.inner)
    assert calls.gradients == 2 * gradients, "the context has ended"


def test_neumann_counts_its_random_number_of_products():
    problem = regularization()
    optimizer = semaopt.SMB([problem.upper], [problem.lower], lower_lr=0.01, inverse=Neumann(6, bound=10.0))
    with count_calls() as calls:
        for _ in range(5):
            optimizer.step(problem.outer, problem.inner)
    p = sum(uniform(6, 0, t) for t in range(5))
    assert (calls.gradients, calls.hessian_products, calls.mixed_products) == (10 + p, p, 5)


def test_sbma_counts_one_product_per_lower_parameter_and_matrix():
    problem = regularization()
    p, d = uniform(6, 0, 0), problem.lower.numel()
    assert p > 0
    optimizer = semaopt.SBMA([problem.upper], [problem.lower], lower_lr=0.01, inverse=Neumann(6, bound=10.0))
    with count_calls() as calls:
        optimizer.step(problem.outer, problem.inner)
    assert (calls.gradients, calls.hessian_products, calls.mixed_products) == (2 + p, p * d, d)
