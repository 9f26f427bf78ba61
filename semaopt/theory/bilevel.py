r"""``thm:5`` and ``thm:6``: SMB, its adaptive variant, and SBMA.

``lem:sbo_var_1`` and ``lem:sbo_y_recursion``, summed over the steps 0..T, have the shape of the min-max problem,

.. math::
    \sum\Delta_t \le \frac{2\Delta_0}{\gamma} + 2\gamma V(T+1) + mC_0\sum\delta_{t+1} +
    \frac{4L^2}{\gamma^2}\sum|x_{t+1} - x_t|^2 + B(T+1), \qquad \sum\delta_t \le \frac{2\delta_0}{\eta_y\lambda} +
    \frac{4\eta_y\sigma^2(T+1)}\lambda + \frac{8L_y^2}{\eta_y^2\lambda^2}\sum|x_{t+1} - x_t|^2 ,

with m = 16 for SMB and 20 for SBMA. Deviations from the paper, with reasons:

- The bias of h enters as :math:`C_{gxy}\,\frac1\lambda(1-\lambda/C_{gyy})^k\,C_{fy}`. The paper loses the last factor;
  with its k the bias term is :math:`C_{fy}^2/(4\sqrt{T+1})`. Here B is the term itself, for the k in use:
  :math:`16(C_{gxy}C_{fy}/\lambda)^2(1-\lambda/C_{gyy})^{2k}`.
- ``lem:sbo_y_recursion`` needs :math:`\eta_y \le \lambda/L_{gy}^2`, not :math:`\lambda`.
- ``lem:sbo_var_1`` must have :math:`(1+\gamma)\gamma^2C_1` in place of :math:`\gamma^2C_1`. The three errors of the
  product are uncorrelated, as every factor has a fresh sample. So the lemma's factor 3 is not needed, which
  compensates for the factor :math:`1+\gamma`.
- ``lem:sbo_var_1_proj`` assigns its constants to the wrong errors. Its proof has :math:`2` with :math:`f_x`,
  :math:`6C_{gxy}^2/\lambda^2` with :math:`f_y`, :math:`6C_{fy}^2/\lambda^2` with :math:`g_{xy}`, and
  :math:`6C_{gxy}^2C_{fy}^2` with :math:`g_{yy}^{-1}`. With these weights the squared Lipschitz constants of the four
  pieces add up to :math:`C_0`, and SBMA has the step sizes of SMB.
- SBMA clips singular values, which is a projection in the Frobenius norm. Its matrices must be tracked in that norm,
  so the variance of h counts ``dim_y`` times. h is bounded by :math:`k/C_{gyy}` as in SMB, although ``ass:5_proj``
  does not assume :math:`C_{gyy}`. The squared bias of h is added to the mean of the sample instead of a cross term, so
  the k of SMB suffices.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from semaopt._validation import require
from semaopt.theory.constants import Constants
from semaopt.theory.plan import Condition, last_step, steps_for
from semaopt.theory.two_scales import Costs, Limits, TwoScalePlan, best_rates, limit_conditions

_NEEDED = ("sigma2", "delta_f", "lam", "L_fx", "L_fy", "L_gy", "L_gxy", "L_gyy", "C_fy", "C_gxy", "C_gyy")


@dataclass(frozen=True)
class Errors:
    """The contribution of an estimator to the bound: m, V, D_0 and B of the formula at the top of this module."""

    follow: int
    variance: float
    first: float
    bias: float


@dataclass(frozen=True)
class BilevelPlan(TwoScalePlan):
    """The plan that :func:`bilevel` returns: ``eta_x``, ``eta_y``, ``gamma``, ``k``, ``bound(T)``, ..."""

    k: int = field(default=1)
    method: ClassVar[str] = "smb"
    label: ClassVar[str] = "thm:5"

    def conditions(self, values: Mapping[str, float]) -> list[Condition]:
        formulas = {
            "eta_y": "lambda/L_gy^2",
            "x_per_y": "sqrt(c_l/c_u^3) eta_y lambda/(32 sqrt(C_0) L_y)",
            "x_per_gamma": "sqrt(c_l/c_u^3) gamma/(8 L_F)",
            "eta_x": "c_l/(2 L_F c_u^2)",
        }
        return limit_conditions(limits(self.constants, self.method), values, formulas, "lem:sbo_var_1")

    def terms(self, T: int, values: Mapping[str, float]) -> dict[str, float]:
        """Return the six terms of the bound.

        They are 2 D_F/(eta_x c_l T) + (c_u/c_l)[2 D_0/(gamma T) + 2 gamma V + 2 m C_0 d_y0/(eta_y lambda T)
        + 4 m C_0 eta_y sigma^2/lambda + B].
        """
        return bound_terms(self.constants, T, values, errors(self.constants, self.method, self.k))

    def tracking_terms(self, T: int, values: Mapping[str, float]) -> dict[str, float]:
        """Return the terms of the bound of avg E[Delta + C_0 delta], by the argument of ``thm:PDAda``."""
        c, error = self.constants, errors(self.constants, self.method, self.k)
        q = 2 * (8 * (error.follow + 1) / 32**2 + 4 / 64) / c.ratio
        lower = 2 * (error.follow + 1) * c.C_0 / c.get("lam")
        parts = {
            "estimator": 2 * error.first / (values["gamma"] * T),
            "noise": 2 * values["gamma"] * error.variance,
            "lower": lower * (c.delta_y or 0.0) / (values["eta_y"] * T),
            "lower_noise": 2 * lower * values["eta_y"] * c.get("sigma2"),
            "bias": error.bias,
            "gradient": q * math.fsum(self.terms(T, values).values()),
        }
        return {name: value / (1 - q) for name, value in parts.items()}

    def T_for(self, epsilon: float) -> int:
        """Return the smallest T for which :func:`bilevel` promises avg E|grad F|^2 <= epsilon^2."""
        enough = steps_for(epsilon, lambda T: bilevel(self.constants, T, method=self.method).bound())
        found = _first_step(self.constants, self.method, float(epsilon) * float(epsilon), 1, enough)
        return enough if found is None else found


@dataclass(frozen=True)
class SBMAPlan(BilevelPlan):
    """The plan that :func:`bilevel` returns for SBMA."""

    method: ClassVar[str] = "sbma"
    label: ClassVar[str] = "thm:6"


def bilevel(c: Constants, T: int, *, method: str = "smb") -> BilevelPlan:
    r"""Return the rates and the number k of Neumann terms of ``thm:5`` (SMB) or ``thm:6`` (SBMA).

    .. math:: k = \Big\lceil\frac{C_{gyy}}{2\lambda}\ln\frac{64\sqrt{T+1}\,C_{gxy}^2}{\lambda^2}\Big\rceil

    With ``c_l`` or ``c_u`` other than 1 the plan is for the adaptive variant, where ``lem:3`` replaces ``lem:sbo_1``.

    Args:
        c: needs ``sigma2``, ``delta_f``, ``lam`` and the Lipschitz constants and bounds of ``ass:5``. SBMA also needs
            ``dim_y``, and its ``sigma2``, ``L_gxy`` and ``L_gyy`` are in the Frobenius norm.
        T: the last step.
        method: ``"smb"`` or ``"sbma"``.

    >>> c = semaopt.theory.Constants(
    ...     sigma2=0.01, delta_f=1.0, delta_y=0.0, lam=1.0, C_gyy=2.0, C_gxy=1.0, C_fy=1.0,
    ...     L_fx=0.0, L_fy=1.0, L_gy=2.0, L_gxy=0.0, L_gyy=0.0)
    >>> plan = semaopt.theory.bilevel(c, T=9_999)
    >>> plan.k, plan.violations()
    (9, [])
    """
    T = last_step(T)
    plans = {"smb": BilevelPlan, "sbma": SBMAPlan}
    require(method in plans, "method", method, f"must be one of {', '.join(map(repr, plans))}", "thm:5 or thm:6")
    plan = plans[method]
    c.need(plan.label, *_NEEDED, *(("dim_y",) if method == "sbma" else ()))
    require(
        c.c == 0, "c", c.c, "must be 0: ass:5 assumes variances of at most sigma2", "pass c=0.0 and a larger sigma2"
    )
    linear = "must be positive: otherwise F is linear, every rate is allowed and none is the best"
    require(c.L_F > 0, "L_F", c.L_F, linear, "pass a positive L, L_fx, L_fy (with C_gxy), L_gxy or L_gyy (with C_fy)")
    k = neumann_terms(c, T)
    limit, cost = limits(c, method), costs(c, errors(c, method, k))
    _refuse_rest(c, limit, cost)
    return plan(c, T, best_rates(limit, cost, T), k)


def _refuse_rest(c: Constants, limit: Limits, cost: Costs) -> None:
    """Raise if no rate minimizes the bound, because it keeps falling as a rate tends to 0."""
    ok = limit.x_per_y < math.inf or cost.over_eta_y > 0 or cost.times_eta_y == 0
    stays = f"y*(x) is constant (L_y = {c.L_y:g}) and y_0 = y* is assumed, so the bound falls as eta_y tends to 0"
    require(ok, "delta_y", c.delta_y, stays, "pass delta_y > 0, a bound of |y_0 - y*(x_0)|^2")
    ok = limit.x_per_gamma < math.inf or cost.over_gamma > 0 or cost.times_gamma == 0
    exact = "grad F is constant and known from the start, so the bound falls as gamma tends to 0"
    require(ok, "estimator_error", c.estimator_error, exact, "leave it out, or pass estimator_error > 0")


def _first_step(c: Constants, method: str, goal: float, low: int, high: int) -> int | None:
    """Return the smallest T in low..high whose bound is at most ``goal``, or None.

    For a fixed k the bound falls with T, but it jumps up where k grows, so a bisection alone may miss an earlier T.
    Within low..high no bound is smaller than that of T = high with the variance of the smallest k and the bias of the
    largest k. Intervals in which this is too large are skipped.
    """
    k, last = neumann_terms(c, low), neumann_terms(c, high)
    if _smallest_bound(c, method, high, errors(c, method, k, bias_k=last)) > goal * (1 + 1e-9):
        return None
    if k == last:
        while low < high:
            middle = (low + high) // 2
            if bilevel(c, middle, method=method).bound() <= goal:
                high = middle
            else:
                low = middle + 1
        return high if bilevel(c, high, method=method).bound() <= goal else None
    middle = (low + high) // 2
    found = _first_step(c, method, goal, low, middle)
    return _first_step(c, method, goal, middle + 1, high) if found is None else found


def _smallest_bound(c: Constants, method: str, T: int, error: Errors) -> float:
    """Return the smallest bound after the steps 0..T for an estimator with these errors."""
    rates = best_rates(limits(c, method), costs(c, error), T)
    return math.fsum(bound_terms(c, T, rates, error).values())


def bound_terms(c: Constants, T: int, values: Mapping[str, float], error: Errors) -> dict[str, float]:
    """Return the six terms of the bound of avg E|grad F|^2."""
    k = costs(c, error)
    return {
        "objective": k.over_eta_x / (values["eta_x"] * T),
        "estimator": k.over_gamma / (values["gamma"] * T),
        "noise": k.times_gamma * values["gamma"],
        "lower": k.over_eta_y / (values["eta_y"] * T),
        "lower_noise": k.times_eta_y * values["eta_y"],
        "bias": c.ratio * error.bias,
    }


def neumann_terms(c: Constants, T: int) -> int:
    """Return the k for which the bias of h falls like 1/sqrt(T+1)."""
    C_gyy, lam, C_gxy = c.get("C_gyy"), c.get("lam"), c.get("C_gxy")
    argument = 64 * math.sqrt(T + 1) * C_gxy**2 / lam**2
    return max(1, math.ceil(C_gyy / (2 * lam) * math.log(argument))) if argument > 0 else 1


def errors(c: Constants, method: str, k: int, bias_k: int | None = None) -> Errors:
    """Return m, V, D_0 and B of SMB or SBMA with k terms; ``bias_k`` replaces k in the bias."""
    sigma2, lam, delta_y = c.get("sigma2"), c.get("lam"), c.delta_y or 0.0
    C_fy2, C_gxy2, h2 = c.get("C_fy") ** 2, c.get("C_gxy") ** 2, (k / c.get("C_gyy")) ** 2
    left_over = (1 - lam / c.get("C_gyy")) ** (2 * (bias_k or k)) / lam**2  # the squared bias of h, lem:ghadimi_h_to_g
    if method == "smb":
        # C_1 of lem:sbo_var_1.
        variance = 2 * sigma2 + 6 * h2 * (sigma2 * (C_fy2 + sigma2) + C_gxy2 * (4 * (C_fy2 + sigma2) + sigma2))
        bias = C_gxy2 * C_fy2 * left_over
        first = variance + 2 * c.C_0 * delta_y + 2 * bias
        follow, bias = 16, 16 * bias
    else:
        dim_y = c.get("dim_y")
        of_inverse = 6 * C_gxy2 * C_fy2
        pieces = 2 + 6 * C_gxy2 / lam**2 + 6 * C_fy2 / lam**2
        spread = pieces * sigma2 + of_inverse * dim_y * h2
        bias = of_inverse * dim_y * left_over
        first = spread + 2 * c.C_0 * delta_y + 2 * bias
        follow, variance, bias = 20, 2 * spread, 12 * bias
    return Errors(follow, variance, first if c.estimator_error is None else c.estimator_error, bias)


def limits(c: Constants, method: str) -> Limits:
    """Return the limits of the three rates."""
    scale = math.sqrt(c.c_l / c.c_u**3)
    lam, drift = c.get("lam"), math.sqrt(c.C_0) * c.L_y
    # SMB tracks grad F. SBMA tracks its pieces, whose Lipschitz constants may exceed that of grad F.
    L = c.L_F if method == "smb" else math.sqrt(c.C_0 * (1 + c.L_y**2))
    return Limits(
        gamma=math.nextafter(0.25, 0),
        eta_y=lam / c.get("L_gy") ** 2,
        eta_x=c.c_l / (2 * c.L_F * c.c_u**2),
        x_per_gamma=scale / (8 * L) if L > 0 else math.inf,
        x_per_y=scale * lam / (32 * drift) if drift > 0 else math.inf,
    )


def costs(c: Constants, error: Errors) -> Costs:
    """Return the coefficients of the bound."""
    lower = 2 * error.follow * c.ratio * c.C_0 / c.get("lam")
    return Costs(
        over_eta_x=2 * c.get("delta_f") / c.c_l,
        over_gamma=2 * c.ratio * error.first,
        times_gamma=2 * c.ratio * error.variance,
        over_eta_y=lower * (c.delta_y or 0.0),
        times_eta_y=2 * lower * c.get("sigma2"),
    )
