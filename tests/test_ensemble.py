"""Members of an ensemble against the same models trained one by one."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import semaopt
from semaopt.ensemble import Ensemble

SCALINGS = [
    semaopt.scalings.SHB(),
    semaopt.scalings.Adam(beta2=0.99, g0=1e-3),
    semaopt.scalings.Adam(beta2=0.999, g0=1e-5),
    semaopt.scalings.AdamPlus(g0=1e-3),  # its norm is over the member's parameters alone
]


def networks(count: int = 4, dtype: torch.dtype = torch.float64) -> list[nn.Module]:
    made = []
    for seed in range(count):
        torch.manual_seed(seed)
        made.append(nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.LayerNorm(8), nn.Linear(8, 3)).to(dtype))
    return made


def data(members: int, steps: int = 12) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(steps, members, 16, 5, dtype=torch.float64, generator=generator)
    return x, torch.randint(3, (steps, members, 16), generator=generator)


def rates(m: int) -> dict[str, object]:
    return {"lr": 0.1 / (m + 1), "beta": 0.5 + 0.1 * m, "scaling": SCALINGS[m], "weight_decay": 0.01 * m}


def losses_of(scores: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return cross_entropy(scores.transpose(1, 2), y, reduction="none").mean(1)


def test_members_with_their_own_rates_end_where_they_would_have_ended_alone():
    models, (xs, ys) = networks(), data(4)
    alone = networks()
    for m, model in enumerate(alone):
        optimizer = semaopt.ASA(model.parameters(), **rates(m))
        schedule = semaopt.schedules.Stagewise(optimizer, every=5, factor=0.5)
        for x, y in zip(xs[:, m], ys[:, m], strict=True):
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            optimizer.step()
            schedule.step()
    ensemble = Ensemble(models)
    optimizer = semaopt.ASA([{"params": ensemble.parameters_of(m), **rates(m)} for m in range(4)])
    schedule = semaopt.schedules.Stagewise(optimizer, every=5, factor=0.5)
    for x, y in zip(xs, ys, strict=True):
        optimizer.zero_grad()
        ensemble.backward(losses_of(ensemble(x), y))
        optimizer.step()
        schedule.step()
    for m, model in enumerate(alone):
        torch.testing.assert_close(ensemble.state_dict_of(m), dict(model.state_dict()), rtol=0, atol=1e-12)
        torch.testing.assert_close(dict(ensemble.member(m).state_dict()), dict(model.state_dict()), rtol=0, atol=1e-12)
        torch.testing.assert_close(ensemble.member(m)(xs[0, m]), model(xs[0, m]), rtol=0, atol=1e-11)


def test_the_models_given_are_left_alone_and_shared_inputs_are_the_same_for_all():
    models, (xs, _) = networks(), data(4)
    ensemble = Ensemble(models)
    expected = torch.stack([model(xs[0, 0]) for model in models])
    torch.testing.assert_close(ensemble(xs[0, 0], shared=True), expected)
    before = [x.clone() for model in models for x in model.parameters()]
    semaopt.ASA(ensemble.parameters_of(1), lr=1.0)
    ensemble.backward(ensemble(xs[0]).square().mean((1, 2)))
    for x in ensemble.parameters_of(1):
        x.data.sub_(x.grad)
    assert all(torch.equal(a, b) for a, b in zip(before, (x for m in models for x in m.parameters()), strict=True))
    assert not torch.equal(ensemble(xs[0])[1], expected[1])


def test_gradients_add_up_until_they_are_zeroed():
    ensemble, (xs, ys) = Ensemble(networks()), data(4)
    ensemble.backward(losses_of(ensemble(xs[0]), ys[0]))
    once = [x.grad.clone() for x in ensemble.parameters_of(2)]
    ensemble.backward(losses_of(ensemble(xs[0]), ys[0]))
    assert all(torch.equal(x.grad, 2 * g) for x, g in zip(ensemble.parameters_of(2), once, strict=True))
    ensemble.zero_grad()
    assert all(x.grad is None for m in range(4) for x in ensemble.parameters_of(m))


def test_frozen_members_keep_their_values():
    ensemble, (xs, ys) = Ensemble(networks()), data(4)
    before = ensemble.state_dict_of(3)
    optimizer = semaopt.ASA([{"params": ensemble.parameters_of(m)} for m in range(3)])
    ensemble.backward(losses_of(ensemble(xs[0]), ys[0]))
    optimizer.step()
    torch.testing.assert_close(ensemble.state_dict_of(3), before, rtol=0, atol=0)
    assert not torch.equal(ensemble.state_dict_of(0)["0.weight"], networks()[0][0].weight)


def frozen_networks() -> list[nn.Module]:
    models = networks()
    for model in models:
        model[0].requires_grad_(False)
    return models


def train(ensemble: Ensemble, optimizer: torch.optim.Optimizer, steps: range = range(5)) -> list[float]:
    """The sums of the losses."""
    (xs, ys), seen = data(len(ensemble)), []
    for k in steps:
        optimizer.zero_grad()
        losses = losses_of(ensemble(xs[k].to(ensemble.parameters_of(0)[0].dtype)), ys[k])
        ensemble.backward(losses)
        optimizer.step()
        seen.append(losses.sum().item())
    return seen


def asa(ensemble: Ensemble) -> semaopt.ASA:
    return semaopt.ASA([{"params": ensemble.parameters_of(m), **rates(m)} for m in range(4)])


@pytest.mark.parametrize("group_sizes", [None, [1, 3]])
@pytest.mark.parametrize("decoupled", [False, True])
def test_parameters_frozen_in_the_models_stay_frozen(group_sizes, decoupled):
    ensemble = Ensemble(frozen_networks(), group_sizes)
    before = [ensemble.state_dict_of(m) for m in range(4)]
    parts = range(4 if group_sizes is None else 2)
    groups = [{"params": ensemble.parameters_of(k), "lr": 0.1} for k in parts]
    train(ensemble, semaopt.ASA(groups, weight_decay=0.1, decoupled_weight_decay=decoupled))
    for k in parts:
        assert [x.requires_grad for x in ensemble.parameters_of(k)] == [False] * 2 + [True] * 4
        assert [x.grad is None for x in ensemble.parameters_of(k)] == [True] * 2 + [False] * 4
    for m in range(4):
        assert [x.requires_grad for x in ensemble.member(m).parameters()] == [False] * 2 + [True] * 4
        for name, value in ensemble.state_dict_of(m).items():
            assert torch.equal(value, before[m][name]) == name.startswith("0.")


def test_members_with_frozen_parameters_end_where_they_would_have_ended_alone():
    ensemble, alone, (xs, ys) = Ensemble(frozen_networks()), frozen_networks(), data(4)
    train(ensemble, asa(ensemble))
    for m, model in enumerate(alone):
        optimizer = semaopt.ASA(model.parameters(), **rates(m))
        for k in range(5):
            optimizer.zero_grad()
            cross_entropy(model(xs[k, m]), ys[k, m]).backward()
            optimizer.step()
        torch.testing.assert_close(ensemble.state_dict_of(m), dict(model.state_dict()), rtol=0, atol=1e-12)


def test_nothing_is_recorded_for_what_is_frozen_in_all_members():
    ensemble, (xs, _) = Ensemble(networks()), data(4)
    assert ensemble(xs[0]).requires_grad
    for m in range(4):
        for x in ensemble.parameters_of(m):
            x.requires_grad_(False)
    assert not ensemble(xs[0]).requires_grad


def test_models_that_disagree_in_what_is_frozen_are_refused():
    models = networks()
    models[2][3].bias.requires_grad_(False)
    with pytest.raises(
        ValueError,
        match=r"models\[2\]: requires_grad of '3.bias'=False is invalid: it must be True as in models\[0\].*in all models or in none",  # noqa: E501
    ):
        Ensemble(models)


def test_freezing_and_unfreezing_later_holds_for_that_member_alone():
    """Compare with models in which the same layer is frozen and unfrozen in the same steps."""
    ensemble, alone, (xs, ys) = Ensemble(networks()), networks(), data(4)
    optimizer = asa(ensemble)
    optimizers = [semaopt.ASA(model.parameters(), **rates(m)) for m, model in enumerate(alone)]
    for k, frozen in enumerate([(), (1,), (1,), (0, 1, 2, 3), (0, 1, 2, 3), (2,), ()]):
        for m, model in enumerate(alone):
            model[3].requires_grad_(m not in frozen)
            for x in ensemble.parameters_of(m)[-2:]:
                x.requires_grad_(m not in frozen)
            optimizers[m].zero_grad()
            cross_entropy(model(xs[k, m]), ys[k, m]).backward()
            optimizers[m].step()
        train(ensemble, optimizer, range(k, k + 1))
        for m, model in enumerate(alone):
            torch.testing.assert_close(ensemble.state_dict_of(m), dict(model.state_dict()), rtol=0, atol=1e-12)
            flags = [x.requires_grad for x in ensemble.member(m).parameters()]
            assert flags == [x.requires_grad for x in model.parameters()]


def test_a_gradient_from_before_the_freezing_stays():
    """As with torch's own backward, and in members frozen together or alone."""
    ensemble, (xs, ys) = Ensemble(networks()), data(4)
    ensemble.backward(losses_of(ensemble(xs[0]), ys[0]))
    for frozen in (range(1), range(4)):
        found = [ensemble.parameters_of(m)[0] for m in frozen]
        before = [x.requires_grad_(False).grad.clone() for x in found]
        ensemble.backward(losses_of(ensemble(xs[1]), ys[1]))
        assert all(torch.equal(x.grad, g) for x, g in zip(found, before, strict=True))


