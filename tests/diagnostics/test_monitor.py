"""Measurements of the monitor against closed forms."""

import math
from itertools import pairwise

import pytest
import torch

import semaopt
from semaopt import scalings
from semaopt.diagnostics import Monitor, duality_gap, measure

CURVATURE = torch.tensor([1.0, 4.0], dtype=torch.float64)


def quadratic(x):
    """F(x) = sum of c_i x_i^2 / 2: L = 4."""
    return (CURVATURE * x.square()).sum() / 2


def start(**hyper):
    x = torch.nn.Parameter(torch.tensor([3.0, -1.0], dtype=torch.float64))
    return x, semaopt.ASA([x], **{"lr": 0.05, "beta": 0.5, "scaling": "shb", **hyper})


def advance(x, optimizer, noise=0.0, steps=1):
    for _ in range(steps):
        x.grad = CURVATURE * x.detach() + noise
        optimizer.step()


def test_gradient_tracking_noise_and_l_by_hand():
    x, optimizer = start(bias_correction=False)
    noise = torch.tensor([0.3, -0.4], dtype=torch.float64)
    at, v, expected = x.detach().clone(), None, []
    for _ in range(4):
        gradient = CURVATURE * at
        v = gradient + noise if v is None else 0.5 * v + 0.5 * (gradient + noise)
        expected.append((float(gradient.norm()), float((v - gradient).square().sum()), at))
        at = at - 0.05 * v
    with Monitor(optimizer, full_gradient=lambda: quadratic(x), every=1) as m:
        advance(x, optimizer, noise, steps=4)
    assert [r.step for r in m.history] == [0, 1, 2, 3]
    assert [r.gradient_norm for r in m.history] == pytest.approx([g for g, _, _ in expected])
    assert [r.tracking_error for r in m.history] == pytest.approx([e for _, e, _ in expected])
    assert [r.noise for r in m.history] == pytest.approx([0.25] * 4)
    secants = [float((CURVATURE * (b - a)).norm() / (b - a).norm()) for (_, _, a), (_, _, b) in pairwise(expected)]
    assert [r.secant for r in m.history[1:]] == pytest.approx(secants)
    assert m.history[0].secant is None
    assert pytest.approx(max(secants)) == m.L
    assert m.L <= 4.0
    assert m.sigma2 == pytest.approx(0.25)
    assert (m.gradient_norm, m.tracking_error) == pytest.approx(expected[-1][:2])
    assert m.average_gradient == pytest.approx(sum(g**2 for g, _, _ in expected) / 4)
    assert m.average_tracking == pytest.approx(sum(e for _, e, _ in expected) / 4)


def test_gradients_may_be_given_as_a_list():
    x, optimizer = start()
    with Monitor(optimizer, full_gradient=lambda: [CURVATURE * x.detach()], every=1) as m:
        advance(x, optimizer)
    assert m.tracking_error == 0.0
    assert m.gradient_norm == pytest.approx(5.0)


def test_the_step_is_not_touched():
    x, plain = start(scaling="adam")
    y, watched = start(scaling="adam")
    with Monitor(watched, full_gradient=lambda: quadratic(y), every=2):
        for k in range(7):
            advance(x, plain, 0.1 * k)
            advance(y, watched, 0.1 * k)
            assert torch.equal(x.grad, y.grad)
    assert torch.equal(x, y)


@pytest.mark.parametrize("corrected", [False, True])
@pytest.mark.parametrize("clip", [None, (0.2, 0.9)])
@pytest.mark.parametrize("name", list(scalings.BY_NAME))
def test_the_bounds_of_s_are_those_of_the_step(name, clip, corrected):
    """s from the step itself: x_t - x_{t+1} = lr s v."""
    x, optimizer = start(scaling=name, clip_scaling=clip, bias_correction=corrected, lr=0.01)
    with Monitor(optimizer, every=1) as m:
        for k in range(5):
            before = x.detach().clone()
            advance(x, optimizer, 0.5 * (-1) ** k)
            state = optimizer.state[x]
            v = state["v"] / (state["v_weight"] if corrected else 1.0)
            s = (before - x.detach()) / (0.01 * v)
            assert (m.history[-1].c_l, m.history[-1].c_u) == pytest.approx((float(s.min()), float(s.max())), rel=1e-9)
            assert m.history[-1].c_l <= m.history[-1].median <= m.history[-1].c_u
    assert m.scaling_bounds == (min(r.c_l for r in m.history), max(r.c_u for r in m.history))


