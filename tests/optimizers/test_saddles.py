"""PDSM and PDAda on quadratic saddles: bound of section:PDAda, dual PL condition, stages for a PL F."""

import itertools

import pytest
import torch

import semaopt
from semaopt import Stage, Stages
from tests.optimizers.saddles import plan, saddle

ROWS = 16  # seeds run in parallel, since every method here acts coordinate by coordinate


def start(dim=6, x0=1.0, y0=0.0):
    x = torch.full((ROWS, dim), x0, dtype=torch.float64)
    y = torch.full((ROWS, dim), y0, dtype=torch.float64)
    return torch.nn.Parameter(x), torch.nn.Parameter(y)


def average_gradient(f, x, y, optimizer, T, seed=0):
    noise, total = torch.Generator().manual_seed(seed), 0.0
    for _ in range(T + 1):
        total += (x.detach() @ f.hessian).square().sum(-1).mean().item()
        f.sample_(x, y, noise)
        optimizer.step()
    return total / (T + 1)


def pdsm(x, y, rates):
    return semaopt.PDSM(primal=[x], dual=[y], lr=rates.eta_x, dual_lr=rates.eta_y, beta=1 - rates.gamma)


def pdada(scaling, clip):
    def make(x, y, rates):
        return semaopt.PDAda(
            primal=[x],
            dual=[y],
            lr=rates.eta_x,
            dual_lr=rates.eta_y,
            beta=1 - rates.gamma,
            scaling=scaling,
            clip_scaling=clip,
        )

    return make


@pytest.mark.parametrize("kappa", [1.0, 2.0])
@pytest.mark.parametrize(
    ("make", "bounds"),
    [(pdsm, (1.0, 1.0)), (pdada("adam", (0.8, 1.25)), (0.8, 1.25)), (pdada("amsgrad", (0.8, 1.25)), (0.8, 1.25))],
    ids=["pdsm", "adam", "amsgrad"],
)
def test_the_bound_holds(make, bounds, kappa):
    f, T = saddle(kappa, sigma=0.02), 1500
    x, y = start()
    rates = plan(f, T, x.detach(), y.detach(), *bounds)
    at_start = (x.detach() @ f.hessian).square().sum(-1).mean()
    assert kappa > 1 or rates.bound < at_start, "the bound would say nothing"
    assert average_gradient(f, x, y, make(x, y, rates), T) <= rates.bound


def test_the_bound_can_fail():
    """The bound is violated if the dual variable descends."""
    f, T = saddle(1.0, sigma=0.02), 1500
    x, y = start()
    rates = plan(f, T, x.detach(), y.detach())
    optimizer = semaopt.ASA([x, y], lr=rates.eta_x, beta=1 - rates.gamma, scaling="shb")
    assert average_gradient(f, x, y, optimizer, T) > rates.bound


@pytest.mark.parametrize("kappa", [4.0, 16.0])
def test_stationary_error_decreases_with_the_rates(kappa):
    """Under noise, dividing gamma and both step sizes by four reduces the stationary error."""
    errors = []
    for factor in (1.0, 0.25):
        f = saddle(kappa, sigma=1.0)
        x, y = start()
        optimizer = semaopt.PDSM(primal=[x], dual=[y], lr=0.05 * factor, dual_lr=0.2 * factor, beta=1 - 0.2 * factor)
        average_gradient(f, x, y, optimizer, 600)
        errors.append(average_gradient(f, x, y, optimizer, 600, seed=1))
    assert errors[1] < 0.5 * errors[0]


@pytest.mark.parametrize("make", [pdsm, pdada("adam", (0.8, 1.25))], ids=["pdsm", "adam"])
def test_dual_pl_without_strong_concavity(make):
    """C is singular, so y* is not unique, but x still minimizes F."""
    f = saddle(4.0, sigma=0.0, rank_deficient=True)
    assert torch.linalg.eigvalsh(f.C)[1] < 1e-12
    assert torch.linalg.eigvalsh(f.A)[0] < -0.05
    x, y = start(y0=1.0)
    rates = plan(f, 1000, x.detach(), y.detach(), 0.8, 1.25, dual_pl=True)
    idle = torch.linalg.eigh(f.C).eigenvectors[:, :2]
    before = y.detach() @ idle
    assert average_gradient(f, x, y, make(x, y, rates), 1000) <= rates.bound
    optimizer = semaopt.PDSM(primal=[x], dual=[y], lr=0.05, dual_lr=0.2, beta=0.8)
    average_gradient(f, x, y, optimizer, 2500)
    assert (x.detach() @ f.hessian).norm() < 1e-6
    torch.testing.assert_close(y.detach() @ idle, before)  # these coordinates have zero gradient


