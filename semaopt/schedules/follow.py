"""A schedule that changes gamma in proportion to the lr of another schedule."""

from __future__ import annotations

import math
import weakref
from typing import Any

from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler, OneCycleLR, ReduceLROnPlateau

from semaopt._serialization import plain
from semaopt._validation import require
from semaopt.schedules import bias
from semaopt.schedules.momentum import GammaScheduler, base_gammas, initial_gamma, set_gamma


class Follow(GammaScheduler):
    r"""Change gamma in proportion to the lr of a torch scheduler.

    .. math:: \gamma_t = \min(1, \gamma_0\eta_t/\eta_{ref})

    ``step`` takes the arguments of the wrapped scheduler's ``step``: ``Follow(ReduceLROnPlateau(...)).step(loss)``.

    Inside a SequentialLR, gamma has its initial value until this schedule's turn, whichever scheduler was created
    first. Inside a ChainedScheduler put it last: gamma follows the lr at the time of the call.

    Args:
        scheduler: a scheduler of :mod:`torch.optim.lr_scheduler`. OneCycleLR and CyclicLR need
            ``cycle_momentum=False``, because they would change a momentum of their own.
        reference_lr: the lr at which gamma has its initial value. Default: the ``max_lr`` of OneCycleLR and CyclicLR,
            the initial lr of each group under any other scheduler.
        compensate_bias: correct the bias of torch's Adam and AdamW exactly while beta1 changes (see
            :mod:`semaopt.schedules.bias`); has no effect on other optimizers.

    >>> optimizer = semaopt.ASA([torch.nn.Parameter(torch.zeros(1))], lr=1.0, beta=0.5)
    >>> schedule = semaopt.schedules.Follow(torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 2))
    >>> optimizer.step()
    >>> schedule.step()
    >>> optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["beta"]
    (0.5, 0.75)
    """

    def __new__(cls, scheduler: LRScheduler | None = None, *_: Any, **__: Any) -> Follow:
        """Choose the class by which trainers recognize a scheduler whose ``step`` takes a metric."""
        return super().__new__(_FollowPlateau if isinstance(scheduler, ReduceLROnPlateau) else cls)

    # Like torch's own wrappers this does not call LRScheduler.__init__, which would take a step.
    def __init__(
        self, scheduler: LRScheduler, reference_lr: float | None = None, *, compensate_bias: bool = True
    ) -> None:
        if not isinstance(scheduler, LRScheduler):
            raise TypeError(
                f"Follow needs a scheduler of torch.optim.lr_scheduler, got {type(scheduler).__name__}. "
                "Write Follow(CosineAnnealingLR(optimizer, 100))."
            )
        self.scheduler = scheduler
        self.optimizer = scheduler.optimizer
        self.base_gammas = base_gammas(
            self.optimizer, ("gamma",), "use an optimizer with momentum, or torch's scheduler without Follow"
        )
        references = _references(scheduler)
        self.base_lrs = list(references) if reference_lr is None else [reference_lr] * len(references)
        for lr in self.base_lrs:
            ok = 0 < float(lr) < math.inf
            require(ok, "reference_lr", lr, "must be a finite number > 0", "Gamma is proportional to lr/reference_lr.")
        self.compensate_bias = compensate_bias
        if compensate_bias:
            bias.compensate(self.optimizer)
        self._step_count = 1
        self._waiting = True
        self._watch()
        self._follow()

    def __getattr__(self, name: str) -> Any:
        """Forward to the wrapped scheduler: Accelerate reads the ``total_steps`` of OneCycleLR."""
        if name == "scheduler":  # a copy that has no attributes yet
            raise AttributeError(name)
        return getattr(self.scheduler, name)

    @property
    def last_epoch(self) -> int:
        """The number of steps that the wrapped scheduler has counted."""
        return self.scheduler.last_epoch

    @last_epoch.setter
    def last_epoch(self, epoch: int) -> None:
        self.scheduler.last_epoch = epoch
        self._undo()

    @property
    def _schedulers(self) -> list[Any]:
        """The schedulers whose first step a SequentialLR undoes when it is created: this one and those in it."""
        return [_FirstStep(self), *getattr(self.scheduler, "_schedulers")]  # noqa: B009 - not declared by LRScheduler

    def _watch(self) -> None:
        """Follow the lr of the first optimizer step, which schedulers created later may still change."""
        this = weakref.ref(self)

        def before_step(*_: Any) -> None:
            schedule = this()
            if schedule is not None and schedule._waiting:
                schedule._follow()

        self._hook = self.optimizer.register_step_pre_hook(before_step)

    def _undo(self) -> None:
        """Set gamma back to its initial value until the next step of this schedule."""
        self._stop_waiting()
        for group, gamma in zip(self.optimizer.param_groups, self.base_gammas, strict=False):
            if gamma is not None:
                set_gamma(group, gamma)

    def _stop_waiting(self) -> None:
        self._waiting = False
        self._hook.remove()

    def _follow(self) -> None:
        for group in self.optimizer.param_groups[len(self.base_gammas) :]:  # added later: its own lr is its reference
            self.base_gammas.append(initial_gamma(group))
            self.base_lrs.append(float(group.get("initial_lr", group["lr"])))
        for group, gamma, reference in zip(self.optimizer.param_groups, self.base_gammas, self.base_lrs, strict=True):
            if gamma is not None:
                set_gamma(group, gamma * float(group["lr"]) / float(reference))

    def step(self, *args: Any, **kwargs: Any) -> None:
        """Step the wrapped scheduler with these arguments, then set every gamma."""
        self.scheduler.step(*args, **kwargs)
        self._step_count += 1
        self._moved()

    # SequentialLR starts its schedulers with these two.
    def _initial_step(self) -> None:
        self.scheduler._initial_step()
        self._moved()

    def _update_lr(self, epoch: int | None = None) -> None:
        self.scheduler._update_lr(epoch)
        self._moved()

    def _moved(self) -> None:
        self._stop_waiting()
        self._follow()

    def get_last_lr(self) -> list[float | Tensor]:
        """Return the last lr of each group that the wrapped scheduler computed."""
        return self.scheduler.get_last_lr()

    def state_dict(self) -> dict[str, Any]:
        """Return the initial gammas, the reference lrs and the wrapped scheduler's state."""
        own = {key: getattr(self, key) for key in ("base_gammas", "base_lrs", "_step_count", "_waiting")}
        packed: dict[str, Any] = plain({**own, "scheduler": self.scheduler.state_dict()})
        return packed

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the result of :meth:`state_dict`."""
        self.scheduler.load_state_dict(state_dict["scheduler"])
        self.__dict__.update({key: value for key, value in state_dict.items() if key != "scheduler"})
        if not self._waiting:
            self._hook.remove()

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes without the hook, which belongs to the original optimizer."""
        return {key: value for key, value in self.__dict__.items() if key != "_hook"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a copy or a pickle and hook into its optimizer."""
        super().__setstate__(state)
        self._watch()
        if not self._waiting:
            self._hook.remove()


class _FollowPlateau(Follow, ReduceLROnPlateau):
    """``Follow(ReduceLROnPlateau(...))``: trainers such as Lightning pass a metric to such a scheduler."""


class _FirstStep:
    """The first step of a :class:`Follow` around several schedulers, in the form in which SequentialLR undoes it."""

    def __init__(self, schedule: Follow) -> None:
        self._schedule = schedule

    @property
    def last_epoch(self) -> int:
        return 0

    @last_epoch.setter
    def last_epoch(self, _: int) -> None:
        self._schedule._undo()


def _references(scheduler: LRScheduler) -> list[float]:
    """Return, for each group, the lr at which gamma has its initial value."""
    groups = scheduler.optimizer.param_groups
    if isinstance(scheduler, OneCycleLR):
        return [float(group["max_lr"]) for group in groups]
    if hasattr(scheduler, "max_lrs"):  # CyclicLR
        return [float(lr) for lr in scheduler.max_lrs]
    if hasattr(scheduler, "_schedulers"):
        return _references(scheduler._schedulers[0])
    own = getattr(scheduler, "base_lrs", None) or [group.get("initial_lr", group["lr"]) for group in groups]
    return [float(lr) for lr in own]
