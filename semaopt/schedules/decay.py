"""Schedules by a formula: lr and gamma are their first values times one factor."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

from torch import Tensor
from torch.optim import Optimizer

from semaopt._validation import is_real, require, to_float, validate_integer
from semaopt.schedules.momentum import GammaScheduler, gamma_of, moved_gammas, set_gamma


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
        self.base_gammas = moved_gammas(optimizer, ", or on=('lr',)", on)
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
            gamma = gamma_of(group) if "gamma" in self.on else None
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
        self.every, self.factor = validate_integer("every", every, "count steps"), to_float(factor)
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
        self.every, self.power = validate_integer("every", every, "count steps"), to_float(power)
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
