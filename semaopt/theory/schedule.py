"""The rates of a plan as a learning-rate scheduler of torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from semaopt.schedules.momentum import GammaScheduler, base_gammas, set_gamma

#: Roles of param groups that hold the y of a min-max or bilevel problem.
FOLLOWERS = ("dual", "lower")


class Prescribed(GammaScheduler):
    """lr and gamma = 1 - beta of every group after t calls of ``step`` are what a plan prescribes.

    Made by the ``schedule`` of a plan, which also brings the rates back after a checkpoint: the state dict holds the
    count alone.

    Args:
        optimizer: one of semaopt.
        rates: t -> (eta, gamma).
        follower_eta: t -> the lr of the groups without beta, which hold the y of a min-max or bilevel problem.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        rates: Callable[[int], tuple[float, float]],
        follower_eta: Callable[[int], float] | None = None,
    ) -> None:
        gammas = base_gammas(optimizer)  # refuses an optimizer without beta
        for k, group in enumerate(optimizer.param_groups):
            if group["beta"] is None and group.get("role", "dual") not in FOLLOWERS:
                raise ValueError(
                    f"param group {k} of {type(optimizer).__name__} holds x and is not averaged (beta=None): the "
                    "theorems need v; use semaopt.PDSM, which is SGDA with a beta"
                )
        followers = [k for k, gamma in enumerate(gammas) if gamma is None]
        if followers and follower_eta is None:
            raise ValueError(
                f"param groups {followers} of {type(optimizer).__name__} are not averaged (they hold the y of a "
                "min-max or bilevel problem), and this plan has no step size for them; use theory.minmax or "
                "theory.bilevel"
            )
        if follower_eta is not None and not followers:
            raise ValueError(
                f"{type(optimizer).__name__} has no param group for y, and this plan has a step size for it; use an "
                "optimizer of a min-max or bilevel problem, such as semaopt.PDSM or semaopt.SMB"
            )
        self.rates, self.follower_eta = rates, follower_eta
        super().__init__(optimizer)

    def get_lr(self) -> list[float | Tensor]:
        """The next lr of each group. Sets each beta on the way, as torch's OneCycleLR does with momentum."""
        eta, gamma = self.rates(self.last_epoch)
        lrs: list[float | Tensor] = []
        for group in self.optimizer.param_groups:
            if group["beta"] is not None:
                set_gamma(group, gamma)
                lrs.append(eta)
            elif self.follower_eta is not None:
                lrs.append(self.follower_eta(self.last_epoch))
        return lrs

    def state_dict(self) -> dict[str, Any]:
        """Torch's, without the plan's formulas."""
        return {key: value for key, value in super().state_dict().items() if key not in ("rates", "follower_eta")}
