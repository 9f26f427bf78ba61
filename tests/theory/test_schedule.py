"""Schedules of plans, which must set lr and beta exactly as the plan prescribes."""

import pytest
import torch

import semaopt
from semaopt.theory import Constants, constant, decreasing, minmax, pl

C = Constants(L=2.0, sigma2=1.0, c=0.5, delta_f=1.0, mu=0.5)
MINMAX = Constants(L_f=2.0, lam=0.5, sigma2=0.1, delta_f=3.0, delta_y=4.0)


def make():
    return semaopt.ASA([torch.nn.Parameter(torch.ones(2))], scaling="shb")


def walk(optimizer, schedule, steps):
    seen = []
    for _ in range(steps):
        group = optimizer.param_groups[0]
        seen.append((float(group["lr"]), 1 - group["beta"]))
        optimizer.step()
        schedule.step()
    return seen


def test_constant():
    optimizer, plan = make(), constant(C, T=1000)
    assert walk(optimizer, plan.schedule(optimizer), 3) == [pytest.approx((plan.eta, plan.gamma))] * 3


def test_decreasing_ties_eta_to_the_next_gamma():
    optimizer, plan = make(), decreasing(C, T=1000)
    seen = walk(optimizer, plan.schedule(optimizer), 5)
    assert seen == [pytest.approx((plan.eta(t), plan.gamma(t))) for t in range(5)]
    assert [eta for eta, _ in seen[:-1]] == pytest.approx([plan.rho * gamma for _, gamma in seen[1:]])


def test_resume(tmp_path):
    optimizer, plan = make(), decreasing(C, T=1000)
    schedule = plan.schedule(optimizer)
    walk(optimizer, schedule, 3)
    torch.save(schedule.state_dict(), tmp_path / "schedule.pt")
    again = make()
    resumed = plan.schedule(again)
    resumed.load_state_dict(torch.load(tmp_path / "schedule.pt", weights_only=True))
    again.load_state_dict(optimizer.state_dict())
    assert walk(again, resumed, 3) == walk(optimizer, schedule, 3)
    assert resumed.get_last_gamma() == schedule.get_last_gamma()


def test_pl_gives_stages():
    optimizer, plan = make(), pl(C, epsilon=0.4)
    stages = plan.schedule(optimizer)
    assert isinstance(stages, semaopt.Stages)
    assert stages.stages == plan.stages
    while not stages.done:
        optimizer.step()
    assert stages.taken == plan.T


def test_followers_have_their_own_step_size():
    plan = minmax(MINMAX, T=1000)
    x, y = (torch.nn.Parameter(torch.ones(1)) for _ in range(2))
    optimizer = semaopt.PDSM(primal=[x], dual=[y])
    schedule = plan.schedule(optimizer)
    for _ in range(2):
        assert [group["lr"] for group in optimizer.param_groups] == [plan.eta_x, plan.eta_y]
        assert schedule.get_last_gamma() == [pytest.approx(plan.gamma), None]
        optimizer.step()
        schedule.step()
    with pytest.raises(ValueError, match=r"param groups \[1\] of PDSM hold y .* Use theory\.minmax"):
        constant(C, T=10).schedule(optimizer)
    with pytest.raises(ValueError, match=r"ASA has no param group for y, but this plan has a step size for it"):
        plan.schedule(make())
    with pytest.raises(ValueError, match=r"param group 0 of SGDA holds x but has no average \(beta=None\)"):
        plan.schedule(semaopt.baselines.SGDA(primal=[x], dual=[y]))