def test_an_own_scaling_is_read_with_the_t_of_its_step():
    """u is the mean of g^2, from a sum and t: 1 for gradients of size 1, so s is 1 in every step."""

    class Mean:
        g0, buffers = 0.0, ("total",)

        def update_(self, m, seen):
            m["total"] += seen.g.square()
            return self.read(m, seen)

        def read(self, m, seen):
            return m["total"] / (seen.t + 1)

    x = torch.nn.Parameter(torch.zeros(2))
    optimizer = semaopt.ASA([x], scaling=Mean())
    with Monitor(optimizer, every=1) as m:
        for _ in range(3):
            x.grad = torch.ones(2)
            optimizer.step()
    assert [(r.c_l, r.c_u) for r in m.history] == [(1.0, 1.0)] * 3


def test_read_is_what_update_returned():
    for name in scalings.BY_NAME:
        for corrected in (False, True):
            x, optimizer = start(scaling=name, bias_correction=corrected)
            advance(x, optimizer, steps=3)
            scaling = optimizer.param_groups[0]["scaling"]
            m = {k: t.clone() for k, t in optimizer.state[x].items()}
            g, v = CURVATURE * x.detach(), m["v"]
            seen = scalings.Seen(g, v, 3, v.norm, corrected)
            u = scaling.update_(m, seen)
            kept = {k: t.clone() for k, t in m.items()}
            again = scaling.read(m, seen._replace(g=None))
            assert torch.equal(torch.as_tensor(u), torch.as_tensor(again)), name
            assert all(torch.equal(m[k], kept[k]) for k in m), name


def test_several_groups_and_weight_decay_and_maximize():
    x, y = (torch.nn.Parameter(torch.tensor([2.0], dtype=torch.float64)) for _ in range(2))
    groups = [
        {"params": [x], "weight_decay": 0.5},
        {"params": [y], "maximize": True, "scaling": scalings.AdaBound(0.1, 0.2)},
    ]
    optimizer = semaopt.ASA(groups, lr=0.1, beta=0.9, scaling="shb")

    def linear():
        return (3 * x - y).sum()

    with Monitor(optimizer, full_gradient=linear, every=1) as m:
        for _ in range(2):
            x.grad, y.grad = torch.full_like(x, 3.0), torch.full_like(y, -1.0)
            optimizer.step()
    # In step 0 the oracle gives 3 + 0.5*2 for x and +1 for y; with exact samples v is exact in the first step.
    assert m.history[0].gradient_norm == pytest.approx(math.sqrt(16 + 1))
    assert m.history[0].tracking_error == pytest.approx(0.0, abs=1e-24)
    assert m.history[0].noise == pytest.approx(0.0, abs=1e-24)
    assert m.scaling_bounds == pytest.approx((0.2, 1.0))


@pytest.mark.parametrize("exact", [True, False])
def test_a_skipped_sample_is_no_noise(exact):
    x, optimizer = start(on_nonfinite="skip")
    with Monitor(optimizer, full_gradient=(lambda: quadratic(x)) if exact else None, every=1) as monitor:
        for noise in (0.5, 0.5, math.nan, 0.5):
            advance(x, optimizer, noise)
    assert optimizer.skipped_steps == 1
    assert [record.noise is None for record in monitor.history] == [not exact, False, False]
    assert math.isfinite(monitor.sigma2)


def test_sigma2_without_a_full_gradient():
    x = torch.nn.Parameter(torch.zeros(50, dtype=torch.float64))
    optimizer = semaopt.ASA([x], lr=0.0, beta=0.99, scaling="shb")
    generator = torch.Generator().manual_seed(0)
    with Monitor(optimizer, every=10) as m:
        for _ in range(4000):
            x.grad = torch.randn(50, generator=generator, dtype=torch.float64)
            optimizer.step()
    assert m.sigma2 == pytest.approx(50, rel=0.05)  # |O - v_t|^2 has the tracking error 50/199 on top
    assert (m.L, m.gradient_norm, m.tracking_error, m.average_gradient) == (None,) * 4


