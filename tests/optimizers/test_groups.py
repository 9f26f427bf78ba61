"""Tools that look for torch's momentum find beta."""

import copy
import io

import pytest
import torch
from torch.optim.lr_scheduler import CyclicLR, OneCycleLR

import semaopt


def make():
    return semaopt.ASA([torch.nn.Parameter(torch.ones(2))], lr=0.1, beta=0.9)


@pytest.mark.parametrize(
    "schedule",
    [
        lambda opt, **kw: OneCycleLR(opt, max_lr=0.5, total_steps=10, **kw),
        lambda opt, **kw: CyclicLR(opt, base_lr=0.1, max_lr=0.5, **kw),
    ],
    ids=["OneCycleLR", "CyclicLR"],
)
def test_a_momentum_of_the_schedulers_own_is_refused(schedule):
    with pytest.raises(ValueError, match=r"momentum of this optimizer is group\['beta'\]\. Pass cycle_momentum=False"):
        schedule(make())
    schedule(make(), cycle_momentum=False)


def reloaded(optimizer):
    saved = io.BytesIO()
    torch.save(optimizer.state_dict(), saved)
    saved.seek(0)
    other = make()
    other.load_state_dict(torch.load(saved, weights_only=True))
    return other


@pytest.mark.parametrize("clone", [lambda o: o, copy.deepcopy, reloaded], ids=["original", "copy", "reloaded"])
def test_momentum_reads_as_beta(clone):
    optimizer = clone(make())
    assert "momentum" in optimizer.defaults
    assert "betas" not in optimizer.defaults
    (group,) = optimizer.param_groups
    assert group.get("momentum", 0) == 0.9
    group["beta"] = 0.5
    assert group.get("momentum", 0) == 0.5
    assert "momentum" not in group
    assert "momentum" not in optimizer.state_dict()["param_groups"][0]


def test_a_group_that_is_not_averaged_has_no_momentum():
    x, y = (torch.nn.Parameter(torch.ones(1)) for _ in range(2))
    optimizer = semaopt.PDSM([x], [y], beta=0.9)
    assert [group.get("momentum", 0) for group in optimizer.param_groups] == [0.9, 0]
