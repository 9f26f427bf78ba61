"""Min-max baselines compared with their formulas."""

import math

import pytest
import torch

from semaopt import baselines, projections
from tests.optimizers.saddles import saddle

BOX = projections.Box(-0.6, 0.4)
F = saddle(4.0, sigma=0.5)


def pair():
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(2, 3, 6, generator=generator, dtype=torch.float64)
    return [torch.nn.Parameter(x), torch.nn.Parameter(BOX(y))]


def gradients(x, y, k):
    """Return O_x and O_y of sample k at (x, y)."""
    x, y = x.detach().clone(), y.detach().clone()
    F.sample_(x, y, torch.Generator().manual_seed(k))
    return x.grad, y.grad


def drive(x, y, optimizer, steps):
    for k in steps:
        x.grad, y.grad = gradients(x, y, k)
        optimizer.step()


def assert_ends(ours, theirs):
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a.detach(), b, rtol=1e-11, atol=1e-13)


def test_sgda():
    x, y = pair()
    a, b = x.detach().clone(), y.detach().clone()
    for k in range(20):
        g_a, g_b = gradients(a, b, k)
        a, b = a - 0.05 * g_a, (b + 0.2 * g_b).clamp(-0.6, 0.4)
    drive(x, y, baselines.SGDA(primal=[x], dual=[y], lr=0.05, dual_lr=0.2, project=BOX), range(20))
    assert_ends((x, y), (a, b))


def assert_stages(kind, growth, factor=None, adagrad=False, steps=40, length=4, proximal=0.3, delta=1e-3, average=True):
    """Compare with stages written out, which keep the history of a stage and average it at its end."""
    x, y = pair()
    a, b = x.detach().clone(), y.detach().clone()
    k, reference, seen, sums = 0, a.clone(), [], [0.0, 0.0]
    for t in range(steps):
        decay = 1 / (k + 1) if factor is None else factor**k
        seen.append((a, b))
        g_a, g_b = gradients(a, b, t)
        g_a = g_a + proximal * (a - reference)
        if adagrad:
            sums = [sums[0] + g_a.square(), sums[1] + g_b.square()]
            g_a, g_b = g_a / (delta + sums[0].sqrt()), g_b / (delta + sums[1].sqrt())
        a, b = a - decay * 0.1 * g_a, (b + decay * 0.2 * g_b).clamp(-0.6, 0.4)
        if len(seen) == math.ceil(length * {"linear": k + 1, "constant": 1, "inverse": 1 / decay}[growth]):
            if average:
                a, b = (sum(zs) / len(seen) for zs in zip(*seen, strict=True))
            k, reference, seen, sums = k + 1, a.clone(), [], [0.0, 0.0]
    options = {"stage_length": length, "growth": growth, "proximal": proximal, "average": average}
    options |= {"factor": factor} if factor is not None else {}
    options |= {"delta": delta} if adagrad else {}
    optimizer = kind(primal=[x], dual=[y], lr=0.1, dual_lr=0.2, project=BOX, **options)
    drive(x, y, optimizer, range(steps))
    assert_ends((x, y), (a, b))
    assert optimizer.algorithm_state == {"stage": k, "taken": len(seen)}
    assert k >= 2


@pytest.mark.parametrize("growth", ["linear", "constant", "inverse"])
def test_epoch_sgda(growth):
    assert_stages(baselines.EpochSGDA, growth)


@pytest.mark.parametrize("growth", ["linear", "constant", "inverse"])
def test_pes_sgda(growth):
    assert_stages(baselines.PESSGDA, growth, factor=0.7)


@pytest.mark.parametrize("growth", ["linear", "constant"])
def test_pes_adagrad(growth):
    assert_stages(baselines.PESAdaGrad, growth, factor=0.7, adagrad=True)


@pytest.mark.parametrize("kind", [baselines.EpochSGDA, baselines.PESSGDA, baselines.PESAdaGrad])
def test_stages_that_start_at_the_last_point(kind):
    factor = None if kind is baselines.EpochSGDA else 0.7
    assert_stages(kind, "constant", factor=factor, adagrad=kind is baselines.PESAdaGrad, average=False)


def test_stage_lengths():
    x, y = pair()
    epoch = baselines.EpochSGDA(primal=[x], dual=[y], stage_length=10)
    assert [epoch.stages.length(k) for k in range(3)] == [10, 20, 30]
    inverse = baselines.EpochSGDA(primal=[x], dual=[y], stage_length=10, growth="inverse")
    assert [inverse.stages.length(k) for k in range(200)] == [epoch.stages.length(k) for k in range(200)]
    pes = baselines.PESSGDA(primal=[x], dual=[y], stage_length=10, factor=0.2, growth="inverse")
    assert [pes.stages.length(k) for k in range(3)] == [10, 50, 250]


