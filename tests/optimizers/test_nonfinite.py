"""Detection, messages and scope of ``on_nonfinite``."""

from __future__ import annotations

import copy
import logging
import math
import pickle

import pytest
import torch
from torch import nn

import semaopt
from semaopt.optimizers._nonfinite import _SMALL, all_finite
from tests.common.registry import METHODS, bilevel
from tests.common.test_nonfinite import assert_unchanged, snapshot
from tests.common.test_suite import assert_same, run, values

BILEVEL_METHODS = [method for method in METHODS if method.advance is bilevel and "on_nonfinite" not in method.lacks]


def network(**options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    groups = [
        {"params": list(layer.named_parameters(prefix=f"net.{i}"))} for i, layer in ((0, model[0]), (1, model[2]))
    ]
    return model, semaopt.ASA(groups, lr=0.1, **options)


def backward(model, bad=None):
    model.zero_grad()
    loss = model(torch.ones(2, 3)).square().mean()
    loss.backward()
    if bad is not None:
        model[2].weight.grad[0, :3] = bad
    return loss


def test_error_names_the_parameter():
    model, optimizer = network(on_nonfinite="error")
    backward(model, torch.tensor([math.nan, math.inf, -math.inf]))
    before = [x.clone() for x in model.parameters()]
    text = (
        r"gradient of parameter 0 \('net\.1\.weight'\) of group 1, of shape \(1, 4\), has 1 NaN and 2 Inf in 4 elements"
        r"; nothing was changed: use a smaller lr, clip the gradients \(torch\.nn\.utils\.clip_grad_norm_\)"
    )
    with pytest.raises(RuntimeError, match=text):
        optimizer.step()
    assert_same(before, model.parameters())  # group 0 had a finite gradient
    assert not optimizer.state


def test_error_for_unnamed_and_for_several_parameters():
    xs = [nn.Parameter(torch.zeros(2)) for _ in range(3)]
    optimizer = semaopt.ASA(xs, on_nonfinite="error")
    for x in xs[1:]:
        x.grad = torch.full_like(x, math.nan)
    with pytest.raises(
        RuntimeError, match=r"^the gradient of parameter 1 of group 0, .* \(and 1 more tensors? ha(s|ve) some\);"
    ):
        optimizer.step()


def test_closure_is_called_and_its_loss_returned():
    model, optimizer = network(on_nonfinite="skip")
    loss = optimizer.step(lambda: backward(model, math.nan))
    assert torch.equal(loss, backward(model))
    assert optimizer.skipped_steps == 1


def test_no_policy_means_no_check(monkeypatch):
    monkeypatch.setattr("semaopt.optimizers._nonfinite.require_finite", None)
    model, optimizer = network()
    backward(model, math.nan)
    optimizer.step()
    assert model[2].weight.isnan().any()
    assert optimizer.on_nonfinite is None


def test_first_skip_is_logged(caplog):
    model, optimizer = network(on_nonfinite="skip")
    with caplog.at_level(logging.WARNING, "semaopt"):
        for _ in range(3):
            backward(model, math.nan)
            optimizer.step()
    assert [record.getMessage()[:60] for record in caplog.records] == [
        "semaopt: skipped a step for the first time: the gradient of "
    ]
    assert "on_nonfinite" not in caplog.text  # it is the policy already, not a remedy
    assert optimizer.skipped_steps == 3


def test_pickle_keeps_policy_and_count():
    model, optimizer = network(on_nonfinite="skip")
    backward(model, math.nan)
    optimizer.step()
    twin = pickle.loads(pickle.dumps(optimizer))
    assert (twin.on_nonfinite, twin.skipped_steps) == ("skip", 1)


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64], ids=str
)
@pytest.mark.parametrize("size", [1, 7, _SMALL, 5 * _SMALL])
def test_all_finite(dtype, size):
    """Finite elements pass even if their sum overflows; one bad element is found anywhere, even in complex numbers."""
    largest = torch.finfo(dtype).max
    g = torch.full((size,), largest, dtype=dtype)
    if dtype.is_complex:
        g = torch.complex(g.real, g.real)
    assert all_finite([g, torch.zeros(0, 3), torch.ones(3)])
    for bad in (math.nan, math.inf, -math.inf):
        for place in (0, size // 2, size - 1):
            bad_gradient = g.clone()
            (torch.view_as_real(bad_gradient)[:, 1] if dtype.is_complex else bad_gradient)[place] = bad
            assert not all_finite([torch.ones(2), bad_gradient]), (bad, place)
    assert all_finite([])


def test_sparse_gradient_is_refused():
    x = nn.Parameter(torch.zeros(4))
    x.grad = torch.ones(4).to_sparse()
    with pytest.raises(RuntimeError, match="does not support sparse gradients"):
        semaopt.ASA([x], on_nonfinite="skip").step()


@pytest.mark.parametrize("bad", ["value", "curvature"])
@pytest.mark.parametrize("when", [1, 2])
@pytest.mark.parametrize("method", BILEVEL_METHODS, ids=str)
def test_nonfinite_values_of_the_lower_level_are_detected(method, when, bad):
    """NaN in any call of inner() restores the state of the inverse and the averages."""
    optimizer, problem = method.start(on_nonfinite="skip")
    twin = method.start()
    run(method, optimizer, problem, range(3))
    run(method, *twin, range(3))
    before = snapshot(optimizer, problem)
    y, calls = problem.others[0], []

    def outer(i=None):
        return problem.minimize(99) + sum(z.square().sum() for z in problem.others)

    def inner(i=None):
        calls.append(None)
        weight = math.nan if len(calls) % when == 0 and bad == "value" else 1.0
        loss = weight * sum((z - problem.xs[0].mean()).square().sum() for z in problem.others)
        if bad == "curvature":
            loss = loss + (y - y.detach()).abs().pow(1.5).sum()  # the gradient is 0, but its derivative is not finite
        return loss

    optimizer.step(outer, inner)
    if optimizer.skipped_steps == 0:
        without_second_derivatives = method.name in ("F2SA", "BOME", "SMB[first order, adabound]")
        unused = without_second_derivatives and bad == "curvature"
        assert when == 2 or unused, "this method called inner() once"
        return
    assert_unchanged(before, snapshot(optimizer, problem))
    run(method, optimizer, problem, range(3, 5))
    run(method, *twin, range(3, 5))
    assert_same(values(problem), values(twin[1]))


def test_bound_measured_in_a_skipped_step_is_discarded():
    x, y, calls = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1)), []

    def inner():
        calls.append(None)
        return (math.nan if len(calls) > 10 else 1.0) * (y - x).square().sum()  # ten power iterations come first

    inverse = semaopt.hypergradient.Neumann(2)
    optimizer = semaopt.SMB([x], [y], inverse=inverse, on_nonfinite="skip")
    optimizer.step(lambda: y.square().sum(), inner)
    assert optimizer.skipped_steps == 1
    assert optimizer.algorithm_state["bound"] is None
    optimizer.step(lambda: y.square().sum(), lambda: (y - x).square().sum())
    assert optimizer.algorithm_state["bound"] == 2.0


