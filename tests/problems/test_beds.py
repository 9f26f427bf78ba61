"""The closed forms of the test beds against autograd and against each other."""

import pytest
import torch

from semaopt.problems.bilevel import LogisticBilevel, QuadraticBilevel
from semaopt.problems.compositional import QuadraticComposition


def test_quadratic_solution_is_stationary_and_the_gradient_is_that_of_the_value():
    problem = QuadraticBilevel(copies=3)
    x, y = problem.start()
    y.data = problem.solution(x)
    (g_y,) = torch.autograd.grad(problem.inner(x, y)(), y)
    assert g_y.abs().max() < 1e-12
    step = 1e-6
    for j in range(problem.d_x):
        e = torch.zeros(problem.d_x, dtype=torch.float64)
        e[j] = step
        slope = (problem.value(x.detach() + e) - problem.value(x.detach() - e)) / (2 * step)
        torch.testing.assert_close(slope, problem.gradient(x)[:, j], rtol=1e-6, atol=1e-8)


def test_quadratic_constants():
    problem = QuadraticBilevel(d_x=3, d_y=6, lam=0.3, C=1.5, noise=0.25, mu=0.2)
    values = torch.linalg.eigvalsh(problem.A)
    assert values[0].item() == pytest.approx(0.3)
    assert values[-1].item() == pytest.approx(1.5 / 1.25)
    x, z = (problem.start()[0].detach() for _ in range(2))
    change = torch.linalg.vector_norm(problem.gradient(x) - problem.gradient(z))
    assert change <= problem.smoothness * torch.linalg.vector_norm(x - z) * (1 + 1e-9)
    assert problem.c_gxy == pytest.approx(torch.linalg.svdvals(problem.B)[0].item())


def test_quadratic_samples_are_unbiased_and_bounded():
    problem = QuadraticBilevel(noise=0.5, copies=20_000)
    x, y = problem.start()
    x.data[:], y.data[:] = x.data[:1].clone(), 1.0
    (g_y,) = torch.autograd.grad(problem.inner(x, y)(), y)
    exact = y.detach()[0] @ problem.A - x.detach()[0] @ problem.B.T - problem.b
    error = g_y.std(0) / 20_000**0.5
    assert ((g_y.mean(0) - exact).abs() < 5 * error).all()
    (f_y,) = torch.autograd.grad(problem.outer(x, y)(), y)
    error = f_y.std(0) / 20_000**0.5
    assert ((f_y.mean(0) - (1 - problem.c)).abs() < 5 * error).all()


def test_logistic_solution_and_hessian():
    torch.manual_seed(0)
    a = torch.randn(40, 3, dtype=torch.float64)
    b = torch.where(a[:, 0] > 0, 1.0, -1.0).double()
    problem = LogisticBilevel((a, b), (a, b))
    x, y = problem.start(-3.0)
    y.data = problem.solution(x)
    (g_y,) = torch.autograd.grad(problem.inner(x, y)(), y)
    assert g_y.abs().max() < 1e-10
    H = torch.autograd.functional.hessian(lambda y: problem.inner(x.detach(), y)(), y.detach())
    torch.testing.assert_close(problem.hessian(x, y), H)


def test_composition_minimizers():
    problem = QuadraticComposition(noise=0.4)
    assert problem.gradient(problem.minimizer()).abs().max() < 1e-12
    x = problem.naive_minimizer()
    inner, n = problem.inner(x.requires_grad_()), 4000
    # The mean gradient of f(g(x; xi)) vanishes at the naive minimizer.
    total = torch.autograd.grad(sum(problem.outer(inner()) for _ in range(n)), x)[0]
    assert (total / n).abs().max() < 0.06
    assert problem.gradient(x).abs().max() > 0.1


def test_wrong_options():
    with pytest.raises(ValueError, match=r"lam=3\.0: must lie in \(0, 2\]"):
        QuadraticBilevel(lam=3.0)
    with pytest.raises(ValueError, match=r"noise=1\.0: must lie in \[0, 1\)"):
        QuadraticBilevel(noise=1.0)
    with pytest.raises(ValueError, match=r"d=9: must lie in 1\.\.5"):
        QuadraticComposition(d=9)


@pytest.mark.parametrize("batch", [0, 401])
def test_hyper_cleaning_has_no_batch_larger_than_its_data(batch):
    pytest.importorskip("sklearn", reason="scikit-learn is an extra")
    from semaopt.problems.cleaning import HyperCleaning

    with pytest.raises(
        ValueError, match=rf"batch={batch}: must lie in 1\.\.400; a set has no batch larger than itself"
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
    with pytest.raises(ValueError, match=r"corruption=1: must lie in \[0, 1\)"):
        HyperCleaning(corruption=1)