def test_variable_without_a_gradient_is_averaged():
    """The mean of a constant variable is its value; one with a late first gradient starts from its value, not from
    zero."""
    x, y = pair()
    late = torch.nn.Parameter(torch.tensor([5.0], dtype=torch.float64))
    optimizer = baselines.EpochSGDA(primal=[x, late], dual=[y], lr=0.1, stage_length=2, growth="constant", proximal=0.5)
    drive(x, y, optimizer, range(3))
    assert late.item() == 5.0
    late.grad = torch.tensor([1.0], dtype=torch.float64)
    drive(x, y, optimizer, [3])  # last step of a stage: the average covers the points before the step
    assert late.item() == 5.0
    late.grad = torch.tensor([1.0], dtype=torch.float64)
    drive(x, y, optimizer, [4])
    assert late.item() == pytest.approx(5.0 - 0.1 / 3)


def test_group_added_later_joins_the_stage():
    x, y = pair()
    optimizer = baselines.PESSGDA(primal=[x], dual=[y], stage_length=3)
    drive(x, y, optimizer, range(4))
    a, _ = pair()
    optimizer.add_param_group({"params": [a], "role": "primal"})
    assert optimizer.algorithm_state == {"stage": 1, "taken": 1}
    a.grad = torch.ones_like(a)
    drive(x, y, optimizer, range(4, 7))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"stage_length": 0}, r"stage_length=0 is invalid: it must be a whole number >= 1\. Count steps"),
        ({"stage_length": 2.5}, r"stage_length=2\.5 is invalid: it must be a whole number >= 1"),
        ({"growth": "fast"}, r"growth='fast' is invalid: it must be one of linear, constant, inverse\. Try 'linear'"),
        (
            {"proximal": -1.0},
            r"proximal=-1\.0 is invalid: it must be a finite number >= 0\. 0\.0 turns the proximal term off",
        ),
        ({"factor": 0.0}, r"factor=0\.0 is invalid: it must lie in \(0, 1\]\. Step sizes may only shrink"),
        ({"delta": 0.0}, r"delta=0\.0 is invalid: it must be finite and at least 1e-30"),
        (
            {"primal": [{"params": [], "stage_length": 3}]},
            r"stage_length=3: all groups share this option; pass it to the optimizer",
        ),
        (
            {"primal": [{"params": [], "beta": 0.5}]},
            r"beta=0\.5 is invalid: the primal variables of PESAdaGrad are not averaged",
        ),
    ],
    ids=str,
)
def test_bad_stages(options, text):
    x, y = pair()
    with pytest.raises(ValueError, match=text):
        baselines.PESAdaGrad(**{"primal": [x], "dual": [y], **options})


def closure_on(x, y, k, calls=None):
    def closure():
        if calls is not None:
            calls.append((x.detach().clone(), y.detach().clone()))
        x.grad, y.grad = gradients(x, y, k() if callable(k) else k)
        return F.value(x.detach()).mean()

    return closure


def test_sgdmax():
    """y ascends at fixed x until the tolerance is met, then x takes one step with the gradient at that y."""
    x, y = pair()
    a, b = x.detach().clone(), y.detach().clone()
    calls = []
    optimizer = baselines.SGDMax(
        primal=[x], dual=[y], lr=0.1, dual_lr=0.5, project=BOX, tolerance=1e-6, max_ascents=500
    )
    for k in range(3):
        optimizer.step(closure_on(x, y, k, calls))
    evaluations = 0
    for k in range(3):
        while True:
            g_a, g_b = gradients(a, b, k)
            evaluations += 1
            moved = (b + 0.5 * g_b).clamp(-0.6, 0.4)
            if (moved - b).norm() / 0.5 <= 1e-6:
                break
            b = moved
        a = a - 0.1 * g_a
    assert_ends((x, y), (a, b))
    assert len(calls) == evaluations > 20


def test_sgdmax_limits_the_number_of_ascents():
    x, y = pair()
    calls = []
    optimizer = baselines.SGDMax(primal=[x], dual=[y], dual_lr=0.5, tolerance=0.0, max_ascents=7)
    optimizer.step(closure_on(x, y, 0, calls))
    assert len(calls) == 8
    assert torch.equal(calls[-1][1], y), "the gradient of x was taken at the y that was found"
    assert all(torch.equal(at_x, calls[0][0]) for at_x, _ in calls)


