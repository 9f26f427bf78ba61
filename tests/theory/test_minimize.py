"""Compare ``thm:2`` and ``thm:SHB_decrease`` with numbers worked out by hand."""

import itertools
import math
import random

import pytest

from semaopt.theory import Bound, Constants, T_for, constant, decreasing

# gamma <= 0.5/(8*2*3*0.5) = 1/48; eta <= gamma sqrt(.5)/(2*2*sqrt(8)) = gamma/16; 1/(sqrt(2)*2*2); .5/(2*2*4) = 1/32.
C = Constants(L=2.0, sigma2=3.0, c=0.5, delta_f=5.0, c_l=0.5, c_u=2.0)


LOW_NOISE = Constants(L=1.0, sigma2=0.01, delta_f=1.0)
NO_NOISE = Constants(L=1.0, sigma2=0.0, delta_f=1.0)


def test_the_bound_of_thm_2_by_hand():
    plan = constant(C, T=99)
    bound = plan.bound(99, gamma=1 / 48, eta=1 / 768)
    assert bound.objective == pytest.approx(4 * 5 / (0.5 * 100) * 768)
    assert bound.estimator == pytest.approx(2 * 2 * 33 / (0.5 * 100) * 48)  # D_0 = 3 (1 + 0.5 * 2 * 2 * 5)
    assert bound.noise == pytest.approx(4 * 3 * 2 / 0.5 / 48)
    assert bound.total == bound == pytest.approx(307.2 + 126.72 + 1.0)


def test_the_tracking_bound_of_thm_2_by_hand():
    plan = constant(C, T=99, tracking=True)
    gradient = 4 * 5 / (0.5 * 100) * 1536 + 126.72 + 1.0  # at half the step size
    bound = plan.tracking(99, gamma=1 / 48, eta=1 / 1536)
    assert bound == pytest.approx(4 / 3 * (33 * 48 / 100 + 2 * 3 / 48 + 3 * 0.5 / (4 * 2) * gradient))
    with pytest.raises(ValueError, match=r"thm:2 for the tracking error does not hold: eta=.* is 2 times too large"):
        plan.tracking(99, gamma=1 / 48, eta=1 / 768)


@pytest.mark.parametrize("tracking", [False, True])
@pytest.mark.parametrize("c", [C, LOW_NOISE, NO_NOISE])
@pytest.mark.parametrize("T", [1, 100, 10**6])
def test_no_allowed_rates_have_a_smaller_bound_than_the_plan(c, T, tracking):
    plan = constant(c, T, tracking=tracking)
    assert plan.violations() == []
    if tracking:
        assert plan.tracking() > 0
    generator = random.Random(0)
    for _ in range(300):
        gamma = plan.gamma * 2 ** generator.uniform(-3, 3)
        eta = plan.eta * 2 ** generator.uniform(-3, 3)
        if not plan.violations(gamma=gamma, eta=eta) and not (tracking and eta > _tracking_limit(c, gamma)):
            assert plan.bound(gamma=gamma, eta=eta) >= plan.bound() * (1 - 1e-9)


def _tracking_limit(c, gamma):
    ratio = math.sqrt(c.c_l / c.c_u**3) / (4 * c.L)
    return min(ratio * gamma, 1 / (2 * math.sqrt(2) * c.L * c.c_u))


def test_no_noise_needs_no_average():
    plan = constant(Constants(L=2.0, sigma2=0.0, delta_f=1.0), T=10)
    assert (plan.gamma, plan.eta) == (1.0, 0.25)
    assert plan.bound(99).total == pytest.approx(4 / (0.25 * 100))


def test_orders_in_t():
    c = Constants(L=1.0, sigma2=1.0, delta_f=1.0)
    near, far = constant(c, T=10**6 - 1), constant(c, T=4 * 10**6 - 1)
    assert near.gamma / far.gamma == pytest.approx(2)
    assert near.eta / far.eta == pytest.approx(2)
    assert near.bound() / far.bound() == pytest.approx(2)