@pytest.mark.parametrize("corrected", [False, True])
@pytest.mark.parametrize("betas", [(0.9, 0.9, 0.9), (0.5, 0.9, 0.99)])
def test_the_sample_against_the_estimate_before_it(corrected, betas):
    """|O - v_t|^2 by hand, even if beta changes: v_1 is the first sample either way."""
    x = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
    optimizer = semaopt.ASA([x], lr=0.0, scaling="shb", bias_correction=corrected)
    expected = [None]
    with Monitor(optimizer, every=1) as m:
        for beta, sample in zip(betas, (1.0, 3.0, -2.0), strict=True):
            if state := optimizer.state[x]:
                before = (state["v"] / state["v_weight"] if corrected else state["v"]).item()
                expected.append(pytest.approx((sample - before) ** 2))
            optimizer.param_groups[0]["beta"] = beta
            x.grad = torch.full_like(x, sample)
            optimizer.step()
    assert [r.noise for r in m.history] == expected
    assert m.history[1].noise == pytest.approx(4.0)


def test_without_a_full_gradient_weight_decay_is_taken_where_x_was():
    x = torch.nn.Parameter(torch.tensor([10.0], dtype=torch.float64))
    optimizer = semaopt.ASA([x], lr=1.0, beta=0.5, scaling="shb", weight_decay=1.0)
    with Monitor(optimizer, every=1) as m:
        x.grad = torch.ones_like(x)  # v = 1 + 10, x = -1
        optimizer.step()
        x.grad = torch.zeros_like(x)  # O = 0 + (-1)
        optimizer.step()
    assert m.history[1].noise == pytest.approx((-1 - 11) ** 2)


def test_a_group_that_joins_later():
    x, y = (torch.nn.Parameter(torch.zeros(1)) for _ in range(2))
    optimizer = semaopt.ASA([x], lr=0.1, beta=0.5, scaling="shb")
    with Monitor(optimizer, full_gradient=lambda: (x.square() + y.square()).sum(), every=1) as m:
        for _ in range(2):
            x.grad, y.grad = torch.ones(1), torch.ones(1)
            optimizer.step()
            if len(optimizer.param_groups) == 1:
                optimizer.add_param_group({"params": [y]})
        optimizer.step()
    assert m.history[1].secant is None
    assert m.history[2].secant == pytest.approx(2.0)
    assert len(m.sampled()) == 2


@pytest.mark.parametrize("exact", [False, True])
def test_sbma_has_no_sample_of_the_whole_gradient(exact):
    x, y = (torch.nn.Parameter(torch.ones(1, dtype=torch.float64)) for _ in range(2))
    inverse = semaopt.hypergradient.Neumann(terms=1, bound=1.0)
    optimizer = semaopt.SBMA(upper=[x], lower=[y], lr=0.1, lower_lr=0.5, beta=0.5, inverse=inverse)
    with Monitor(optimizer, full_gradient=(lambda: x.square().sum() / 2) if exact else None, every=1) as m:
        for sign in (1.0, -1.0, 1.0):
            optimizer.step(lambda s=sign: (y + s).square().sum() / 2, lambda: (y - x).square().sum() / 2)
    assert m.sigma2 is None
    assert any(text.startswith("sigma^2 is not measured: SBMA averages the pieces") for text in m.warnings)
    assert (m.tracking_error is None) is not exact


def test_every_off_and_sampled():
    x, optimizer = start()
    m = Monitor(optimizer, every=3)
    with pytest.raises(RuntimeError, match="The monitor was never active"):
        m.sampled()
    advance(x, optimizer, steps=5)
    assert m.history == []
    assert m.scaling_bounds is None
    points = []
    with m:
        for _ in range(7):
            points.append(x.detach().clone())
            advance(x, optimizer)
        with pytest.raises(RuntimeError, match="already active"):
            m.__enter__()
    assert [r.step for r in m.history] == [0, 3, 6]
    assert any(torch.equal(m.sampled()[0], point) for point in points)
    advance(x, optimizer, steps=5)
    assert len(m.history) == 3
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks


def test_it_draws_the_iterate_that_iterates_draws():
    """Only due steps reach the reservoir, and the draws are those of an object that sees every step."""
    taken = set()
    for seed in range(6):
        x, optimizer = start(lr=1e-3, on_nonfinite="skip")
        added = torch.nn.Parameter(torch.ones(1, dtype=torch.float64))
        iterates = semaopt.Iterates(optimizer, keep=("sampled",), seed=seed)
        with Monitor(optimizer, every=7, seed=seed) as m:
            for t in range(40):
                if t == 20:
                    optimizer.add_param_group({"params": [added]})
                if t % 9 == 5:  # a skipped step is not counted
                    x.grad = torch.full_like(x, math.nan)
                    optimizer.step()
                added.grad = torch.ones_like(added)
                advance(x, optimizer)
                assert all(torch.equal(*pair) for pair in zip(m.sampled(), iterates.sampled(), strict=True))
        taken.add(iterates.tau < 20)
        assert [r.step for r in m.history] == [0, 7, 14, 21, 28, 35]
    assert taken == {True, False}  # some x_tau are from before the group was added, where it is constant


def test_an_error_in_the_block_takes_the_hooks_off():
    _, optimizer = start()
    with pytest.raises(ZeroDivisionError), Monitor(optimizer):
        1 / 0  # noqa: B018
    assert not optimizer._optimizer_step_pre_hooks


def test_a_writer_hears_everything():
    class Writer:
        def __init__(self):
            self.seen = []

        def add_scalar(self, tag, value, step):
            self.seen.append((tag, value, step))

    x, optimizer = start()
    writer = Writer()
    with Monitor(optimizer, lambda: quadratic(x), 2, writer) as m:
        advance(x, optimizer, steps=3)
    assert ("semaopt/gradient_norm", m.gradient_norm, 2) in writer.seen
    assert {tag for tag, _, _ in writer.seen} == {
        f"semaopt/{name}"
        for name in (
            *("c_l", "median", "c_u", "gradient_norm", "tracking_error", "noise"),
            *("signal", "variance", "secant"),
        )
    }


def test_complex_low_precision_and_frozen_parameters():
    z = torch.nn.Parameter(torch.tensor([3 + 4j]))
    low = torch.nn.Parameter(torch.tensor([1.0, 2.0], dtype=torch.bfloat16))
    frozen = torch.nn.Parameter(torch.ones(2), requires_grad=False)
    optimizer = semaopt.ASA([z, low, frozen], lr=0.1, scaling=scalings.Adam(g0=1.0))
    with Monitor(
        optimizer, full_gradient=lambda: (z.abs().square().sum() + low.float().square().sum()) / 2, every=1
    ) as m:
        z.grad, low.grad = z.detach().clone(), low.detach().clone()
        optimizer.step()
    assert m.gradient_norm == pytest.approx(math.sqrt(25 + 5))
    assert m.tracking_error == pytest.approx(0.0, abs=1e-9)
    assert m.scaling_bounds == pytest.approx((1 / 5, 1 / 2))


def saddle(coupling=2.0):
    x = torch.nn.Parameter(torch.tensor([1.0], dtype=torch.float64))
    y = torch.nn.Parameter(torch.tensor([0.5], dtype=torch.float64))

    def f():
        return (x.square() / 2 + coupling * x * y - y.square() / 2).sum()

    return x, y, f


def test_the_duality_gap():
    x, y, f = saddle()
    optimizer = semaopt.PDSM(primal=[x], dual=[y], lr=0.5, dual_lr=1.0, beta=0.5)
    # One step: y' = y + (2x - y) = 2 is the maximizer, x' = x - 0.5(x + 2y) = 0; f(1, 2) - f(0, 0.5).
    assert duality_gap(optimizer, f, steps=1) == pytest.approx((0.5 + 4 - 2) - (-0.125))
    assert duality_gap(optimizer, f, steps=0) == 0.0
    with pytest.raises(
        ValueError, match=r"steps=-1 is invalid: it must be a whole number >= 0\. Each step takes a full gradient"
    ):
        duality_gap(optimizer, f, steps=-1)
    assert (x.item(), y.item()) == (1.0, 0.5)
    optimizer = semaopt.PDSM(primal=[x], dual=[y], lr=0.05, dual_lr=0.1, beta=0.5)
    with Monitor(optimizer, full_gradient=f, every=10, gap_steps=3) as m:
        for _ in range(101):
            optimizer.zero_grad()
            f().backward()
            optimizer.step()
    gaps = [record.gap for record in m.history]
    assert 0 <= gaps[-1] < 0.01 * gaps[0]
    assert m.gap == gaps[-1]