def saved(what: object) -> object:
    file = io.BytesIO()
    torch.save(what, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


COPIES = {"deepcopy": copy.deepcopy, "pickle": lambda what: pickle.loads(pickle.dumps(what)), "torch.save": saved}


@pytest.mark.parametrize("models", [networks, frozen_networks], ids=["all", "frozen"])
@pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)
def test_a_copy_trains_as_the_original_does_and_by_itself(copied, models):
    original = Ensemble(models())
    train(original, asa(original), range(2))
    before = [original.state_dict_of(m) for m in range(4)]
    other = copied(original)
    losses = train(other, asa(other))
    for m in range(4):
        torch.testing.assert_close(original.state_dict_of(m), before[m], rtol=0, atol=0)
    assert train(original, asa(original)) == losses
    for m in range(4):
        flags = [x.requires_grad for x in original.parameters_of(m)]
        assert [x.requires_grad for x in other.parameters_of(m)] == flags
        assert [x.requires_grad for x in other.member(m).parameters()] == flags
        torch.testing.assert_close(other.state_dict_of(m), original.state_dict_of(m), rtol=0, atol=0)
        for x, y in zip(other.member(m).parameters(), other.parameters_of(m), strict=True):
            assert torch.equal(x, y)


@pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)
@pytest.mark.parametrize("first", ["ensemble", "optimizer"])
def test_an_optimizer_copied_along_moves_the_copy(copied, first):
    ensemble = Ensemble(networks(), [3, 1])
    optimizer = semaopt.ASA([{"params": ensemble.parameters_of(k), **rates(k)} for k in range(2)])
    train(ensemble, optimizer, range(3))
    if first == "ensemble":
        other, others = copied((ensemble, optimizer))
    else:
        others, other = copied((optimizer, ensemble))
    assert train(other, others, range(3, 8)) == train(ensemble, optimizer, range(3, 8))
    assert all(x is y for x, y in zip(others.param_groups[1]["params"], other.parameters_of(1), strict=True))


