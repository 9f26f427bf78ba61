"""Steps inside the backward pass: equality with steps after it, and one gradient in memory at a time."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

import semaopt
from tests.kernels.common import SCALINGS


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 7), nn.Tanh(), nn.Linear(7, 2))


def loss(net: nn.Module, k: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(k)
    a = torch.randn(11, 5, generator=generator)
    return (net(a) - a[:, :2].sin()).square().mean()


def train_after(net, optimizer, steps):
    for k in steps:
        optimizer.zero_grad()
        loss(net, k).backward()
        optimizer.step()
    optimizer.zero_grad()


def same(left, right):
    return all(torch.equal(a, b) for a, b in zip(left.parameters(), right.parameters(), strict=True))


def factory(**hyper):
    return lambda params: semaopt.ASA(params, **{"lr": 0.01, **hyper})


HYPERS = [
    {},
    {"bias_correction": True, "weight_decay": 0.1, "implementation": "loop"},
    {"state_dtype": torch.bfloat16, "implementation": "foreach"},
]


@pytest.mark.parametrize("hyper", HYPERS, ids=str)
@pytest.mark.parametrize("scaling", [name for name in SCALINGS if name != "adam+"])
def test_steps_inside_and_after_backward_are_bitwise_equal(scaling, hyper):
    inside, after = model(), model()
    training = semaopt.step_in_backward(inside, factory(scaling=scaling, **hyper))
    for k in range(5):
        loss(inside, k).backward()
        assert all(x.grad is None for x in inside.parameters())
    train_after(after, factory(scaling=scaling, **hyper)(after.parameters()), range(5))
    assert same(inside, after)
    training.remove()
    loss(inside, 0).backward()
    assert all(x.grad is not None for x in inside.parameters())


def test_checkpoints_load_in_both_directions():
    inside, after = model(), model()
    training = semaopt.step_in_backward(inside, factory())
    for k in range(3):
        loss(inside, k).backward()
    after.load_state_dict(inside.state_dict())
    optimizer = factory(lr=0.5)(after.parameters())
    optimizer.load_state_dict(training.state_dict())
    assert optimizer.param_groups[0]["lr"] == 0.01
    train_after(after, optimizer, range(3, 5))
    again = model()
    resumed = semaopt.step_in_backward(again, factory())
    again.load_state_dict(after.state_dict())
    resumed.load_state_dict(optimizer.state_dict())
    train_after(after, optimizer, range(5, 7))
    for k in range(5, 7):
        loss(again, k).backward()
    assert same(again, after)


def test_schedules_set_the_rates_of_its_groups():
    inside, after = model(), model()
    training = semaopt.step_in_backward(inside, factory())
    optimizer = factory()(after.parameters())
    schedules = [semaopt.schedules.Stagewise(o, every=2, factor=0.5) for o in (training.optimizer, optimizer)]
    for k in range(6):
        loss(inside, k).backward()
        train_after(after, optimizer, [k])
        for schedule in schedules:
            schedule.step()
    assert training.optimizer.param_groups[0]["lr"] == 0.00125
    assert same(inside, after)


def test_one_gradient_at_a_time():
    """Measure the peak bytes of gradients in hooks that run before and after the step."""

    def peak_bytes(net, step_inside):
        seen = []

        def record(_):
            seen.append(sum(x.grad.nbytes for x in net.parameters() if x.grad is not None))

        for x in net.parameters():
            x.register_post_accumulate_grad_hook(record)
        if step_inside:
            semaopt.step_in_backward(net, factory())
        loss(net, 0).backward()
        return max(seen)

    sizes = [x.nbytes for x in model().parameters()]
    assert peak_bytes(model(), step_inside=False) == sum(sizes)
    assert peak_bytes(model(), step_inside=True) == max(sizes)


def test_shared_weights_are_stepped_once():
    inside, after = (nn.Sequential(*model(), nn.Linear(2, 5)) for _ in range(2))
    for net in (inside, after):
        net.add_module("shared", net[0])
    semaopt.step_in_backward(inside, factory())
    optimizer = factory()(after.parameters())
    for k in range(3):
        inside(torch.full((3, 5), 0.1 * k)).square().sum().backward()
        optimizer.zero_grad()
        after(torch.full((3, 5), 0.1 * k)).square().sum().backward()
        optimizer.step()
    assert same(inside, after)


def test_frozen_parameters_stay():
    net = model()
    net[0].requires_grad_(False)
    before = net[0].weight.clone()
    semaopt.step_in_backward(net, factory())
    loss(net, 0).backward()
    assert torch.equal(net[0].weight, before)


class Tied(nn.Module):
    """A network whose first and last layers share a weight, with a layer in between."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.middle, self.last = nn.Linear(5, 5), nn.Linear(5, 5), nn.Linear(5, 5)
        self.last.weight = self.first.weight

    def forward(self, a):
        return self.last(self.middle(self.first(a).tanh()).tanh())[:, :2]