@pytest.mark.parametrize("kind", ["SMB", "SBMA"])
def test_overflowing_estimate_restores_the_averages(kind):
    """All derivatives are finite, but their difference overflows after the averages and the inverse were updated."""
    x, y = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
    inverse = semaopt.hypergradient.Neumann(1, 1.0) if kind == "SBMA" else semaopt.hypergradient.TrackedSystem()
    rates = {"lr": 1e-3, "lower_lr": 1.0, "beta": 0.0}
    optimizer = getattr(semaopt, kind)(upper=[x], lower=[y], inverse=inverse, on_nonfinite="skip", **rates)

    def step(f_x, f_y, g_xy):
        def outer():  # a moderate loss with large derivatives
            return (f_x * (x - x.detach()) + f_y * (y - y.detach())).sum()

        return optimizer.step(outer, lambda: (y.square() / 2 - g_xy * x * y).sum())

    step(1.0, 2e18, 1e-20)
    before = copy.deepcopy(optimizer.state_dict()), [x.detach().clone(), y.detach().clone()]
    step(3e38, 1.5e18, 1e20)
    assert optimizer.skipped_steps == 1
    assert str(before[0]) == str(optimizer.state_dict())
    assert_same(before[1], [x.detach(), y.detach()])


@pytest.mark.parametrize("policy", ["skip", "error"])
@pytest.mark.parametrize("kind", ["SGDMax", "AccMDA"])
def test_nonfinite_later_closure_call_undoes_earlier_ones(kind, policy):
    """The second gradient of a step is NaN, after y has ascended or the previous point was evaluated."""
    x, y = nn.Parameter(torch.tensor([1.0])), nn.Parameter(torch.tensor([0.5]))
    optimizer = getattr(semaopt.baselines, kind)(primal=[x], dual=[y], lr=0.1, dual_lr=0.1, on_nonfinite=policy)
    calls, bad = [], []

    def closure():
        calls.append(None)
        loss = (x.square() / 2 + x * y - y.square() / 2).sum() * (math.nan if len(calls) in bad else 1.0)
        loss.backward()
        return loss

    for k in (1, 2):  # NaN at the first call, then at the second
        optimizer.step(closure)
        before = copy.deepcopy(optimizer.state_dict()), [x.detach().clone(), y.detach().clone()]
        bad.append(len(calls) + k)
        if policy == "error":
            with pytest.raises(RuntimeError, match=r"has 1 NaN and 0 Inf .*; nothing was changed"):
                optimizer.step(closure)
        else:
            optimizer.step(closure)
            assert optimizer.skipped_steps == k
        assert len(calls) >= bad[-1]
        assert str(before[0]) == str(optimizer.state_dict())
        assert_same(before[1], [x.detach(), y.detach()])


