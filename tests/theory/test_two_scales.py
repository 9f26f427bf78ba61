"""Compare ``thm:PDAda``, ``thm:5`` and ``thm:6`` with numbers worked out by hand."""

import itertools
import math
import random
from dataclasses import replace

import pytest

from semaopt.theory import Constants, T_for, bilevel, minmax

# kappa = 4, L_F = 10; sqrt(c_l/c_u^3) = sqrt(.5/8) = 1/4.
MINMAX = Constants(L_f=2.0, lam=0.5, sigma2=0.1, delta_f=3.0, delta_y=4.0, c_l=0.5, c_u=2.0)
# L_y = 1/2, C_0 = 2*1 + 6*4*0.25/4 + 6*4*1*16/16 + 6*9*1/4 = 41.
BILEVEL = Constants(
    lam=2.0, L_fx=1.0, L_fy=3.0, L_gy=4.0, L_gxy=0.5, L_gyy=4.0, C_fy=2.0, C_gxy=1.0, C_gyy=4.0, dim_y=3,
    sigma2=0.1, delta_f=3.0, delta_y=0.5, c_l=0.5, c_u=2.0,
)  # fmt: skip


def limits(plan, gamma, eta_y):
    """Return the limits in the order gamma, eta_y, and the three of eta_x."""
    return [c.limit for c in plan.conditions({"gamma": gamma, "eta_y": eta_y, "eta_x": 1.0})]


@pytest.mark.parametrize(("dual", "p"), [("strongly concave", 1), ("pl", 2)])
def test_thm_pdada_by_hand(dual, p):
    plan = minmax(MINMAX, T=1000, dual=dual)
    expected = [0.25, 0.125 / p, 0.25 * 0.1 * 0.5 / (48 * 2 * 4), 0.25 * 0.2 / 80, 0.5 / (2 * 10 * 4)]
    assert limits(plan, gamma=0.2, eta_y=0.1) == pytest.approx(expected)
    bound = plan.bound(100, gamma=0.2, eta_y=0.05, eta_x=1e-5)
    assert bound.objective == pytest.approx(2 * 3 / (1e-5 * 0.5 * 100))
    assert bound.estimator == pytest.approx(2 * 2 * (0.1 + 4 * 4) / (0.2 * 0.5 * 100))
    assert bound.noise == pytest.approx(8 * 2 * 0.2 * 0.1 / 0.5)
    assert bound.dual == pytest.approx(40 * p * 2 * 4 * 4 / (0.5 * 0.05 * 0.5 * 100))
    assert bound.dual_noise == pytest.approx(80 * p * 2 * 4 * 0.05 * 0.1 / (0.5 * 0.5))
    q = 2 * (168 * p * p / 2304 + 1 / 16) / 4
    by_hand = (
        2 * 16.1 / (0.2 * 100) + 8 * 0.2 * 0.1 + 42 * p * 4 * 4 / (0.05 * 0.5 * 100)
        + 84 * p * 4 * 0.05 * 0.1 / 0.5 + q * bound.total
    ) / (1 - q)  # fmt: skip
    assert plan.tracking(100, gamma=0.2, eta_y=0.05, eta_x=1e-5).total == pytest.approx(by_hand)


