import math

import pytest
import torch

from semaopt.hypergradient import CG, Comparison, Exact, FirstOrder, Neumann, NeumannSeries, TrackedSystem, compare
from semaopt.problems import LogisticBilevel, QuadraticBilevel


def make(**options):
    problem = QuadraticBilevel(**options)
    x, y = problem.start()
    y.data.normal_(generator=problem.generator)
    return problem, x, y, (problem.outer(x, y), problem.inner(x, y), [x], [y])


def test_exact_is_exact_and_nothing_moves():
    problem, x, y, given = make()
    before = x.detach().clone(), y.detach().clone()
    found = compare(*given, Exact())
    assert isinstance(found, Comparison)
    assert found.relative_error < 1e-12
    assert found.cosine == pytest.approx(1.0)
    assert found.spread < 1e-12
    assert found.samples == 1, "deterministic closures need one sample"
    torch.testing.assert_close(found.exact[0], problem.hypergradient(x, y))
    assert torch.equal(x, before[0])
    assert torch.equal(y, before[1])
    assert x.grad is None


@pytest.mark.parametrize(
    "inverse", [None, TrackedSystem(0.4), FirstOrder(1e4), CG(20), NeumannSeries(60), Neumann(8, 2.0)]
)
def test_every_inverse_passes_on_a_well_conditioned_problem(inverse):
    *_, given = make()
    found = compare(*given, inverse)
    assert found.estimates == (400 if isinstance(inverse, Neumann) else 1)
    noise = found.spread / math.sqrt(found.estimates)
    bias = 0.2 if isinstance(inverse, Neumann) else 1e-3
    assert found.relative_error <= bias + 4.5 * noise
    assert found.cosine > 0.9


def test_a_truncated_series_shows_its_bias():
    problem, *_, given = make()
    errors = [compare(*given, NeumannSeries(k, problem.C_gyy), estimates=1).relative_error for k in (1, 4, 16)]
    assert errors[0] > errors[1] > errors[2] > 0
    assert errors[0] > 0.2


def test_sampled_closures_are_averaged():
    problem, x, y, given = make(noise=0.3, sigma2=0.45)
    found = compare(*given, NeumannSeries(15, problem.C_gyy), estimates=100)
    assert found.samples == 400
    truth = problem.hypergradient(x, y)
    error = torch.linalg.vector_norm(found.exact[0] - truth) / torch.linalg.vector_norm(truth)
    assert error < 0.1
    assert found.relative_error < 0.1 + 4.5 * found.spread / math.sqrt(100)
    assert found.spread > 0.05


def test_weight_decay_enters_the_exact_gradient():
    problem, *_, given = make()
    problem.A += 0.7 * torch.eye(problem.d_y, dtype=problem.dtype)
    expected = compare(*given, Exact()).exact
    problem.A -= 0.7 * torch.eye(problem.d_y, dtype=problem.dtype)
    found = compare(*given, Exact(), lower_weight_decay=0.7)
    torch.testing.assert_close(found.exact, expected)
    assert found.relative_error < 1e-12


def test_logistic_bed_agrees_with_finite_differences():
    problem = LogisticBilevel(n=6, m=20, batch=None)
    x, y = problem.start()
    found = compare(problem.outer(x, y), problem.inner(x, y), [x], [y], Exact())

    def value(x):
        return problem.outer(x, problem.y_star(x))()

    step = 1e-5 * torch.eye(6, dtype=torch.float64)
    differences = torch.stack([(value(x.detach() + s) - value(x.detach() - s)) / 2e-5 for s in step])
    torch.testing.assert_close(found.exact[0][0], differences, rtol=1e-5, atol=1e-9)
    assert found.relative_error < 1e-10


def test_str_of_a_comparison():
    *_, given = make()
    text = str(compare(*given, NeumannSeries(3, 2.0), estimates=2))
    assert text.startswith("relative error 0.")
    assert "against the exact implicit gradient of norm" in text
    assert "mean of 2 estimates" in text


def test_wrong_arguments():
    *_, (outer, inner, xs, ys) = make()
    with pytest.raises(ValueError, match=r"upper=\[\] is invalid: it must hold a parameter that requires grad"):
        compare(outer, inner, iter(()), ys)
    with pytest.raises(ValueError, match="estimates=0 is invalid: it must be a whole number >= 1"):
        compare(outer, inner, xs, ys, estimates=0)
    with pytest.raises(TypeError, match=r"inverse='exact'"):
        compare(outer, inner, xs, ys, "exact")
    for text, given in (
        (r"outer\(\) returned float: return the loss, a tensor with one element", (lambda: 1.0, inner, xs, ys)),
        (r"inner\(\) returned NoneType: return the loss", (outer, lambda: None, xs, ys)),
        (r"outer=tensor\(1\.\): must be a function that returns a loss", (torch.tensor(1.0), inner, xs, ys)),
        (r"upper: got one tensor\. Pass a list: \[tensor\]", (outer, inner, xs[0], ys)),
        (r"lower: got one tensor\. Pass a list: \[tensor\]", (outer, inner, xs, ys[0])),
        (r"lower: got int\. Pass parameters, such as model\.parameters\(\)", (outer, inner, xs, 3)),
        (r"upper: got dict among the parameters\. Pass tensors", (outer, inner, [{"params": xs}], ys)),
    ):
        with pytest.raises(TypeError, match=text):
            compare(*given)
    with pytest.raises(RuntimeError, match=r"outer\(\) returned a loss without a graph: compute it without no_grad"):
        compare(lambda: torch.tensor(1.0), inner, xs, ys)
    with pytest.raises(ValueError, match=r"inner\(\) returned shape \(2,\): it must return one number"):
        compare(outer, lambda: ys[0].flatten()[:2], xs, ys)


def test_named_parameters_are_accepted():
    *_, (outer, inner, xs, ys) = make()
    named = compare(outer, inner, [("x", xs[0])], [("y", ys[0])], Exact())
    assert torch.equal(named.exact[0], compare(outer, inner, xs, ys, Exact()).exact[0])