@pytest.mark.parametrize("hyper", [{"weight_decay": 0.1}, {"weight_decay": 0.1, "decoupled_weight_decay": True}])
@pytest.mark.parametrize("made", [model, Tied])
def test_layer_is_stepped_only_while_unfrozen(made, hyper):
    """Freeze and unfreeze a layer repeatedly, with checkpoints loaded in both directions in between."""
    inside, after = made(), made()
    layers = [next(net.children()) for net in (inside, after)]
    for layer in layers:
        layer.requires_grad_(False)
    training = semaopt.step_in_backward(inside, factory(**hyper))
    optimizer = factory(**hyper)(after.parameters())
    assert not any(x.requires_grad for x in layers[0].parameters())
    for k, frozen in enumerate([True, True, False, False, True, False]):
        for layer in layers:
            layer.requires_grad_(not frozen)
        before = [x.detach().clone() for x in layers[0].parameters()]
        loss(inside, k).backward()
        train_after(after, optimizer, [k])
        assert [torch.equal(x, y) for x, y in zip(before, layers[0].parameters(), strict=True)] == [frozen] * 2
        assert all(x.grad is None for x in inside.parameters())
        assert same(inside, after)
        states = [o.state_dict()["state"] for o in (training, optimizer)]
        assert states[0].keys() == states[1].keys()
        training.load_state_dict(optimizer.state_dict())
    training.remove()
    loss(inside, 0).backward()
    assert all(x.grad is not None for x in inside.parameters())


def test_group_added_later_is_stepped():
    """Compare with an ordinary optimizer that gets the same group at the same time."""
    nets, made = (model(), model()), factory(weight_decay=0.1)
    training = semaopt.step_in_backward(nets[0][:3], made)
    after = made(nets[1][:3].parameters())
    for k in range(6):
        if k == 3:
            training.add_param_group({"params": nets[0][4].parameters(), "lr": 0.1})
            after.add_param_group({"params": nets[1][4].parameters(), "lr": 0.1})
        nets[0][4].zero_grad()
        loss(nets[0], k).backward()
        nets[1].zero_grad()
        train_after(nets[1], after, range(k, k + 1))
        assert same(*nets)
    assert all(x.grad is None for x in nets[0].parameters())


def test_group_that_would_not_be_stepped_is_refused():
    net, before = model(), model()
    training = semaopt.step_in_backward(net[:3], factory())
    with pytest.raises(ValueError, match=r"scaling='adam\+' \(group 1\)"):
        training.add_param_group({"params": net[4].parameters(), "scaling": "adam+"})
    assert len(training.optimizer.param_groups) == 1
    training.optimizer.add_param_group({"params": net[4].parameters()})
    with pytest.raises(RuntimeError, match="2 param groups, and 1 of them are stepped in backward: call add_param_gr"):
        loss(net, 0).backward()
    assert same(net, before)
    with pytest.raises(RuntimeError, match="2 param groups, and 1 of them"):
        training.add_param_group({"params": [nn.Parameter(torch.ones(1))]})


@pytest.mark.parametrize("kind", ["pre", "post"])
def test_hooks_that_would_never_run_are_refused(kind):
    net, before = model(), model()
    training = semaopt.step_in_backward(net, factory())
    handle = getattr(training.optimizer, f"register_step_{kind}_hook")(lambda *_: None)
    with pytest.raises(RuntimeError, match=r"hooks on its step.*Iterates, Stages and Monitor would see nothing"):
        loss(net, 0).backward()
    assert same(net, before)
    handle.remove()
    semaopt.step_in_backward(before, factory())
    for one in (net, before):  # the refused gradient is discarded
        loss(one, 0).backward()
    assert same(net, before)


def test_group_added_after_removal_is_refused():
    training = semaopt.step_in_backward(model(), factory())
    training.remove()
    with pytest.raises(RuntimeError, match=r"removed from the backward pass; call optimizer\.add_param_group"):
        training.add_param_group({"params": [nn.Parameter(torch.ones(1))]})
    assert len(training.optimizer.param_groups) == 1


def test_layer_frozen_between_forward_and_backward_stays():
    net = model()
    semaopt.step_in_backward(net, factory(weight_decay=0.1))
    value = loss(net, 0)
    net[2].requires_grad_(False)
    net[2].weight.grad = torch.ones(7, 7)  # set by other code, so it must not be used for a step
    before = [x.detach().clone() for x in net.parameters()]
    value.backward()
    moved = [not torch.equal(x, y) for x, y in zip(before, net.parameters(), strict=True)]
    assert moved == [True, True, False, False, True, True]