def test_thm_5_by_hand():
    plan = bilevel(BILEVEL, T=99)
    k = math.ceil(4 / (2 * 2) * math.log(64 * 10 * 1 / 4))
    assert plan.k == k == 6
    L_F = math.sqrt(41 * 1.25)
    expected = [0.25, 2 / 16, 0.25 * 0.1 * 2 / (32 * math.sqrt(41) * 0.5), 0.25 * 0.2 / (8 * L_F), 0.5 / (8 * L_F)]
    assert limits(plan, gamma=0.2, eta_y=0.1) == pytest.approx(expected)
    bound = plan.bound(99, gamma=0.2, eta_y=0.1, eta_x=1e-5)
    C_1 = 0.2 + 6 * 0.1 * 2.25 * 4.1 + 24 * 1 * 2.25 * 4.1 + 6 * 1 * 2.25 * 0.1
    bias = (1 * 2 / 2) ** 2 * (1 - 2 / 4) ** 12
    assert bound.objective == pytest.approx(2 * 3 / (1e-5 * 0.5 * 99))
    assert bound.estimator == pytest.approx(4 * 2 * (C_1 + 2 * 41 * 0.5 + 2 * bias) / (0.2 * 99))
    assert bound.noise == pytest.approx(4 * 2 * 0.2 * C_1)
    assert bound.lower == pytest.approx(4 * 32 * 41 * 0.5 / (0.1 * 2 * 99))
    assert bound.lower_noise == pytest.approx(4 * 64 * 41 * 0.1 * 0.1 / 2)
    assert bound.bias == pytest.approx(4 * 16 * bias)
    assert bound.bias <= 4 * 2**2 / (4 * math.sqrt(100))  # k is chosen for this, times c_u C_fy^2/c_l
    q = 2 * (136 / 1024 + 1 / 16) / 4
    by_hand = (
        2 * (C_1 + 41 + 2 * bias) / (0.2 * 99) + 2 * 0.2 * C_1 + 34 * 41 * 0.5 / (0.1 * 2 * 99)
        + 68 * 41 * 0.1 * 0.1 / 2 + 16 * bias + q * bound.total
    ) / (1 - q)  # fmt: skip
    assert plan.tracking(99, gamma=0.2, eta_y=0.1, eta_x=1e-5).total == pytest.approx(by_hand)


def test_thm_6_by_hand():
    plan = bilevel(BILEVEL, T=99, method="sbma")
    bound = plan.bound(99, gamma=0.2, eta_y=0.1, eta_x=1e-5)
    # Weights of f_x, f_y, g_xy and the inverse: 2, 6*1/4, 6*4/4, 6*1*4; the inverse has variance 3 (6/4)^2.
    spread = (2 + 1.5 + 6) * 0.1 + 24 * 3 * 2.25
    bias = 24 * 3 * (1 / 2) ** 2 * (1 - 2 / 4) ** 12
    assert bound.estimator == pytest.approx(4 * 2 * (spread + 2 * 41 * 0.5 + 2 * bias) / (0.2 * 99))
    assert bound.noise == pytest.approx(4 * 4 * 0.2 * spread)
    assert bound.lower == pytest.approx(4 * 40 * 41 * 0.5 / (0.1 * 2 * 99))
    assert bound.lower_noise == pytest.approx(4 * 80 * 41 * 0.1 * 0.1 / 2)
    assert bound.bias == pytest.approx(4 * 12 * bias)
    q = 2 * (168 / 1024 + 1 / 16) / 4
    by_hand = (
        2 * (spread + 41 + 2 * bias) / (0.2 * 99) + 4 * 0.2 * spread + 42 * 41 * 0.5 / (0.1 * 2 * 99)
        + 84 * 41 * 0.1 * 0.1 / 2 + 12 * bias + q * bound.total
    ) / (1 - q)  # fmt: skip
    assert plan.tracking(99, gamma=0.2, eta_y=0.1, eta_x=1e-5).total == pytest.approx(by_hand)


@pytest.mark.parametrize(
    "plan",
    [
        minmax(MINMAX, T=1000),
        minmax(MINMAX, T=10**7, dual="pl"),
        minmax(Constants(L_f=1.0, lam=1.0, sigma2=0.0, delta_f=1.0, delta_y=0.0), T=100),
        bilevel(BILEVEL, T=10**6),
        bilevel(BILEVEL, T=10**3, method="sbma"),
    ],
    ids=["minmax", "minmax-pl", "noiseless", "smb", "sbma"],
)
def test_no_allowed_rates_have_a_smaller_bound_than_the_plan(plan):
    assert plan.violations() == []
    generator = random.Random(0)
    legal = 0
    for _ in range(500):
        rates = {name: value * 2 ** generator.uniform(-1, 1) for name, value in plan.rates.items()}
        if not plan.violations(**rates):
            legal += 1
            assert plan.bound(**rates) >= plan.bound() * (1 - 1e-9)
    assert legal > 20


