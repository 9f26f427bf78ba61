"""Mean and variance of every oracle."""

import math

import pytest
import torch

from semaopt import problems
from semaopt.problems import (
    Additive,
    LeastSquares,
    Multiplicative,
    Noiseless,
    Quantized,
    RandomCoordinate,
    Sampled,
    Sparsified,
)
from semaopt.problems.oracles import blocks, signs

D, DRAWS = 4, 10_000
GRADIENT = torch.tensor([[0.3, -1.2, 0.05, 0.7]], dtype=torch.float64)
ORACLES = [
    (Additive(0.5), True),
    (Additive(0.5, gaussian=True), True),
    (Multiplicative(0.8, 0.2), True),
    (RandomCoordinate(0.1), True),
    (Sparsified(Additive(0.3), 0.4), True),
    (Sparsified(Multiplicative(0.5, 0.3), 0.5), True),
    (Quantized(Additive(0.3), 0.25), False),
    (Noiseless(), True),
]


def samples(oracle, x, gradient, draws=DRAWS, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.cat([oracle.sample(x, gradient, noise) for noise in blocks(oracle, draws, x, generator)])


@pytest.mark.parametrize(("oracle", "exact"), ORACLES, ids=lambda o: repr(o)[:40])
def test_mean_variance_and_largest(oracle, exact):
    drawn = samples(oracle, torch.zeros_like(GRADIENT), GRADIENT)
    sigma2, growth = oracle.variance(D)
    promised = sigma2 + growth * float(GRADIENT.square().sum())
    error = (drawn - GRADIENT).square().sum(1)
    noise = 5 * float(error.std()) / math.sqrt(DRAWS) + 1e-12
    assert (drawn.mean(0) - GRADIENT[0]).abs().max() <= 5 * math.sqrt(promised / DRAWS) + 1e-12
    assert float(error.mean()) <= promised + noise
    if exact:
        assert float(error.mean()) == pytest.approx(promised, abs=noise)
    assert float(drawn.abs().max()) <= oracle.largest(float(GRADIENT.abs().max()), D) + 1e-12


def test_a_quantized_sample_lies_on_the_grid():
    drawn = samples(Quantized(Additive(0.3), 0.25), torch.zeros_like(GRADIENT), GRADIENT, draws=100)
    assert torch.equal(drawn.div(0.25).round() * 0.25, drawn)


def test_sampled_terms_of_a_finite_sum():
    problem = LeastSquares(d=4, rank=2, mu=0.3, residual=0.05)
    oracle = Sampled(problem)
    for seed in range(3):
        x = torch.randn(1, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        gradient = problem.grad(x)
        terms = problem.A * (problem.A @ x[0] - problem.b).unsqueeze(1)
        torch.testing.assert_close(terms.mean(0, keepdim=True), gradient)
        sigma2, growth = oracle.variance(4)
        error = float((terms - gradient).square().sum(1).mean())
        assert error <= sigma2 + growth * float(gradient.square().sum())
        generator = torch.Generator().manual_seed(seed)
        drawn = torch.cat([oracle.sample(x, gradient, n) for n in blocks(oracle, 50, x, generator)])
        assert all(any(torch.allclose(row, term) for term in terms) for row in drawn)


def test_signs_are_fair_and_seeded():
    like = torch.zeros(1, dtype=torch.float64)
    drawn = signs((1000, 37), like, torch.Generator().manual_seed(0))
    assert set(drawn.unique().tolist()) == {-1.0, 1.0}
    assert abs(float(drawn.mean())) < 5 / math.sqrt(37_000)
    assert float((drawn[:, 1:] * drawn[:, :-1]).mean().abs()) < 5 / math.sqrt(36_000)
    assert torch.equal(drawn, signs((1000, 37), like, torch.Generator().manual_seed(0)))


def test_blocks_do_not_change_the_number_of_steps():
    x = torch.zeros(1000, 10, dtype=torch.float64)
    for oracle in (Additive(1.0), Noiseless()):
        assert sum(1 for _ in blocks(oracle, 250, x, torch.Generator().manual_seed(0))) == 250


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (
            lambda: Additive(0.0),
            r"sigma2=0.0 is invalid: it must be a finite number > 0\. Use Noiseless\(\) for no noise",
        ),
        (lambda: Multiplicative(-1.0, 1.0), r"relative=-1.0 is invalid: it must be a finite number > 0"),
        (lambda: Sparsified(Noiseless(), 0.0), r"keep=0.0 is invalid: it must lie in \(0, 1\]"),
        (lambda: Quantized(Noiseless(), 0.0), r"step=0.0 is invalid: it must be a finite number > 0"),
    ],
)
def test_errors(make, text):
    with pytest.raises(ValueError, match=text):
        make()


def test_the_old_names_still_work_with_a_warning():
    with pytest.warns(DeprecationWarning, match=r"problems\.Exact is now problems\.Noiseless"):
        assert problems.Exact is Noiseless
    with pytest.warns(DeprecationWarning, match=r"simulate\.Run is now problems\.simulate\.Simulation"):
        assert problems.simulate.Run is problems.simulate.Simulation
    for module in (problems, problems.simulate):
        with pytest.raises(AttributeError, match="has no attribute 'Inexact'"):
            module.Inexact  # noqa: B018 - the attribute raises