def test_the_dual_side_is_projected():
    x, y, f = saddle()
    box = semaopt.projections.Box(-0.75, 0.75)
    optimizer = semaopt.PDSM(primal=[x], dual=[y], lr=0.5, dual_lr=1.0, beta=0.5, project=box)
    assert duality_gap(optimizer, f, steps=1) == pytest.approx((0.5 + 1.5 - 0.75**2 / 2) - (-0.125))


def test_wrong_use():
    x, optimizer = start()
    with pytest.raises(ValueError, match=r"every=0 is invalid: it must be a whole number >= 1\. every=100 costs"):
        Monitor(optimizer, every=0)
    with pytest.raises(ValueError, match=r"writer=3 is invalid: it must have add_scalar\(tag, value, step\)"):
        Monitor(optimizer, writer=3)
    with pytest.raises(ValueError, match=r"gap_steps=2 is invalid: it needs full_gradient"):
        Monitor(optimizer, gap_steps=2)
    with pytest.raises(TypeError, match=r"SGD has no param group with momentum, .* Use an optimizer of semaopt"):
        Monitor(torch.optim.SGD([x], lr=0.1))
    with Monitor(optimizer, full_gradient=list), pytest.raises(ValueError, match=r"0 gradients for 1 parameters"):
        advance(x, optimizer)
    with (
        Monitor(optimizer, full_gradient=x.square),
        pytest.raises(ValueError, match=r"tensor of shape \(2,\)"),
    ):
        advance(x, optimizer)
    x, y, f = saddle()
    minmax = semaopt.PDSM(primal=[x], dual=[y])
    f().backward()
    with (
        Monitor(minmax, full_gradient=lambda: [x.grad, y.grad], every=1, gap_steps=1),
        pytest.raises(TypeError, match=r"gap_steps needs a full_gradient that returns the loss"),
    ):
        minmax.step()
    text = (
        r"optimizer=ASA: the duality gap .* needs dual parameters with requires_grad.*semaopt\.PDAda\), or gap_steps=0"
    )
    with pytest.raises(TypeError, match=text):
        Monitor(optimizer, full_gradient=lambda: quadratic(x), gap_steps=2)
    with pytest.raises(TypeError, match=text):
        duality_gap(optimizer, lambda: quadratic(x), steps=2)
    bilevel = semaopt.SMB(upper=[x], lower=[y], lr=0.1, lower_lr=0.1)
    with (
        Monitor(bilevel, full_gradient=lambda: y.square().sum()),
        pytest.raises(
            TypeError,
            match=r"a loss f\(x, y\), but SMB follows the hypergradient.*Return a list with the gradients in x",
        ),
    ):
        bilevel.step(lambda: y.square().sum(), lambda: (y - x.sum()).square().sum())
    x.requires_grad_(False)
    with pytest.raises(TypeError, match=r"optimizer=PDSM: the duality gap .* needs primal parameters"):
        Monitor(minmax, full_gradient=f, gap_steps=2)


def test_the_scaling_of_adam_plus_leaves_out_what_did_not_step():
    """s of Adam+ is 1/sqrt(|v|) over the parameters of the step; y has an average, but no gradient in step 1."""
    x, y = (torch.nn.Parameter(torch.zeros(1, dtype=torch.float64)) for _ in range(2))
    optimizer = semaopt.ASA([x, y], lr=0.1, beta=0.0, scaling=scalings.AdamPlus(g0=1e-30))
    with Monitor(optimizer, every=1) as m:
        for step in range(2):
            x.grad, y.grad = torch.full_like(x, 3.0), torch.full_like(y, 4.0) if step == 0 else None
            before = x.item()
            optimizer.step()
            assert m.history[-1].c_u == pytest.approx((before - x.item()) / (0.1 * 3.0))
    assert [record.c_u for record in m.history] == pytest.approx([5**-0.5, 3**-0.5])


