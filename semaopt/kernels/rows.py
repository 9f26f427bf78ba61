"""The rows of Table 2 in the form that the fast paths use, and the coefficients of one step (count() in ``step.c``)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from semaopt import scalings
from semaopt.kernels.rule import StepRule

_INF = math.inf


class Row(NamedTuple):
    """A row of Table 2 in the form that step.h uses."""

    number: int
    u: str | None = None
    u_max: str | None = None
    weighs_u: bool = False
    numbers: Callable[[Any], tuple[float, ...]] = lambda row: (0.0, row.g0, -_INF, _INF)
    """Return gamma_u, g0, and the bounds of u."""


#: The scalings with fast paths. Subclasses are not included: they may have a different formula.
SCALINGS: dict[type, Row] = {
    scalings.SHB: Row(0),
    scalings.Adam: Row(1, "u", None, True, lambda row: (1 - row.beta2, row.g0, -_INF, _INF)),
    scalings.AdaBound: Row(1, "u", None, True, lambda row: (1 - row.beta2, 0.0, row.c_u**-2, row.c_l**-2)),
    scalings.AMSGrad: Row(2, "u", "u_max", True, lambda row: (1 - row.beta2, row.g0, -_INF, _INF)),
    scalings.AdaFom: Row(3, "u_mean"),
    scalings.AdamPlus: Row(4),
}


def row_of(rule: StepRule) -> Row:
    """Return the row of a rule's scaling."""
    return SCALINGS[type(rule.scaling)]


class Counters(NamedTuple):
    """Counters of a parameter before the step; a weight is 0 if it is absent."""

    step: float
    v_weight: float
    u_weight: float


class Coefficients(NamedTuple):
    """Coefficients of one step of a parameter, and its bias weights after the step (1 without bias correction)."""

    gamma: float
    gamma_u: float
    v_weight: float
    u_weight: float


def counters_of(state: dict[str, Any]) -> Counters:
    """Read the counters of a parameter, which are on the CPU."""
    if "u_weight" in state:
        return Counters(state["step"].item(), state["v_weight"].item(), state["u_weight"].item())
    return Counters(state["step"].item(), state["v_weight"].item() if "v_weight" in state else 0.0, 0.0)


def towards_one(w: float, gamma: float) -> float:
    """Compute torch's lerp from a weight to 1, in its two forms."""
    return w + gamma * (1.0 - w) if gamma < 0.5 else 1.0 - (1.0 - w) * (1.0 - gamma)


def count(rule: StepRule, before: Counters) -> Coefficients:
    """Return the coefficients of the step that follows ``before``."""
    row, gamma = row_of(rule), float(rule.gamma)
    gamma_u = row.numbers(rule.scaling)[0]
    v_weight = u_weight = 1.0
    if rule.bias_correction:
        v_weight = towards_one(before.v_weight, gamma)
        u_weight = towards_one(before.u_weight, gamma_u) if row.weighs_u else 1.0
    elif before.step == 0:  # v_0 = O(x_0): the first step uses gamma = 1
        gamma = gamma_u = 1.0
    if isinstance(rule.scaling, scalings.AdaFom):
        gamma_u = 1.0 / (before.step + 1.0)
    return Coefficients(gamma, gamma_u, v_weight, u_weight)


def advance_(states: list[dict[str, Any]], before: Counters, after: Coefficients) -> None:
    """Increment the step counters and update the weights of parameters with these counters."""
    values = {"step": before.step + 1.0, "v_weight": after.v_weight, "u_weight": after.u_weight}
    names = [name for name in values if name in states[0]]
    if len(states) == 1:
        for name in names:
            states[0][name].fill_(values[name])
        return
    numbers = [torch.tensor(values[name], dtype=torch.float64, device="cpu") for name in names]
    torch._foreach_copy_(
        [m[name] for name in names for m in states], [number for number in numbers for _ in states]
    )  # faster than adding: torch makes no tensor of each number
