"""Rows of Table 2 compared with NumPy, with torch where they coincide, and in edge cases."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import semaopt
from semaopt import scalings

STEPS = 300


def trajectory(optimizer, x, gradients):
    out = []
    for g in gradients:
        x.grad = g.clone()
        optimizer.step()
        out.append(x.detach().clone())
    return torch.stack(out)


def gradients(seed, steps=STEPS, size=5):
    return torch.randn(steps, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def start(size=5):
    return torch.nn.Parameter(torch.linspace(-1, 1, size, dtype=torch.float64))


def table_2(name, gs, eta, beta, beta2=0.999, g0=1e-7, c_l=0.1, c_u=1000.0):
    """Run the algorithm box of the paper with the row ``name`` in NumPy."""
    x, out, v, ema, peak, total = np.linspace(-1, 1, gs.shape[1]), [], gs[0], gs[0] ** 2, 0.0, 0.0
    for t, g in enumerate(gs):
        v = beta * v + (1 - beta) * g
        ema = beta2 * ema + (1 - beta2) * g**2
        peak = np.maximum(peak, ema)
        total = total + g**2
        u, g0_ = {
            "shb": (1.0, 0.0),
            "adam": (ema, g0),
            "amsgrad": (peak, g0),
            "adafom": (total / (t + 1), g0),
            "adam+": (np.sqrt((v**2).sum()), g0),
            "adabound": (np.clip(ema, 1 / c_u**2, 1 / c_l**2), 0.0),
        }[name]
        x = x - eta * v / (np.sqrt(u) + g0_)
        out.append(x)
    return np.stack(out)


@pytest.mark.parametrize("name", scalings.BY_NAME)
def test_row_equals_the_table(name):
    gs = gradients(0)
    x = start()
    ours = trajectory(semaopt.ASA([x], lr=0.01, beta=0.9, scaling=name, bias_correction=False), x, gs)
    np.testing.assert_allclose(ours.numpy(), table_2(name, gs.numpy(), 0.01, 0.9), rtol=1e-10, atol=1e-12)


hyper = {
    "lr": st.floats(1e-4, 1e-1),
    "beta": st.sampled_from([0.0, 0.5, 0.9, 0.99]),
    "beta2": st.sampled_from([0.9, 0.99, 0.999]),  # for smaller beta2, gradients near 0 amplify rounding errors
    "decay": st.sampled_from([0.0, 0.1]),
    "seed": st.integers(0, 2**31),
}


@settings(max_examples=15, deadline=None)
@given(**hyper, maximize=st.booleans(), decoupled=st.booleans())
@pytest.mark.parametrize("amsgrad", [False, True])
def test_corrected_adam_is_torch_adam(amsgrad, lr, beta, beta2, decay, seed, maximize, decoupled):
    scaling = (scalings.AMSGrad if amsgrad else scalings.Adam)(beta2=beta2, g0=1e-8)
    x, y = start(), start()
    ours = semaopt.ASA(
        [x], lr, beta, scaling, bias_correction=True, weight_decay=decay, maximize=maximize,
        decoupled_weight_decay=decoupled,
    )  # fmt: skip
    options = {"eps": 1e-8, "amsgrad": amsgrad, "weight_decay": decay, "maximize": maximize}
    theirs = (torch.optim.AdamW if decoupled else torch.optim.Adam)([y], lr, (beta, beta2), **options)
    gs = gradients(seed)
    torch.testing.assert_close(trajectory(ours, x, gs), trajectory(theirs, y, gs), rtol=1e-9, atol=1e-11)


@settings(max_examples=15, deadline=None)
@given(**hyper)
def test_shb_is_torch_sgd_with_dampening(lr, beta, beta2, decay, seed):
    x, y = start(), start()
    ours = semaopt.ASA([x], lr, beta, "shb", weight_decay=decay, bias_correction=False)
    theirs = torch.optim.SGD([y], lr, momentum=beta, dampening=beta, weight_decay=decay)
    gs = gradients(seed)
    torch.testing.assert_close(trajectory(ours, x, gs), trajectory(theirs, y, gs), rtol=1e-10, atol=1e-12)


def test_shb_is_heavy_ball():
    """eqn:hb2 with eta' = eta (1 - beta), beta' = beta; both buffers start at the first gradient."""
    gs, eta, beta = gradients(3).numpy(), 0.05, 0.9
    x, previous, out = np.linspace(-1, 1, 5), np.linspace(-1, 1, 5) + eta * gs[0], []
    for g in gs:
        x, previous = x - eta * (1 - beta) * g + beta * (x - previous), x
        out.append(x)
    p = start()
    ours = trajectory(semaopt.ASA([p], eta, beta, "shb", bias_correction=False), p, torch.tensor(gs))
    np.testing.assert_allclose(ours.numpy(), np.stack(out), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("corrected", [False, True])
def test_unclipped_adabound_is_adam_without_g0(corrected):
    gs = gradients(1)
    x, y = start(), start()
    bound = semaopt.ASA([x], scaling=scalings.AdaBound(1e-18, 1e18), bias_correction=corrected)
    adam = semaopt.ASA([y], scaling=scalings.Adam(g0=1e-30), bias_correction=corrected)
    assert torch.equal(trajectory(bound, x, gs), trajectory(adam, y, gs))


@pytest.mark.parametrize("name", ["adam", "amsgrad", "adabound", "adafom", "adam+"])
def test_first_step_is_bounded_by_eta(name):
    """u_0 = g_0^2, so |x_1 - x_0| <= eta; u_0 = 0 would give a step 1/sqrt(1 - beta2) = 32 times as long."""
    x = start()
    scaling = scalings.AdaBound(1e-9, 1e9) if name == "adabound" else name
    optimizer = semaopt.ASA([x], lr=0.1, scaling=scaling)
    moved = trajectory(optimizer, x, gradients(2, steps=1) if name != "adam+" else 0.1 * gradients(2, steps=1))
    assert (moved[0] - start().detach()).abs().max() <= 0.1 * (1 + 1e-6)


@pytest.mark.parametrize("corrected", [False, True])
@pytest.mark.parametrize("name", scalings.BY_NAME)
def test_bounds_of_table_2_hold(name, corrected):
    """c_l <= s <= c_u with the constants of the row, for gradients bounded by G."""
    x = start()
    gs = gradients(4).clamp(-2, 2)
    big = float(gs.norm(dim=1).max() if name == "adam+" else gs.abs().max())
    row = scalings.BY_NAME[name]()
    seen = []

    class Watched:
        g0, buffers = row.g0, row.buffers

        def update_(self, m, at):
            u = row.update_(m, at)
            seen.append(1 / (torch.as_tensor(u).sqrt() + row.g0))
            return u

    trajectory(semaopt.ASA([x], scaling=Watched(), bias_correction=corrected), x, gs)
    c_l, c_u = row.bounds(big)
    low, high = min(s.min() for s in seen), max(s.max() for s in seen)
    assert c_l * (1 - 1e-9) <= low <= high <= c_u * (1 + 1e-9)


@pytest.mark.parametrize("name", scalings.BY_NAME)
def test_clip_scaling_keeps_s_within_its_bounds(name):
    x = start()
    gs = gradients(5) * torch.tensor([1e-6, 1e-3, 1.0, 1e3, 1e6])
    optimizer = semaopt.ASA([x], lr=1.0, beta=0.0, scaling=name, clip_scaling=(0.5, 2.0))
    previous = x.detach().clone()
    for g, after in zip(gs, trajectory(optimizer, x, gs), strict=True):
        s = ((previous - after) / g).abs()
        rounding = 1e-9 / g.abs()  # rounding error of x divided by g
        assert (s >= 0.5 - rounding).all()
        assert (s <= 2.0 + rounding).all()
        previous = after


def test_clipped_value_is_not_rounded_to_float32():
    x = torch.nn.Parameter(torch.tensor([1.0], dtype=torch.float64))
    x.grad = torch.ones_like(x)
    semaopt.ASA([x], lr=1.0, scaling="shb", clip_scaling=(0.2, 0.3)).step()
    assert x.item() == pytest.approx(0.7, rel=1e-15)


def test_clip_scaling_from_the_definition():
    x = torch.nn.Parameter(torch.zeros(3, dtype=torch.float64))
    x.grad = torch.tensor([1e-3, 0.1, 10.0], dtype=torch.float64)
    semaopt.ASA([x], lr=1.0, scaling="adam", clip_scaling=(1.0, 100.0)).step()  # s = 1/|g| clipped to [1, 100]
    torch.testing.assert_close(-x.data, torch.tensor([0.1, 1.0, 10.0], dtype=torch.float64), rtol=1e-5, atol=0)


def test_adam_plus_norm_covers_one_group():
    a, b, c = (torch.nn.Parameter(torch.zeros(1, dtype=torch.float64)) for _ in range(3))
    optimizer = semaopt.ASA([{"params": [a, b]}, {"params": [c]}], lr=1.0, scaling=scalings.AdamPlus(g0=1e-12))
    for x, g in ((a, 3.0), (b, 4.0), (c, 9.0)):
        x.grad = torch.full_like(x, g)
    optimizer.step()
    assert [-round(x.item(), 9) for x in (a, b, c)] == [round(3 / math.sqrt(5), 9), round(4 / math.sqrt(5), 9), 3.0]


def test_bias_correction_is_exact_when_beta_changes_each_step():
    """The corrected average of constant gradients is that constant for any sequence of betas."""
    x = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
    optimizer = semaopt.ASA([x], lr=1.0, scaling="shb", bias_correction=True)
    for k, beta in enumerate((0.5, 0.99, 0.0, 0.9, 0.999)):
        optimizer.param_groups[0]["beta"] = beta
        x.grad = torch.ones_like(x)
        optimizer.step()
        assert x.item() == pytest.approx(-(k + 1), rel=1e-14)
    x, gs, betas = start(), gradients(6, steps=5).numpy(), (0.5, 0.99, 0.2, 0.9, 0.999)
    expected, v = x.detach().numpy().copy(), 0.0
    optimizer = semaopt.ASA([x], lr=0.1, scaling="shb", bias_correction=True)
    for k, (g, beta) in enumerate(zip(gs, betas, strict=True)):
        optimizer.param_groups[0]["beta"] = beta
        x.grad = torch.tensor(g)
        optimizer.step()
        v = beta * v + (1 - beta) * g
        expected -= 0.1 * v / (1 - np.prod(betas[: k + 1]))
    np.testing.assert_allclose(x.detach().numpy(), expected, rtol=1e-12)


def test_custom_scaling():
    class MaxNorm:
        """u = (the largest |g| seen)^2, per coordinate."""

        g0, buffers = 1e-8, ("largest",)

        def update_(self, m, seen):
            m["largest"].copy_(torch.maximum(m["largest"], seen.g.abs()))
            return m["largest"].square()

    x = start()
    gs = gradients(7)
    optimizer = semaopt.ASA([x], lr=0.1, beta=0.5, scaling=MaxNorm(), bias_correction=False)
    ours = trajectory(optimizer, x, gs)
    v, y, peak = gs[0], start().detach(), torch.zeros(5)
    for g, after in zip(gs, ours, strict=True):
        v, peak = 0.5 * v + 0.5 * g, torch.maximum(peak, g.abs())
        y = y - 0.1 * v / (peak + 1e-8)
        torch.testing.assert_close(after, y)
    state = optimizer.state_dict()
    assert state["param_groups"][0]["scaling"]["name"].endswith("MaxNorm")
    other = semaopt.ASA([start()], scaling="adam")
    with pytest.raises(ValueError, match=r"written with scaling='.*MaxNorm'.*onstruct the optimizer with that"):
        other.load_state_dict(state)
    same = semaopt.ASA([start()], scaling=MaxNorm())
    same.load_state_dict(state)
    assert torch.equal(next(iter(same.state.values()))["largest"], next(iter(optimizer.state.values()))["largest"])


def own(**members):
    return type("Own", (), {"g0": 1e-7, "buffers": (), "update_": lambda self, m, seen: 1.0, **members})()


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: scalings.resolve("adamw"), ValueError, r"scaling='adamw': unknown; use scaling='adam' with decoupled"),
        (lambda: scalings.resolve("AdamW"), ValueError, r"scaling='AdamW': unknown; use scaling='adam' with decoupled"),
        (lambda: scalings.resolve("Adam"), ValueError, r"scaling='Adam': unknown; use scaling='adam', in lower case"),
        (lambda: scalings.resolve("adamax"), ValueError, r"scaling='adamax': unknown; choose from 'shb', 'adam'"),
        (lambda: scalings.resolve(scalings.Adam), TypeError, r"a class, not a scaling; pass an instance, Adam\("),
        (lambda: scalings.resolve(object()), TypeError, r"needs g0, buffers and update_.*has no g0, buffers, update_"),
        (lambda: scalings.resolve(None), TypeError, r"scaling=None: a scaling needs"),
        (lambda: scalings.resolve(own(buffers=["u"])), ValueError, r"Own\.buffers=\['u'\] is invalid: it must be a tuple of names"),  # noqa: E501
        (lambda: scalings.resolve(own(buffers=("v",))), ValueError, r"Own\.buffers=\('v',\) is invalid: it must not hold \['v'\]"),  # noqa: E501
        (lambda: scalings.resolve(own(g0=-1.0)), ValueError, r"Own\.g0=-1\.0 is invalid: it must be a finite number >= 0"),  # noqa: E501
        (lambda: scalings.Adam(beta2=1.0), ValueError, r"beta2=1\.0 is invalid: it must lie in \[0, 1\)"),
        (lambda: scalings.Adam(g0=0.0), ValueError, r"g0=0\.0 is invalid: it must be finite and at least 1e-30"),
        (lambda: scalings.AMSGrad(g0=math.nan), ValueError, r"g0=nan"),
        (lambda: scalings.AdaFom(g0=-1), ValueError, r"g0=-1"),
        (lambda: scalings.AdamPlus(g0=math.inf), ValueError, r"g0=inf"),
        (lambda: scalings.AdaBound(2.0, 1.0), ValueError, r"\(c_l, c_u\)=\(2\.0, 1\.0\) is invalid: it must be .* c_l <= c_u"),  # noqa: E501
        (lambda: scalings.AdaBound(0.0, 1.0), ValueError, r"1e-18 <= c_l"),
    ],
)  # fmt: skip
def test_invalid_scalings_are_refused(make, error, text):
    with pytest.raises(error, match=text):
        make()


def test_scalings_are_the_names_of_the_table():
    assert list(scalings.BY_NAME) == ["shb", "adam", "amsgrad", "adafom", "adam+", "adabound"]
    for name, row in scalings.BY_NAME.items():
        assert isinstance(scalings.resolve(name), row)
        assert scalings.restore(scalings.describe(row()), scalings.SHB()) == row()