def test_another_default_device():
    with torch.device("meta"):
        x = torch.nn.Parameter(torch.ones(2, device="cpu"))
        optimizer = semaopt.ASA([x], lr=0.1, scaling="shb")
        with Monitor(optimizer, full_gradient=lambda: x.square().sum() / 2, every=1) as m:
            for _ in range(5):
                x.grad = x.detach().clone()
                optimizer.step()
    assert m.scaling_bounds == (1.0, 1.0)
    assert m.sampled()[0].device.type == "cpu"


TORCHS = {
    "Adam": lambda x: torch.optim.Adam([x], lr=0.01, betas=(0.8, 0.9), eps=0.1),
    "AMSGrad": lambda x: torch.optim.Adam([x], lr=0.01, betas=(0.8, 0.9), eps=0.1, amsgrad=True),
    "AdamW": lambda x: torch.optim.AdamW([x], lr=0.01, betas=(0.8, 0.9), eps=0.1, weight_decay=0.0),
    "SGD": lambda x: torch.optim.SGD([x], lr=0.01, momentum=0.8, dampening=0.8),
    "heavy ball": lambda x: torch.optim.SGD([x], lr=0.01, momentum=0.8),
}


@pytest.mark.parametrize("name", TORCHS)
def test_torchs_optimizers(name):
    """v from a loop of our own, and s from the step itself: x_t - x_{t+1} = lr s v."""
    x = torch.nn.Parameter(torch.tensor([3.0, -1.0], dtype=torch.float64))
    optimizer = TORCHS[name](x)
    v, weight = torch.zeros(2, dtype=torch.float64), 0.0
    with Monitor(optimizer, full_gradient=lambda: quadratic(x), every=1) as m:
        for k in range(6):
            before = x.detach().clone()
            gradient = CURVATURE * before
            advance(x, optimizer, 0.5 * (-1) ** k)
            gamma = 1.0 if name == "SGD" and k == 0 else 0.2
            if name == "heavy ball":
                v = 0.8 * v + 0.2 * (gradient + 0.5 * (-1) ** k)
                estimate = v
            else:
                v, weight = (1 - gamma) * v + gamma * (gradient + 0.5 * (-1) ** k), (1 - gamma) * weight + gamma
                estimate = v / weight
            s = (before - x.detach()) / (0.01 * estimate)
            record = m.history[-1]
            assert record.gradient_norm == pytest.approx(float(gradient.norm()))
            assert record.tracking_error == pytest.approx(float((estimate - gradient).square().sum()))
            assert record.noise == pytest.approx(0.5)
            assert (record.c_l, record.c_u) == pytest.approx((float(s.min()), float(s.max())))
    assert all(isinstance(text, str) for text in m.warnings)


@pytest.mark.parametrize("name", TORCHS)
def test_innovations_of_torchs_optimizers(name):
    x = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
    optimizer = TORCHS[name](x)
    v = None
    expected = []
    with Monitor(optimizer, every=1) as m:
        for k, sample in enumerate((1.0, 3.0, -2.0, 5.0)):
            expected.append(None if v is None else pytest.approx((sample - v) ** 2))
            x.grad = torch.full_like(x, sample)
            optimizer.step()
            state = optimizer.state[x]
            if "exp_avg" in state:
                v = state["exp_avg"].item() / (1 - 0.8 ** (k + 1))
            else:
                v = state["momentum_buffer"].item() * (1.0 if name == "SGD" else 0.2)
    assert [record.noise for record in m.history] == expected


def test_an_optimizer_of_torch_whose_scaling_is_unknown():
    x = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.Adamax([x])
    with Monitor(optimizer, every=1) as m:
        x.grad = torch.ones(2)
        optimizer.step()
    assert m.scaling_bounds is None
    assert m.warnings[0].startswith("The bounds of s are not known for Adamax")


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("make", [lambda x: semaopt.ASA([x], lr=0.0, beta=0.9, scaling="shb", bias_correction=True), TORCHS["Adam"]])  # fmt: skip # noqa: E501
def test_the_simple_noise_scale(make, exact):
    """Gradients 2 + noise of variance 9 per coordinate, 10 coordinates, 4 examples: tr(Sigma)/|G|^2 = 4 * 90/40."""
    x = torch.nn.Parameter(torch.zeros(10, dtype=torch.float64))
    optimizer = make(x)
    optimizer.param_groups[0]["lr"] = 0.0
    full = (lambda: [torch.full((10,), 2.0, dtype=torch.float64)]) if exact else None
    generator = torch.Generator().manual_seed(0)
    with Monitor(optimizer, full, every=1, batch_size=4) as m:
        for _ in range(4000):
            x.grad = 2 + 3 * torch.randn(10, generator=generator, dtype=torch.float64)
            optimizer.step()
    assert m.noise_scale == pytest.approx(9.0, rel=0.05)
    assert sum(r.variance for r in m.history if r.variance is not None) / len(m.history) == pytest.approx(90, rel=0.05)
    assert any(line.startswith("Noise scale ") and "batch size 4" in line for line in m.verdicts)