def test_sgdmax_needs_a_closure():
    x, y = pair()
    optimizer = baselines.SGDMax(primal=[x], dual=[y])
    with pytest.raises(TypeError, match=r"SGDMax\.step\(\) needs a closure: it evaluates the gradient many times"):
        optimizer.step()
    with pytest.raises(ValueError, match=r"max_ascents=0 is invalid: it must be a whole number >= 1"):
        baselines.SGDMax(primal=[x], dual=[y], max_ascents=0)
    with pytest.raises(
        ValueError, match=r"tolerance=-1\.0 is invalid: it must be a finite number >= 0\. 0\.0 takes max_ascents steps"
    ):
        baselines.SGDMax(primal=[x], dual=[y], tolerance=-1.0)


def test_acc_mda():
    x, y = pair()
    options = {"k": 1.5, "m": 30.0, "c_x": 2.0, "c_y": 1.0}
    optimizer = baselines.AccMDA(primal=[x], dual=[y], lr=0.3, dual_lr=0.5, project=BOX, **options)
    a, b, v, w, before = x.detach().clone(), y.detach().clone(), None, None, None
    for t in range(1, 16):
        optimizer.step(closure_on(x, y, t))
        g_a, g_b = gradients(a, b, t)
        if t == 1:
            v, w = g_a, g_b
        else:
            h_a, h_b = gradients(*before, t)  # the same sample at the previous point
            eta_before = 1.5 / (30 + t - 1) ** (1 / 3)
            v = g_a + (1 - 2.0 * eta_before**2) * (v - h_a)
            w = g_b + (1 - 1.0 * eta_before**2) * (w - h_b)
        eta, before = 1.5 / (30 + t) ** (1 / 3), (a, b)
        a, b = a - eta * 0.3 * v, b + eta * ((b + 0.5 * w).clamp(-0.6, 0.4) - b)
    assert_ends((x, y), (a, b))
    assert_ends((optimizer.state[x]["v"], optimizer.state[y]["v"]), (v, w))


def test_acc_mda_evaluates_both_points_and_returns_the_current_loss():
    x, y = pair()
    optimizer = baselines.AccMDA(primal=[x], dual=[y], lr=0.3, dual_lr=0.5)
    optimizer.step(closure_on(x, y, 0))
    calls, here, there = [], x.detach().clone(), optimizer.state[x]["previous"].clone()
    loss = optimizer.step(closure_on(x, y, 1, calls))
    assert torch.equal(calls[0][0], there)
    assert torch.equal(calls[1][0], here)
    assert loss == F.value(here).mean()


def test_acc_mda_refuses_a_closure_that_draws_a_new_sample():
    x, y = pair()
    optimizer = baselines.AccMDA(primal=[x], dual=[y])
    before, samples = x.detach().clone(), iter(range(10))
    with pytest.raises(RuntimeError, match=r"differ by .*so they used different samples; draw the batch before"):
        optimizer.step(closure_on(x, y, lambda: next(samples)))
    assert torch.equal(x, before)
    assert not optimizer.state
    with pytest.raises(TypeError, match=r"AccMDA\.step\(\) needs a closure: it takes two gradients on one sample"):
        optimizer.step()


def test_acc_mda_replays_dropout():
    """Both calls see the same torch random numbers, and the generator advances afterwards."""
    torch.manual_seed(0)
    layer, y = torch.nn.Linear(4, 1), torch.nn.Parameter(torch.zeros(1))
    optimizer = baselines.AccMDA(primal=layer.parameters(), dual=[y])
    masks = []

    def closure():
        kept = torch.nn.functional.dropout(torch.ones(8, 4), 0.5)
        masks.append(kept)
        loss = (layer(kept) * (1 + y)).mean() - y.square().sum()
        loss.backward()
        return loss

    for _ in range(3):
        optimizer.step(closure)
    assert all(torch.equal(masks[2 * k], masks[2 * k + 1]) for k in range(3))
    assert not torch.equal(masks[0], masks[2])


def test_failing_closure_does_not_change_the_parameters():
    x, y = pair()
    optimizer = baselines.AccMDA(primal=[x], dual=[y], lr=0.3, dual_lr=0.5)
    optimizer.step(closure_on(x, y, 0))
    before = x.detach().clone()

    def broken():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        optimizer.step(broken)
    assert torch.equal(x, before)


def test_acc_mda_bounds():
    x, y = pair()
    with pytest.raises(
        ValueError,
        match=r"m=2\.0 is invalid: it must be at least max\(2, k\^3, \(c_x k\)\^3, \(c_y k\)\^3\) = 64\. Raise m",
    ):
        baselines.AccMDA(primal=[x], dual=[y], k=2.0, m=2.0, c_x=2.0)
    with pytest.raises(ValueError, match=r"k=-1\.0 is invalid: it must be a finite number >= 0"):
        baselines.AccMDA(primal=[x], dual=[y], k=-1.0)


