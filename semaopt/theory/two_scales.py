r"""Rates for problems with an averaged x and a y that follows it: the common part of min-max and bilevel problems.

Both theorems bound the average of :math:`E|\nabla F(x_t)|^2` by

.. math:: \frac{a}{\eta_xT} + \frac{b}{\gamma T} + b'\gamma + \frac{d}{\eta_yT} + d'\eta_y + e

under :math:`\eta_x \le q\gamma`, :math:`\eta_x \le q'\eta_y` and fixed limits of all three. This bound is a convex
function of the logarithms of the rates. For a given :math:`\eta_x` the best gamma and eta_y have a closed form, which
leaves a convex function of one variable.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

from torch.optim import Optimizer

from semaopt.theory.decreasing import golden_section
from semaopt.theory.plan import Bound, Condition, Plan, last_step, refuse
from semaopt.theory.schedule import Prescribed


@dataclass(frozen=True)
class Limits:
    """The largest gamma, eta_y and eta_x. Also, eta_x <= x_per_gamma gamma and eta_x <= x_per_y eta_y."""

    gamma: float
    eta_y: float
    eta_x: float
    x_per_gamma: float
    x_per_y: float


@dataclass(frozen=True)
class Costs:
    """The coefficients of 1/(eta_x T), 1/(gamma T), gamma, 1/(eta_y T) and eta_y in the bound."""

    over_eta_x: float
    over_gamma: float
    times_gamma: float
    over_eta_y: float
    times_eta_y: float


def best_rates(limits: Limits, costs: Costs, T: int) -> dict[str, float]:
    """Return the allowed rates with the smallest bound."""

    def given(eta_x: float) -> dict[str, float]:
        gamma = _best(costs.over_gamma / T, costs.times_gamma, eta_x / limits.x_per_gamma, limits.gamma)
        eta_y = _best(costs.over_eta_y / T, costs.times_eta_y, eta_x / limits.x_per_y, limits.eta_y)
        return {"gamma": gamma, "eta_y": eta_y, "eta_x": eta_x}

    def bound(log_eta_x: float) -> float:
        r = given(math.exp(log_eta_x))
        return (
            (costs.over_eta_x / r["eta_x"] + costs.over_gamma / r["gamma"] + costs.over_eta_y / r["eta_y"]) / T
            + costs.times_gamma * r["gamma"]
            + costs.times_eta_y * r["eta_y"]
        )

    largest = min(limits.eta_x, limits.x_per_gamma * limits.gamma, limits.x_per_y * limits.eta_y)
    top = math.log(largest)
    found = math.exp(golden_section(bound, top - 100, top, steps=120))
    # The golden section returns an inner point. Compare it with the end of the interval, the largest step size.
    return given(largest if bound(top) <= bound(math.log(found)) else found)


def _best(over: float, times: float, low: float, high: float) -> float:
    """Return the z in [low, high] that minimizes ``over / z + times * z``."""
    return high if times == 0 else min(max(math.sqrt(over / times), low), high)


@dataclass(frozen=True)
class TwoScalePlan(Plan):
    """A plan with ``eta_x``, ``eta_y``, ``gamma``, ``bound(T)``, ``tracking(T)`` and ``violations(...)``."""

    @property
    def eta_x(self) -> float:
        """The step size of x: ``lr``."""
        return self.rates["eta_x"]

    @property
    def eta_y(self) -> float:
        """The step size of y: ``dual_lr`` or ``lower_lr``."""
        return self.rates["eta_y"]

    @property
    def gamma(self) -> float:
        """The weight of the newest sample, 1 - ``beta``."""
        return self.rates["gamma"]

    @abstractmethod
    def tracking_terms(self, T: int, values: Mapping[str, float]) -> dict[str, float]:
        """Return the terms of the bound of the average error of v and y."""

    def tracking(self, T: int | None = None, **values: float) -> Bound:
        """Return the bound of the average of E|v_{t+1} - grad F(x_t)|^2 plus the weighted error of y.

        It holds under the conditions of :meth:`bound`.
        """
        T = last_step(self.T if T is None else T)
        merged = self._merged(values)
        refuse(self.label, self.violations(**merged))
        return Bound(self.tracking_terms(T, merged), self.assumes())

    def assumes(self) -> tuple[str, ...]:
        return () if self.constants.delta_y is not None else ("y_0 = y*(x_0), because delta_y was not given",)

    def schedule(self, optimizer: Optimizer) -> Prescribed:
        """Return a scheduler that sets lr and gamma of x and the lr of y, now and at each of its steps."""
        return Prescribed(optimizer, lambda t: (self.eta_x, self.gamma), lambda t: self.eta_y)


def limit_conditions(
    limits: Limits, values: Mapping[str, float], formulas: Mapping[str, str], quarter: str
) -> list[Condition]:
    """Return the five conditions of :class:`Limits`, with their formulas."""
    return [
        Condition("gamma", 0.25, "1/4", quarter, strict=True),
        Condition("eta_y", limits.eta_y, formulas["eta_y"], "y must contract towards y*(x)"),
        Condition("eta_x", limits.x_per_y * values["eta_y"], formulas["x_per_y"], "y must keep up with x"),
        Condition("eta_x", limits.x_per_gamma * values["gamma"], formulas["x_per_gamma"], "v must keep up with x"),
        Condition("eta_x", limits.eta_x, formulas["eta_x"], "lem:3: a step must decrease F"),
    ]