def test_orders_in_t_and_kappa():
    def plan(kappa, T):
        return minmax(Constants(L_f=1.0, lam=1 / kappa, sigma2=1.0, delta_f=1.0, delta_y=0.0), T)

    far, farther = plan(100.0, 10**12), plan(100.0, 4 * 10**12)
    for name in ("eta_x", "eta_y", "gamma"):
        assert far.rates[name] / farther.rates[name] == pytest.approx(2, rel=1e-3)
    assert far.bound() / farther.bound() == pytest.approx(2, rel=1e-3)
    assert plan(400.0, 10**12).bound() / far.bound() == pytest.approx(8, rel=0.05)  # kappa^(3/2)
    assert far.eta_x / plan(400.0, 10**12).eta_x == pytest.approx(8, rel=0.05)


def test_violations_and_the_nearest_allowed_rates():
    plan = minmax(MINMAX, T=1000)
    found = plan.violations(gamma=0.25, eta_y=1.0, eta_x=1.0)
    assert [bad.name for bad in found] == ["gamma", "eta_y", "eta_x", "eta_x", "eta_x"]
    assert "gamma < 1/4" in str(found[0])
    assert found[1].factor == pytest.approx(8)
    assert plan.violations(**found[0].nearest) == []


def test_assumptions_and_missing_constants_are_named():
    known = {"L_f": 2.0, "lam": 0.5, "sigma2": 0.1, "delta_f": 3.0}
    assert minmax(Constants(**known), T=9).bound().assumes == ("y_0 = y*(x_0), because delta_y was not given",)
    assert minmax(Constants(**known, delta_y=0.0), T=9).bound().assumes == ()
    with pytest.raises(ValueError, match=r"thm:PDAda needs lam, lambda: f\(x, \.\)"):
        minmax(Constants(L_f=2.0, sigma2=0.1, delta_f=3.0), T=9)
    with pytest.raises(ValueError, match=r"thm:6 needs .*dim_y, the dimension of y"):
        bilevel(Constants(sigma2=0.1), T=9, method="sbma")
    with pytest.raises(ValueError, match=r"dual='concave' is invalid: it must be one of 'strongly concave', 'pl'"):
        minmax(MINMAX, T=9, dual="concave")
    with pytest.raises(ValueError, match=r"c=1.0 is invalid: it must be 0: thm:PDAda assumes a variance <= sigma2"):
        minmax(Constants(**known, c=1.0), T=9)


#: The constants of thm:5 and thm:6 that may be zero.
ZEROS = ("sigma2", "L_fx", "L_fy", "L_gxy", "L_gyy", "C_fy", "C_gxy")


@pytest.mark.parametrize("method", ["smb", "sbma"])
@pytest.mark.parametrize(
    "over", [{}, {"delta_y": None}, {"estimator_error": 0.0}, {"L": 2.0}, {"L": 2.0, "estimator_error": 0.0}], ids=str
)
def test_zero_constants_give_a_plan_or_an_error_that_names_the_constant(method, over):
    refused = set()
    for count in range(len(ZEROS) + 1):
        for names in itertools.combinations(ZEROS, count):
            try:
                plan = bilevel(replace(BILEVEL, **dict.fromkeys(names, 0.0), **over), T=1000, method=method)
            except ValueError as error:
                refused.add(str(error).partition("=")[0])
                continue
            assert plan.violations() == []
            assert all(0 < rate < math.inf for rate in plan.rates.values())
            assert 0 <= plan.bound() < math.inf
            assert 0 <= plan.tracking() < math.inf
    still = {"delta_y"} if over.get("delta_y", 0.5) is None else set()
    linear = set() if "L" in over else {"L_F"}
    known = {"estimator_error"} if method == "sbma" and over.keys() == {"L", "estimator_error"} else set()
    assert refused == still | linear | known


