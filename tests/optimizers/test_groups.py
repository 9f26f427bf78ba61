"""Rejection of torch schedulers that cycle the momentum themselves."""

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
def test_momentum_cycling_schedulers_are_refused(schedule):
    with pytest.raises(
        ValueError, match=r"the momentum of this optimizer.*group\['beta'\]\. Pass cycle_momentum=False"
    ):
        schedule(make())
    schedule(make(), cycle_momentum=False)
    assert "momentum" not in make().defaults
    assert "beta" in make().defaults