def test_violations_name_the_rate_the_factor_and_the_nearest_values():
    plan = constant(C, T=1000)
    found = plan.violations(gamma=1.0, eta=1.0)
    assert [bad.name for bad in found] == ["gamma", "eta", "eta", "eta"]
    assert [bad.factor for bad in found] == pytest.approx([48, 16, 4 * math.sqrt(2), 32])
    assert plan.violations(**found[0].nearest) == []
    assert found[0].nearest == pytest.approx({"gamma": 1 / 48, "eta": 1 / 768})
    assert str(found[3]) == (
        "eta=1 is 32 times too large: eta <= c_l/(2 L c_u^2) = 0.03125 (lem:3: a step must decrease F). "
        "Nearest allowed: gamma=0.0208333, eta=0.00130208"
    )
    assert plan.violations(gamma=1 / 48, eta=1 / 768) == []  # on the limits
    assert [bad.condition.formula for bad in plan.violations(gamma=1 / 48, eta=1.01 / 768)] == [
        "gamma sqrt(c_l)/(2 L sqrt(c_u^3))"
    ]


def test_bound_raises_where_it_does_not_hold():
    plan = constant(C, T=1000)
    with pytest.raises(ValueError, match=r"the bound of thm:2 does not hold: eta=0.01 is 7.68 times too large"):
        plan.bound(gamma=1 / 48, eta=0.01)
    with pytest.raises(TypeError, match=r"thm:2 has no rate \['beta'\]\. It has: gamma, eta"):
        plan.violations(beta=0.9)
    with pytest.raises(ValueError, match=r"eta=0 is invalid: it must be a finite number > 0"):
        plan.violations(eta=0)
    for T in (0, 1.5, True):
        with pytest.raises(ValueError, match=r"T=.* is invalid: it must be a whole number >= 1"):
            constant(C, T)


def test_t_for_is_the_smallest():
    c = Constants(L=1.0, sigma2=1.0, delta_f=1.0)
    T = constant(c, T=10).T_for(0.5)
    assert T_for("constant", c, 0.5) == T
    assert constant(c, T).bound() <= 0.25 < constant(c, T - 1).bound()
    T = T_for("decreasing", c, 0.5)
    assert decreasing(c, T).bound() <= 0.25 < decreasing(c, T - 1).bound()
    with pytest.raises(ValueError, match=r"theorem='adam' is unknown. Choose from 'constant', 'decreasing'"):
        T_for("adam", c, 0.5)
    with pytest.raises(ValueError, match=r"epsilon=0.0 is invalid: it must be a finite number > 0"):
        T_for("constant", c, 0.0)


def test_a_bound_is_a_number_with_named_terms():
    bound = Bound({"a": 1.0, "b": 2.0}, ("y_0 = y*(x_0)",))
    assert (bound + 1, bound.a, bound.total) == (4.0, 1.0, 3.0)
    assert repr(bound) == "Bound(3 = 1 a + 2 b; assumes y_0 = y*(x_0))"
    with pytest.raises(AttributeError, match=r"Bound has no term 'c'\. It has: a, b"):
        bound.c  # noqa: B018 - the attribute raises


def test_the_bound_of_thm_shb_decrease_by_hand():
    plan = decreasing(C, T=2)
    # gamma_0 = 1/48; gamma_1, gamma_2, gamma_3 = 1/48/sqrt(2), /sqrt(3), /2; rho = 1/16 (1/32/gamma_1 is larger).
    assert plan.gamma_0 == pytest.approx(1 / 48)
    assert plan.rho == pytest.approx(1 / 16)
    assert list(plan.gamma) == pytest.approx([1 / 48, 1 / 48 / math.sqrt(2), 1 / 48 / math.sqrt(3)])
    assert plan.eta[-1] == plan.eta(2) == pytest.approx(1 / 16 / 96)
    squares = (1 / 2 + 1 / 3 + 1 / 4) / 48**2
    by_hand = (4 * 5 / 0.5 + 2 * 2 / 16 / 0.5 * (33 + 2 * 3 * squares)) / (3 / 16 / 96)
    assert plan.bound().total == pytest.approx(by_hand)
    assert plan.bound(1).total == pytest.approx(
        (40 + 0.5 * (33 + 6 * (1 / 2 + 1 / 3) / 48**2)) / (2 / 16 / 48 / math.sqrt(3))
    )