def test_errors_for_problems_without_best_rates():
    flat = dict.fromkeys(("L_fx", "L_fy", "L_gxy", "L_gyy"), 0.0)
    with pytest.raises(
        ValueError, match=r"L_F=0\.0 is invalid: it must be positive: otherwise F is linear.*\. Pass a positive L, L_fx"
    ):
        bilevel(replace(BILEVEL, **flat), T=9)
    with pytest.raises(ValueError, match=r"delta_y=None is invalid: y\*\(x\) is constant .*\. Pass delta_y > 0"):
        bilevel(replace(BILEVEL, C_gxy=0.0, delta_y=None), T=9)
    text = r"estimator_error=0\.0 is invalid: grad F is constant and known .*\. Leave it out"
    with pytest.raises(ValueError, match=text):
        bilevel(replace(BILEVEL, **flat, L=1.0, estimator_error=0.0), T=9, method="sbma")


@pytest.mark.parametrize("epsilon", ["a", None, True, 0.0, math.nan])
@pytest.mark.parametrize("theorem", ["constant", "decreasing", "pl", "minmax", "bilevel"])
def test_t_for_needs_a_number(theorem, epsilon):
    simple = Constants(L=2.0, mu=0.5, delta_f=1.0, sigma2=0.1)
    c = {"minmax": MINMAX, "bilevel": BILEVEL}.get(theorem, simple)
    with pytest.raises(ValueError, match=rf"epsilon={epsilon!r} is invalid: it must .*\. It is the accuracy"):
        T_for(theorem, c, epsilon)


def test_t_for_of_a_large_epsilon():
    assert T_for("minmax", MINMAX, 1e300) == T_for("bilevel", BILEVEL, 1e300) == 1


def test_t_for():
    T = minmax(MINMAX, T=9).T_for(10.0)
    assert T_for("minmax", MINMAX, 10.0) == T
    assert minmax(MINMAX, T).bound() <= 100 < minmax(MINMAX, T - 1).bound()
    T = T_for("bilevel", BILEVEL, 30.0)
    assert bilevel(BILEVEL, T).bound() <= 900


def test_mean_of_the_sampled_inverse():
    """Compute the mean of k terms with p uniform on 0..k-1, for g_yy = diag(.5, 1, 2) and C = 2.5."""
    eigenvalues, C, k = (0.5, 1.0, 2.0), 2.5, 200
    for value in eigenvalues:
        mean = sum((1 - value / C) ** p for p in range(k)) / C
        assert mean == pytest.approx(1 / value, abs=(1 - value / C) ** k / value + 1e-12)
        from_one = sum((1 - value / C) ** p for p in range(1, k + 1)) / C
        assert from_one == pytest.approx(1 / value - 1 / C, abs=1e-12)  # with the paper's range of p


@pytest.mark.parametrize("method", ["smb", "sbma"])
def test_t_for_of_a_bilevel_problem_is_minimal_where_k_jumps(method):
    """Where k grows, the bound jumps up: an accuracy reached just before the jump is not reached just after it."""
    bounds = [bilevel(BILEVEL, T, method=method).bound() for T in range(1, 1000)]
    jumps = [T for T in range(1, len(bounds)) if bounds[T] > bounds[T - 1]]
    assert len(jumps) >= 2
    plan = bilevel(BILEVEL, 1, method=method)
    for T in (*jumps, *(jump + 1 for jump in jumps), 1, 77, 500):
        epsilon = math.sqrt(bounds[T - 1]) * (1 + 1e-6)
        assert plan.T_for(epsilon) == next(t for t, bound in enumerate(bounds, 1) if bound <= epsilon**2)
