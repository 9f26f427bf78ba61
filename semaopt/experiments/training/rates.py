"""Shapes of lr and gamma over a whole run, for specs that name a ``schedule``; they change after every step.

=====================  ===============================================================================
hyper-parameter        values
=====================  ===============================================================================
``schedule``           "constant", "cosine" (to 0 at the last step), "stagewise" (times 0.2 after one third and after
                       two thirds of the steps, the paper's choice)
``warm_up``            share of the steps in which lr grows linearly to its initial value; by default 0
``gamma_schedule``     "constant"; "follow" (in proportion to lr, without the warm-up), "sqrt" (to its root); "rise"
                       (times 3 by the last step, over the last fifth: beta falls from 0.9 to 0.7); "stagewise"
=====================  ===============================================================================

>>> rates = shapes({"schedule": "cosine", "warm_up": 0.5, "gamma_schedule": "sqrt"}, steps=8)
>>> [round(rates[0](t), 3) for t in (0, 1, 4, 6)], [round(rates[1](t), 3) for t in (0, 1, 4, 6)]
([0.25, 0.5, 1.0, 0.5], [1.0, 1.0, 1.0, 0.707])
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from torch.optim import Optimizer

from semaopt import schedules
from semaopt._validation import is_real, require

Shape = Callable[[int], float]
NAMES = frozenset({"schedule", "warm_up", "gamma_schedule"})
"""The hyper-parameters of this module."""

_LAST = 0.2  # share of the steps in which "rise" changes gamma
_RISE = 3.0  # its factor at the last step


def _constant(_: float) -> float:
    return 1.0


def _cosine(progress: float) -> float:
    return (1 + math.cos(math.pi * progress)) / 2


def _stagewise(progress: float) -> float:
    return (1.0, 0.2, 0.04)[min(int(3 * progress), 2)]


def _rise(progress: float) -> float:
    return 1 + (_RISE - 1) * max(0.0, (progress - 1 + _LAST) / _LAST)


_LR: dict[str, Callable[[float], float]] = {"constant": _constant, "cosine": _cosine, "stagewise": _stagewise}
_GAMMA = ("constant", "follow", "sqrt", "rise", "stagewise")


def shapes(values: Mapping[str, Any], steps: int) -> tuple[Shape, Shape]:
    """Return the factors of lr and of gamma as functions of the number of steps taken, for a run of ``steps`` steps."""
    name, by = values.get("schedule", "constant"), values.get("gamma_schedule", "constant")
    require(name in _LR, "schedule", name, f"must be one of {', '.join(_LR)}", "try 'cosine'")
    require(by in _GAMMA, "gamma_schedule", by, f"must be one of {', '.join(_GAMMA)}", "try 'constant'")
    warm_up = values.get("warm_up", 0.0)
    require(is_real(warm_up) and 0 <= warm_up < 1, "warm_up", warm_up, "must lie in [0, 1)", "try 0.05")
    first: int = round(warm_up * steps)

    def after_warm_up(t: int) -> float:
        return max(t - first, 0) / max(steps - first, 1)

    def lr(t: int) -> float:
        return min(1.0, (t + 1) / first if first else 1.0) * _LR[name](after_warm_up(t))

    def gamma(t: int) -> float:
        if by == "rise":
            return _rise(min(t / steps, 1.0))
        if by == "stagewise":
            return _stagewise(after_warm_up(t))
        if by == "constant":
            return 1.0
        factor = _LR[name](after_warm_up(t))
        return math.sqrt(factor) if by == "sqrt" else factor

    return lr, gamma


def schedule(optimizer: Optimizer, values: Mapping[str, Any], steps: int) -> schedules.Lambda:
    """Return the schedule of a run of ``steps`` steps; gamma is constant unless ``gamma_schedule`` changes it."""
    lr, gamma = shapes(values, steps)
    moves = values.get("gamma_schedule", "constant") != "constant"
    return schedules.Lambda(optimizer, lr=lr, gamma=gamma if moves else None)
