"""How a schedule finds gamma = 1 - beta in the groups of an optimizer, and moves it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from semaopt._serialization import plain

_SMALLEST_GAMMA = 2.0**-53  # the smallest that keeps beta = 1 - gamma below 1


def base_gammas(optimizer: Optimizer, on: Sequence[str] = ("gamma",), instead: str = "") -> list[float | None]:
    """The gamma = 1 - beta of each group; None for a group that is not averaged (a dual variable).

    ``instead`` is what else one may do where there is none.
    """
    if "gamma" not in on:
        return [None] * len(optimizer.param_groups)
    for k, group in enumerate(optimizer.param_groups):
        if "beta" not in group:
            raise ValueError(
                f"{type(optimizer).__name__}: param group {k} has no 'beta', so there is no gamma = 1 - beta to move; "
                f"use an optimizer of semaopt (semaopt.ASA covers Adam and SGD with momentum){instead}"
            )
        group.setdefault("initial_gamma", gamma_of(group))
    return [group["initial_gamma"] for group in optimizer.param_groups]


def moved_gammas(optimizer: Optimizer, instead: str, on: Sequence[str] = ("gamma",)) -> list[float | None]:
    """The same, if there is one to move where nothing else is moved."""
    found = base_gammas(optimizer, on, instead)
    if "lr" not in on and all(gamma is None for gamma in found):
        raise ValueError(
            f"{type(optimizer).__name__}: no param group is averaged, so there is no gamma = 1 - beta to move; "
            f"use an optimizer that averages{instead}"
        )
    return found


def gamma_of(group: dict[str, Any]) -> float | None:
    """The gamma = 1 - beta of a group; None if it is not averaged."""
    return None if group["beta"] is None else 1 - float(group["beta"])


def set_gamma(group: dict[str, Any], gamma: float) -> None:
    """Write ``group["beta"] = 1 - gamma``, in place where beta is a tensor."""
    beta = 1 - min(max(gamma, _SMALLEST_GAMMA), 1.0)
    if isinstance(group["beta"], Tensor):
        group["beta"].fill_(beta)
    else:
        group["beta"] = beta


class GammaScheduler(LRScheduler):
    """What all schedules here can be asked."""

    def get_last_gamma(self) -> list[float | None]:
        """The gamma of each group now, beside torch's :meth:`get_last_lr`."""
        betas = (group.get("beta") for group in self.optimizer.param_groups)
        return [None if beta is None else 1 - float(beta) for beta in betas]

    def state_dict(self) -> dict[str, Any]:
        """Torch's, with NumPy's numbers as Python's, so ``torch.load(weights_only=True)`` reads it."""
        packed: dict[str, Any] = plain(super().state_dict())
        return packed