@pytest.mark.parametrize("corrected", [False, True])
def test_signal_and_variance_are_unbiased_from_the_second_step_on(corrected):
    """The mean over many runs of the estimates in step 3, where v averages few samples."""
    signals, variances = [], []
    for seed in range(60):
        generator = torch.Generator().manual_seed(seed)
        x = torch.nn.Parameter(torch.zeros(200, dtype=torch.float64))
        optimizer = semaopt.ASA([x], lr=0.0, beta=0.5, scaling="shb", bias_correction=corrected, implementation="loop")
        with Monitor(optimizer, every=1) as m:
            for _ in range(3):
                x.grad = 1 + torch.randn(200, generator=generator, dtype=torch.float64)
                optimizer.step()
        signals.append(m.history[2].signal)
        variances.append(m.history[2].variance)
    assert sum(signals) / 60 == pytest.approx(200, rel=0.05)
    assert sum(variances) / 60 == pytest.approx(200, rel=0.05)


def test_no_signal_is_an_infinite_noise_scale():
    x = torch.nn.Parameter(torch.zeros(2))
    optimizer = semaopt.ASA([x], lr=0.0, scaling="shb")
    with Monitor(optimizer, full_gradient=lambda: [torch.zeros(2)], every=1) as m:
        x.grad = torch.ones(2)
        optimizer.step()
    assert m.noise_scale == math.inf
    assert Monitor(optimizer).noise_scale is None


def test_verdicts_are_one_line_each():
    x, optimizer = start()
    with Monitor(optimizer, full_gradient=lambda: quadratic(x), every=1) as m:
        advance(x, optimizer, steps=5)
    starts = [line.split(":")[0] for line in m.verdicts]
    assert starts == ["Stationarity", "Tracking", "Noise scale 0 against batch size 1", "Scaling"]
    assert m.verdicts[0].startswith("Stationarity: |grad F| falls, from 5 to ")


def test_tensorboard_writes_the_noise(tmp_path):
    tensorboard = pytest.importorskip("torch.utils.tensorboard")
    x, optimizer = start()
    with tensorboard.SummaryWriter(tmp_path) as writer, Monitor(optimizer, lambda: quadratic(x), 1, writer):
        advance(x, optimizer, steps=2)
    assert list(tmp_path.iterdir())


