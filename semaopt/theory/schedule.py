"""The rates of a plan as a torch learning-rate scheduler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from semaopt.schedules.momentum import GammaScheduler, base_gammas, set_gamma

#: The roles of param groups that hold y in a min-max or bilevel problem.
FOLLOWERS = ("dual", "lower")


class Prescribed(GammaScheduler):
    """Scheduler that sets lr and gamma = 1 - beta of every group to the rates of a plan.

    The ``schedule`` method of a plan creates it. The state dict holds only the step count: to resume, create the
    scheduler from the same plan and load the state dict.

    Args:
        optimizer: an optimizer of semaopt.
        rates: a function t -> (eta, gamma).
        follower_eta: a function t -> lr for the groups without beta, which hold y in a min-max or bilevel problem.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        rates: Callable[[int], tuple[float, float]],
        follower_eta: Callable[[int], float] | None = None,
    ) -> None:
        gammas = base_gammas(optimizer)  # raises for an optimizer without beta
        for k, group in enumerate(optimizer.param_groups):
            if group["beta"] is None and group.get("role", "dual") not in FOLLOWERS:
                raise ValueError(
                    f"param group {k} of {type(optimizer).__name__} holds x but has no average (beta=None), which the "
                    "theorems need. Use semaopt.PDSM, which is SGDA with a beta."
                )
        followers = [k for k, gamma in enumerate(gammas) if gamma is None]
        if followers and follower_eta is None:
            raise ValueError(
                f"param groups {followers} of {type(optimizer).__name__} hold y of a min-max or bilevel problem, and "
                "this plan has no step size for them. Use theory.minmax or theory.bilevel."
            )
        if follower_eta is not None and not followers:
            raise ValueError(
                f"{type(optimizer).__name__} has no param group for y, but this plan has a step size for it. Use an "
                "optimizer for min-max or bilevel problems, such as semaopt.PDSM or semaopt.SMB."
            )
        self.rates, self.follower_eta = rates, follower_eta
        super().__init__(optimizer)

    def get_lr(self) -> list[float | Tensor]:
        """Return the next lr of each group, and set each beta, as torch's OneCycleLR does with momentum."""
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
        """Return torch's state dict without the rates of the plan."""
        return {key: value for key, value in super().state_dict().items() if key not in ("rates", "follower_eta")}
