"""Compare ``thm:min_PL`` with numbers worked out by hand."""

import math

import pytest

import semaopt
from semaopt.theory import Constants, T_for, pl

C = Constants(L=2.0, mu=0.5, sigma2=3.0, c=0.5, delta_f=5.0, c_l=0.5, c_u=2.0)


def test_the_stages_by_hand():
    plan = pl(C, epsilon=5.0)
    assert plan.epsilon_0 == 33.0  # delta_0 = 3 (1 + 0.5 * 2 * 2 * 5) is the larger one
    assert len(plan.stages) == 3  # 33 -> 16.5 -> 8.25 -> 4.125
    for k, stage in enumerate(plan.stages):
        gamma = min(0.5 * 0.5 * 33 / 2**k / (24 * 2 * 3), 1 / 48)
        eta = min(gamma / 32, 1 / (2 * math.sqrt(2) * 2 * 2), 1 / 32)
        assert stage.gamma == pytest.approx(gamma)
        assert stage.eta == pytest.approx(eta)
        assert math.ceil(max(48 * 2 / (0.5 * gamma * 0.5), 6 / (0.5 * eta * 0.5))) == stage.T
    assert plan.T == sum(stage.T + 1 for stage in plan.stages) == T_for("pl", C, 5.0)


def test_each_stage_halves_the_bound():
    plan, steps = pl(C, epsilon=1.0), 0
    assert plan.bound(0) == plan.bound(plan.stages[0].T) == 5.0
    for k, stage in enumerate(plan.stages):
        steps += stage.T + 1
        assert plan.bound(steps) <= 33 / 2 ** (k + 1)
        assert plan.bound(steps).objective <= 33 / 2**k / 3
    assert plan.bound() == plan.bound(steps) <= 1.0


@pytest.mark.parametrize("mu", [0.1, 1.0, 5.0, 40.0])
def test_the_carried_error_stays_bounded_for_every_mu(mu):
    """E|v_k - grad F(x_k)|^2 <= B eps_k carries over to the next stage, even for mu so large that 48 is too small."""
    c = Constants(L=40.0, mu=mu, sigma2=1.0, delta_f=1.0)
    B = max(4.0, 22 / 9 * mu)
    for k, stage in enumerate(pl(c, epsilon=0.1).stages):
        epsilon = 1.0 / 2**k
        carried, n = B * epsilon, stage.T + 1
        gradient = 4 * epsilon / (stage.eta * n) + 2 * carried / (stage.gamma * n) + 4 * stage.gamma
        tracking = 4 / 3 * (carried / (stage.gamma * n) + 2 * stage.gamma + 3 / 4 * gradient)
        assert gradient / (2 * mu) <= epsilon / 2
        assert tracking <= B * epsilon / 2


def test_orders_in_mu_and_epsilon():
    def steps(mu, epsilon):
        return pl(Constants(L=1.0, mu=mu, sigma2=1.0, delta_f=1.0), epsilon).T

    assert steps(0.01, 0.25) / steps(0.02, 0.25) == pytest.approx(4, rel=1e-3)
    assert steps(0.01, 2**-12) / steps(0.01, 2**-11) == pytest.approx(2, rel=1e-3)


def test_violations_of_stages():
    plan = pl(C, epsilon=10.0)
    assert plan.violations() == []
    good = plan.stages[0]
    short = plan.violations([semaopt.Stage(good.eta, good.gamma, good.T // 2)])
    assert [bad.name for bad in short] == ["1/T"]
    assert short[0].factor == pytest.approx(2, rel=1e-3)
    wild = plan.violations([good, semaopt.Stage(1.0, 1.0, good.T)])
    assert {bad.name for bad in wild} == {"gamma", "eta"}
    legal = wild[0].nearest
    fixed = semaopt.Stage(legal["stages[1].eta"], legal["stages[1].gamma"], int(legal["stages[1].T"]))
    assert plan.violations([good, fixed]) == []


def test_invalid_epsilon_and_missing_mu():
    with pytest.raises(
        ValueError, match=r"epsilon=33.0 is invalid: it must lie between 0 and max\(delta_f, delta_0\) = 33"
    ):
        pl(C, epsilon=33.0)
    with pytest.raises(ValueError, match=r"thm:min_PL needs mu, the PL constant of F"):
        pl(Constants(L=1.0, sigma2=1.0, delta_f=1.0), 0.1)
