"""Rejection of incompatible checkpoints and invalid rates before anything changes."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

import semaopt


def stepped(make, size=3):
    x = nn.Parameter(torch.zeros(size))
    optimizer = make([x])
    x.grad = torch.ones(size)
    optimizer.step()
    return optimizer


def without(saved, name):
    saved = copy.deepcopy(saved)
    del saved["state"][0][name]
    return saved


@pytest.mark.parametrize(
    ("saved", "text"),
    [
        (stepped(torch.optim.Adam).state_dict(), r"options=\['beta', 'bias_correction', .*lacks options of ASA"),
        (stepped(semaopt.ASA, 2).state_dict(), r"v=\(2,\) is invalid: parameter 0 of group 0 has shape \(3,\)"),
        (
            without(stepped(semaopt.ASA).state_dict(), "v"),
            "v=None is invalid: the checkpoint has no such average of parameter 0",
        ),
        (
            without(stepped(semaopt.ASA).state_dict(), "u"),
            "u=None is invalid: the checkpoint has no such average of parameter 0",
        ),
    ],
    ids=["torch's Adam", "another shape", "no v", "no u"],
)
def test_incompatible_checkpoint_changes_nothing(saved, text):
    optimizer = stepped(semaopt.ASA)
    before = copy.deepcopy(optimizer.state_dict())
    with pytest.raises(ValueError, match=text):
        optimizer.load_state_dict(saved)
    after = optimizer.state_dict()
    assert after["param_groups"] == before["param_groups"]
    assert all(torch.equal(after["state"][0][name], value) for name, value in before["state"][0].items())


@pytest.mark.parametrize("kind", ["SGDA", "EpochSGDA", "PESAdaGrad", "AccMDA"])
def test_incompatible_checkpoint_of_a_method_without_scaling_changes_nothing(kind):
    def optimizer(size):
        x, y = nn.Parameter(torch.ones(size)), nn.Parameter(torch.zeros(1))
        made = getattr(semaopt.baselines, kind)(primal=[x], dual=[y])

        def closure():
            loss = (x * y + x.square()).sum()
            loss.backward()
            return loss

        made.step(closure)
        return made

    fits = optimizer(3)
    fits.load_state_dict(optimizer(3).state_dict())
    with pytest.raises(ValueError, match=r"v=\(1,\) is invalid: parameter 0 of group 0 has shape \(3,\)"):
        fits.load_state_dict(optimizer(1).state_dict())


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        (semaopt.baselines.AccMDA, "k", 100.0),
        (semaopt.baselines.SGDMax, "max_ascents", -3),
        (semaopt.baselines.BSA, "lower_steps", -3),
        (semaopt.baselines.StocBiO, "lower_steps", 2),
        (semaopt.baselines.TTSA, "powers", "no"),
        (semaopt.SBMA, "lam", -1.0),
    ],
)
def test_shared_options_are_refused_in_a_group(kind, name, value):
    x, y = nn.Parameter(torch.ones(1)), nn.Parameter(torch.zeros(1))
    with pytest.raises(ValueError, match=f"{name}={value!r}: all groups share this option; pass it to the optimizer"):
        kind([{"params": [x], name: value}], [y])
    optimizer = kind([x], [y])
    late = {"params": [nn.Parameter(torch.ones(1))], "role": optimizer.roles.second, name: value}
    with pytest.raises(ValueError, match=f"{name}={value!r}: all groups share this option"):
        optimizer.add_param_group(late)
    assert len(optimizer.param_groups) == 2


def test_group_added_later_shares_the_step_count():
    x, y, late = (nn.Parameter(torch.ones(1)) for _ in range(3))
    optimizer = semaopt.baselines.AccMDA(primal=[x], dual=[y])
    for _ in range(3):
        optimizer.step(lambda: (x * y).sum().backward())
    optimizer.add_param_group({"params": [late], "role": "primal"})
    assert optimizer.algorithm_state == {"taken": 3}


def test_z_moves_to_the_device_of_the_parameters():
    x, elsewhere = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2, device="meta"))
    optimizer = semaopt.SCMA([x], blocks=4)
    optimizer.step(lambda: x * torch.ones(2, 2), torch.sum, index=[0, 3])
    moved = semaopt.SCMA([elsewhere], blocks=4)
    moved.load_state_dict(optimizer.state_dict())
    assert moved.z.device.type == moved.algorithm_state["z_seen"].device.type == "meta"
    assert optimizer.z.device.type == "cpu"


def test_checkpoint_of_another_optimizer_is_refused():
    saved = stepped(semaopt.ASA).state_dict()
    with pytest.raises(
        ValueError, match=r"options=\['algorithm', 'blocks', 'fresh', 'inner_beta'\].*lacks options of SCMA"
    ):
        semaopt.SCMA([nn.Parameter(torch.zeros(3))]).load_state_dict(saved)


@pytest.mark.parametrize(("name", "value"), [("lr", -1), ("beta", 1), ("beta", 2), ("lr", "a"), ("beta", -0.5)])
def test_invalid_rate_is_refused_before_the_step(name, value):
    optimizer = stepped(semaopt.ASA)
    (x,) = optimizer.param_groups[0]["params"]
    before = x.detach().clone()
    optimizer.param_groups[0][name] = value
    with pytest.raises(ValueError, match=f"{name}={value!r} is invalid: it must "):
        optimizer.step()
    assert torch.equal(x, before)


def test_numpy_rates_load_with_weights_only(tmp_path):
    x = nn.Parameter(torch.ones(1))
    optimizer = semaopt.ASA([x], lr=np.float32(0.5), beta=np.float64(0.5), scaling="shb")
    x.grad = torch.ones(1)
    optimizer.step()
    assert x.item() == 0.5
    torch.save(optimizer.state_dict(), tmp_path / "state.pt")
    (group,) = torch.load(tmp_path / "state.pt", weights_only=True)["param_groups"]
    assert (group["lr"], type(group["lr"]), group["beta"], type(group["beta"])) == (0.5, float, 0.5, float)


def changed(name, value, **options):
    x = nn.Parameter(torch.ones(3))
    optimizer = semaopt.ASA([x], **options)
    x.grad = torch.ones(3)
    optimizer.step()
    optimizer.param_groups[0][name] = value
    return optimizer, x


@pytest.mark.parametrize(
    ("name", "value", "options", "text"),
    [
        ("scaling", semaopt.scalings.AMSGrad(), {}, r"scaling=AMSGrad.*another scaling, and the average 'u_max'"),
        ("scaling", semaopt.scalings.Adam(), {"scaling": "shb"}, r"scaling=Adam.*the average 'u' does not exist"),
        ("bias_correction", False, {}, r"bias_correction=False is invalid: group 0 has taken steps with True"),
        (
            "bias_correction",
            True,
            {"bias_correction": False},
            r"bias_correction=True is invalid.*before the first step",
        ),
    ],
)
def test_option_incompatible_with_the_averages_is_refused(name, value, options, text):
    optimizer, x = changed(name, value, **options)
    before = x.detach().clone()
    with pytest.raises(ValueError, match=text):
        optimizer.step()
    assert torch.equal(x, before)


def test_scaling_with_fewer_averages_is_accepted():
    optimizer, x = changed("scaling", semaopt.scalings.SHB())
    optimizer.step()
    assert torch.isfinite(x).all()


@pytest.mark.parametrize(("name", "value"), [("scaling", semaopt.scalings.Adam()), ("bias_correction", False)])
def test_incompatible_option_is_refused_if_the_first_parameter_is_new(name, value):
    """Only the state of the first parameter was read; it has none if it was frozen until now."""
    x, y, z = (nn.Parameter(torch.ones(2)) for _ in range(3))
    for optimizer in (semaopt.ASA([x, y], scaling="shb"), semaopt.PDAda([x, y], [z], scaling="shb")):
        x.grad, y.grad, z.grad = None, torch.ones(2), torch.ones(2)
        optimizer.step()
        optimizer.param_groups[0][name] = value
        x.grad, before = torch.ones(2), y.detach().clone()
        with pytest.raises(ValueError, match=f"^{name}=.* is invalid: group 0 has taken steps with"):
            optimizer.step()
        assert torch.equal(y, before)


def test_incompatible_option_of_a_bilevel_method_is_refused_if_the_first_parameter_is_new():
    x, y, z = (nn.Parameter(torch.ones(2)) for _ in range(3))
    optimizer = semaopt.SMB([x, y], [z], scaling="shb")

    def step():
        outer = lambda: (z - 1).square().sum() + (x + y).sum()  # noqa: E731
        optimizer.step(outer, lambda: (z - x - y).square().sum())

    x.requires_grad_(False)
    step()
    optimizer.param_groups[0]["scaling"] = semaopt.scalings.Adam()
    x.requires_grad_()
    with pytest.raises(ValueError, match=r"^scaling=.* is invalid: group 0 has taken steps with another scaling"):
        step()
