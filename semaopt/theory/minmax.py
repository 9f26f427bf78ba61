r"""``thm:PDAda``: PDSM and PDAda, for f strongly concave in y or concave and PL in y.

With :math:`\Delta_t = |v_{t+1} - \nabla F(x_t)|^2` and :math:`\delta_t = |y_t - y^*(x_t)|^2`, ``lem:var_x`` and
``lem:03`` summed over the steps 0..T give

.. math::
    \sum\Delta_t &\le \frac{2\Delta_0}{\gamma} + 8\gamma\sigma^2(T+1) + 20L_f^2\sum\delta_{t+1}
    + \frac{4L_F^2\eta_x^2c_u^2}{\gamma^2}\sum|v_{t+1}|^2 \\
    \sum\delta_t &\le p\Big[\frac{2\delta_0}{\eta_y\lambda} + \frac{4\eta_y\sigma^2(T+1)}{\lambda}\Big]
    + p^2\,\frac{8\kappa^2\eta_x^2c_u^2}{\eta_y^2\lambda^2}\sum|v_{t+1}|^2

with p = 1 under strong concavity. Under dual PL, ``lem:03_withoutSC`` contracts half as fast. So p = 2, and **two of
the five terms of the bound double**, which the paper does not say. Its limit of :math:`\eta_x` still suffices, since
:math:`160p^2/48^2 + 4/64 \le 1/2`. Under dual PL, :math:`\delta_t` must be the squared distance to the *set* of
maximizers: quadratic growth holds for the nearest maximizer, not for the sequence of maximizers that the paper chooses.
With distances to the set the proof is the same.
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

DUALS = ("strongly concave", "pl")


@dataclass(frozen=True)
class MinMaxPlan(TwoScalePlan):
    """The plan that :func:`minmax` returns: ``eta_x``, ``eta_y``, ``gamma``, ``bound(T)``, ``violations(...)``."""

    dual: str = field(default=DUALS[0])
    label: ClassVar[str] = "thm:PDAda"

    def conditions(self, values: Mapping[str, float]) -> list[Condition]:
        formulas = {
            "eta_y": "lambda/L_f^2" if self.dual == DUALS[0] else "lambda/(2 L_f^2)",
            "x_per_y": "sqrt(c_l/c_u^3) eta_y lambda/(48 L_f kappa)",
            "x_per_gamma": "sqrt(c_l/c_u^3) gamma/(8 L_F)",
            "eta_x": "c_l/(2 L_F c_u^2)",
        }
        return limit_conditions(limits(self.constants, self.dual), values, formulas, "lem:var_x")

    def terms(self, T: int, values: Mapping[str, float]) -> dict[str, float]:
        """Return the five terms of the bound.

        They are, with p = 1 or 2, 2 D_F/(eta_x c_l T) + 2 c_u D_x0/(gamma c_l T) + 8 c_u gamma sigma^2/c_l
        + 40 p c_u L_f^2 d_y0/(c_l eta_y lambda T) + 80 p c_u L_f^2 eta_y sigma^2/(c_l lambda).
        """
        k = costs(self.constants, self.dual)
        return {
            "objective": k.over_eta_x / (values["eta_x"] * T),
            "estimator": k.over_gamma / (values["gamma"] * T),
            "noise": k.times_gamma * values["gamma"],
            "dual": k.over_eta_y / (values["eta_y"] * T),
            "dual_noise": k.times_eta_y * values["eta_y"],
        }

    def tracking_terms(self, T: int, values: Mapping[str, float]) -> dict[str, float]:
        r"""Return the terms of the bound of avg E[Delta + L_f^2 delta].

        Use the two sums above with 21 in place of 20, and :math:`|v|^2 \le 2\Delta + 2|\nabla F|^2`. The step sizes
        bound the coefficient q/2 of :math:`|v|^2` by :math:`(c_l/c_u)(168p^2/48^2 + 4/64)`; then divide by 1 - q.
        """
        c, p = self.constants, _slowness(self.dual)
        q = 2 * (168 * p**2 / 48**2 + 4 / 64) / c.ratio
        L_f, lam, sigma2 = c.get("L_f"), c.get("lam"), c.get("sigma2")
        parts = {
            "estimator": 2 * first_error(c) / (values["gamma"] * T),
            "noise": 8 * values["gamma"] * sigma2,
            "dual": 42 * p * L_f**2 * (c.delta_y or 0.0) / (values["eta_y"] * lam * T),
            "dual_noise": 84 * p * L_f**2 * values["eta_y"] * sigma2 / lam,
            "gradient": q * math.fsum(self.terms(T, values).values()),
        }
        return {name: value / (1 - q) for name, value in parts.items()}

    def T_for(self, epsilon: float) -> int:
        """Return the smallest T for which :func:`minmax` promises avg E|grad F|^2 <= epsilon^2."""
        return steps_for(epsilon, lambda T: minmax(self.constants, T, dual=self.dual).bound())


def minmax(c: Constants, T: int, *, dual: str = DUALS[0]) -> MinMaxPlan:
    r"""Return the rates of ``thm:PDAda`` for the steps 0..T that minimize its bound.

    They have the orders of the theorem: :math:`\gamma, \eta_y = O(\sqrt{\kappa/T})`, :math:`\eta_x =
    O(\kappa^{-3/2}T^{-1/2})`, and the bound is :math:`O(\kappa^{3/2}T^{-1/2})`.

    Args:
        c: needs ``L_f``, ``lam``, ``sigma2`` and ``delta_f``. Without ``delta_y`` the bound assumes 0 and says so.
            ``L``, if given, replaces L_f (1 + kappa).
        T: the last step.
        dual: ``"strongly concave"``, or ``"pl"`` if f is concave and lambda-PL in y and Y is the whole space.

    >>> c = semaopt.theory.Constants(L_f=1.0, lam=0.5, sigma2=0.01, delta_f=1.0, delta_y=1.0)
    >>> plan = semaopt.theory.minmax(c, T=1_000_000)
    >>> plan.violations(), plan.bound().total < 1
    ([], True)
    """
    T = last_step(T)
    c.need(MinMaxPlan.label, "L_f", "lam", "sigma2", "delta_f")
    require(dual in DUALS, "dual", dual, f"must be one of {', '.join(map(repr, DUALS))}", "see ass:3")
    require(
        c.c == 0,
        "c",
        c.c,
        "must be 0: thm:PDAda assumes a variance <= sigma2",
        "pass c=0.0 and a larger sigma2",
    )
    return MinMaxPlan(c, T, best_rates(limits(c, dual), costs(c, dual), T), dual)


def _slowness(dual: str) -> int:
    """Return p, the factor by which y contracts slower than under strong concavity."""
    return 1 if dual == DUALS[0] else 2


def first_error(c: Constants) -> float:
    """Return a bound of D_x0 = E|O_x(x_0, y_0) - grad F(x_0)|^2: sigma^2 + L_f^2 |y_0 - y*(x_0)|^2."""
    if c.estimator_error is not None:
        return c.estimator_error
    return c.get("sigma2") + c.get("L_f") ** 2 * (c.delta_y or 0.0)


def limits(c: Constants, dual: str) -> Limits:
    """Return the limits of the three rates."""
    scale = math.sqrt(c.c_l / c.c_u**3)
    L_f, lam = c.get("L_f"), c.get("lam")
    return Limits(
        gamma=math.nextafter(0.25, 0),
        eta_y=lam / (_slowness(dual) * L_f**2),
        eta_x=c.c_l / (2 * c.L_F * c.c_u**2),
        x_per_gamma=scale / (8 * c.L_F),
        x_per_y=scale * lam / (48 * L_f * c.kappa),
    )


def costs(c: Constants, dual: str) -> Costs:
    """Return the coefficients of the bound."""
    p, L_f, lam, sigma2 = _slowness(dual), c.get("L_f"), c.get("lam"), c.get("sigma2")
    return Costs(
        over_eta_x=2 * c.get("delta_f") / c.c_l,
        over_gamma=2 * c.ratio * first_error(c),
        times_gamma=8 * c.ratio * sigma2,
        over_eta_y=40 * p * c.ratio * L_f**2 * (c.delta_y or 0.0) / lam,
        times_eta_y=80 * p * c.ratio * L_f**2 * sigma2 / lam,
    )
