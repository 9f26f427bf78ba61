"""Answers to tools that look for torch's momentum: an error for schedulers, a view of beta for loggers."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, overload

from torch.optim.lr_scheduler import CyclicLR, OneCycleLR

from semaopt._validation import to_float


class Defaults(dict[str, Any]):
    """Defaults that have ``beta`` in place of torch's ``momentum``.

    OneCycleLR and CyclicLR look for ``"momentum"`` in the defaults unless ``cycle_momentum=False``, and torch's error
    does not name that remedy. Torch has no hook to change that error, so ``in`` looks up its caller in the calling
    frame. ``"betas"`` is in the defaults, because every group has a :class:`Betas`.
    """

    def __contains__(self, name: object) -> bool:
        caller = sys._getframe(1).f_locals.get("self") if name == "momentum" else None
        if isinstance(caller, (OneCycleLR, CyclicLR)):
            raise ValueError(
                f"{type(caller).__name__} cannot cycle the momentum of this optimizer, which is group['beta']. Pass "
                "cycle_momentum=False; semaopt.schedules.Follow changes 1 - beta in proportion to lr."
            )
        return name == "betas" or super().__contains__(name)


class Betas(Sequence[float]):
    """The entry ``"betas"`` of a param group: a read-only view ``(beta,)`` for loggers.

    Loggers such as Lightning's LearningRateMonitor read ``group["betas"][0]``. A view always has the current value of
    ``group["beta"]``. A group that is not averaged has momentum 0.

    Args:
        group: the param group.
    """

    def __init__(self, group: dict[str, Any]) -> None:
        self._group = group

    def __len__(self) -> int:
        return 1

    @overload
    def __getitem__(self, i: int) -> float: ...
    @overload
    def __getitem__(self, i: slice) -> Sequence[float]: ...
    def __getitem__(self, i: int | slice) -> float | Sequence[float]:
        beta = self._group["beta"]
        return (0.0 if beta is None else to_float(beta),)[i]

    def __repr__(self) -> str:
        return repr(tuple(self))
