r"""Projections onto convex sets, :math:`\Pi_Y(y) = \arg\min_{z\in Y} |z - y|`, in place and side by side.

An optimizer's ``project=`` takes one of them or any callable that maps a tensor in place (one that returns a new
tensor instead is understood too). Each dual tensor is projected on its own.

>>> y = torch.tensor([0.5, 2.0])
>>> semaopt.projections.Box(-1.0, 1.0)(y)
tensor([0.5000, 1.0000])
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from semaopt import _serialization
from semaopt._validation import is_real, require

Projection = Callable[[Tensor], Any]


def _check_radius(radius: Any) -> None:
    ok = is_real(radius) and 0 <= radius < math.inf
    require(ok, "radius", radius, "must be a finite number >= 0", "try 1.0")


def _wide(y: Tensor) -> torch.dtype:
    """The dtype to compute in: sums over a large tensor need more digits than its entries."""
    if y.is_complex():
        return torch.complex64 if y.device.type == "mps" else torch.complex128
    return torch.float32 if y.device.type == "mps" else torch.float64


def _refuse_complex(y: Tensor, rule: str) -> None:
    if y.is_complex():
        raise TypeError(f"y of {y.dtype}: {rule}; pass torch.view_as_real(y), pairs of reals, or use Ball")


@dataclass(frozen=True)
class Box:
    """Y = {lo <= y_i <= hi}; either bound may be infinite. The bounds are rounded to the dtype of y.

    >>> semaopt.projections.Box(0.0, float("inf"))(torch.tensor([-3.0, 7.0]))
    tensor([0., 7.])
    """

    lo: float
    hi: float
    elementwise: ClassVar[bool] = True

    def __post_init__(self) -> None:
        ok = is_real(self.lo) and is_real(self.hi) and self.lo <= self.hi
        require(ok, "(lo, hi)", (self.lo, self.hi), "must be numbers with lo <= hi", "try Box(-1.0, 1.0)")

    def __call__(self, y: Tensor) -> Tensor:
        _refuse_complex(y, "lo <= y_i <= hi has no meaning for complex numbers")
        return y.clamp_(self.lo, self.hi)


@dataclass(frozen=True)
class Ball:
    """Y = {|y - center| <= radius}, the Euclidean ball over all entries; every entry of the center is ``center``.

    The norm of complex entries is that of their pairs of reals.

    >>> semaopt.projections.Ball(1.0)(torch.tensor([3.0, 4.0]))
    tensor([0.6000, 0.8000])
    """

    radius: float
    center: float = 0.0

    def __post_init__(self) -> None:
        _check_radius(self.radius)
        ok = is_real(self.center) and math.isfinite(self.center)
        require(ok, "center", self.center, "must be a finite number", "0.0 is the origin")

    def __call__(self, y: Tensor) -> Tensor:
        if y.numel() == 0:
            return y
        d = y.to(_wide(y)) - self.center
        # Entries are divided by the largest first: the square of 1e30 overflows float32.
        largest = d.abs().amax().clamp_min(torch.finfo(d.dtype).tiny)
        norm = torch.linalg.vector_norm(d / largest) * largest
        # A point inside stays to the bit; what is not finite becomes NaN.
        return y.copy_(torch.where(norm <= self.radius, y.to(d.dtype), self.center + d * (self.radius / norm)))


@dataclass(frozen=True)
class Simplex:
    r"""Y = {y >= 0, sum of y = total}: all entries of the tensor, or, with ``dim``, each slice along it.

    The nearest point is :math:`\max(y - \theta, 0)` with the :math:`\theta` that makes the sum right (sort and
    cumulative sum; Held, Wolfe and Crowder 1974).

    >>> semaopt.projections.Simplex()(torch.tensor([0.5, 1.0, -1.0]))
    tensor([0.2500, 0.7500, 0.0000])
    """

    total: float = 1.0
    dim: int | None = None

    def __post_init__(self) -> None:
        ok = is_real(self.total) and 0 < self.total < math.inf
        require(ok, "total", self.total, "must be a finite number > 0", "probabilities have total=1.0")
        ok = self.dim is None or (isinstance(self.dim, int) and not isinstance(self.dim, bool))
        require(ok, "dim", self.dim, "must be a dimension or None", "None takes all entries of a tensor together")

    def __call__(self, y: Tensor) -> Tensor:
        _refuse_complex(y, "y >= 0 has no meaning for complex numbers")
        if y.numel() == 0:
            return y
        # The slices as rows, shifted to a largest entry of 0, which moves theta and nothing else.
        rows = y.reshape(1, -1) if self.dim is None else y.movedim(self.dim, -1)
        z = rows.to(_wide(y))
        z = z - z.amax(-1, keepdim=True)
        largest = z.sort(-1, descending=True).values
        k = torch.arange(1, z.shape[-1] + 1, dtype=z.dtype, device=z.device)
        theta = (largest.cumsum(-1) - self.total) / k
        support = (largest > theta).sum(-1, keepdim=True)
        z = (z - theta.gather(-1, (support - 1).clamp_min(0))).clamp_min(0)  # none, with NaN: so it goes through
        return y.copy_(z.reshape(y.shape) if self.dim is None else z.movedim(-1, self.dim))


@dataclass(frozen=True)
class SpectralBall:
    """Y = {largest singular value <= radius}: matrices, or the last two dimensions of a batch of them.

    >>> semaopt.projections.SpectralBall(1.0)(torch.diag(torch.tensor([3.0, 0.5])))
    tensor([[1.0000, 0.0000],
            [0.0000, 0.5000]])
    """

    radius: float

    def __post_init__(self) -> None:
        _check_radius(self.radius)

    def __call__(self, y: Tensor) -> Tensor:
        shape = tuple(y.shape)
        require(y.dim() >= 2, "shape", shape, "a spectral norm needs a matrix", "Ball(radius) projects a vector")
        if y.numel() == 0:
            return y
        finite = y.isfinite().all(-1, keepdim=True).all(-2, keepdim=True)  # LAPACK refuses what is not
        if 1 in shape[-2:]:  # one row or column: its only singular value is its length
            length = torch.linalg.vector_norm(y.to(_wide(y)), dim=(-2, -1), keepdim=True)
            length = length.clamp_min(torch.finfo(length.dtype).tiny)  # 0/0
            return y.copy_(torch.where(finite, y * (self.radius / length).clamp_max(1.0), torch.nan))
        u, s, vh = torch.linalg.svd(torch.where(finite, y, 0).to(_wide(y)), full_matrices=False)
        clipped = (u * s.clamp_max(self.radius).unsqueeze(-2)) @ vh
        outside = s.amax(-1)[..., None, None] > self.radius
        return y.copy_(torch.where(finite, torch.where(outside, clipped, y.to(clipped.dtype)), torch.nan))


BuiltIn = Box | Ball | Simplex | SpectralBall
BY_NAME: dict[str, type[BuiltIn]] = {
    "box": Box,
    "ball": Ball,
    "simplex": Simplex,
    "spectral ball": SpectralBall,
}


def validate(project: Any) -> None:
    """A projection, a callable of the user's, or None for Y = the whole space."""
    if project is not None and (isinstance(project, type) or not callable(project)):
        raise TypeError(
            f"project={project!r}: must map a tensor in place; pass an instance such as "
            "semaopt.projections.Box(-1.0, 1.0), any callable, or None for no constraint"
        )


