"""Independence of the test problems from torch's default device."""

import pytest
import torch

from semaopt import checks, problems
from semaopt.checks import counterexample
from semaopt.problems import simulate

NOISE = problems.Additive(0.5)
RATES = {"eta_x": 0.1, "eta_y": 0.2, "gamma": 0.4}


def least_squares():
    problem = problems.LeastSquares(residual=0.1)
    return simulate.minimize(problem, problems.Sampled(problem), "shb", (0.1, 0.5), 3, seeds=2).gap


def compositional():
    rates = {"eta": 0.1, "gamma": 0.3, "inner_gamma": 0.4}
    return simulate.compositional(problems.QuadraticComposition(), "shb", rates, 3, seeds=2).gap


def stages():
    return simulate.minimize_in_stages(problems.Wavy(), NOISE, "adam", [checks.pl.SimulatedStage(0.1, 0.5, 3)])[0].gap


def closures():
    problem = problems.QuadraticBilevel(noise=0.1, sigma2=0.1)
    x, y = problem.start()
    return torch.stack([problem.outer(x, y)(), problem.inner(x, y)()]).detach()


def logistic_closures():
    problem = problems.LogisticBilevel()
    x, y = problem.start()
    return torch.stack([problem.outer(x, y)(), problem.inner(x, y)()]).detach()


def bilevel(simulated, problem, *first):
    return simulated(problem, *first, RATES, 3, 3, seeds=2).gap


RUNS = {
    "bounded": lambda: simulate.minimize(problems.Bounded(), NOISE, "adam", (0.1, 0.5), 3, seeds=2).gap,
    "sparsified": lambda: (
        simulate.minimize(problems.Bounded(), problems.Sparsified(NOISE, 0.5), "adam", (0.1, 0.5), 3, seeds=2).gap
    ),
    "quantized": lambda: (
        simulate.minimize(problems.Bounded(), problems.Quantized(NOISE, 0.5), "adam", (0.1, 0.5), 3, seeds=2).gap
    ),
    "random coordinate": lambda: (
        simulate.minimize(problems.Bounded(), problems.RandomCoordinate(0.5), "adam", (0.1, 0.5), 3, seeds=2).gap
    ),
    "gaussian": lambda: (
        simulate.minimize(problems.Bounded(), problems.Additive(0.5, gaussian=True), "shb", (0.1, 0.5), 3, seeds=2).gap
    ),
    "least squares": least_squares,
    "stages": stages,
    "strongly concave": lambda: simulate.minmax(problems.StronglyConcave(), NOISE, "adam", RATES, 3, seeds=2).gap,
    "dual pl": lambda: simulate.minmax(problems.DualPL(), NOISE, "adam", RATES, 3, seeds=2).gap,
    "smb": lambda: bilevel(simulate.smb, problems.QuadraticBilevel(rho=0.5, noise=0.1, sigma2=0.1), "shb"),
    "smb logistic": lambda: bilevel(simulate.smb, problems.LogisticBilevel(), "shb"),
    "sbma": lambda: bilevel(simulate.sbma, problems.QuadraticBilevel(rho=0.5, noise=0.1, sigma2=0.1)),
    "compositional": compositional,
    "closures": closures,
    "logistic closures": logistic_closures,
    "counterexample": lambda: counterexample.walk((0.9,), 10, seeds=2)[1][0][-1],
}


@pytest.mark.parametrize("name", RUNS)
def test_the_default_device_changes_nothing(name):
    expected = RUNS[name]()
    try:
        torch.set_default_device("meta")
        found = RUNS[name]()
    finally:
        torch.set_default_device(None)
    # Sums of matrix products depend on the alignment of memory in the last bit.
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)


def test_hyper_cleaning_on_another_default_device():
    pytest.importorskip("sklearn", reason="scikit-learn is an extra")
    try:
        torch.set_default_device("meta")
        problem = problems.HyperCleaning()
        values = [problem.outer().item(), problem.inner().item(), problem.accuracy("test")]
    finally:
        torch.set_default_device(None)
    problem = problems.HyperCleaning()
    assert values == [problem.outer().item(), problem.inner().item(), problem.accuracy("test")]
