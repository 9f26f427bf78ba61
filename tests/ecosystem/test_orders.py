"""Tools attached to one optimizer: in any order, copied, pickled and reloaded they see the same run."""

from __future__ import annotations

import copy
import itertools
import pickle
import random

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.optim.lr_scheduler import CosineAnnealingLR

import semaopt
from semaopt.diagnostics import Monitor
from semaopt.schedules import Follow
from tests.common.registry import METHODS
from tests.common.test_suite import assert_same, run, saved, values

STAGES = [semaopt.Stage(0.1, 0.5, 3), semaopt.Stage(0.05, 0.2, 4), semaopt.Stage(0.02, 0.1, 30)]
STEPS = 15
CLONES = pytest.mark.parametrize(
    "clone", [copy.deepcopy, lambda parts: pickle.loads(pickle.dumps(parts))], ids=["copy", "pickle"]
)


def parameter():
    return nn.Parameter(torch.tensor([1.0, -2.0], dtype=torch.float64))


def advance(x, optimizer, steps, schedules=()):
    for k in steps:
        noise = torch.randn(2, generator=torch.Generator().manual_seed(k), dtype=torch.float64)
        x.grad = x.detach() + noise
        optimizer.step()
        for schedule in schedules:
            schedule.step()


@pytest.mark.parametrize("order", [*itertools.permutations(range(3))], ids=str)
@pytest.mark.parametrize("rates", ["follow", "stages"])
def test_any_order_of_attaching_gives_the_same_run(rates, order):
    results = []
    for each in (range(3), order):
        x = parameter()
        optimizer, made = semaopt.ASA([x], lr=0.1, beta=0.5), {}
        for k in each:
            if k == 0:
                follow = rates == "follow"
                made[0] = Follow(CosineAnnealingLR(optimizer, 50)) if follow else semaopt.Stages(optimizer, STAGES)
            elif k == 1:
                made[1] = semaopt.Iterates(optimizer, seed=2)
            else:
                made[2] = Monitor(optimizer, lambda x=x: x.square().sum() / 2, every=1).__enter__()
        advance(x, optimizer, range(STEPS), [made[0]] if rates == "follow" else [])
        kept = [x.detach(), *made[1].sampled(), *made[1].average(), *made[1].estimate()]
        results.append((made[2].history, kept))
    assert results[0][0] == results[1][0]
    assert_same(results[0][1], results[1][1])


@CLONES
def test_copies_of_tools_stay_attached(clone):
    """Torch copies an optimizer without its hooks: copies of Iterates and Stages used to see no further step."""
    x = parameter()
    optimizer = semaopt.ASA([x])
    stages, iterates = semaopt.Stages(optimizer, STAGES, seed=1), semaopt.Iterates(optimizer, seed=2)
    removed = semaopt.Iterates(optimizer)
    advance(x, optimizer, range(5))
    removed.remove()
    twin = clone((x, optimizer, stages, iterates, removed))
    advance(x, optimizer, range(5, STEPS))
    advance(twin[0], twin[1], range(5, STEPS))
    assert torch.equal(x, twin[0])
    assert (stages.k, stages.taken) == (twin[2].k, twin[2].taken) == (2, STEPS)
    assert (iterates.t, iterates.tau) == (twin[3].t, twin[3].tau)
    assert removed.t == twin[4].t == 5
    for read in (semaopt.Iterates.average, semaopt.Iterates.sampled, semaopt.Iterates.estimate):
        assert_same(read(iterates), read(twin[3]))


@CLONES
def test_a_copy_of_finished_stages_refuses_a_further_step(clone):
    x = parameter()
    optimizer = semaopt.ASA([x])
    stages = semaopt.Stages(optimizer, STAGES[:1])
    advance(x, optimizer, range(4))
    y, twin, copied = clone((x, optimizer, stages))
    y.grad = torch.ones_like(y)
    with pytest.raises(RuntimeError, match="All 1 stages have ended after 4 steps"):
        twin.step()
    copied.remove()
    twin.step()


def test_an_active_monitor_cannot_be_copied():
    """A copy would be attached to nothing, and would keep showing the old numbers."""
    x = parameter()
    optimizer = semaopt.ASA([x])
    with Monitor(optimizer, every=1) as monitor:
        advance(x, optimizer, range(2))
        with pytest.raises(TypeError, match=r"An active monitor cannot be copied.*create another monitor"):
            copy.deepcopy((optimizer, monitor))
    assert len(copy.deepcopy(monitor).history) == 2


LEAVES = (
    lambda opt: CosineAnnealingLR(opt, 7),
    lambda opt: lr_scheduler.ExponentialLR(opt, 0.8),
    lambda opt: lr_scheduler.StepLR(opt, 3, 0.5),
    lambda opt: lr_scheduler.LinearLR(opt, 0.1, total_iters=4),
    lambda opt: lr_scheduler.ConstantLR(opt, 0.5, total_iters=3),
    lambda opt: lr_scheduler.CosineAnnealingWarmRestarts(opt, 4),
)


def nest(optimizer, wrap, numbers, depth=0):
    """A random tree of sequences and chains; torch cannot start a chain in the middle of a sequence."""
    kind = numbers.choice(["leaf", "sequence", "chain"] if depth < 2 else ["leaf"])
    if kind == "leaf":
        return wrap(numbers.choice(LEAVES)(optimizer))
    parts = [nest(optimizer, wrap, numbers, depth + 1)]
    parts.append(wrap(numbers.choice(LEAVES)(optimizer)))
    if kind == "chain":
        return lr_scheduler.ChainedScheduler(parts)
    return lr_scheduler.SequentialLR(optimizer, parts, [numbers.choice([3, 5])])


@pytest.mark.filterwarnings(r"ignore:Detected call of `lr_scheduler\.step\(\)` before:UserWarning")
@pytest.mark.parametrize("seed", range(20))
def test_nests_of_followed_schedulers(seed):
    """lr is the same as in this nest without Follow, and gamma is proportional to it in every step."""
    rates = []
    for wrap in (lambda schedule: schedule, Follow):
        optimizer, seen = semaopt.ASA([parameter()], lr=0.1, beta=0.9), []
        schedule = nest(optimizer, wrap, random.Random(seed))
        for _ in range(12):
            optimizer.step()
            seen.append((optimizer.param_groups[0]["lr"], 1 - optimizer.param_groups[0]["beta"]))
            schedule.step()
        rates.append(seen)
    assert [lr for lr, _ in rates[0]] == [lr for lr, _ in rates[1]]
    assert [gamma for _, gamma in rates[1]] == pytest.approx([lr for lr, _ in rates[1]])  # gamma_0 = lr_0


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_checkpoints_before_the_first_step(method):
    """Load into a fresh optimizer and into one that has taken steps: both start over."""
    optimizer, problem = method.start()
    state = saved(optimizer.state_dict())
    start = values(problem)
    run(method, optimizer, problem, range(3))
    for steps in (0, 2):
        resumed, twin = method.start()
        run(method, resumed, twin, range(20, 20 + steps))
        with torch.no_grad():
            for x, value in zip((*twin.xs, *twin.others), start, strict=True):
                x.copy_(value)
        resumed.load_state_dict(state)
        run(method, resumed, twin, range(3))
        assert_same(values(problem), values(twin))
