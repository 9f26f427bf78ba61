r"""The scalings of the paper's Table 2 (``tab:2``), side by side.

A scaling is one row of the table: a formula for :math:`u_{t+1}` from the gradients seen so far, the constant
:math:`G_0`, and the bounds that both give for

.. math:: s_t = 1/(\sqrt{u_{t+1}} + G_0), \qquad c_l \le s_t \le c_u .

A custom scaling is any object with the attributes of :class:`Scaling`; no base class is needed.

>>> class SignLike:                                   # u = g^2: a step of eta v / |g|
...     g0, buffers = 1e-3, ()
...     def update_(self, m, seen):
...         return seen.g.square()
>>> x = torch.nn.Parameter(torch.tensor([1.0]))
>>> optimizer = semaopt.ASA([x], scaling=SignLike())
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from semaopt import _serialization
from semaopt._validation import is_real, require, validate_beta, validate_bounds
from semaopt.estimator import COUNTERS, Rate, divisor, estimate, scalar, sema_, square, track_


class Seen(NamedTuple):
    """The input of a scaling in step ``t`` (t = 0 in the first step of a parameter)."""

    g: Tensor
    """The stochastic gradient of this parameter."""
    v: Tensor
    """The tracked gradient v_{t+1} of this parameter, bias-corrected if that option is on."""
    t: Rate
    """The number of steps that this parameter has taken before this one."""
    norm: Callable[[], Tensor]
    """The Euclidean norm of v_{t+1} over all parameters of the group."""
    corrected: bool
    """Whether averages start at 0 and are divided by their weight (bias correction)."""


@runtime_checkable
class Scaling(Protocol):
    """One row of Table 2. ``update_`` changes its buffers in place and returns u_{t+1}.

    The rows in this module also have ``read(m, seen)``, which returns the last u_{t+1} from the buffers, without
    ``seen.g``; :class:`semaopt.diagnostics.Monitor` measures s with it. A custom scaling may have it too.
    """

    @property
    def g0(self) -> float:
        """G0, which is added to sqrt(u)."""

    @property
    def buffers(self) -> tuple[str, ...]:
        """Names of the tensors kept per parameter; they have its shape and are zero before step 0."""

    def update_(self, m: Mapping[str, Tensor], seen: Seen) -> Tensor | float:
        """Return u_{t+1} >= 0: a tensor with the shape of the parameter, or one number for all coordinates."""


def validate_g0(g0: Any) -> None:
    """Raise unless G0 is positive and float32 can represent it."""
    ok = is_real(g0) and 1e-30 <= g0 < math.inf
    require(ok, "g0", g0, "must be finite and at least 1e-30 (smaller vanishes in float32)", "try 1e-7")


@dataclass(frozen=True)
class SHB:
    """Stochastic heavy ball: u = 1, G0 = 0."""

    name: ClassVar[str] = "shb"
    buffers: ClassVar[tuple[str, ...]] = ()
    g0: ClassVar[float] = 0.0

    def update_(self, m: Mapping[str, Tensor], seen: Seen) -> Tensor | float:
        return 1.0

    def read(self, m: Mapping[str, Tensor], seen: Seen) -> float:
        return 1.0

    def bounds(self, G: float) -> tuple[float, float]:
        return 1.0, 1.0


@dataclass(frozen=True)
class Adam:
    """u = EMA(g^2; beta2).

    Args:
        beta2: the momentum of u, in [0, 1).
        g0: added to sqrt(u), so that s is at most 1/g0. Torch calls it eps.
    """

    beta2: float = 0.999
    g0: float = 1e-7
    name: ClassVar[str] = "adam"
    buffers: ClassVar[tuple[str, ...]] = ("u",)

    def __post_init__(self) -> None:
        validate_beta("beta2", self.beta2)
        validate_g0(self.g0)

    def update_(self, m: Mapping[str, Tensor], seen: Seen) -> Tensor | float:
        return sema_(m, "u", square(seen.g), 1 - self.beta2, seen.t, corrected=seen.corrected)

    def read(self, m: Mapping[str, Tensor], seen: Seen) -> Tensor:
        return estimate(m, "u", corrected=seen.corrected)

    def bounds(self, G: float) -> tuple[float, float]:
        return 1 / (G + self.g0), 1 / self.g0


@dataclass(frozen=True)
class AMSGrad:
    """u = max(u, EMA(g^2; beta2)).

    Args:
        beta2: the momentum of u, in [0, 1).
        g0: added to sqrt(u), so that s is at most 1/g0. Torch calls it eps.
    """

    beta2: float = 0.999
    g0: float = 1e-7
    name: ClassVar[str] = "amsgrad"
    buffers: ClassVar[tuple[str, ...]] = ("u", "u_max")

    def __post_init__(self) -> None:
        validate_beta("beta2", self.beta2)
        validate_g0(self.g0)

    def update_(self, m: Mapping[str, Tensor], seen: Seen) -> Tensor | float:
        sema_(m, "u", square(seen.g), 1 - self.beta2, seen.t, corrected=seen.corrected)
        # The clone keeps copy_ from overwriting what maximum has saved for differentiable=True.
        m["u_max"].copy_(torch.maximum(m["u_max"].clone(), m["u"]))
        return self.read(m, seen)

    def read(self, m: Mapping[str, Tensor], seen: Seen) -> Tensor:
        # As torch does: the largest uncorrected average, divided by the newest weight.
        return m["u_max"] / divisor(m["u_weight"], m["u_max"]) if seen.corrected else m["u_max"]

    def bounds(self, G: float) -> tuple[float, float]:
        return 1 / (G + self.g0), 1 / self.g0


@dataclass(frozen=True)
class AdaFom:
    """u = mean of g^2 over the steps so far (AdaGrad with its sum divided by t + 1).

    Args:
        g0: added to sqrt(u), so that s is at most 1/g0. Torch calls it eps.
    """

    g0: float = 1e-7
    name: ClassVar[str] = "adafom"
    buffers: ClassVar[tuple[str, ...]] = ("u_mean",)

    def __post_init__(self) -> None:
        validate_g0(self.g0)

    def update_(self, m: Mapping[str, Tensor], seen: Seen) -> Tensor | float:
        t = scalar(seen.t, seen.g) if isinstance(seen.t, Tensor) else seen.t
        return track_(m["u_mean"], square(seen.g), 1 / (t + 1))

    def read(self, m: Mapping[str, Tensor], seen: Seen) -> Tensor:
        return m["u_mean"]

    def bounds(self, G: float) -> tuple[float, float]:
        return 1 / (G + self.g0), 1 / self.g0


@dataclass(frozen=True)
class AdamPlus:
    """u = |v|, one number: the norm of the tracked gradient over all parameters of the group.

    Args:
        g0: added to sqrt(u), so that s is at most 1/g0. Torch calls it eps.
    """

    g0: float = 1e-7
    name: ClassVar[str] = "adam+"
    buffers: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        validate_g0(self.g0)

    def update_(self, m: Mapping[str, Tensor], seen: Seen) -> Tensor | float:
        return seen.norm()

    def read(self, m: Mapping[str, Tensor], seen: Seen) -> Tensor:
        return seen.norm()

    def bounds(self, G: float) -> tuple[float, float]:
        return 1 / (math.sqrt(G) + self.g0), 1 / self.g0


@dataclass(frozen=True)
class AdaBound:
    """u = clip(EMA(g^2; beta2), 1/c_u^2, 1/c_l^2), G0 = 0; the unclipped average is kept.

    Args:
        c_l: the smallest s.
        c_u: the largest s.
        beta2: the momentum of u, in [0, 1).
    """

    c_l: float = 0.1
    c_u: float = 1000.0
    beta2: float = 0.999
    name: ClassVar[str] = "adabound"
    buffers: ClassVar[tuple[str, ...]] = ("u",)
    g0: ClassVar[float] = 0.0

    def __post_init__(self) -> None:
        validate_bounds("(c_l, c_u)", (self.c_l, self.c_u))
        validate_beta("beta2", self.beta2)

    def update_(self, m: Mapping[str, Tensor], seen: Seen) -> Tensor | float:
        sema_(m, "u", square(seen.g), 1 - self.beta2, seen.t, corrected=seen.corrected)
        return self.read(m, seen)

    def read(self, m: Mapping[str, Tensor], seen: Seen) -> Tensor:
        return estimate(m, "u", corrected=seen.corrected).clamp(self.c_u**-2, self.c_l**-2)

    def bounds(self, G: float) -> tuple[float, float]:
        return self.c_l, self.c_u


BuiltIn = SHB | Adam | AMSGrad | AdaFom | AdamPlus | AdaBound
BY_NAME: dict[str, type[BuiltIn]] = {row.name: row for row in (SHB, Adam, AMSGrad, AdaFom, AdamPlus, AdaBound)}

#: Remedies for names of torch's optimizers.
_ELSEWHERE = {
    "adamw": "use scaling='adam' with decoupled_weight_decay=True",
    "sgd": "use scaling='shb'",
    "momentum": "use scaling='shb'",
    "rmsprop": "use scaling='adam' with beta=0.0",
    "adagrad": "use scaling='adafom', whose u is the mean of g^2 instead of the sum",
}


def resolve(scaling: str | Scaling) -> Scaling:
    """Return the scaling with this name in Table 2, or the object itself if it has the attributes of a scaling."""
    if isinstance(scaling, str):
        if scaling not in BY_NAME:
            known = f"choose from {', '.join(map(repr, BY_NAME))} or pass an object like semaopt.scalings.Scaling"
            lower = scaling.lower()
            remedy = f"use scaling={lower!r}, in lower case" if lower in BY_NAME else _ELSEWHERE.get(lower, known)
            raise ValueError(f"scaling={scaling!r}: unknown; {remedy}")
        return BY_NAME[scaling]()
    if isinstance(scaling, type):
        raise TypeError(
            f"scaling={scaling.__name__}: a class, not a scaling; pass an instance, {scaling.__name__}(...)"
        )
    missing = [name for name in ("g0", "buffers", "update_") if not hasattr(scaling, name)]
    if missing:
        raise TypeError(
            f"scaling={scaling!r}: a scaling needs g0, buffers and update_(m, seen), but this has no "
            f"{', '.join(missing)}; see semaopt.scalings.Scaling"
        )
    validate_members(scaling)
    return scaling


def validate_members(scaling: Scaling) -> None:
    """Raise unless the attributes of a custom scaling are valid."""
    kind, names = type(scaling).__name__, scaling.buffers
    ok = isinstance(names, tuple) and all(isinstance(name, str) and name.isidentifier() for name in names)
    require(
        ok, f"{kind}.buffers", names, "must be a tuple of names", 'use ("u",) for one tensor per parameter, () for none'
    )
    taken = set(names) & (COUNTERS | {"v"})
    require(
        not taken, f"{kind}.buffers", names, f"must not hold {sorted(taken)}", "ASA uses these names; choose another"
    )
    ok = is_real(scaling.g0) and 0 <= scaling.g0 < math.inf
    require(ok, f"{kind}.g0", scaling.g0, "must be a finite number >= 0", "it is added to sqrt(u); try 1e-7")


def describe(scaling: Scaling) -> dict[str, Any]:
    """Return a scaling as plain values, which ``torch.load(weights_only=True)`` reads."""
    return _serialization.describe(scaling, BY_NAME)


def restore(description: dict[str, Any], live: Scaling) -> Scaling:
    """Rebuild a scaling from the result of :func:`describe`; for a custom one, ``live`` must be of its class."""
    restored: Scaling = _serialization.restore("scaling", description, live, BY_NAME)
    return restored
