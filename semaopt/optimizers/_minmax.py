"""The base class of the min-max optimizers: primal and dual param groups, projected ascent, plain descent."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from semaopt import kernels, projections
from semaopt._validation import validate_rate
from semaopt.estimator import Rate
from semaopt.kernels import StepRule, dispatch
from semaopt.kernels.ascend import ascend_, ascend_box_loop_
from semaopt.kernels.loop import increment_
from semaopt.optimizers._base import SemaOptimizer
from semaopt.optimizers._roles import Roles

ROLES = Roles("primal", "dual", "min-max", "side of min max", {"dual_lr": "lr", "project": "project"})
_EVERYWHERE = projections.Box(-math.inf, math.inf)


class MinMaxOptimizer(SemaOptimizer):
    r"""Base class for :math:`\min_x \max_{y\in Y} f(x, y)`: "primal" groups hold x, "dual" groups hold y."""

    roles: ClassVar[Roles] = ROLES

    def __init__(
        self, primal: ParamsT, dual: ParamsT | None, defaults: dict[str, Any], *, on_nonfinite: str | None = None
    ) -> None:
        validate_rate("dual_lr", defaults["dual_lr"], "try dual_lr=lr")
        super().__init__(self.roles.groups(primal, dual, defaults["project"]), defaults, on_nonfinite=on_nonfinite)

    def _complete(self, param_group: dict[str, Any]) -> dict[str, Any]:
        group = super()._complete(param_group)
        if group.get("maximize"):
            raise ValueError("maximize=True: x is minimized and y maximized; pass what is to be maximized as dual=")
        return group

    def _each(self) -> Iterator[tuple[dict[str, Any], list[Tensor], list[Tensor]]]:
        """Yield every group with its parameters that have a gradient, and the gradients."""
        yield from (found for found in self._initialized() if found[1])

    def _validate_step(self) -> list[tuple[dict[str, Any], list[Tensor], list[Tensor]]]:
        found = super()._validate_step()
        moved = dict.fromkeys(self.roles.names, False)
        trained = dict(moved)
        for group, xs, _ in found:
            moved[group["role"]] |= bool(xs)
            trained[group["role"]] |= any(x.requires_grad for x in group["params"])
        for role, other in (self.roles.names, self.roles.names[::-1]):
            if moved[other] and trained[role] and not moved[role]:
                raise RuntimeError(
                    f"{type(self).__name__}: the {other} parameters have gradients and the {role} parameters have "
                    f"none, so they would never move; call backward() on one loss f(x, y) that depends on both "
                    f"(auc(model(a), b).backward()), or freeze the {role} side with requires_grad_(False)"
                )
        return found

    def _descend(self, rule: StepRule, xs: list[Tensor], gs: list[Tensor]) -> None:
        """Take a step on primal variables."""
        dispatch.run(rule, xs, gs, [self.state[x] for x in xs])

    def _ascend(self, group: dict[str, Any], ys: list[Tensor], gs: list[Tensor], eta: Rate) -> None:
        """Compute ``y <- Proj_Y[y + eta g]`` for the variables of one dual group."""
        box = group["project"] or _EVERYWHERE
        if type(box) is projections.Box and box.elementwise and not any(y.is_complex() for y in ys):
            # Torch's own operations can be captured by a CUDA graph.
            captured = self.defaults.get("device_counters") and not all(y.is_cpu for y in ys)
            ascend_box = ascend_box_loop_ if captured else kernels.ascend_box_
            ascend_box(ys, gs, eta, float(box.lo), float(box.hi))
        else:
            for y, g in zip(ys, gs, strict=True):
                ascend_(y, g, eta, group["project"])
        for y in ys:
            increment_(self.state[y]["step"])


def evaluate(closure: Callable[[], Any] | None) -> Any:
    """Return the loss from a closure that also computes the gradients, or None without a closure."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()