def test_scma_does_not_change_z():
    x = nn.Parameter(torch.ones(2))
    optimizer = semaopt.SCMA([x], blocks=3, on_nonfinite="skip")
    optimizer.step(lambda: x.expand(2, 2), lambda z: z.square().sum(), index=[0, 2])
    z, seen, start = optimizer.z.clone(), optimizer.algorithm_state["z_seen"].clone(), x.detach().clone()
    loss = optimizer.step(lambda: x.expand(1, 2) * math.nan, lambda z: z.square().sum(), index=[1])
    assert math.isnan(loss)
    assert optimizer.skipped_steps == 1
    assert_same([z, seen, start], [optimizer.z, optimizer.algorithm_state["z_seen"], x.detach()])


def test_steps_inside_backward():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
    with pytest.raises(ValueError, match=r"on_nonfinite='skip': .* cannot be skipped; use 'error', or step after"):
        semaopt.step_in_backward(model, lambda params: semaopt.ASA(params, on_nonfinite="skip"))
    training = semaopt.step_in_backward(model, lambda params: semaopt.ASA(params, on_nonfinite="error"))
    model(torch.ones(2, 3)).sum().backward()
    model[0].weight.register_hook(lambda g: g * math.nan)
    before = model[0].weight.detach().clone()
    with pytest.raises(
        RuntimeError, match=r"parameter 0 of group 0, .*; parameters whose gradients came before it have"
    ):
        model(torch.ones(2, 3)).sum().backward()
    assert torch.equal(before, model[0].weight)
    assert training.optimizer.state[model[0].weight]["step"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["skip", "error"])
def test_inside_torch_compile(policy):
    """The finiteness check breaks the graph; the code around it stays compiled."""
    torch._dynamo.reset()
    model, optimizer = network(on_nonfinite=policy)
    other, reference = network()
    step = torch.compile(optimizer.step)
    for k in range(4):
        backward(model, math.nan if k == 2 else None)
        if k == 2:
            before = copy.deepcopy(optimizer.state_dict()), [x.clone() for x in model.parameters()]
            if policy == "error":
                with pytest.raises(RuntimeError, match="has 3 NaN and 0 Inf"):
                    step()
            else:
                step()
            assert str(before[0]) == str(optimizer.state_dict())
            assert_same(before[1], model.parameters())
            continue
        step()
        backward(other)
        reference.step()
    for x, y in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(x, y)


def test_grad_scaler_skips_before_on_nonfinite():
    """GradScaler skips steps that overflow because of its scale; on_nonfinite checks only the remaining ones."""
    model, optimizer = network(on_nonfinite="error")
    other, reference = network()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=100)
    for k in range(5):
        model.zero_grad()
        scaler.scale(model(torch.ones(2, 3)).square().mean()).backward()
        if k == 2:
            model[2].weight.grad[0, 0] = math.inf
        scaler.step(optimizer)
        scaler.update()
        if k != 2:
            backward(other)
            reference.step()
    assert_same(model.parameters(), other.parameters())
    assert optimizer.skipped_steps == 0
    assert {int(state["step"]) for state in optimizer.state.values()} == {4}
    assert scaler.get_scale() == 2.0**9
    assert str(optimizer.state_dict()) == str(reference.state_dict())


def test_no_parameters_are_accepted():
    optimizer = semaopt.ASA([{"params": []}], lr=0.1, on_nonfinite="error")
    optimizer.step()
    assert optimizer.skipped_steps == 0