@pytest.mark.parametrize("name", ["SGDA", "SGDMax", "EpochSGDA", "PESSGDA", "PESAdaGrad", "AccMDA"])
def test_every_baseline_reaches_the_saddle(name):
    x, y = pair()
    f = saddle(4.0, sigma=0.0)
    stage = {"stage_length": 100, "proximal": 0.3} if name in ("EpochSGDA", "PESSGDA", "PESAdaGrad") else {}
    stage |= {"factor": 0.8} if name.startswith("PES") else {}
    rates = {"lr": 1.0, "dual_lr": 1.0} if name in ("AccMDA", "PESAdaGrad") else {"lr": 0.2, "dual_lr": 0.5}
    optimizer = getattr(baselines, name)(primal=[x], dual=[y], **rates, **stage)
    start = f.value(x.detach()).mean().item()

    def closure():
        f.sample_(x, y, torch.Generator())
        return 0.0

    for _ in range(400):
        optimizer.step(closure)
    assert f.value(x.detach()).mean().item() < 0.01 * start


@pytest.mark.parametrize("name", ["EpochSGDA", "PESSGDA", "PESAdaGrad", "AccMDA"])
def test_infeasible_start_is_projected(name):
    """Averages and interpolated steps are projected too; otherwise y would stay infeasible for many steps."""
    x, _ = pair()
    y = torch.nn.Parameter(torch.full((3, 6), 10.0, dtype=torch.float64))
    stage = {} if name == "AccMDA" else {"stage_length": 2, "growth": "constant"}
    optimizer = getattr(baselines, name)(primal=[x], dual=[y], project=BOX, **stage)
    for k in range(2):
        optimizer.step(closure_on(x, y, k))
        assert ((y >= -0.6) & (y <= 0.4)).all()


def test_parameter_added_to_acc_mda_starts_with_its_gradient():
    x, late, y = (torch.nn.Parameter(torch.ones(1)) for _ in range(3))
    optimizer = baselines.AccMDA(primal=[x], dual=[y])

    def closure():
        optimizer.zero_grad()
        loss = (x + 3 * late).sum() + (x * y).sum() - y.square().sum() / 2
        loss.backward()
        return loss

    optimizer.step(closure)
    optimizer.add_param_group({"params": [late], "role": "primal"})
    optimizer.step(closure)
    assert optimizer.state[late]["v"].item() == 3.0


def test_acc_mda_keeps_exact_estimates_while_a_variable_is_frozen():
    x, z, y = (torch.nn.Parameter(torch.full((1,), 2.0, dtype=torch.float64)) for _ in range(3))
    optimizer = baselines.AccMDA(primal=[x, z], dual=[y], lr=0.1, dual_lr=0.1)

    def closure():
        loss = (x * z).sum() + x.square().sum() + (z - 1).square().sum() + (y * (x + z)).sum() - y.square().sum()
        loss.backward()
        return loss

    for k in range(12):
        if k in (3, 7):
            x.requires_grad_(k == 7)
        optimizer.step(closure)
        for variable in (x, z, y):
            if variable.requires_grad:  # without noise v is the gradient, even after freezing
                torch.testing.assert_close(optimizer.state[variable]["v"], variable.grad, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", [baselines.EpochSGDA, baselines.PESSGDA, baselines.PESAdaGrad])
def test_stages_do_not_change_a_frozen_variable(kind):
    x, y = (torch.nn.Parameter(torch.full((2,), 3.0)) for _ in range(2))
    optimizer = kind(primal=[x], dual=[y], lr=0.1, dual_lr=0.1, stage_length=2, proximal=1.0)
    x.grad, y.grad = torch.zeros(2), torch.zeros(2)
    x.requires_grad_(False)
    for _ in range(8):
        optimizer.step()
    assert torch.equal(x.detach(), torch.full((2,), 3.0))


def test_temporarily_frozen_variable_is_averaged_over_the_whole_stage():
    x, y = (torch.nn.Parameter(torch.zeros(1, dtype=torch.float64)) for _ in range(2))
    optimizer = baselines.EpochSGDA(primal=[x], dual=[y], lr=1.0, dual_lr=1.0, stage_length=6, proximal=0.0)
    points = []
    for k in range(6):
        x.requires_grad_(k not in (2, 3, 4))
        x.grad, y.grad = (-torch.ones_like(x) if x.requires_grad else None), torch.zeros_like(y)
        points.append(x.item())
        optimizer.step()
    assert points == [0, 1, 2, 2, 2, 2]
    assert x.item() == pytest.approx(1.5)