@pytest.mark.parametrize("scaling", ["shb", "adam"])
def test_stages_for_a_pl_primal_function(scaling):
    """F is strongly convex, hence PL: each stage with halved rates and doubled length reduces the gap."""
    f = saddle(4.0, sigma=0.5)
    assert torch.linalg.eigvalsh(f.A)[0] < -0.1, "not convex in x"
    assert torch.linalg.eigvalsh(f.hessian)[0] > 0.1
    x, y = start()
    optimizer = semaopt.PDAda(primal=[x], dual=[y], scaling=scaling, clip_scaling=(0.5, 2.0))
    plan_k = [Stage(0.1 / 4**k, 0.4 / 4**k, T=100 * 4**k, dual_eta=0.4 / 4**k) for k in range(3)]
    stages, noise, gaps = Stages(optimizer, plan_k, output="sampled"), torch.Generator().manual_seed(2), []
    while not stages.done:
        k = stages.k
        f.sample_(x, y, noise)
        optimizer.step()
        if stages.k > k:
            gaps.append(f.value(x.detach()).mean().item())
    assert all(later < 0.75 * earlier for earlier, later in itertools.pairwise(gaps)), gaps
    assert gaps[-1] < 0.05


def test_stages_pass_on_x_tau_v_tau_and_y_tau():
    """Compare with the loop written out; both variables use the rates of the stage."""
    f = saddle(4.0, sigma=0.5)
    x, y = start()
    steps = [Stage(0.1, 0.5, T=5, dual_eta=0.3), Stage(0.05, 0.25, T=9, dual_eta=0.15)]
    optimizer = semaopt.PDSM(primal=[x], dual=[y], bias_correction=False)
    stages, noise = Stages(optimizer, steps, seed=3), torch.Generator().manual_seed(0)
    while not stages.done:
        rates = [(group["lr"], group["beta"]) for group in optimizer.param_groups]
        assert rates == [(steps[stages.k].eta, 1 - steps[stages.k].gamma), (steps[stages.k].dual_eta, None)]
        f.sample_(x, y, noise)
        optimizer.step()

    a, b, v = *(z.detach() for z in start()), None
    noise, reservoir = torch.Generator().manual_seed(0), torch.Generator().manual_seed(3)
    for stage in steps:
        following = 0
        for t in range(stage.T + 1):
            accept = t >= following
            if accept:
                following = int((t + 1) / torch.rand((), generator=reservoir, dtype=torch.float64).item())
            a, b = a.clone(), b.clone()
            f.sample_(a, b, noise)
            v = a.grad if v is None else (1 - stage.gamma) * v + stage.gamma * a.grad
            if accept:
                output = (a, v, b)
            a, b = a - stage.eta * v, b + stage.dual_eta * b.grad
        a, v, b = output
    for ours, theirs in ((x, a), (y, b), (optimizer.state[x]["v"], v)):
        torch.testing.assert_close(ours.detach(), theirs, rtol=1e-12, atol=1e-14)


def test_stages_need_a_dual_step_size():
    x, y = start()
    optimizer = semaopt.PDSM(primal=[x], dual=[y])
    with pytest.raises(
        ValueError, match=r"stages\[1\]\.dual_eta=None is invalid: the dual groups need a step size\. Pass Stage\("
    ):
        Stages(optimizer, [Stage(0.1, 0.5, T=1, dual_eta=0.1), Stage(0.1, 0.5, T=1)])
    with pytest.raises(ValueError, match=r"dual_eta=-1\.0 is invalid: it must be a finite number >= 0"):
        Stage(0.1, 0.5, T=1, dual_eta=-1.0)