def test_shadow_averages_and_the_best_gamma_by_hand():
    """Compare with averages computed by float64 loops, with and without a full gradient."""
    gammas, n = (1.0, 0.5, 0.1), 40
    draws, full = torch.randn(n, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([1.0, -2.0, 0.5])
    for exact in (True, False):
        x = torch.nn.Parameter(torch.zeros(3))
        optimizer = torch.optim.SGD([x], lr=0.0, momentum=0.9, dampening=0.9)
        averages, errors = [draws[0].double() + full] * 3, []
        with Monitor(optimizer, (lambda: [full]) if exact else None, 4, shadow_gammas=(0.5, 0.1, 1.0)) as m:
            for t in range(n):
                x.grad = full + draws[t]
                optimizer.step()
                if not exact and t > 0:
                    errors.append([(x.grad - v).square().sum().item() for v in averages])
                for k, gamma in enumerate(gammas):
                    averages[k] = averages[k] + max(gamma, 1 / (t + 1)) * (x.grad.double() - averages[k])
                if exact and t % 4 == 0:
                    errors.append([(v - full).square().sum().item() for v in averages])
        # the last measured step is 36; predictions are measured in every step, since every // 10 is 0
        expected = errors if exact else errors[:36]
        if exact:
            means = torch.tensor(expected, dtype=torch.float64).mean(0)
        else:  # a record holds the mean since the one before it; the first step predicts nothing
            parts = torch.tensor(expected, dtype=torch.float64).view(9, 4, 3)
            means = parts.mean(1).mean(0)
        assert m.shadow_gammas == gammas
        torch.testing.assert_close(
            torch.tensor(list(m.shadow_errors.values()), dtype=torch.float64), means, rtol=1e-5, atol=1e-6
        )
        assert m.best_gamma == min(m.shadow_errors, key=m.shadow_errors.get) == 0.1
        assert m.history[-1].best_gamma == 0.1
        (line,) = [line for line in m.verdicts if line.startswith("Best gamma")]
        assert line == (
            "Best gamma in hindsight: 0.1 (beta = 0.9), now 0.1; smaller ones were not tried. "
            "It tracks the gradient best, which need not lower the loss."
        )


def test_the_best_gamma_depends_on_the_noise():
    """A moving target without noise needs a large gamma, a fixed one with noise a small gamma."""

    def best(noise, speed):
        generator = torch.Generator().manual_seed(1)
        x = torch.nn.Parameter(torch.zeros(50))
        optimizer = semaopt.ASA([x], lr=0.0)
        with Monitor(optimizer, every=10, shadow_gammas=(1.0, 0.3, 0.1, 0.03)) as m:
            for t in range(300):
                x.grad = torch.full((50,), speed * t) + noise * torch.randn(50, generator=generator)
                optimizer.step()
        return m.best_gamma

    assert (best(noise=0.01, speed=0.1), best(noise=1.0, speed=0.0)) == (1.0, 0.03)
    assert best(noise=1.0, speed=0.1) in (0.3, 0.1)


def test_shadow_averages_restart_after_a_nan_and_follow_a_sample_of_the_coordinates():
    xs = [torch.nn.Parameter(torch.zeros(size)) for size in (300, 300, 5000, 40_000)]
    optimizer = torch.optim.Adam(xs, lr=0.0)
    with Monitor(optimizer, every=5, shadow_gammas=(0.5,)) as m:
        for t in range(31):
            for x in xs:
                x.grad = torch.full_like(x, math.nan if t == 7 else 1.0)
            optimizer.step()
        size = m._shadows._values.shape[1]
        assert 3500 <= size <= 4096
        assert [record.shadow_errors is None for record in m.history] == [True, False, True, False, False, False, False]
        assert m.shadow_errors == {0.5: 0.0}
        xs[0].grad = None  # a step without one of the gradients is left out
        before = m._shadows._count
        optimizer.step()
        assert m._shadows._count == before


def test_shadow_errors_go_to_tensorboard_and_are_absent_by_default():
    x = torch.nn.Parameter(torch.ones(2))
    optimizer = semaopt.ASA([x])
    seen = {}

    class Writer:
        def add_scalar(self, tag, value, step):
            seen[tag] = value

    with Monitor(optimizer, every=1, writer=Writer(), shadow_gammas=(0.3, 0.1)):
        for _ in range(3):
            x.grad = torch.ones(2)
            optimizer.step()
    assert {"semaopt/shadow_error/gamma=0.3", "semaopt/shadow_error/gamma=0.1", "semaopt/best_gamma"} <= seen.keys()
    assert Monitor(optimizer).best_gamma is None
    assert Monitor(optimizer).shadow_errors == {}
    with pytest.raises(ValueError, match=r"shadow_gammas=\(0.1, 2\) is invalid: it must be numbers in \(0, 1\]"):
        Monitor(optimizer, shadow_gammas=(0.1, 2))
    with pytest.raises(ValueError, match=r"shadow_gammas=\(0.1, 0.1\) is invalid: it must be distinct"):
        Monitor(optimizer, shadow_gammas=(0.1, 0.1))


def test_squared_norms_are_exact_where_float32_overflows_or_vanishes():
    tensors = [torch.tensor([3e30, 4e30]), torch.tensor([3e-30, 4e-30]), torch.tensor([3.0, 4.0]), torch.zeros(2)]
    assert measure.squared_norms(tensors) == pytest.approx([2.5e61, 2.5e-59, 25.0, 0.0], rel=1e-6)
    assert measure.squared_norms([torch.tensor([3.0, 4.0], dtype=torch.bfloat16)]) == [25.0]
    assert measure.squared_norms([]) == []
