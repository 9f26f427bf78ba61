"""Schedules given by a formula: lr and gamma are their initial values times a factor."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from semaopt._validation import is_real, require, to_float, validate_integer
from semaopt.schedules import bias
from semaopt.schedules.momentum import GammaScheduler, base_gammas, initial_gamma, set_gamma


class _FactorSchedule(GammaScheduler, ABC):
    """Base class: after t calls of ``step`` lr and gamma are their initial values times a factor.

    Both factors are ``factor_at(t)``, unless a subclass overrides :meth:`gamma_factor_at`.

    Each value is computed from the initial one, so that rounding errors do not add up. A warm-up therefore goes before
    such a schedule, in torch's SequentialLR, not next to it in a ChainedScheduler.
    """

    def __init__(self, optimizer: Optimizer, on: str | Sequence[str], last_epoch: int, compensate_bias: bool) -> None:
        names = (on,) if isinstance(on, str) else tuple(on)
        ok = len(names) > 0 and set(names) <= {"lr", "gamma"}
        require(ok, "on", on, "must name 'lr', 'gamma' or both", "The default is on=('lr', 'gamma').")
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"{type(self).__name__} needs a torch optimizer, got {type(optimizer).__name__}.")
        self.on = names
        self.base_gammas = base_gammas(optimizer, names, "use an optimizer with momentum, or on=('lr',)")
        self.compensate_bias = compensate_bias and "gamma" in names
        super().__init__(optimizer, last_epoch)
        if self.compensate_bias:
            bias.compensate(optimizer)

    @abstractmethod
    def factor_at(self, t: int) -> float:
        """Return the factor of lr and gamma after t calls of ``step``."""

    def gamma_factor_at(self, t: int) -> float:
        """Return the factor of gamma after t calls of ``step``: by default the factor of lr."""
        return self.factor_at(t)

    def get_lr(self) -> list[float | Tensor]:
        """Return the next lr of each group. Sets each gamma as well, as torch's OneCycleLR does with momentum."""
        self._adopt_new_groups()
        for group, gamma in zip(self.optimizer.param_groups, self.base_gammas, strict=True):
            if gamma is not None:
                set_gamma(group, self.gamma_factor_at(self.last_epoch) * gamma)
        if "lr" not in self.on:
            return [group["lr"] for group in self.optimizer.param_groups]
        factor = self.factor_at(self.last_epoch)
        return [factor * lr for lr in self.base_lrs]

    def _adopt_new_groups(self) -> None:
        """Schedule groups added later from the lr and gamma that they were added with."""
        last = max(self.last_epoch - 1, 0)  # where a factor is 0, they count as added at the start
        for group in self.optimizer.param_groups[len(self.base_gammas) :]:
            gamma = initial_gamma(group) if "gamma" in self.on else None
            self.base_gammas.append(None if gamma is None else gamma / (self.gamma_factor_at(last) or 1.0))
            self.base_lrs.append(group["lr"] / (self.factor_at(last) or 1.0))