@pytest.mark.parametrize("copied", [lambda ensemble: ensemble, *COPIES.values()], ids=["original", *COPIES])
def test_a_step_between_forward_and_backward_is_noticed(copied):
    ensemble, (xs, ys) = copied(Ensemble(networks())), data(4)
    losses = losses_of(ensemble(xs[0]), ys[0])
    with torch.no_grad():
        ensemble.parameters_of(1)[-2].add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        ensemble.backward(losses)


def test_a_shallow_copy_is_the_same_ensemble():
    ensemble, (xs, ys) = Ensemble(networks()), data(4)
    ensemble.backward(losses_of(ensemble(xs[0]), ys[0]))
    gradient = ensemble.parameters_of(1)[0].grad
    other = copy.copy(ensemble)
    assert other.parameters_of(1)[0] is ensemble.parameters_of(1)[0]
    assert other.parameters_of(1)[0].grad is gradient
    again = Ensemble(networks())
    assert train(other, asa(ensemble)) == train(again, asa(again))


@pytest.mark.parametrize("copied", [lambda ensemble: ensemble, *COPIES.values()], ids=["original", *COPIES])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_it_trains_on_from_loaded_states(copied, dtype):
    trained, other = Ensemble(networks(dtype=dtype)), copied(Ensemble(networks(4, dtype)[::-1]))
    train(trained, asa(trained))
    optimizer = asa(other)
    for m in range(4):
        other.load_state_dict_of(m, trained.state_dict_of(m))
    assert train(other, optimizer) == train(trained, asa(trained))


