"""Conversion from torch optimizers and back: the next 100 steps agree up to rounding."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import semaopt

SHAPES = ((4, 3), (5,), ())
ADAM = [
    {},
    {"betas": (0.8, 0.95), "eps": 1e-6},
    {"weight_decay": 0.1},
    {"amsgrad": True},
    {"amsgrad": True, "weight_decay": 0.1, "maximize": True},
    {"maximize": True},
    {"lr": torch.tensor(0.02, dtype=torch.float64)},
]
SGD = [
    {},
    {"momentum": 0.9},
    {"momentum": 0.9, "dampening": 0.9},
    {"momentum": 0.9, "weight_decay": 0.1},
    {"momentum": 0.8, "dampening": 0.8, "weight_decay": 0.1, "maximize": True},
    {"momentum": 0.9, "maximize": True},
    {"momentum": 0.9, "lr": torch.tensor(0.02, dtype=torch.float64)},
]
CASES = [
    *((torch.optim.Adam, options) for options in ADAM),
    *((torch.optim.AdamW, options) for options in ADAM),
    *((torch.optim.SGD, options) for options in SGD),
]


def parameters(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [nn.Parameter(torch.randn(shape, generator=generator, dtype=torch.float64)) for shape in SHAPES]


def advance(optimizer, xs, steps):
    """Take steps on seeded gradients; the last parameter has no gradient before step 5."""
    for k in steps:
        generator = torch.Generator().manual_seed(k)
        for i, x in enumerate(xs):
            g = torch.randn(x.shape, generator=generator, dtype=torch.float64)
            x.grad = None if i == 2 and k < 5 else g
        optimizer.step()


def pair(kind, options, steps):
    """Return a torch optimizer after some steps, a copy of it, and the parameters of both."""
    xs = parameters()
    groups = [{"params": xs[:1]}, {"params": xs[1:], "lr": 0.05}]
    optimizer = kind(groups, **{"lr": 0.01, **copy.deepcopy(options)})
    advance(optimizer, xs, range(steps))
    (other, ys) = copy.deepcopy((optimizer, xs))
    return optimizer, xs, other, ys


@pytest.mark.parametrize("steps", [0, 3, 10])
@pytest.mark.parametrize(("kind", "options"), CASES, ids=str)
def test_next_hundred_steps_agree_after_both_conversions(kind, options, steps):
    optimizer, xs, other, ys = pair(kind, options, steps)
    converted = semaopt.from_torch(other)
    advance(optimizer, xs, range(steps, steps + 100))
    advance(converted, ys, range(steps, steps + 100))
    torch.testing.assert_close(xs, ys, rtol=1e-11, atol=1e-12)
    back = semaopt.to_torch(converted)
    assert type(back) is kind
    advance(optimizer, xs, range(200, 300))
    advance(back, ys, range(200, 300))
    torch.testing.assert_close(xs, ys, rtol=1e-11, atol=1e-12)


def test_conversion_shares_nothing_and_keeps_the_original():
    optimizer, xs, *_ = pair(torch.optim.Adam, {"lr": torch.tensor(0.02)}, 3)
    before = copy.deepcopy(optimizer.state_dict())
    converted = semaopt.from_torch(optimizer)
    converted.param_groups[0]["lr"].fill_(1.0)
    advance(converted, xs, range(3, 6))
    assert str(optimizer.state_dict()) == str(before)


def test_names_and_initial_rates_are_converted():
    x = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([("weight", x)], lr=0.1, momentum=0.5)
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    group = semaopt.from_torch(optimizer).param_groups[0]
    assert (group["param_names"], group["lr"], group["initial_lr"]) == (["weight"], 0.2, 0.2)


REFUSED = [
    (lambda x: torch.optim.NAdam([x]), TypeError, r"from_torch\(NAdam\) is not possible: Nesterov momentum"),
    (lambda x: torch.optim.RAdam([x]), TypeError, r"from_torch\(RAdam\) is not possible: its rectified step size"),
    (lambda x: torch.optim.Adagrad([x], lr_decay=0.1), TypeError, r"from_torch\(Adagrad\) .*root of a sum"),
    (lambda x: torch.optim.RMSprop([x]), TypeError, r"from_torch\(RMSprop\) .*starts at 0 without correction"),
    (lambda x: torch.optim.LBFGS([x]), TypeError, r"from_torch\(LBFGS\) .*Adam, AdamW and SGD can be converted"),
    (lambda x: type("Mine", (torch.optim.SGD,), {})([x]), TypeError, r"from_torch\(Mine\) .*a subclass of SGD"),
    (lambda x: torch.optim.SGD([x], momentum=0.9, nesterov=True), ValueError, r"group 0 .*nesterov=True"),
    (lambda x: torch.optim.SGD([x], momentum=0.9, dampening=0.5), ValueError, r"dampening=0\.5 is neither 0 nor"),
    (lambda x: torch.optim.SGD([x], momentum=1.0), ValueError, r"momentum=1\.0: an average needs beta < 1"),
    (lambda x: torch.optim.Adam([x], eps=0.0), ValueError, r"eps=0\.0 is below 1e-30"),
]


@pytest.mark.parametrize(("build", "kind", "text"), REFUSED, ids=lambda value: value if isinstance(value, str) else "")
def test_torch_options_without_equivalent_are_refused(build, kind, text):
    optimizer = build(nn.Parameter(torch.ones(1)))
    with pytest.raises(kind, match=text):
        semaopt.from_torch(optimizer)


BACK = [
    ({"scaling": "adafom"}, r"no equivalent of scaling=AdaFom"),
    ({"bias_correction": False}, r"no equivalent of scaling=Adam.* with bias_correction=False"),
    ({"clip_scaling": (0.1, 10.0)}, r"torch has no clip_scaling"),
    ({"scaling": "shb"}, r"no equivalent of scaling=SHB\(\) with bias_correction=True"),
]


@pytest.mark.parametrize(("options", "text"), BACK, ids=str)
def test_options_without_torch_equivalent_are_refused(options, text):
    with pytest.raises(ValueError, match=text):
        semaopt.to_torch(semaopt.ASA([nn.Parameter(torch.ones(1))], **options))


def test_changed_beta_cannot_be_converted_to_torch():
    x = nn.Parameter(torch.ones(1))
    optimizer = semaopt.ASA([x])
    x.grad = torch.ones(1)
    optimizer.step()
    optimizer.param_groups[0]["beta"] = 0.5
    optimizer.step()
    with pytest.raises(ValueError, match=r"weight of v is .*beta has changed"):
        semaopt.to_torch(optimizer)


def test_only_asa_converts_to_torch():
    with pytest.raises(TypeError, match=r"to_torch\(SGD\) is not possible"):
        semaopt.to_torch(torch.optim.SGD([nn.Parameter(torch.ones(1))]))


@pytest.mark.parametrize("compensate", [True, False])
@pytest.mark.parametrize("steps", [9, 10])  # beta1 changes after 9
def test_conversion_under_a_schedule_of_beta(compensate, steps):
    """With the exact bias correction of semaopt.schedules, and with torch's own after beta1 has changed."""
    optimizer, xs, other, ys = pair(torch.optim.AdamW, {"lr": 0.01}, 0)
    for one, params in ((optimizer, xs), (other, ys)):
        schedule = semaopt.schedules.Stagewise(one, every=3, factor=0.3, compensate_bias=compensate)
        for t in range(steps):
            advance(one, params, range(t, t + 1))
            schedule.step()
    converted = semaopt.from_torch(other)
    advance(optimizer, xs, range(steps, 100))
    advance(converted, ys, range(steps, 100))
    for x, y in zip(xs, ys, strict=True):
        torch.testing.assert_close(y, x, rtol=1e-10, atol=1e-12)