class Stagewise(_FactorSchedule):
    """Multiply lr and gamma by ``factor`` after every ``every`` calls of ``step`` (the paper: 0.2 every 20 epochs).

    Args:
        optimizer: any torch optimizer with momentum (see :mod:`semaopt.schedules.momentum`).
        every: calls of ``step`` per stage; epochs * len(train) if it is called after every batch.
        factor: > 0; a factor above 1 lets lr and gamma grow (gamma up to 1).
        on: the rates to change, ``"lr"``, ``"gamma"`` or both.
        last_epoch: as in torch's schedulers.
        compensate_bias: correct the bias of torch's Adam and AdamW exactly while beta1 changes (see
            :mod:`semaopt.schedules.bias`); has no effect on other optimizers.

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
        on: str | Sequence[str] = ("lr", "gamma"),
        last_epoch: int = -1,
        *,
        compensate_bias: bool = True,
    ) -> None:
        ok = is_real(factor) and 0 < factor < math.inf
        require(ok, "factor", factor, "must be a finite number > 0", "The paper uses 0.2.")
        self.every, self.factor = validate_integer("every", every, "It counts calls of step()."), to_float(factor)
        super().__init__(optimizer, on, last_epoch, compensate_bias)

    def factor_at(self, t: int) -> float:
        try:
            return self.factor ** (t // self.every)
        except OverflowError:  # a factor above 1, after many stages
            return math.inf


class Polynomial(_FactorSchedule):
    """Multiply the initial lr and gamma by ``1/(k+1)^power`` in stage k of ``every`` calls (Epoch-SGDA: power 1).

    Args:
        optimizer: any torch optimizer with momentum (see :mod:`semaopt.schedules.momentum`).
        every: calls of ``step`` per stage; epochs * len(train) if it is called after every batch.
        power: > 0; larger is faster.
        on: the rates to change, ``"lr"``, ``"gamma"`` or both.
        last_epoch: as in torch's schedulers.
        compensate_bias: correct the bias of torch's Adam and AdamW exactly while beta1 changes (see
            :mod:`semaopt.schedules.bias`); has no effect on other optimizers.

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
        on: str | Sequence[str] = ("lr", "gamma"),
        last_epoch: int = -1,
        *,
        compensate_bias: bool = True,
    ) -> None:
        ok = is_real(power) and 0 < power < math.inf
        require(ok, "power", power, "must be a finite number > 0", "The usual power is 1.0.")
        self.every, self.power = validate_integer("every", every, "It counts calls of step()."), to_float(power)
        super().__init__(optimizer, on, last_epoch, compensate_bias)

    def factor_at(self, t: int) -> float:
        return float((t // self.every + 1) ** -self.power)


class InverseSqrt(_FactorSchedule):
    """Multiply the initial lr and gamma by ``1/sqrt(t+1)`` after t calls of ``step`` (``thm:SHB_decrease``).

    Args:
        optimizer: any torch optimizer with momentum (see :mod:`semaopt.schedules.momentum`).
        on: the rates to change, ``"lr"``, ``"gamma"`` or both.
        last_epoch: as in torch's schedulers.
        compensate_bias: correct the bias of torch's Adam and AdamW exactly while beta1 changes (see
            :mod:`semaopt.schedules.bias`); has no effect on other optimizers.

    >>> optimizer = semaopt.ASA([torch.nn.Parameter(torch.zeros(1))], lr=1.0, beta=0.5)
    >>> schedule = semaopt.schedules.InverseSqrt(optimizer)
    >>> for _ in range(3):
    ...     optimizer.step()
    ...     schedule.step()
    >>> optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["beta"]
    (0.5, 0.75)
    """

    def __init__(
        self,
        optimizer: Optimizer,
        on: str | Sequence[str] = ("lr", "gamma"),
        last_epoch: int = -1,
        *,
        compensate_bias: bool = True,
    ) -> None:
        super().__init__(optimizer, on, last_epoch, compensate_bias)

    def factor_at(self, t: int) -> float:
        return 1 / math.sqrt(t + 1)


class Lambda(_FactorSchedule):
    """Multiply the initial lr and gamma by two functions of the number of calls, like torch's LambdaLR.

    Args:
        optimizer: any torch optimizer with momentum (see :mod:`semaopt.schedules.momentum`).
        lr: maps t, the number of calls of ``step``, to the factor of lr; None leaves lr alone.
        gamma: maps t to the factor of gamma = 1 - beta; None leaves beta alone. It may exceed 1: gamma is clipped to 1.
        last_epoch: as in torch's schedulers.
        compensate_bias: correct the bias of torch's Adam and AdamW exactly while beta1 changes (see
            :mod:`semaopt.schedules.bias`); has no effect on other optimizers.

    The functions are not saved in the state dict.

    >>> optimizer = semaopt.ASA([torch.nn.Parameter(torch.zeros(1))], lr=1.0, beta=0.75)
    >>> schedule = semaopt.schedules.Lambda(optimizer, lr=lambda t: 0.5**t, gamma=lambda t: 1 + t)
    >>> optimizer.step()
    >>> schedule.step()
    >>> optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["beta"]
    (0.5, 0.5)
    """

    def __init__(
        self,
        optimizer: Optimizer,
        lr: Callable[[int], float] | None = None,
        gamma: Callable[[int], float] | None = None,
        last_epoch: int = -1,
        *,
        compensate_bias: bool = True,
    ) -> None:
        given = {name: one for name, one in (("lr", lr), ("gamma", gamma)) if one is not None}
        require(len(given) > 0, "lr", None, "lr or gamma must be a function", "Try lr=lambda t: 0.99**t.")
        for name, one in given.items():
            require(callable(one), name, one, "must be a function of t or None", "Try lambda t: 0.99**t.")
        self._lr, self._gamma = lr, gamma
        super().__init__(optimizer, tuple(given), last_epoch, compensate_bias)

    def factor_at(self, t: int) -> float:
        return 1.0 if self._lr is None else _factor("lr", t, self._lr(t))

    def gamma_factor_at(self, t: int) -> float:
        return 1.0 if self._gamma is None else _factor("gamma", t, self._gamma(t))

    def state_dict(self) -> dict[str, Any]:
        """Return everything but the optimizer and the functions."""
        state: dict[str, Any] = super().state_dict()
        return {key: value for key, value in state.items() if key not in ("_lr", "_gamma")}


def _factor(name: str, t: int, value: Any) -> float:
    ok = is_real(value) and 0 <= to_float(value) < math.inf
    require(ok, f"{name}({t})", value, "must be a finite number >= 0", "It multiplies the initial value.")
    return to_float(value)
