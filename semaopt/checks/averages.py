"""Comparison of measured averages with a theorem: two bounds, two rates, the converse, and the bounds of s."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from semaopt import scalings
from semaopt.checks.result import CheckResult, Figure, band, below, flat, inside, rate, reference
from semaopt.problems.simulate import Simulation
from semaopt.scalings import BuiltIn
from semaopt.theory import BilevelPlan, ConstantPlan, Constants, DecreasingPlan, MinMaxPlan

#: The rows of Table 2 with a G0 that keeps c_u/c_l moderate. With G0 = 1e-7 the bounds hold but are vacuous.
ROWS: dict[str, BuiltIn] = {
    "shb": scalings.SHB(),
    "adam": scalings.Adam(g0=1.0),
    "amsgrad": scalings.AMSGrad(g0=1.0),
    "adafom": scalings.AdaFom(g0=1.0),
    "adam+": scalings.AdamPlus(g0=1.0),
    "adabound": scalings.AdaBound(c_l=0.5, c_u=1.0),
}

#: Changes the rates of a theorem. The tests use it to show that a check can fail.
Perturb = Callable[[Mapping[str, float]], Mapping[str, float]]
Check = Callable[..., CheckResult]
Checks = dict[str, tuple[str, Check]]
AveragesPlan = ConstantPlan | DecreasingPlan | MinMaxPlan | BilevelPlan


@dataclass(frozen=True)
class Size:
    """The lengths of the runs and the number of seeds."""

    Ts: tuple[int, ...]
    seeds: int = 256


@dataclass(frozen=True)
class Unaveraged:
    """Tracking errors of runs with gamma = 1, which must not shrink with T."""

    Ts: Sequence[int] = ()
    errors: Sequence[Tensor] = ()


def judge(
    name: str,
    plans: Sequence[AveragesPlan],
    runs: Sequence[Simulation],
    *,
    weight: float = 0.0,
    logarithm: bool = False,
    rates: bool = True,
    unaveraged: Unaveraged | None = None,
) -> CheckResult:
    """Compare measured averages with the plans of the same T.

    Args:
        name: name of the check.
        plans, runs: the plan and the simulation for each T.
        weight: weight of |y - y*|^2 in the tracking error.
        logarithm: whether the rate of the theorem is ln(T)/sqrt(T) instead of 1/sqrt(T).
        rates: whether the T are large enough to fit a rate.
        unaveraged: runs with gamma = 1, if the check has a converse.
    """
    Ts, c = [plan.T for plan in plans], plans[0].constants
    gradients = [run.gradient for run in runs]
    errors = [run.tracking if run.follower is None else run.tracking + weight * run.follower for run in runs]
    bounds, error_bounds = [plan.bound() for plan in plans], [plan.tracking() for plan in plans]
    error = "|v - grad F|^2 + w |y - y*|^2" if weight else "|v - grad F|^2"
    places = [f"T = {T}" for T in Ts]
    lines = [
        below("avg |grad F|^2 <= bound", gradients, bounds, places),
        below(f"avg {error} <= bound", errors, error_bounds, places),
        inside([run.scaling_bounds for run in runs], (c.c_l, c.c_u)),
    ]
    if rates:
        logs, power = ([math.log(T + 2) for T in Ts], "ln(T) T^p") if logarithm else (None, "T^p")
        lines.append(rate(f"avg |grad F|^2 ~ {power}", -0.5, Ts, gradients, logs))
        lines.append(rate(f"avg {error} ~ {power}", -0.5, Ts, errors, logs))
    curves = [
        band("|grad F|^2", Ts, gradients),
        reference(f"its bound ({plans[0].label})", Ts, bounds),
        band(error, Ts, errors),
        reference("its bound", Ts, error_bounds),
    ]
    if unaveraged is not None:
        lines.append(flat("gamma = 1: avg |v - grad F|^2 ~ T^p", unaveraged.Ts, unaveraged.errors))
        curves.append(band("|v - grad F|^2, gamma = 1", unaveraged.Ts, unaveraged.errors))
    falls = "ln(T)/sqrt(T)" if logarithm else "1/sqrt(T)"
    message = (
        f"both averages fall like {falls}, below their bounds" if rates else "both averages are below their bounds"
    )
    figure = Figure(f"{name}: {message}", "T", "average over the run", curves)
    return CheckResult(name, plans[0].label, lines, figure, {**given(c), "T": Ts, "seeds": len(gradients[0])})


def given(c: Constants) -> dict[str, Any]:
    """Return the constants that are not None."""
    return {key: value for key, value in vars(c).items() if value is not None}
