"""State dict functions of torch.distributed.checkpoint, before and after the first step."""

from __future__ import annotations

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    get_state_dict,
    set_optimizer_state_dict,
    set_state_dict,
)

import semaopt
from tests.common.registry import METHODS, Method
from tests.common.test_suite import assert_same, run, values


@pytest.fixture(params=METHODS, ids=str)
def method(request: pytest.FixtureRequest) -> Method:
    return request.param


def module(problem) -> nn.Module:
    """Return a module that owns the variables of a problem."""
    return nn.ParameterList([*problem.xs, *problem.others])


@pytest.mark.parametrize("flat", [False, True])
def test_getting_the_state_before_the_first_step_changes_nothing(method, flat):
    optimizer, problem = method.start()
    twin = method.start()
    hooks = []
    optimizer.register_step_post_hook(lambda *_: hooks.append(1))
    get_state_dict(module(problem), optimizer, options=StateDictOptions(flatten_optimizer_state_dict=flat))
    assert_same(values(problem), values(twin[1]))
    assert not hooks
    run(method, optimizer, problem, range(4))
    run(method, *twin, range(4))
    assert_same(values(problem), values(twin[1]))


@pytest.mark.parametrize("flat", [False, True])
def test_resume_is_bit_exact(method, flat):
    options = StateDictOptions(flatten_optimizer_state_dict=flat)
    optimizer, problem = method.start()
    run(method, optimizer, problem, range(3))
    state = get_optimizer_state_dict(module(problem), optimizer, options=options)
    resumed, twin = method.start()
    with torch.no_grad():
        for x, value in zip((*twin.xs, *twin.others), values(problem), strict=True):
            x.copy_(value)
    set_optimizer_state_dict(module(twin), resumed, state, options=options)
    run(method, optimizer, problem, range(3, 6))
    run(method, resumed, twin, range(3, 6))
    assert_same(values(problem), values(twin))


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled, unavailable or uninitialized:UserWarning")
@pytest.mark.filterwarnings("ignore:`torch.distributed.reduce_op` is deprecated:FutureWarning")
def test_files_load_into_an_optimizer_that_has_not_stepped(method, tmp_path):
    """dcp.load needs values of the same kind: SBMA and SCMA had None where the file has a tensor of unknown shape."""
    optimizer, problem = method.start()
    run(method, optimizer, problem, range(3))
    model, state = get_state_dict(module(problem), optimizer)
    dcp.save({"model": model, "optimizer": state}, checkpoint_id=tmp_path)
    fresh, twin = method.start()
    model, state = get_state_dict(module(twin), fresh)
    found = {"model": model, "optimizer": state}
    dcp.load(found, checkpoint_id=tmp_path)
    set_state_dict(module(twin), fresh, model_state_dict=found["model"], optim_state_dict=found["optimizer"])
    run(method, optimizer, problem, range(3, 6))
    run(method, fresh, twin, range(3, 6))
    assert_same(values(problem), values(twin))


def test_a_step_with_zero_gradients_is_a_step():
    """Only the call with which torch creates states is no step: no state, lr 0, gradients 0, ``closure=None``."""
    x = nn.Parameter(torch.ones(2))
    optimizer = semaopt.ASA([x], lr=0.1)
    x.grad = torch.zeros(2)
    optimizer.step(closure=None)
    assert optimizer.state[x]["step"] == 1
