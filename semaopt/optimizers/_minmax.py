"""What the min-max optimizers share: primal and dual param groups, projected ascent, plain descent."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from semaopt import kernels, projections
from semaopt._validation import validate_rate
from semaopt.estimator import Rate, scalar
from semaopt.optimizers._roles import TwoSided

_EVERYWHERE = projections.Box(-math.inf, math.inf)


def ascend_(y: Tensor, g: Tensor, eta: Rate, project: projections.Projection | None) -> None:
    """``y <- Proj_Y[y + eta g]``, in place."""
    y.add_(g * (scalar(eta, g.real) if isinstance(eta, Tensor) else eta))
    projections.apply_(project, y)


class MinMaxOptimizer(TwoSided):
    r"""For :math:`\min_x \max_{y\in Y} f(x, y)`: groups of role "primal" hold x, those of role "dual" hold y."""

    roles: ClassVar[tuple[str, str]] = ("primal", "dual")
    kind: ClassVar[tuple[str, str]] = ("min-max", "side of min max")
    second: ClassVar[dict[str, str | None]] = {"dual_lr": "lr", "project": "project"}

    def __init__(self, primal: ParamsT, dual: ParamsT, defaults: dict[str, Any]) -> None:
        validate_rate("dual_lr", defaults["dual_lr"], "try ten times lr")
        super().__init__(primal, dual, defaults)

    def _complete(self, param_group: dict[str, Any]) -> dict[str, Any]:
        group = super()._complete(param_group)
        if group["role"] == "primal" and group["maximize"]:
            raise ValueError("maximize=True: x is minimized and y maximized; pass what is to be maximized as dual=")
        return group

    def _each(self) -> Iterator[tuple[dict[str, Any], list[Tensor], list[Tensor]]]:
        """Every group with its parameters that have a gradient, and the gradients."""
        for group in self.param_groups:
            xs: list[Tensor] = []
            gs: list[Tensor] = []
            self._init_group(group, xs, gs)
            if xs:
                yield group, xs, gs

    def _check_step(self) -> None:
        super()._check_step()
        moved = dict.fromkeys(self.roles, False)
        trained = dict(moved)
        for group in self.param_groups:
            role = group["role"]
            moved[role] |= any(x.grad is not None for x in group["params"])
            trained[role] |= any(x.requires_grad for x in group["params"])
        for role, other in (self.roles, self.roles[::-1]):
            if moved[other] and trained[role] and not moved[role]:
                raise RuntimeError(
                    f"{type(self).__name__}: the {other} parameters have gradients and the {role} parameters have "
                    f"none, so they would never move; call backward() on the one loss f(x, y) that both enter "
                    f"(auc(model(a), b).backward()), or freeze the {role} side with requires_grad_(False)"
                )

    def _ascend(self, group: dict[str, Any], ys: list[Tensor], gs: list[Tensor], eta: Rate) -> None:
        """``y <- Proj_Y[y + eta g]`` for the variables of one dual group."""
        box = group["project"] or _EVERYWHERE
        if type(box) is projections.Box and not any(y.is_complex() for y in ys):
            kernels.ascend_box_(ys, gs, eta, box.lo, box.hi)
        else:
            for y, g in zip(ys, gs, strict=True):
                ascend_(y, g, eta, group["project"])
        for y in ys:
            self.state[y]["step"] += 1


def evaluate(closure: Callable[[], Any] | None) -> Any:
    """The loss from a closure that also computes the gradients, or None without one."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()
