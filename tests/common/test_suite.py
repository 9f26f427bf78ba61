"""Tests that every optimizer must pass, run for each line of registry.METHODS."""

from __future__ import annotations

import copy
import dataclasses
import io
import math
import pickle

import pytest
import torch

from tests.common.registry import METHODS, Method, Problem, parameters

LOW = (torch.bfloat16, torch.float16)
DTYPES = (torch.float32, torch.float64, *LOW)


@pytest.fixture(params=METHODS, ids=str)
def method(request: pytest.FixtureRequest) -> Method:
    return request.param


def skip_unless(method: Method, feature: str) -> None:
    if feature in method.lacks:
        pytest.skip(f"{method.name}: {method.lacks[feature]}")


def run(method, optimizer, problem, steps):
    for k in steps:
        method.advance(optimizer, problem, k)


def values(problem):
    return [x.detach().clone() for x in (*problem.xs, *problem.others)]


def assert_same(left, right):
    for a, b in zip(left, right, strict=True):
        assert a.dtype == b.dtype
        assert torch.equal(a, b)


def assert_close(left, right, **tolerance):
    for a, b in zip(left, right, strict=True):
        torch.testing.assert_close(a, b, **tolerance)


def saved(state):
    """Return the object after a round trip through a file with torch.load(weights_only=True)."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


def copied(method, problem, **hyper):
    """Return a second optimizer on a copy of the problem."""
    xs, others = ([x.detach().clone().requires_grad_() for x in xs] for xs in (problem.xs, problem.others))
    twin = dataclasses.replace(problem, xs=xs, others=others)
    return method.build(twin.xs, twin.others, **hyper), twin


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("hyper", [{}, {"bias_correction": True}], ids=["plain", "corrected"])
def test_resume_is_bit_exact(method, dtype, hyper):
    for option in hyper:
        skip_unless(method, option)
    optimizer, problem = method.start(dtype, **hyper)
    run(method, optimizer, problem, range(5))
    state = saved(optimizer.state_dict())
    resumed, twin = copied(method, problem)  # hyper-parameters of the checkpoint take precedence, as in torch
    resumed.load_state_dict(state)
    run(method, optimizer, problem, range(5, 10))
    run(method, resumed, twin, range(5, 10))
    assert_same(values(problem), values(twin))
    assert all(x.dtype == dtype for x in values(problem))


def test_state_dict_round_trip_shares_nothing(method):
    optimizer, problem = method.start()
    run(method, optimizer, problem, range(3))
    before = copy.deepcopy(optimizer.state_dict())
    second, twin = copied(method, problem)
    second.load_state_dict(optimizer.state_dict())
    assert str(second.state_dict()) == str(before)
    run(method, second, twin, range(3, 6))
    assert str(optimizer.state_dict()) == str(before), "stepping the copy changed the original's state"


def test_loss_decreases(method):
    optimizer, problem = method.start()
    start = sum(problem.minimize(k) for k in range(20)).item()
    run(method, optimizer, problem, range(200))
    assert sum(problem.minimize(k) for k in range(20)).item() < 0.8 * start


def test_groups_have_their_own_hyper_parameters(method):
    skip_unless(method, "groups")
    own = ({"lr": 0.1, "beta": 0.5}, {"lr": 0.01, "beta": 0.99, "weight_decay": 0.1})
    own = tuple({name: value for name, value in hyper.items() if name not in method.lacks} for hyper in own)
    _, problem = method.start()
    xs = problem.xs
    grouped = method.build([{"params": xs[:1], **own[0]}, {"params": xs[1:], **own[1]}], problem.others)
    run(method, grouped, problem, range(5))
    for group, hyper in zip(grouped.param_groups, own, strict=False):
        assert {key: group[key] for key in hyper} == hyper
    _, alone = method.start()
    skip_unless(method, "separable")
    optimizers = [method.build(alone.xs[:1], [], **own[0]), method.build(alone.xs[1:], [], **own[1])]
    for k in range(5):
        alone.minimize(k).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    assert_same(values(problem), values(alone))


def test_added_group_starts_from_scratch(method):
    skip_unless(method, "separable")
    _, problem = method.start()
    optimizer = method.build(problem.xs[:1], [])
    run(method, optimizer, problem, range(3))
    optimizer.add_param_group({"params": problem.xs[1:], "lr": 0.2})
    assert optimizer.param_groups[-1]["lr"] == 0.2
    late, twin = copied(method, problem)
    late = method.build(twin.xs[1:], [], lr=0.2)
    for x in (*problem.xs, *twin.xs):
        x.grad = None
    run(method, optimizer, problem, range(3, 6))
    run(method, late, twin, range(3, 6))
    assert_same(problem.xs[1:], twin.xs[1:])


def test_order_of_groups_does_not_matter(method):
    skip_unless(method, "groups")
    results = []
    for order in ((0, 1, 2), (2, 0, 1)):
        _, problem = method.start()
        groups = [{"params": [problem.xs[i]], "lr": 0.01 * (i + 1)} for i in order]
        run(method, method.build(groups, problem.others), problem, range(4))
        results.append(values(problem))
    assert_same(*results)


def test_closure(method):
    skip_unless(method, "closure")
    optimizer, problem = method.start()
    second, twin = copied(method, problem)

    def closure():
        optimizer.zero_grad()
        loss = problem.minimize(0)
        loss.backward()
        return loss

    expected = problem.minimize(0)
    assert torch.equal(optimizer.step(closure), expected)
    run(method, second, twin, [0])
    assert_same(values(problem), values(twin))


def test_hooks_run_around_each_step(method):
    optimizer, problem = method.start()
    seen = []
    optimizer.register_step_pre_hook(lambda *_: seen.append(("pre", values(problem))))
    optimizer.register_step_post_hook(lambda *_: seen.append(("post", values(problem))))
    run(method, optimizer, problem, range(2))
    assert [name for name, _ in seen] == ["pre", "post", "pre", "post"]
    assert_same(seen[1][1], seen[2][1])
    assert not torch.equal(seen[0][1][0], seen[1][1][0])


def test_parameters_without_gradient_stay(method):
    optimizer, problem = method.start()
    problem.xs[1].requires_grad_(False)
    before = values(problem)
    run(method, optimizer, problem, range(3))
    assert torch.equal(problem.xs[1], before[1])
    assert problem.xs[1] not in optimizer.state
    assert not torch.equal(problem.xs[0], before[0])


def test_parameters_frozen_during_training_stay(method):
    skip_unless(method, "freezing")
    optimizer, problem = method.start()
    run(method, optimizer, problem, range(2))
    problem.xs[1].requires_grad_(False)
    before = values(problem)
    run(method, optimizer, problem, range(2, 8))
    assert torch.equal(problem.xs[1], before[1])
    assert not torch.equal(problem.xs[0], before[0])
    problem.xs[1].requires_grad_()
    run(method, optimizer, problem, range(8, 10))
    assert not torch.equal(problem.xs[1], before[1])
    assert all(torch.isfinite(x).all() for x in values(problem))


def test_empty_group_and_zero_elements(method):
    skip_unless(method, "groups")
    _, problem = method.start()
    problem.xs.append(torch.nn.Parameter(torch.zeros(0, 3)))
    optimizer = method.build([{"params": []}, {"params": problem.xs}], problem.others)
    run(method, optimizer, problem, range(2))
    optimizer.load_state_dict(optimizer.state_dict())
    run(method, optimizer, problem, range(2, 3))
    assert problem.xs[-1].shape == (0, 3)
    assert all(torch.isfinite(x).all() for x in values(problem))


def test_maximize_equals_minimizing_the_negative(method):
    skip_unless(method, "maximize")
    optimizer, problem = method.start()
    ascent, twin = copied(method, problem, maximize=True)
    twin.sign = -1.0
    run(method, optimizer, problem, range(5))
    run(method, ascent, twin, range(5))
    assert_same(values(problem), values(twin))


def test_coupled_weight_decay_equals_an_l2_penalty(method):
    skip_unless(method, "weight_decay")
    decayed, problem = method.start(torch.float64, weight_decay=0.3)
    penalized, twin = copied(method, problem)
    twin.decay = 0.3
    run(method, decayed, problem, range(10))
    run(method, penalized, twin, range(10))
    assert_close(values(problem), values(twin), rtol=1e-9, atol=1e-12)


def test_decoupled_weight_decay_shrinks_first(method):
    skip_unless(method, "decoupled_weight_decay")
    decayed, problem = method.start(torch.float64, weight_decay=0.3, decoupled_weight_decay=True)
    plain, twin = copied(method, problem)
    for k in range(10):
        method.advance(decayed, problem, k)
        plain.zero_grad()
        twin.minimize(k).backward()
        with torch.no_grad():
            for x in twin.xs:
                x.mul_(1 - 0.05 * 0.3)
        plain.step()
    assert_close(values(problem), values(twin), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("shape", [(), (1,)])
def test_tensor_lr_equals_float_lr(method, shape):
    skip_unless(method, "tensor_lr")
    optimizer, problem = method.start(torch.float64)
    lr = torch.full(shape, 0.05, dtype=torch.float64)
    second, twin = copied(method, problem, lr=lr)
    run(method, optimizer, problem, range(5))
    run(method, second, twin, range(5))
    assert_close(values(problem), values(twin), rtol=1e-12, atol=1e-14)
    lr.zero_()  # the group keeps this tensor, since schedulers fill it in place
    before = values(twin)
    method.advance(second, twin, 5)
    assert_same(before[: len(twin.xs)], values(twin)[: len(twin.xs)])


def test_lr_zero_moves_nothing(method):
    optimizer, problem = method.start(lr=0.0)
    before = values(problem)
    run(method, optimizer, problem, range(3))
    assert_same(before[: len(problem.xs)], values(problem)[: len(problem.xs)])


def test_complex_parameters_equal_pairs_of_reals(method):
    skip_unless(method, "complex")
    optimizer, problem = method.start(torch.complex128)
    pairs = [torch.view_as_real(x.detach()).clone().requires_grad_() for x in problem.xs]
    second = method.build(pairs, [])
    for k in range(5):
        method.advance(optimizer, problem, k)
        second.zero_grad()
        Problem([torch.view_as_complex(x) for x in pairs]).minimize(k).backward()
        second.step()
    assert_close([torch.view_as_real(x) for x in values(problem)], [x.detach() for x in pairs], rtol=1e-13, atol=0)


def test_sparse_gradients_are_refused_before_any_change(method):
    skip_unless(method, "gradients")
    optimizer, problem = method.start()
    run(method, optimizer, problem, range(2))
    before, state = values(problem), str(optimizer.state_dict())
    problem.xs[1].grad = torch.ones(4).to_sparse()
    with pytest.raises(RuntimeError, match=r"does not support sparse gradients .group 0, parameter 1.*sparse=False"):
        optimizer.step()
    assert_same(before, values(problem))
    assert str(optimizer.state_dict()) == state


@pytest.mark.parametrize("dtype", LOW, ids=str)
def test_low_precision_tracks_float32(method, dtype):
    optimizer, problem = method.start(dtype)
    low, twin = copied(method, problem)
    for xs in (twin.xs, twin.others):
        xs[:] = [x.detach().float().requires_grad_() for x in xs]
    low = method.build(twin.xs, twin.others)
    run(method, optimizer, problem, range(20))
    run(method, low, twin, range(20))
    assert_close([x.float() for x in values(problem)], values(twin), rtol=0.05, atol=0.05)


def test_non_contiguous_parameters(method):
    skip_unless(method, "separable")
    optimizer, problem = method.start()
    twin = Problem([torch.nn.Parameter(problem.xs[0].detach().t().contiguous().t())])
    assert not twin.xs[0].is_contiguous()
    second = method.build(twin.xs, [])
    optimizer = method.build(problem.xs[:1], [])
    run(method, optimizer, problem, range(5))
    run(method, second, twin, range(5))
    assert_close(problem.xs[:1], twin.xs)


@pytest.mark.parametrize(
    "clone", [copy.deepcopy, lambda both: pickle.loads(pickle.dumps(both))], ids=["deepcopy", "pickle"]
)
def test_copies_continue_identically(method, clone):
    optimizer, problem = method.start()
    run(method, optimizer, problem, range(3))
    second, twin = clone((optimizer, problem))
    run(method, optimizer, problem, range(3, 6))
    run(method, second, twin, range(3, 6))
    assert_same(values(problem), values(twin))


def test_named_parameters(method):
    skip_unless(method, "groups")
    optimizer, problem = method.start()
    _, twin = copied(method, problem)
    named = method.build([(f"x{i}", x) for i, x in enumerate(twin.xs)], twin.others)
    assert named.param_groups[0]["param_names"] == ["x0", "x1", "x2"]
    run(method, optimizer, problem, range(3))
    run(method, named, twin, range(3))
    assert_same(values(problem), values(twin))


@pytest.mark.slow
@pytest.mark.parametrize("hyper", [{}, {"bias_correction": True}], ids=["plain", "corrected"])
def test_compiled_step_equals_eager(method, hyper):
    for feature in ("compile", *hyper):
        skip_unless(method, feature)
    torch._dynamo.reset()
    optimizer, problem = method.start(**hyper)
    second, twin = copied(method, problem, **hyper)
    compiled = torch.compile(second.step)
    for k in range(4):
        method.advance(optimizer, problem, k)
        second.zero_grad()
        twin.minimize(k).backward()
        compiled()
    assert_close(values(problem), values(twin), rtol=1e-5, atol=1e-6)


def test_gradients_flow_through_differentiable_steps(method):
    skip_unless(method, "differentiable")

    def end(start):
        x = start.clone()
        optimizer = method.build([x], [], differentiable=True)
        for k in range(3):
            weight, centre = Problem([]).sample(start, 0, k)
            x.grad = weight * (x - centre) + 0.1 * start
            optimizer.step()
        return x

    start = torch.tensor([0.3, -1.2, 2.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(end, start)


BAD = [
    ({"lr": -1.0}, r"lr=-1\.0 is invalid: it must be a finite number >= 0\. Try 1e-3"),
    ({"lr": math.nan}, r"lr=nan is invalid: it must be a finite number >= 0"),
    ({"lr": math.inf}, r"lr=inf is invalid: it must be a finite number >= 0"),
    ({"lr": torch.tensor([0.1, 0.2])}, r"lr=tensor\(.*\) is invalid: it must be a finite number >= 0"),
    ({"lr": "0.1"}, r"lr='0.1' is invalid: it must be a finite number >= 0, not a string"),
    ({"beta": 1.0}, r"beta=1\.0 is invalid: it must lie in \[0, 1\)\. Try beta=0\.9; gamma = 1 - beta"),
    ({"beta": -0.1}, r"beta=-0\.1 is invalid: it must lie in \[0, 1\)"),
    ({"beta": math.nan}, r"beta=nan is invalid: it must lie in \[0, 1\)"),
    ({"weight_decay": -1e-9}, r"weight_decay=-1e-09 is invalid: it must be a finite number >= 0\. 0\.0 turns it off"),
    (
        {"clip_scaling": (2.0, 1.0)},
        r"clip_scaling=\(2\.0, 1\.0\) is invalid: it must be \(c_l, c_u\) with .* c_l <= c_u",
    ),
    ({"clip_scaling": 1.0}, r"clip_scaling=1\.0 is invalid: it must be \(c_l, c_u\)"),
    ({"maximize": 1}, r"maximize=1 is invalid: it must be True or False"),
]


@pytest.mark.parametrize(("hyper", "text"), BAD, ids=[str(hyper) for hyper, _ in BAD])
def test_bad_hyper_parameters(method, hyper, text):
    name = next(iter(hyper))
    skip_unless(method, name)
    with pytest.raises(ValueError, match=text):
        method.start(**hyper)
    skip_unless(method, "groups")
    optimizer, _ = method.start()
    count = len(optimizer.param_groups)
    with pytest.raises(ValueError, match=text):
        optimizer.add_param_group({"params": parameters(), **method.group, **hyper})
    assert len(optimizer.param_groups) == count
    state = optimizer.state_dict()
    state["param_groups"][0].update(hyper)
    before = str(optimizer.state_dict())
    with pytest.raises(ValueError, match=text):
        optimizer.load_state_dict(state)
    assert str(optimizer.state_dict()) == before


@pytest.mark.parametrize(
    ("name", "value"), [("lr", math.nan), ("lr", -0.1), ("lr", None), ("beta", 1.0), ("beta", None)]
)
def test_invalid_rate_is_refused_before_any_change(method, name, value):
    skip_unless(method, name)
    optimizer, problem = method.start()
    run(method, optimizer, problem, range(2))
    optimizer.param_groups[0][name] = value
    before = values(problem)
    with pytest.raises(ValueError, match=f"{name}={value} is invalid: it must"):
        method.advance(optimizer, problem, 2)
    assert_same(before, values(problem))


def test_duplicate_parameter_is_refused(method):
    xs = parameters()
    with pytest.raises(
        ValueError, match=r"shape \(3, 2\) is given twice, at group 0, position 0 and at group 0, position 1"
    ):
        method.build([xs[0], xs[0]], method.others(torch.float32))
    skip_unless(method, "groups")
    with pytest.raises(ValueError, match=r"group 0, position 0 and at group 1, position 0.*list each parameter once"):
        method.build([{"params": [xs[0]]}, {"params": [xs[0]]}], method.others(torch.float32))


def test_checkpoint_of_another_model_changes_nothing(method):
    optimizer, problem = method.start()
    run(method, optimizer, problem, range(2))
    state = saved(optimizer.state_dict())
    state["param_groups"][0]["params"].append(99)
    before = str(optimizer.state_dict())
    with pytest.raises(ValueError, match="doesn't match the size"):
        optimizer.load_state_dict(state)
    assert str(optimizer.state_dict()) == before