def test_a_member_resumes_from_its_state_dict():
    ensemble, other = Ensemble(networks()), Ensemble(networks(4)[::-1])
    for m in range(4):
        other.load_state_dict_of(m, ensemble.state_dict_of(m))
    x = data(4)[0][0]
    assert torch.equal(ensemble(x), other(x))
    with pytest.raises(ValueError, match=r"state=\['0.weight'\] is invalid: these names are missing or unknown"):
        other.load_state_dict_of(0, {k: v for k, v in ensemble.state_dict_of(0).items() if k != "0.weight"})
    wrong = {**ensemble.state_dict_of(0), "3.bias": torch.zeros(4)}
    with pytest.raises(ValueError, match=r"state\['3.bias'\]=\(4,\) is invalid: it must have shape \(3,\)"):
        other.load_state_dict_of(0, wrong)


def test_dropout_draws_for_each_member_and_evaluation_does_not():
    torch.manual_seed(0)
    ensemble = Ensemble([nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5)) for _ in range(2)])
    for m in range(2):
        ensemble.load_state_dict_of(m, {"0.weight": torch.eye(2), "0.bias": torch.ones(2)})
    out = ensemble(torch.ones(64, 2), shared=True)
    assert not torch.equal(out[0], out[1])
    still = ensemble.eval()(torch.ones(64, 2), shared=True)
    assert torch.equal(still, torch.full((2, 64, 2), 2.0))


