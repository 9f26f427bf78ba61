r"""``thm:SHB_decrease``: ASA with gamma_t and eta_t proportional to 1/sqrt(t+1).

:math:`\gamma_t = \min(1, \gamma_0/\sqrt{t+1})` with :math:`\gamma_0 \le c_l/(8\sigma^2cc_u)`, and
:math:`\eta_t = \rho\gamma_{t+1}`. The paper has :math:`\eta_t \propto \gamma_t`. But the error caused by :math:`\eta_t`
decays at the rate :math:`\gamma_{t+1}` of the step that uses :math:`x_{t+1}`. With :math:`\eta_t = \rho\gamma_{t+1}`,
``lem:sema_mengdi`` times :math:`\rho` telescopes,

.. math::
    \eta_t\Delta_t \le \rho\,(\Delta_t - \Delta_{t+1}) + 2\rho\gamma_{t+1}^2\sigma^2(1 + c|\nabla F(x_{t+1})|^2)
    + \rho^2 L^2c_u^2\,\eta_t|v_{t+1}|^2 ,

and with ``lem:3`` the rest is the proof of ``thm:2`` with the weights :math:`\eta_t`, the smallest of which is
:math:`\eta_T`. The theorem also divides by c. If :math:`\sigma^2c = 0`, any :math:`\gamma_0` is allowed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, overload

from torch.optim import Optimizer

from semaopt.theory.constants import Constants
from semaopt.theory.minimize import eta_limits, gamma_conditions
from semaopt.theory.plan import Bound, Condition, Plan, broken, last_step, refuse, steps_for
from semaopt.theory.schedule import Prescribed


class RateSequence(Sequence[float]):
    """The sequence eta_t or gamma_t: ``rates(t)`` for any t, ``rates[t]`` and ``list(rates)`` for the steps 0..T."""

    def __init__(self, at: Callable[[int], float], T: int) -> None:
        self.at, self.T = at, T

    def __call__(self, t: int) -> float:
        return self.at(t)

    def __len__(self) -> int:
        return self.T + 1

    @overload
    def __getitem__(self, t: int) -> float: ...
    @overload
    def __getitem__(self, t: slice) -> list[float]: ...
    def __getitem__(self, t: int | slice) -> float | list[float]:
        steps = range(self.T + 1)[t]
        return self.at(steps) if isinstance(steps, int) else [self.at(step) for step in steps]

    def __repr__(self) -> str:
        return f"RateSequence({self.at(0):.6g} at t = 0, {self.at(self.T):.6g} at t = {self.T})"


@dataclass(frozen=True)
class DecreasingPlan(Plan):
    """The plan that :func:`decreasing` returns: ``eta(t)``, ``gamma(t)``, ``gamma_0``, ``rho``, ``bound(T)``, ..."""

    label: ClassVar[str] = "thm:SHB_decrease"

    @property
    def gamma_0(self) -> float:
        """The constant of gamma_t = min(1, gamma_0/sqrt(t+1))."""
        return self.rates["gamma_0"]

    @property
    def rho(self) -> float:
        """The ratio of eta_t = rho gamma_{t+1}."""
        return self.rates["rho"]

    @property
    def gamma(self) -> RateSequence:
        """The weight of the newest sample in step t."""
        return RateSequence(lambda t: gamma_at(self.gamma_0, t), self.T)

    @property
    def eta(self) -> RateSequence:
        """The step size of step t."""
        return RateSequence(lambda t: self.rho * gamma_at(self.gamma_0, t + 1), self.T)

    def conditions(self, values: Mapping[str, float]) -> list[Condition]:
        return decreasing_conditions(self.constants, values)

    def terms(self, T: int, values: Mapping[str, float]) -> dict[str, float]:
        """Return the terms of [4 D_F/c_l + (2 c_u rho/c_l)(D_0 + 2 sigma^2 sum_t gamma_{t+1}^2)] / ((T+1) eta_T)."""
        return bound_terms(self.constants, T, values["gamma_0"], values["rho"])

    def tracking(self, T: int | None = None, **values: float) -> Bound:
        r"""Return the bound of the average tracking error. Its proof uses the weights :math:`\gamma_{t+1}`.

        .. math::
            \frac1{T+1}\sum E\Delta_t \le \frac{4}{3(T+1)\gamma_{T+1}}\Big[D_0 + 2\sigma^2\sum\gamma_{t+1}^2
            + \frac{3c_l}{4c_u}\sum\gamma_{t+1}E|\nabla F(x_t)|^2\Big] ,

        where the last sum is bounded in the proof of :meth:`bound`. It needs the smaller rho of
        ``decreasing(c, T, tracking=True)``.
        """
        T = last_step(self.T if T is None else T)
        merged, c = self._merged(values), self.constants
        refuse(
            f"{self.label} for the tracking error",
            broken(merged, lambda v: decreasing_conditions(c, v, tracking=True)),
        )
        gamma_0, rho = merged["gamma_0"], merged["rho"]
        last = gamma_at(gamma_0, T + 1)
        scale = 4 / (3 * (T + 1) * last)
        gradient = math.fsum(bound_terms(c, T, gamma_0, rho).values()) * (T + 1) * last
        return Bound(
            {
                "estimator": scale * c.delta_0,
                "noise": scale * 2 * c.get("sigma2") * sum_of_squares(gamma_0, T),
                "gradient": scale * 3 / (4 * c.ratio) * gradient,
            }
        )

    def schedule(self, optimizer: Optimizer) -> Prescribed:
        """Return a scheduler with eta_t and gamma_t. Call its ``step()`` after every optimizer step."""
        return Prescribed(optimizer, lambda t: (self.eta(t), self.gamma(t)))

    def T_for(self, epsilon: float) -> int:
        """Return the smallest T for which :func:`decreasing` promises avg E|grad F|^2 <= epsilon^2."""
        c = self.constants
        # With a given gamma_0 the bound may rise once, after the last step in which gamma is 1.
        turn = max(1, math.floor(decreasing(c, 1).gamma_0 ** 2) - 2) if c.growth > 0 else 1
        return steps_for(epsilon, lambda T: decreasing(c, T).bound(), turn)


def decreasing(c: Constants, T: int, *, gamma_0: float | None = None, tracking: bool = False) -> DecreasingPlan:
    r"""Return eta_t and gamma_t of ``thm:SHB_decrease``.

    Args:
        c: needs ``L``, ``sigma2`` and ``delta_f``.
        T: the last step. The rates depend on it only if ``gamma_0`` is None and :math:`\sigma^2c = 0`.
        gamma_0: at most :math:`c_l/(8\sigma^2cc_u)`, which is also the default. If :math:`\sigma^2c = 0`, the default
            minimizes the bound after T steps.
        tracking: also satisfy the conditions of the bound of the tracking error, which halve the step size.

    >>> c = semaopt.theory.Constants(L=1.0, sigma2=1.0, c=1.0, delta_f=1.0)
    >>> plan = semaopt.theory.decreasing(c, T=999)
    >>> plan.gamma(0), plan.gamma(3), plan.eta(2) == plan.rho * plan.gamma(3)
    (0.125, 0.0625, True)
    """
    T = last_step(T)
    c.need(DecreasingPlan.label, "L", "sigma2", "delta_f")
    if gamma_0 is None:
        gamma_0 = c.c_l / (8 * c.c_u * c.growth) if c.growth > 0 else _best_gamma_0(c, T, tracking)
    plan = DecreasingPlan(c, T, {"gamma_0": gamma_0, "rho": _largest_rho(c, gamma_0, tracking)})
    refuse(DecreasingPlan.label, plan.violations(gamma_0=gamma_0))
    return plan


def gamma_at(gamma_0: float, t: int) -> float:
    """Return gamma_t."""
    return min(1.0, gamma_0 / math.sqrt(t + 1))


def sum_of_squares(gamma_0: float, T: int) -> float:
    """Return the sum over t = 0..T of gamma_{t+1}^2: ones while gamma is 1, then a harmonic sum."""
    whole = min(max(math.floor(gamma_0**2) - 1, 0), T + 1)  # gamma_{t+1} = 1 while t + 2 <= gamma_0^2
    return whole + gamma_0**2 * (_harmonic(T + 2) - _harmonic(whole + 1))


def _harmonic(n: int) -> float:
    """Return 1 + 1/2 + ... + 1/n to rounding: the sum itself, or for large n the Euler-Maclaurin series."""
    if n < 100:
        return math.fsum(1 / k for k in range(1, n + 1))
    euler_mascheroni = 0.5772156649015328606
    return math.log(n) + euler_mascheroni + 1 / (2 * n) - 1 / (12 * n**2) + 1 / (120 * n**4)


def _largest_rho(c: Constants, gamma_0: float, tracking: bool) -> float:
    ratio, cap = eta_limits(c, tracking=tracking)
    return min(ratio, cap / gamma_at(gamma_0, 1))


def decreasing_conditions(c: Constants, values: Mapping[str, float], *, tracking: bool = False) -> list[Condition]:
    """Return the limit of gamma_0, from the growth of the noise, and the limits of rho, from the limits of eta."""
    found = [Condition("gamma_0", g.limit, g.formula, g.why) for g in gamma_conditions(c) if g.formula != "1"]
    ratio, cap = eta_limits(c, tracking=tracking)
    half = "half of " if tracking else ""
    found.append(Condition("rho", ratio, f"{half}sqrt(c_l)/(2 L sqrt(c_u^3))", "v must keep up with x"))
    limit = cap / gamma_at(values["gamma_0"], 1)
    formula = "min{c_l/(2 L c_u^2), 1/(2 sqrt(2) L c_u)}/gamma_1" if tracking else "c_l/(2 L c_u^2 gamma_1)"
    found.append(Condition("rho", limit, formula, "lem:3: a step must decrease F"))
    return found


def bound_terms(c: Constants, T: int, gamma_0: float, rho: float) -> dict[str, float]:
    """Return the three terms of the bound of avg E|grad F|^2."""
    weight = (T + 1) * gamma_at(gamma_0, T + 1)
    return {
        "objective": 4 * c.get("delta_f") / (c.c_l * rho * weight),
        "estimator": 2 * c.ratio * c.delta_0 / weight,
        "noise": 4 * c.ratio * c.get("sigma2") * sum_of_squares(gamma_0, T) / weight,
    }


def _best_gamma_0(c: Constants, T: int, tracking: bool) -> float:
    """Return the gamma_0 that minimizes the bound after T steps, by a grid over powers of 2 and a golden section."""
    if c.get("sigma2") == 0:
        return math.sqrt(T + 2)  # gamma_t = 1 in all steps: without noise, averaging has no use

    def bound(log_gamma_0: float) -> float:
        gamma_0 = 2.0**log_gamma_0
        return math.fsum(bound_terms(c, T, gamma_0, _largest_rho(c, gamma_0, tracking)).values())

    middle = min((k / 2 for k in range(-100, 101)), key=bound)
    return float(2.0 ** golden_section(bound, middle - 0.5, middle + 0.5))


def golden_section(f: Callable[[float], float], low: float, high: float, steps: int = 80) -> float:
    """Return the minimizer between low and high of a function that first falls and then rises."""
    g = (math.sqrt(5) - 1) / 2
    left, right = high - g * (high - low), low + g * (high - low)
    f_left, f_right = f(left), f(right)
    for _ in range(steps):
        if f_left <= f_right:
            high, right, f_right = right, left, f_left
            left = high - g * (high - low)
            f_left = f(left)
        else:
            low, left, f_left = left, right, f_right
            right = low + g * (high - low)
            f_right = f(right)
    return (low + high) / 2