def test_untrainable_parameters_are_not_changed():
    net = model()
    net.codes = nn.Parameter(torch.arange(3), requires_grad=False)
    with torch.inference_mode():
        net.fixed = nn.Parameter(torch.ones(3), requires_grad=False)
    semaopt.step_in_backward(net, factory())
    loss(net, 0).backward()
    assert net.codes.tolist() == [0, 1, 2]
    assert net.fixed.tolist() == [1.0, 1.0, 1.0]


def test_unsupported_options_are_refused():
    net = model()
    with pytest.raises(ValueError, match=r"scaling='adam\+' \(group 0\): its u is the norm over all parameters"):
        semaopt.step_in_backward(net, factory(scaling="adam+"))
    with pytest.raises(TypeError, match=r"factory must return a semaopt.ASA, got Adam: only its step"):
        semaopt.step_in_backward(net, torch.optim.Adam)
    with pytest.raises(ValueError, match=r"differentiable=True \(group 0\)"):
        semaopt.step_in_backward(net, factory(differentiable=True))


def test_invalid_rate_is_refused_before_any_change():
    net = model()
    training = semaopt.step_in_backward(net, factory())
    loss(net, 0).backward()
    training.optimizer.param_groups[0]["lr"] = float("nan")
    before = [x.detach().clone() for x in net.parameters()]
    with pytest.raises(ValueError, match="lr=nan is invalid: it must be a finite number"):
        loss(net, 1).backward()
    assert all(torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))


def test_data_parallel_model_is_refused():
    class FakeDistributedDataParallel(nn.parallel.DistributedDataParallel):
        def __init__(self):
            nn.Module.__init__(self)

    with pytest.raises(ValueError, match=r"cannot step a DistributedDataParallel model: .* use FSDP2"):
        semaopt.step_in_backward(FakeDistributedDataParallel(), factory())


class ByNorm:
    """A custom scaling that uses the whole group."""

    g0, buffers = 1.0, ()

    def update_(self, m, seen):
        return seen.norm()


def test_group_norm_is_refused():
    net = model()
    semaopt.step_in_backward(net, factory(scaling=ByNorm()))
    with pytest.raises(RuntimeError, match=r"ByNorm.*it asks for seen.norm\(\).*exists only after the backward pass"):
        loss(net, 0).backward()


def test_grad_scaler_is_refused():
    """The gradients are scaled by 2^10, and the backward pass cannot unscale them."""
    model = torch.nn.Linear(2, 1)
    before = model.weight.detach().clone()
    training = semaopt.step_in_backward(model, lambda params: semaopt.ASA(params, lr=0.1, scaling="shb"))
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    loss = scaler.scale(model(torch.ones(1, 2)).sum())
    with pytest.raises(RuntimeError, match=r"a GradScaler is in use.*bfloat16, which needs no GradScaler"):
        loss.backward()
    assert torch.equal(model.weight, before)
    assert not training.optimizer.state
    del scaler
    model(torch.ones(1, 2)).sum().backward()
    assert not torch.equal(model.weight, before)


def test_disabled_grad_scaler_is_accepted():
    model = torch.nn.Linear(2, 1)
    semaopt.step_in_backward(model, lambda params: semaopt.ASA(params, lr=0.1))
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    scaler.scale(model(torch.ones(1, 2)).sum()).backward()
    assert model.weight.grad is None


@pytest.mark.parametrize(
    "clone", [copy.deepcopy, lambda both: pickle.loads(pickle.dumps(both))], ids=["copy", "pickle"]
)
def test_a_copy_steps_its_own_parameters(clone):
    """Hooks of parameters are not copied, so copies once collected gradients and never took a step."""
    model = torch.nn.Linear(3, 2)
    inside = semaopt.step_in_backward(model, lambda params: semaopt.ASA(params, lr=0.1))
    a = torch.ones(4, 3)
    model(a).square().mean().backward()
    twin, copied = clone((model, inside))
    for net in (model, twin):
        for _ in range(3):
            net(a).square().mean().backward()
    assert torch.equal(model.weight, twin.weight)
    assert twin.weight.grad is None
    copied.remove()
    before = twin.weight.detach().clone()
    again, _ = clone((twin, copied))
    for net in (twin, again):
        net(a).square().mean().backward()
        assert torch.equal(net.weight, before)


def test_changed_scaling_is_refused():
    model = torch.nn.Linear(3, 2)
    inside = semaopt.step_in_backward(model, lambda params: semaopt.ASA(params, lr=0.1, scaling="shb"))
    model(torch.ones(4, 3)).mean().backward()
    inside.optimizer.param_groups[0]["scaling"] = semaopt.scalings.Adam()
    with pytest.raises(ValueError, match=r"^scaling=.* is invalid: group 0 has taken steps with another scaling"):
        model(torch.ones(4, 3)).mean().backward()