def apply_(project: Projection | None, y: Any) -> None:
    """``y <- Proj_Y[y]``, also where y is one rank's shard of a tensor (FSDP2)."""
    if project is None:
        return
    sharded = hasattr(y, "full_tensor") and not getattr(project, "elementwise", False)
    whole = y.full_tensor() if sharded else y
    moved = project(whole)
    moved = moved if isinstance(moved, Tensor) else whole
    got, shape = tuple(moved.shape), tuple(whole.shape)
    rule = f"returned that shape for a tensor of shape {shape}"
    require(got == shape, "project", got, rule, "return the projected tensor, or None after changing it in place")
    if sharded:
        _scatter_(y, moved)
    elif moved is not y:
        y.copy_(moved)


def _scatter_(y: Any, whole: Tensor) -> None:
    """Write every rank's part of ``whole``, which all ranks hold, into the sharded ``y``."""
    from torch.distributed.tensor import DTensor, Replicate

    mesh = y.device_mesh
    replicated = DTensor.from_local(whole, mesh, [Replicate()] * mesh.ndim, run_check=False)
    y.copy_(replicated.redistribute(placements=y.placements))


def describe(project: Projection | None) -> dict[str, Any] | None:
    """A projection as plain values; of a user's own callable the name alone."""
    return None if project is None else _serialization.describe(project, BY_NAME)


def restore(description: dict[str, Any] | None, live: Projection | None) -> Projection | None:
    """The projection that :func:`describe` described; a user's own must be ``live`` already."""
    if description is None:
        return None
    restored: Projection = _serialization.restore("project", description, live, BY_NAME)
    return restored