def test_the_tracking_bound_of_thm_shb_decrease_by_hand():
    plan = decreasing(C, T=2, tracking=True)
    squares = (1 / 2 + 1 / 3 + 1 / 4) / 48**2
    weighted = 4 * 5 / 0.5 * 32 + 2 * 2 / 0.5 * (33 + 6 * squares)  # sum of gamma |grad F|^2, with rho = 1/32
    assert plan.rho == pytest.approx(1 / 32)
    by_hand = 4 / 3 * (33 + 6 * squares + 3 * 0.5 / 8 * weighted) / (3 / 96)
    assert plan.tracking().total == pytest.approx(by_hand)
    with pytest.raises(ValueError, match=r"thm:SHB_decrease for the tracking error does not hold: rho="):
        decreasing(C, T=2).tracking()


@pytest.mark.parametrize("gamma_0", [0.3, 1.0, 1.5, 7.3, 40.0])
@pytest.mark.parametrize("T", [1, 7, 200])
def test_the_sum_of_squares_is_the_sum(gamma_0, T):
    plan = decreasing(Constants(L=1.0, sigma2=1.0, delta_f=1.0), T, gamma_0=gamma_0)
    by_sum = sum(min(1.0, gamma_0 / math.sqrt(t + 2)) ** 2 for t in range(T + 1))
    weight = (T + 1) * min(1.0, gamma_0 / math.sqrt(T + 2))
    assert plan.bound().noise == pytest.approx(4 * by_sum / weight, rel=1e-12)


def test_without_growing_noise_gamma_0_is_free_and_chosen():
    c = Constants(L=1.0, sigma2=1.0, delta_f=1.0)
    plan = decreasing(c, T=10_000)
    for factor in (0.5, 0.9, 1.1, 2.0):
        assert decreasing(c, T=10_000, gamma_0=factor * plan.gamma_0).bound() > plan.bound()
    assert set(decreasing(Constants(L=1.0, sigma2=0.0, delta_f=1.0), T=9).gamma) == {1.0}


def test_violations_of_the_decreasing_rates():
    plan = decreasing(C, T=100)
    assert plan.violations() == []
    assert [bad.name for bad in plan.violations(gamma_0=1.0)] == ["gamma_0", "rho"]
    assert [bad.factor for bad in plan.violations(rho=0.125)] == pytest.approx([2])
    with pytest.raises(ValueError, match=r"gamma_0=1 is 48 times too large: gamma_0 <= c_l/\(8 c_u sigma2 c\)"):
        decreasing(C, T=100, gamma_0=1.0)


def test_t_may_be_a_float_that_is_a_whole_number():
    assert constant(C, 1e6).T == 10**6
    assert constant(C, 1e6) == constant(C, 10**6)
    assert decreasing(C, 1e3).bound(1e4) == decreasing(C, 1000).bound(10_000)


def test_t_for_bounds_the_square_of_epsilon():
    c = Constants(L=1.0, sigma2=1.0, delta_f=1.0)
    assert T_for("constant", c, 0.5) == next(T for T in range(1, 10**5) if constant(c, T).bound() <= 0.5**2)


@pytest.mark.parametrize(
    "c",
    [
        Constants(L=1.9, sigma2=0.68, c=0.05, delta_f=0.6),
        Constants(L=1.5, sigma2=1.6, c=0.034, delta_f=0.1, estimator_error=0.0),
        Constants(L=14.7, sigma2=1.46, c=0.055, delta_f=0.009, estimator_error=0.0),
        Constants(L=1.0, sigma2=1.0, c=1.0, delta_f=1.0),
    ],
)
def test_t_for_of_decreasing_rates_is_minimal_where_the_bound_rises(c):
    bounds = [decreasing(c, T).bound() for T in range(1, 400)]
    assert any(later > earlier for earlier, later in itertools.pairwise(bounds)) == (c.c < 1)
    for bound in bounds[::7]:
        epsilon = math.sqrt(bound) * (1 + 1e-9)
        assert T_for("decreasing", c, epsilon) == next(T for T, b in enumerate(bounds, 1) if b <= epsilon**2)
