r"""``thm:2``: ASA with constant eta and gamma.

Let :math:`\Delta_t = |v_{t+1} - \nabla F(x_t)|^2`, :math:`D_F = F(x_0) - F_*` and :math:`D_0 = E\Delta_0`. Proof:
``lem:sema_mengdi`` and :math:`|x_{t+1} - x_t| \le \eta c_u|v_{t+1}|`, summed over t = 0..T, give

.. math::
    \sum\Delta_t \le \frac{D_0}{\gamma} + 2\gamma\sigma^2(T+1) + 4\gamma\sigma^2c\sum|\nabla F(x_t)|^2
    + \Big(\frac{L^2\eta^2c_u^2}{\gamma^2} + 4\gamma\sigma^2cL^2\eta^2c_u^2\Big)\sum|v_{t+1}|^2 ,

and ``lem:3``, which needs :math:`\eta \le c_l/(2Lc_u^2)`, gives

.. math:: \sum|\nabla F(x_t)|^2 \le \frac{2D_F}{\eta c_l} + \frac{c_u}{c_l}\sum\Delta_t - \frac12\sum|v_{t+1}|^2 .

Insert the first into the second. Under the conditions below, half of the left side remains and all :math:`|v|^2`
cancel. For the tracking error, insert :math:`|v_{t+1}|^2 \le 2\Delta_t + 2|\nabla F(x_t)|^2` into the first line. With
half the step size its coefficient is at most :math:`c_l/(8c_u) \le 1/8`, which the left side absorbs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch.optim import Optimizer

from semaopt.theory.constants import Constants
from semaopt.theory.plan import Bound, Condition, Plan, broken, last_step, refuse, steps_for
from semaopt.theory.schedule import Prescribed


@dataclass(frozen=True)
class ConstantPlan(Plan):
    """The plan that :func:`constant` returns: ``eta``, ``gamma``, ``bound(T)``, ``tracking(T)``, ..."""

    label: ClassVar[str] = "thm:2"

    @property
    def eta(self) -> float:
        """The step size, ``lr``."""
        return self.rates["eta"]

    @property
    def gamma(self) -> float:
        """The weight of the newest sample, 1 - ``beta``."""
        return self.rates["gamma"]

    def conditions(self, values: Mapping[str, float]) -> list[Condition]:
        return [*gamma_conditions(self.constants), *eta_conditions(self.constants, values["gamma"])]

    def terms(self, T: int, values: Mapping[str, float]) -> dict[str, float]:
        """Return the terms of 4 D_F/(eta c_l (T+1)) + 2 c_u D_0/(gamma c_l (T+1)) + 4 gamma sigma^2 c_u/c_l."""
        return bound_terms(self.constants, T, values["eta"], values["gamma"])

    def tracking(self, T: int | None = None, **values: float) -> Bound:
        r"""Return the bound of the average tracking error. It needs half the step size of :meth:`bound`.

        .. math::
            \frac{1}{T+1}\sum E\Delta_t \le \frac43\Big[\frac{D_0}{\gamma(T+1)} + 2\gamma\sigma^2
            + \frac{3c_l}{4c_u}\,\frac{1}{T+1}\sum E|\nabla F(x_t)|^2\Big]

        The paper keeps the step size of the first bound; but then, if :math:`c_l = c_u`, the left side cannot absorb
        :math:`\Delta`. Use ``constant(c, T, tracking=True)`` for a plan that satisfies both bounds.
        """
        T = last_step(self.T if T is None else T)
        merged, c = self._merged(values), self.constants
        refuse(
            f"{self.label} for the tracking error",
            broken(merged, lambda v: [*gamma_conditions(c), *eta_conditions(c, v["gamma"], tracking=True)]),
        )
        return tracking_terms(c, T, merged["gamma"], self.bound(T, **merged))

    def schedule(self, optimizer: Optimizer) -> Prescribed:
        """Return a scheduler that sets eta and gamma of every param group, now and at each of its steps."""
        return Prescribed(optimizer, lambda t: (self.eta, self.gamma))

    def T_for(self, epsilon: float) -> int:
        """Return the smallest T for which :func:`constant` promises avg E|grad F|^2 <= epsilon^2."""
        return steps_for(epsilon, lambda T: constant(self.constants, T).bound())


def constant(c: Constants, T: int, *, tracking: bool = False) -> ConstantPlan:
    r"""Return eta and gamma of ``thm:2`` for the steps 0..T that minimize its bound.

    The largest allowed eta grows with gamma, so the bound is :math:`A/(\gamma(T+1)) + B\gamma`. Its minimum is at
    :math:`\gamma = \sqrt{A/(B(T+1))}`, which is the theorem's :math:`O(1/\sqrt T)`.

    Args:
        c: needs ``L``, ``sigma2`` and ``delta_f``; ``c``, ``c_l`` and ``c_u`` have defaults.
        T: the last step.
        tracking: also satisfy the conditions of the bound of the tracking error, which halve the step size.

    >>> c = semaopt.theory.Constants(L=2.0, sigma2=1.0, delta_f=5.0)
    >>> plan = semaopt.theory.constant(c, T=99_999)
    >>> round(plan.gamma, 5), round(plan.eta, 6), round(plan.bound().total, 4)
    (0.01432, 0.003579, 0.1145)
    """
    T = last_step(T)
    c.need(ConstantPlan.label, "L", "sigma2", "delta_f")
    gamma_max = min(condition.limit for condition in gamma_conditions(c))
    ratio, eta_max = eta_limits(c, tracking=tracking)

    def largest_eta(gamma: float) -> float:
        return min(ratio * gamma, eta_max)

    sigma2, n = c.get("sigma2"), T + 1
    if sigma2 == 0:
        gamma = gamma_max
    else:
        noise = 4 * sigma2 * c.ratio
        estimator = 2 * c.ratio * c.delta_0
        # Below the corner eta = ratio gamma, above it eta = eta_max. The bound is convex on both sides.
        corner = eta_max / ratio
        low = math.sqrt((4 * c.get("delta_f") / (ratio * c.c_l) + estimator) / (noise * n))
        high = math.sqrt(estimator / (noise * n))
        candidates = [min(low, corner, gamma_max), min(max(high, corner), gamma_max)]
        gamma = min(candidates, key=lambda g: math.fsum(bound_terms(c, T, largest_eta(g), g).values()))
    return ConstantPlan(c, T, {"gamma": gamma, "eta": largest_eta(gamma)})


def gamma_conditions(c: Constants) -> list[Condition]:
    """Return the limits gamma <= 1 and gamma <= c_l/(8 c_u sigma^2 c)."""
    found = [Condition("gamma", 1.0, "1", "v is an average")]
    if c.growth > 0:
        limit = c.c_l / (8 * c.c_u * c.growth)
        why = "the noise that grows with |grad F|^2 must not exceed half of it"
        found.append(Condition("gamma", limit, "c_l/(8 c_u sigma2 c)", why))
    return found


def eta_limits(c: Constants, *, tracking: bool = False) -> tuple[float, float]:
    """Return (rho, cap) with eta <= rho gamma and eta <= cap."""
    L, halved = c.L_F, 2 if tracking else 1
    ratio = math.sqrt(c.c_l / c.c_u**3) / (2 * halved * L)
    return ratio, min(c.c_l / (2 * L * c.c_u**2), 1 / (halved * math.sqrt(2) * L * c.c_u))


def eta_conditions(c: Constants, gamma: float, *, tracking: bool = False) -> list[Condition]:
    """Return the three limits of eta."""
    L, k = c.L_F, 2 if tracking else 1
    ratio, _ = eta_limits(c, tracking=tracking)
    return [
        Condition("eta", ratio * gamma, f"gamma sqrt(c_l)/({2 * k} L sqrt(c_u^3))", "v must keep up with x"),
        Condition(
            "eta",
            1 / (k * math.sqrt(2) * L * c.c_u),
            f"1/({'2 ' * (k - 1)}sqrt(2) L c_u)",
            "noise that grows with |grad F|^2 must be absorbed",
        ),
        Condition("eta", c.c_l / (2 * L * c.c_u**2), "c_l/(2 L c_u^2)", "lem:3: a step must decrease F"),
    ]


def bound_terms(c: Constants, T: int, eta: float, gamma: float) -> dict[str, float]:
    """Return the three terms of the bound of avg E|grad F|^2."""
    return {
        "objective": 4 * c.get("delta_f") / (eta * c.c_l * (T + 1)),
        "estimator": 2 * c.ratio * c.delta_0 / (gamma * (T + 1)),
        "noise": 4 * gamma * c.get("sigma2") * c.ratio,
    }


def tracking_terms(c: Constants, T: int, gamma: float, gradient: float) -> Bound:
    """Return the bound of the average tracking error with its three terms."""
    terms = {
        "estimator": c.delta_0 / (gamma * (T + 1)),
        "noise": 2 * gamma * c.get("sigma2"),
        "gradient": 3 * c.c_l / (4 * c.c_u) * gradient,
    }
    return Bound({name: 4 / 3 * value for name, value in terms.items()})
