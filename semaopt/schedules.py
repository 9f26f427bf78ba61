r"""Schedules that move the step size eta (``lr``) and gamma = 1 - beta together.

The tracking error of SEMA falls only if gamma shrinks, and x may only move as fast as gamma lets v follow:
``thm:2`` asks for :math:`\eta \le \gamma \sqrt{c_l}/(2 L \sqrt{c_u^3})`. One object therefore moves both.

All of them are :class:`torch.optim.lr_scheduler.LRScheduler`: call ``.step()`` after ``optimizer.step()``, as often
as you count time (``every`` counts calls), save ``state_dict()``, hand them to Lightning or Accelerate.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from semaopt._check import is_real, number, require, whole
from semaopt._describe import plain

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
        group.setdefault("initial_gamma", _gamma(group))
    return [group["initial_gamma"] for group in optimizer.param_groups]


def _moved_gammas(optimizer: Optimizer, instead: str, on: Sequence[str] = ("gamma",)) -> list[float | None]:
    """The same, if there is one to move where nothing else is moved."""
    found = base_gammas(optimizer, on, instead)
    if "lr" not in on and all(gamma is None for gamma in found):
        raise ValueError(
            f"{type(optimizer).__name__}: no param group is averaged, so there is no gamma = 1 - beta to move; "
            f"use an optimizer that averages{instead}"
        )
    return found


def _gamma(group: dict[str, Any]) -> float | None:
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


class _Together(GammaScheduler, ABC):
    """lr and gamma of every group are their first values times ``factor_at(t)`` after t calls of ``step``.

    Not the last values times a ratio, in which roundings would add up over a million steps: so a warm-up goes before
    it in torch's SequentialLR, not beside it in ChainedScheduler.
    """

    def __init__(self, optimizer: Optimizer, on: Sequence[str], last_epoch: int) -> None:
        ok = not isinstance(on, str) and len(on) > 0 and set(on) <= {"lr", "gamma"}
        require(ok, "on", on, "must name 'lr', 'gamma' or both", "the default is ('lr', 'gamma')")
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"{type(self).__name__} needs a torch optimizer, got {type(optimizer).__name__}")
        self.on = tuple(on)
        self.base_gammas = _moved_gammas(optimizer, ", or on=('lr',)", on)
        super().__init__(optimizer, last_epoch)

    @abstractmethod
    def factor_at(self, t: int) -> float:
        """What multiplies both after t calls of ``step``."""

    def get_lr(self) -> list[float | Tensor]:
        """The next lr of each group. Sets each beta on the way, as torch's OneCycleLR does with momentum."""
        factor = self.factor_at(self.last_epoch)
        self._adopt()
        for group, gamma in zip(self.optimizer.param_groups, self.base_gammas, strict=True):
            if gamma is not None:
                set_gamma(group, factor * gamma)
        if "lr" not in self.on:
            return [group["lr"] for group in self.optimizer.param_groups]
        return [factor * lr for lr in self.base_lrs]

    def _adopt(self) -> None:
        """A group that was added later moves on with the others, from the lr and the gamma it came with."""
        passed = self.factor_at(max(self.last_epoch - 1, 0))
        for group in self.optimizer.param_groups[len(self.base_gammas) :]:
            gamma = _gamma(group) if "gamma" in self.on else None
            self.base_gammas.append(None if gamma is None else gamma / passed)
            self.base_lrs.append(group["lr"] / passed)


class Stagewise(_Together):
    """Multiply lr and gamma by ``factor`` after ``every`` calls of ``step`` (the paper's: 0.2 every 20 epochs).

    Args:
        optimizer: one whose groups have a beta.
        every: how many calls of ``step`` a stage has; with one call a batch, epochs * len(train).
        factor: in (0, 1].
        on: what moves: ``"lr"``, ``"gamma"`` or both.
        last_epoch: as in torch.

    >>> optimizer = semaopt.ASA([torch.nn.Parameter(torch.zeros(1))], lr=1.0, beta=0.5)
    >>> schedule = semaopt.schedules.Stagewise(optimizer, every=2, factor=0.2)
    >>> for _ in range(2):
    ...     optimizer.step()
    ...     schedule.step()
    >>> optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["beta"]
    (0.2, 0.9)
    """

    def __init__(
        self,
        optimizer: Optimizer,
        every: int,
        factor: float = 0.2,
        on: Sequence[str] = ("lr", "gamma"),
        last_epoch: int = -1,
    ) -> None:
        require(
            is_real(factor) and 0 < factor <= 1,
            "factor",
            factor,
            "must lie in (0, 1]",
            "gamma may only shrink; the paper takes 0.2",
        )
        self.every, self.factor = whole("every", every, "count steps"), number(factor)
        super().__init__(optimizer, on, last_epoch)

    def factor_at(self, t: int) -> float:
        return self.factor ** (t // self.every)


class Polynomial(_Together):
    """lr and gamma times ``1/(k+1)^power`` in stage ``k`` of ``every`` calls (Epoch-SGDA's decay has power 1).

    Args:
        optimizer: one whose groups have a beta.
        every: how many calls of ``step`` a stage has; with one call a batch, epochs * len(train).
        power: how fast they shrink; > 0.
        on: what moves: ``"lr"``, ``"gamma"`` or both.
        last_epoch: as in torch.

    >>> optimizer = semaopt.ASA([torch.nn.Parameter(torch.zeros(1))], lr=1.0, beta=0.5)
    >>> schedule = semaopt.schedules.Polynomial(optimizer, every=2)
    >>> for _ in range(2):
    ...     optimizer.step()
    ...     schedule.step()
    >>> optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["beta"]
    (0.5, 0.75)
    """

    def __init__(
        self,
        optimizer: Optimizer,
        every: int,
        power: float = 1.0,
        on: Sequence[str] = ("lr", "gamma"),
        last_epoch: int = -1,
    ) -> None:
        require(
            is_real(power) and 0 < power < math.inf,
            "power",
            power,
            "must be a finite number > 0",
            "the usual power is 1.0",
        )
        self.every, self.power = whole("every", every, "count steps"), number(power)
        super().__init__(optimizer, on, last_epoch)

    def factor_at(self, t: int) -> float:
        return float((t // self.every + 1) ** -self.power)


class InverseSqrt(_Together):
    """lr and gamma times ``1/sqrt(t+1)`` after t calls of ``step`` (``thm:SHB_decrease``).

    Args:
        optimizer: one whose groups have a beta.
        on: what moves: ``"lr"``, ``"gamma"`` or both.
        last_epoch: as in torch.

    >>> optimizer = semaopt.ASA([torch.nn.Parameter(torch.zeros(1))], lr=1.0, beta=0.5)
    >>> schedule = semaopt.schedules.InverseSqrt(optimizer)
    >>> for _ in range(3):
    ...     optimizer.step()
    ...     schedule.step()
    >>> optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["beta"]
    (0.5, 0.75)
    """

    def __init__(self, optimizer: Optimizer, on: Sequence[str] = ("lr", "gamma"), last_epoch: int = -1) -> None:
        super().__init__(optimizer, on, last_epoch)

    def factor_at(self, t: int) -> float:
        return 1 / math.sqrt(t + 1)


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
        self.base_gammas = _moved_gammas(self.optimizer, ", or torch's scheduler without Follow")
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
            self.base_gammas.append(_gamma(group))
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
