"""The momentum of a param group: where it is stored, how to read gamma = 1 - beta, and how to change it.

========================  ==========================================================================
field                     optimizers
========================  ==========================================================================
``group["beta"]``         semaopt; None marks a group that is not averaged, such as a dual variable
``group["betas"][0]``     torch's Adam, AdamW, NAdam ... and third-party ones; the other betas stay
``group["momentum"]``     torch's SGD, Muon ...; a ``dampening`` changes with it
========================  ==========================================================================

SGD's buffer is ``momentum * buffer + (1 - dampening) * g``, a fixed multiple (1 - dampening)/(1 - momentum) of a moving
average. Changing the momentum alone would change that multiple, and with it the length of the steps. The dampening
therefore changes such that the multiple is constant: with ``dampening=momentum`` the buffer remains the average
itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from semaopt._validation import to_float
from semaopt.schedules import bias

_FIELDS = ("beta", "betas", "momentum")
_SMALLEST_GAMMA = 2.0**-53  # the smallest gamma for which 1 - gamma < 1


def base_gammas(
    optimizer: Optimizer, on: Sequence[str] = ("lr", "gamma"), alternative: str = "use an optimizer with momentum"
) -> list[float | None]:
    """Return the initial gamma of each group, or None for a group without an average.

    Args:
        optimizer: any torch optimizer.
        on: the rates to schedule; without ``"gamma"`` every entry is None.
        alternative: the remedy named in the error for an optimizer without momentum.
    """
    if "gamma" not in on:
        return [None] * len(optimizer.param_groups)
    for k, group in enumerate(optimizer.param_groups):
        reason = _unsupported(optimizer, group)
        if reason:
            raise ValueError(f"{type(optimizer).__name__}: param group {k} {reason}. To proceed, {alternative}.")
    gammas = [initial_gamma(group) for group in optimizer.param_groups]
    if "lr" not in on and all(gamma is None for gamma in gammas):
        raise ValueError(
            f"{type(optimizer).__name__}: no param group is averaged, so there is no gamma = 1 - beta to schedule. "
            f"To proceed, {alternative}."
        )
    return gammas


def _unsupported(optimizer: Optimizer, group: dict[str, Any]) -> str:
    """Return why the gamma of a group cannot be scheduled, or an empty string."""
    field = _field(group)
    if field is None:
        return "has no 'beta', 'betas' or 'momentum', so there is no gamma = 1 - beta to schedule"
    if field != "momentum":
        return ""
    if to_float(group["momentum"]) == 0:
        return "has momentum=0, so there is no average whose gamma = 1 - momentum could be scheduled"
    if group.get("nesterov", False):
        return "has nesterov=True, whose mix of gradient and buffer depends on the momentum; only nesterov=False works"
    if isinstance(optimizer, torch.optim.RMSprop):
        return "has a buffer that is a sum, not an average: changing its momentum would change the length of the steps"
    return ""


def _field(group: dict[str, Any]) -> str | None:
    return next((name for name in _FIELDS if name in group), None)


def gamma_of(group: dict[str, Any]) -> float | None:
    """Return gamma = 1 - beta of a group, or None if it is not averaged."""
    field = _field(group)
    if field is None or group[field] is None:
        return None
    return 1 - to_float(group["betas"][0] if field == "betas" else group[field])


def initial_gamma(group: dict[str, Any]) -> float | None:
    """Return the gamma that the group had when its first schedule was created; the group stores it."""
    gamma: float | None = group.setdefault("initial_gamma", gamma_of(group))
    if gamma is not None and "dampening" in group:
        group.setdefault("initial_dampening", to_float(group["dampening"]))
    return gamma


def set_gamma(group: dict[str, Any], gamma: float) -> None:
    """Set beta = 1 - gamma, with gamma clipped to (0, 1]; a tensor is changed in place."""
    first = initial_gamma(group)
    field = _field(group)
    largest = 1 - _SMALLEST_GAMMA if field == "momentum" else 1.0  # SGD ignores its buffer if momentum=0
    gamma = min(max(gamma, _SMALLEST_GAMMA), largest)
    if field == "betas":
        beta = group["betas"][0]
        if isinstance(beta, Tensor):
            beta.fill_(1 - gamma)
        else:
            group["betas"] = type(group["betas"])([1 - gamma, *group["betas"][1:]])
    elif field is not None:
        _write(group, field, 1 - gamma)
    if first is not None and "initial_dampening" in group:
        group["dampening"] = 1 - (1 - group["initial_dampening"]) / first * gamma


def _write(group: dict[str, Any], field: str, value: float) -> None:
    if isinstance(group[field], Tensor):
        group[field].fill_(value)
    else:
        group[field] = value


class GammaScheduler(LRScheduler):
    """Base class of the schedules that change gamma."""

    compensate_bias = False

    def get_last_gamma(self) -> list[float | None]:
        """Return the current gamma of each group; :meth:`get_last_lr` returns the current lr."""
        return [gamma_of(group) for group in self.optimizer.param_groups]

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a copy or a pickle; the copied optimizer has lost the compensation of its bias correction."""
        self.__dict__.update(state)
        if self.compensate_bias:
            bias.compensate(self.optimizer)
