"""``on_nonfinite`` for every optimizer that has it: a skipped or failed step leaves no trace."""

from __future__ import annotations

import copy
import math

import pytest
import torch

from tests.common.registry import METHODS, Method
from tests.common.test_suite import assert_same, copied, run, values

SUPPORTED = [method for method in METHODS if "on_nonfinite" not in method.lacks]
FAULTS = [{"scale": math.nan}, {"scale": math.inf}, {"kink": True}]


@pytest.fixture(params=SUPPORTED, ids=str)
def method(request: pytest.FixtureRequest) -> Method:
    return request.param


def faulty_step(method, optimizer, problem, k, fault):
    """Run step k with a nonfinite loss or gradient."""
    before = {name: getattr(problem, name) for name in fault}
    for name, value in fault.items():
        setattr(problem, name, value)
    try:
        method.advance(optimizer, problem, k)
    finally:
        for name, value in before.items():
            setattr(problem, name, value)


def snapshot(optimizer, problem):
    """Return the variables and the checkpoint as tensors and text."""
    packed = copy.deepcopy(optimizer.state_dict())
    tensors = [m for state in packed["state"].values() for m in state.values() if isinstance(m, torch.Tensor)]
    return [*values(problem), *tensors], str(packed)


def assert_unchanged(before, after):
    assert_same(before[0], after[0])
    assert before[1] == after[1]


@pytest.mark.parametrize("first", [0, 3])
@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_skipped_step_leaves_no_trace(method, fault, first):
    optimizer, problem = method.start(on_nonfinite="skip")
    twin = method.start()
    run(method, optimizer, problem, range(first))
    before = snapshot(optimizer, problem)
    faulty_step(method, optimizer, problem, 99, fault)
    assert_unchanged(before, snapshot(optimizer, problem))
    assert optimizer.skipped_steps == 1
    run(method, optimizer, problem, range(first, first + 3))
    run(method, *twin, range(first + 3))
    assert_same(values(problem), values(twin[1]))
    assert optimizer.skipped_steps == 1


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_an_error_changes_nothing(method, fault):
    optimizer, problem = method.start(on_nonfinite="error")
    run(method, optimizer, problem, range(2))
    before = snapshot(optimizer, problem)
    with pytest.raises(RuntimeError, match=r"(Inf in \d+ elements|returned (nan|inf)).*nothing was changed"):
        faulty_step(method, optimizer, problem, 99, fault)
    assert_unchanged(before, snapshot(optimizer, problem))
    assert optimizer.skipped_steps == 0
    run(method, optimizer, problem, range(2, 4))


def test_checking_changes_no_result(method):
    (watched, problem), (plain, twin) = method.start(on_nonfinite="error"), method.start()
    run(method, watched, problem, range(4))
    run(method, plain, twin, range(4))
    assert_same(values(problem), values(twin))
    assert str(watched.state_dict()) == str(plain.state_dict()), "a checkpoint does not depend on the policy"


def test_policy_and_count_are_not_in_the_state_dict(method):
    optimizer, problem = method.start(on_nonfinite="skip")
    faulty_step(method, optimizer, problem, 0, {"scale": math.nan})
    twin = copy.deepcopy(optimizer)
    assert (twin.on_nonfinite, twin.skipped_steps) == ("skip", 1)
    other, _ = copied(method, problem)
    other.load_state_dict(optimizer.state_dict())
    assert (other.on_nonfinite, other.skipped_steps) == (None, 0)
    optimizer.load_state_dict(other.state_dict())
    assert (optimizer.on_nonfinite, optimizer.skipped_steps) == ("skip", 1)


def test_bad_policies(method):
    with pytest.raises(
        ValueError,
        match=r"on_nonfinite='ignore' is invalid: it must be None, 'error' or 'skip'\. Use None to skip the search",
    ):
        method.start(on_nonfinite="ignore")
    optimizer, _ = method.start()
    group = {"params": [torch.nn.Parameter(torch.zeros(2))], **method.group, "on_nonfinite": "skip"}
    with pytest.raises(ValueError, match="on_nonfinite='skip': a step is skipped as a whole; pass it to the optimizer"):
        optimizer.add_param_group(group)
    assert optimizer.on_nonfinite is None
