"""What an inverse is to an optimizer: a call, and what it carries from one to the next."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from semaopt.hypergradient.closures import Oracles, Partial
from semaopt.hypergradient.vectors import Vector


@dataclass
class Memory:
    """What an inverse carries from step to step; an optimizer keeps it in its state dict.

    ``numbers`` are plain values (``t``: the steps so far, ``bound``: the curvature bound as it is now), ``states`` one
    dict of tensors for each lower parameter, ``rates`` the step size of each.
    """

    numbers: dict[str, Any] = field(default_factory=lambda: {"t": 0, "bound": None})
    states: list[dict[str, Any]] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)


class Inverse(Protocol):
    """Gives g_y and g_xy w, with w near [g_yy]^{-1} f_y."""

    def __call__(self, oracles: Oracles, f_y: Vector, memory: Memory) -> tuple[Vector, Partial]: ...