def test_tied_weights_and_buffers():
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(3, 3, bias=False)
            self.second = nn.Linear(3, 3, bias=False)
            self.second.weight = self.first.weight
            self.register_buffer("shift", torch.rand(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.second(self.first(x)) + self.shift

    models = [Tied().double() for _ in range(2)]
    x = torch.randn(4, 3, dtype=torch.float64)
    ensemble = Ensemble(models)
    assert len(ensemble.parameters_of(0)) == 1
    out = ensemble(x, shared=True)
    torch.testing.assert_close(out, torch.stack([model(x) for model in models]))
    ensemble.backward(out.square().mean((1, 2)))
    models[1](x).square().mean().backward()
    torch.testing.assert_close(ensemble.parameters_of(1)[0].grad, models[1].first.weight.grad)


def test_what_cannot_be_stacked_is_refused():
    with pytest.raises(ValueError, match=r"models=\[\] is invalid: it must not be empty"):
        Ensemble([])
    with pytest.raises(
        ValueError, match=r"models\[1\] differs from models\[0\] .*\(2, 3\).*\(2, 4\).*one ensemble per"
    ):
        Ensemble([nn.Linear(3, 2), nn.Linear(4, 2)])
    with pytest.raises(ValueError, match=r"models\[1\] differs from models\[0\]"):
        Ensemble([nn.Linear(3, 2), nn.Linear(3, 2, bias=False)])
    with pytest.raises(ValueError, match=r"BatchNorm1d at '0' writes running statistics.*GroupNorm"):
        Ensemble([nn.Sequential(nn.BatchNorm1d(3))])
    ensemble = Ensemble([nn.Linear(3, 2) for _ in range(2)])
    with pytest.raises(
        ValueError, match=r"inputs=\(5, 3\) is invalid: it must have a first dimension of 2.*shared=True"
    ):
        ensemble(torch.ones(5, 3))
    with pytest.raises(ValueError, match=r"losses=\(\) is invalid: it must have shape \(2,\)"):
        ensemble.backward(ensemble(torch.ones(2, 5, 3)).mean())


def test_members_that_share_their_rates_move_in_one_tensor() -> None:
    models = [torch.nn.Linear(3, 1) for _ in range(5)]
    one_by_one, in_parts = Ensemble(models), Ensemble(models, group_sizes=[2, 3])
    assert [tuple(in_parts.parameters_of(k)[0].shape) for k in range(2)] == [(2, 1, 3), (3, 1, 3)]
    rates = [0.1, 0.1, 0.01, 0.01, 0.01]
    alone = semaopt.ASA([{"params": one_by_one.parameters_of(m), "lr": lr} for m, lr in enumerate(rates)])
    together = semaopt.ASA([{"params": in_parts.parameters_of(k), "lr": lr} for k, lr in enumerate((0.1, 0.01))])
    for ensemble, optimizer in ((one_by_one, alone), (in_parts, together)):
        for _ in range(3):
            optimizer.zero_grad()
            for _ in range(2):  # gradients add up
                ensemble.backward(ensemble(torch.ones(4, 3), shared=True).square().mean((1, 2)))
            optimizer.step()
    for m in range(5):
        for name, value in one_by_one.state_dict_of(m).items():
            torch.testing.assert_close(in_parts.state_dict_of(m)[name], value)


def test_group_sizes_must_add_up() -> None:
    models = [torch.nn.Linear(1, 1) for _ in range(3)]
    with pytest.raises(ValueError, match=r"group_sizes=\[2, 2\] is invalid: it must add up to 3"):
        Ensemble(models, group_sizes=[2, 2])
    with pytest.raises(ValueError, match=r"group_sizes=0 is invalid: it must be a whole number >= 1"):
        Ensemble(models, group_sizes=[0, 3])


def test_alike_is_a_deprecated_name_of_group_sizes():
    models = [torch.nn.Linear(1, 1) for _ in range(3)]
    with pytest.warns(DeprecationWarning, match=r"Ensemble\(alike=\) is deprecated; use group_sizes="):
        ensemble = Ensemble(models, alike=[1, 2])
    assert [len(ensemble.parameters_of(k)[0]) for k in range(2)] == [1, 2]


@pytest.mark.parametrize("clone", [lambda ensemble: ensemble, copy.deepcopy], ids=["original", "copy"])
def test_a_scaling_by_the_norm_of_the_group_needs_groups_of_one_member(clone):
    """Adam+ divides by the norm over all tensors of a group: members in one tensor would share it."""
    models = [torch.nn.Linear(3, 1) for _ in range(3)]
    ensemble = clone(Ensemble(models, group_sizes=[1, 2]))
    semaopt.ASA(ensemble.parameters_of(0), scaling="adam+")
    with pytest.raises(ValueError, match=r"scaling='adam\+' is invalid: .*2 members.*Use Ensemble\(models\)"):
        semaopt.ASA(ensemble.parameters_of(1), scaling="adam+")
    whole = Ensemble(models)
    optimizer = semaopt.ASA([{"params": whole.parameters_of(m)} for m in range(3)], scaling="adam+", lr=0.1)
    alone = semaopt.ASA(models[0].parameters(), scaling="adam+", lr=0.1)
    a = torch.ones(4, 3)
    for _ in range(3):
        optimizer.zero_grad()
        alone.zero_grad()
        whole.backward(whole(a, shared=True).square().mean((1, 2)))
        models[0](a).square().mean().backward()
        optimizer.step()
        alone.step()
    torch.testing.assert_close(whole.member(0).weight, models[0].weight)


def test_freezing_is_seen_inside_the_transforms_of_torch():
    ensemble = Ensemble([torch.nn.Linear(2, 1) for _ in range(3)])
    a = torch.ones(2)
    before = torch.func.jacrev(lambda x: ensemble(x, shared=True))(a)
    for m in range(3):
        ensemble.parameters_of(m)[0].requires_grad_(False)
    assert torch.equal(torch.func.jacrev(lambda x: ensemble(x, shared=True))(a), before)
    for m in range(3):
        ensemble.parameters_of(m)[0].requires_grad_(True)
    assert torch.func.vmap(lambda x: ensemble(x, shared=True))(torch.ones(4, 2)).shape == (4, 3, 1)
