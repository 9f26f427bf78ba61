"""An estimate of the duality gap of a min-max problem."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from semaopt import projections
from semaopt._validation import to_float, validate_integer


def duality_gap(optimizer: Optimizer, loss: Callable[[], Tensor], steps: int) -> float:
    r"""Return f(x, y') - f(x', y), where y' and x' are ``steps`` full-gradient steps up from y and down from x.

    It is a lower bound of the duality gap :math:`\max_yf(x, y) - \min_xf(x, y)` at (x, y). More steps can only raise
    it, and it is 0 at a saddle point. Each variable moves with the lr of its group, x without its scaling. All
    parameters are restored afterwards.
    """
    steps = validate_integer("steps", steps, "Each step takes a full gradient; try 5.", minimum=0)
    groups = groups_by_role(optimizer)
    best = {role: _best_value(listed, loss, steps, 1.0 if role == "dual" else -1.0) for role, listed in groups.items()}
    return best["dual"] - best["primal"]


def groups_by_role(optimizer: Optimizer) -> dict[str, list[dict[str, Any]]]:
    """Return the param groups of x ("primal") and of y ("dual"); each role needs a parameter that can move."""
    roles: dict[str, list[dict[str, Any]]] = {"dual": [], "primal": []}
    for group in optimizer.param_groups:
        roles["dual" if group.get("role") == "dual" else "primal"].append(group)
    for role, groups in roles.items():
        if not any(x.requires_grad for group in groups for x in group["params"]):
            raise TypeError(
                f"optimizer={type(optimizer).__name__}: the duality gap of min_x max_y f(x, y) needs {role} parameters "
                "with requires_grad, and there are none. Use an optimizer for min-max problems (semaopt.PDSM, "
                "semaopt.PDAda), or gap_steps=0."
            )
    return roles


def _best_value(groups: list[dict[str, Any]], loss: Callable[[], Tensor], steps: int, sign: float) -> float:
    """Return the best loss at the current point and after each step of these groups; restore the parameters."""
    xs = [x for group in groups for x in group["params"] if x.requires_grad]
    saved = [x.detach().clone() for x in xs]
    values: list[float] = []
    try:
        for k in range(steps + 1):
            with torch.enable_grad():
                value = loss()
            values.append(float(value.detach()))
            if k == steps:
                break
            found = torch.autograd.grad(value, xs, allow_unused=True)
            by_x = {id(x): g for x, g in zip(xs, found, strict=True) if g is not None}
            with torch.no_grad():
                for group in groups:
                    for x in group["params"]:
                        if id(x) in by_x:
                            x.add_(by_x[id(x)], alpha=sign * to_float(group["lr"]))
                            projections.apply_(group.get("project"), x)
    finally:
        with torch.no_grad():
            for x, before in zip(xs, saved, strict=True):
                x.copy_(before)
    return max(values) if sign > 0 else min(values)
