"""A schedule that takes gamma along wherever another one takes lr."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from semaopt._serialization import plain
from semaopt._validation import require
from semaopt.schedules.momentum import GammaScheduler, gamma_of, moved_gammas, set_gamma


class Follow(GammaScheduler):
    r"""Gamma follows lr wherever another scheduler takes it: :math:`\gamma_t = \gamma_0\eta_t/\eta_{ref}`, at most 1.

    The reference is the lr that belongs to the gamma you chose: each group's ``max_lr`` under OneCycleLR and
    CyclicLR, else the lr before the first step; ``reference_lr`` overrides it. ``step`` takes what the other
    scheduler's takes, so ``Follow(ReduceLROnPlateau(...)).step(loss)``.

    OneCycleLR and CyclicLR want to cycle a momentum of their own: pass them ``cycle_momentum=False``.

    >>> optimizer = semaopt.ASA([torch.nn.Parameter(torch.zeros(1))], lr=1.0, beta=0.5)
    >>> schedule = semaopt.schedules.Follow(torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 2))
    >>> optimizer.step()
    >>> schedule.step()
    >>> optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["beta"]
    (0.5, 0.75)
    """

    # As torch's own wrappers do, this does not call LRScheduler.__init__: it would take a step of its own.
    def __init__(self, scheduler: LRScheduler, reference_lr: float | None = None) -> None:
        if not isinstance(scheduler, LRScheduler):
            raise TypeError(
                f"Follow needs a scheduler of torch.optim.lr_scheduler, got {type(scheduler).__name__}; "
                "write Follow(CosineAnnealingLR(optimizer, 100))"
            )
        if isinstance(scheduler, ReduceLROnPlateau):
            self.__class__ = _FollowPlateau
        self.scheduler = scheduler
        self.optimizer = scheduler.optimizer
        self.base_gammas = moved_gammas(self.optimizer, ", or torch's scheduler without Follow")
        groups = self.optimizer.param_groups
        # OneCycleLR writes its peak into each group, CyclicLR does not.
        peaks = getattr(scheduler, "max_lrs", None) or map(_reference, groups)
        self.base_lrs = [reference_lr] * len(groups) if reference_lr is not None else [float(lr) for lr in peaks]
        for lr in self.base_lrs:
            ok = 0 < float(lr) < math.inf
            require(ok, "reference_lr", lr, "must be a finite number > 0", "gamma follows lr/reference_lr")
        self._step_count = 1
        self._follow()

    def __getattr__(self, name: str) -> Any:
        """What is not here is the inner scheduler's: Accelerate looks for the ``total_steps`` of OneCycleLR."""
        if name == "scheduler":  # a copy that has no attributes yet
            raise AttributeError(name)
        return getattr(self.scheduler, name)

    @property
    def last_epoch(self) -> int:
        """The inner scheduler's clock."""
        return self.scheduler.last_epoch

    @last_epoch.setter
    def last_epoch(self, epoch: int) -> None:
        self.scheduler.last_epoch = epoch

    def _follow(self) -> None:
        for group in self.optimizer.param_groups[len(self.base_gammas) :]:  # added later: its own lr is its reference
            self.base_gammas.append(gamma_of(group))
            self.base_lrs.append(_reference(group))
        for group, gamma, reference in zip(self.optimizer.param_groups, self.base_gammas, self.base_lrs, strict=True):
            if gamma is not None:
                set_gamma(group, gamma * float(group["lr"]) / float(reference))

    def step(self, *args: Any, **kwargs: Any) -> None:
        """Step the other scheduler with these arguments, then move every gamma."""
        self.scheduler.step(*args, **kwargs)
        self._step_count += 1
        self._follow()

    # By these two SequentialLR starts the schedulers it is given.
    def _initial_step(self) -> None:
        self.scheduler._initial_step()
        self._follow()

    def _update_lr(self, epoch: int | None = None) -> None:
        self.scheduler._update_lr(epoch)
        self._follow()

    def get_last_lr(self) -> list[float | Tensor]:
        """The inner scheduler's."""
        return self.scheduler.get_last_lr()

    def state_dict(self) -> dict[str, Any]:
        """The first gammas, the reference lrs, and the inner scheduler's own state dict."""
        mine = {key: getattr(self, key) for key in ("base_gammas", "base_lrs", "_step_count")}
        packed: dict[str, Any] = plain({**mine, "scheduler": self.scheduler.state_dict()})
        return packed

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what :meth:`state_dict` gave."""
        self.scheduler.load_state_dict(state_dict["scheduler"])
        self.__dict__.update({key: value for key, value in state_dict.items() if key != "scheduler"})


class _FollowPlateau(Follow, ReduceLROnPlateau):
    """``Follow(ReduceLROnPlateau(...))``: by this base trainers such as Lightning know that ``step`` wants a metric."""


def _reference(group: dict[str, Any]) -> float:
    for key in ("max_lr", "initial_lr", "lr"):
        if key in group:
            return float(group[key])
    raise KeyError("lr")
