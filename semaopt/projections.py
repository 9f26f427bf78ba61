r"""Projections onto convex sets, :math:`\Pi_Y(y) = \arg\min_{z\in Y} |z - y|`, in place.

The argument ``project=`` of an optimizer takes one of them, or any callable that changes a tensor in place or returns
the projected tensor. Each dual tensor is projected by itself.

>>> y = torch.tensor([0.5, 2.0])
>>> semaopt.projections.Box(-1.0, 1.0)(y)
tensor([0.5000, 1.0000])
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from semaopt import _serialization
from semaopt._validation import invalid, is_real, require

Projection = Callable[[Tensor], Any]


def _validate_radius(radius: Any) -> None:
    ok = is_real(radius) and 0 <= radius < math.inf
    require(ok, "radius", radius, "must be a finite number >= 0", "Try 1.0.")


def _wide(y: Tensor) -> torch.dtype:
    """Return the dtype to compute in: sums over a large tensor need more digits than its entries."""
    if y.is_complex():
        return torch.complex64 if y.device.type == "mps" else torch.complex128
    return torch.float32 if y.device.type == "mps" else torch.float64


def _refuse_complex(y: Tensor, rule: str) -> None:
    if y.is_complex():
        raise TypeError(f"y has dtype {y.dtype}: {rule}. Pass torch.view_as_real(y), or use Ball.")


class _TensorFields:
    """Base class of sets whose fields may be tensors: they are copied, and compared by value."""

    def __post_init__(self) -> None:
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if isinstance(value, Tensor):
                object.__setattr__(self, field.name, value.detach().clone())

    def _values(self) -> tuple[Any, ...]:
        values = (getattr(self, field.name) for field in fields(self))  # type: ignore[arg-type]
        return tuple((tuple(x.shape), *x.flatten().tolist()) if isinstance(x, Tensor) else x for x in values)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other._values() == self._values()

    def __hash__(self) -> int:
        return hash((type(self), self._values()))


def _broadcast(name: str, value: float | Tensor, y: Tensor, dtype: torch.dtype) -> float | Tensor:
    """Return a number as it is, and a tensor in this dtype on the device of ``y``, whose shape it must broadcast to."""
    if not isinstance(value, Tensor):
        return value
    try:
        ok = torch.broadcast_shapes(value.shape, y.shape) == y.shape  # type: ignore[no-untyped-call]
    except RuntimeError:
        ok = False
    rule = f"must broadcast to the shape of y, {tuple(y.shape)}"
    require(ok, f"{name}.shape", tuple(value.shape), rule, "Pass a number, or a tensor of that shape.")
    return value.to(y.device, dtype)


@dataclass(frozen=True, eq=False)
class Box(_TensorFields):
    """Y = {lo <= y_i <= hi}. A bound may be infinite, and it may be a tensor that broadcasts to the shape of y.

    The bounds are rounded to the dtype of y.

    >>> semaopt.projections.Box(0.0, float("inf"))(torch.tensor([-3.0, 7.0]))
    tensor([0., 7.])
    >>> semaopt.projections.Box(0.0, torch.tensor([1.0, 2.0]))(torch.tensor([-3.0, 7.0]))
    tensor([0., 2.])
    """

    lo: float | Tensor
    hi: float | Tensor

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            ok = all(is_real(x) or isinstance(x, Tensor) for x in (self.lo, self.hi))
            ordered = self.lo <= self.hi
            ok = ok and (bool(ordered.all()) if isinstance(ordered, Tensor) else ordered)
        except (RuntimeError, TypeError):  # shapes that do not broadcast, complex numbers
            ok = False
        rule = "must be numbers or tensors with lo <= hi"
        require(ok, "(lo, hi)", (self.lo, self.hi), rule, "Try Box(-1.0, 1.0).")

    @property
    def elementwise(self) -> bool:
        """Whether every entry is projected in the same way, so that shards of a tensor can be projected separately."""
        return not (isinstance(self.lo, Tensor) or isinstance(self.hi, Tensor))

    def __call__(self, y: Tensor) -> Tensor:
        _refuse_complex(y, "lo <= y_i <= hi has no meaning for complex numbers")
        lo, hi = (_broadcast(name, getattr(self, name), y, y.dtype) for name in ("lo", "hi"))
        if not self.elementwise:
            lo, hi = (torch.as_tensor(bound, dtype=y.dtype, device=y.device) for bound in (lo, hi))
        return y.clamp_(lo, hi)  # type: ignore[arg-type]


@dataclass(frozen=True, eq=False)
class Ball(_TensorFields):
    """Y = {|y - center| <= radius}, the Euclidean ball over all entries.

    The center is a number, which stands for every entry, or a tensor that broadcasts to the shape of y. For complex
    entries the norm is taken over their pairs of reals.

    >>> semaopt.projections.Ball(1.0)(torch.tensor([3.0, 4.0]))
    tensor([0.6000, 0.8000])
    >>> semaopt.projections.Ball(1.0, center=torch.tensor([3.0, 0.0]))(torch.tensor([3.0, 4.0]))
    tensor([3., 1.])
    """

    radius: float | Tensor
    center: float | Tensor = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate_radius(self.radius)
        finite = isinstance(self.center, Tensor) and bool(self.center.isfinite().all())
        ok = finite or (is_real(self.center) and math.isfinite(self.center))
        require(ok, "center", self.center, "must be a finite number or tensor", "The origin is center=0.0.")

    def __call__(self, y: Tensor) -> Tensor:
        if y.numel() == 0:
            return y
        center = _broadcast("center", self.center, y, _wide(y))
        d = y.to(_wide(y)) - center
        # Entries are divided by the largest first, because the square of 1e30 overflows float32.
        largest = d.abs().amax().clamp_min(torch.finfo(d.dtype).tiny)
        norm = torch.linalg.vector_norm(d / largest) * largest
        radius = float(self.radius)
        # A point inside stays exactly as it is; entries that are not finite become NaN.
        return y.copy_(torch.where(norm <= radius, y.to(d.dtype), center + d * (radius / norm)))


@dataclass(frozen=True)
class Simplex:
    r"""Y = {y >= 0, sum of y = total}, over all entries of the tensor or, with ``dim``, over each slice along it.

    The nearest point is :math:`\max(y - \theta, 0)` with the :math:`\theta` for which the sum is ``total`` (sort and
    cumulative sum; Held, Wolfe and Crowder 1974).

    >>> semaopt.projections.Simplex()(torch.tensor([0.5, 1.0, -1.0]))
    tensor([0.2500, 0.7500, 0.0000])
    """

    total: float = 1.0
    dim: int | None = None

    def __post_init__(self) -> None:
        ok = is_real(self.total) and 0 < self.total < math.inf
        require(ok, "total", self.total, "must be a finite number > 0", "Probabilities have total=1.0.")
        ok = self.dim is None or (isinstance(self.dim, int) and not isinstance(self.dim, bool))
        require(ok, "dim", self.dim, "must be a dimension or None", "None projects all entries together.")

    def __call__(self, y: Tensor) -> Tensor:
        _refuse_complex(y, "y >= 0 has no meaning for complex numbers")
        if y.numel() == 0:
            return y
        # The slices are rows, shifted so that the largest entry is 0; the shift changes only theta.
        rows = y.reshape(1, -1) if self.dim is None else y.movedim(self.dim, -1)
        z = rows.to(_wide(y))
        z = z - z.amax(-1, keepdim=True)
        largest = z.sort(-1, descending=True).values
        k = torch.arange(1, z.shape[-1] + 1, dtype=z.dtype, device=z.device)
        theta = (largest.cumsum(-1) - self.total) / k
        support = (largest > theta).sum(-1, keepdim=True)
        z = (z - theta.gather(-1, (support - 1).clamp_min(0))).clamp_min(
            0
        )  # NaN has an empty support and passes through
        return y.copy_(z.reshape(y.shape) if self.dim is None else z.movedim(-1, self.dim))


@dataclass(frozen=True)
class SpectralBall:
    """Y = {largest singular value <= radius}, for matrices or batches of them (the last two dimensions).

    >>> semaopt.projections.SpectralBall(1.0)(torch.diag(torch.tensor([3.0, 0.5])))
    tensor([[1.0000, 0.0000],
            [0.0000, 0.5000]])
    """

    radius: float

    def __post_init__(self) -> None:
        _validate_radius(self.radius)

    def __call__(self, y: Tensor) -> Tensor:
        shape = tuple(y.shape)
        require(y.dim() >= 2, "shape", shape, "a spectral norm needs a matrix", "Use Ball(radius) for a vector.")
        if y.numel() == 0:
            return y
        finite = y.isfinite().all(-1, keepdim=True).all(-2, keepdim=True)  # LAPACK raises an error otherwise
        if 1 in shape[-2:]:  # the only singular value of a row or column is its length
            length = torch.linalg.vector_norm(y.to(_wide(y)), dim=(-2, -1), keepdim=True)
            length = length.clamp_min(torch.finfo(length.dtype).tiny)  # avoids 0/0
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
    """Require a projection, another callable, or None for no constraint."""
    if project is not None and (isinstance(project, type) or not callable(project)):
        remedy = "Pass semaopt.projections.Box(-1.0, 1.0), another callable, or None for no constraint."
        raise TypeError(invalid("project", project, "must be a callable that projects a tensor in place", remedy))


def apply_(project: Projection | None, y: Any) -> None:
    """Compute ``y <- Proj_Y[y]``, even if y is one rank's shard of a tensor (FSDP2)."""
    if project is None:
        return
    sharded = hasattr(y, "full_tensor") and not getattr(project, "elementwise", False)
    full = y.full_tensor() if sharded else y
    moved = project(full)
    moved = moved if isinstance(moved, Tensor) else full
    returned, shape = tuple(moved.shape), tuple(full.shape)
    rule = f"it returned this shape for a tensor of shape {shape}"
    require(
        returned == shape, "project", returned, rule, "Return the projected tensor, or None if it was changed in place."
    )
    if sharded:
        _scatter_(y, moved)
    elif moved is not y:
        y.copy_(moved)


def _scatter_(y: Any, full: Tensor) -> None:
    """Write this rank's part of ``full``, which all ranks hold, into the sharded ``y``."""
    from torch.distributed.tensor import DTensor, Replicate

    mesh = y.device_mesh
    replicated = DTensor.from_local(full, mesh, [Replicate()] * mesh.ndim, run_check=False)
    y.copy_(replicated.redistribute(placements=y.placements))


def describe(project: Projection | None) -> dict[str, Any] | None:
    """Return a projection as plain values and tensors; a callable of the user is stored by name only."""
    return None if project is None else _serialization.describe(project, BY_NAME)


def restore(description: dict[str, Any] | None, live: Projection | None) -> Projection | None:
    """Rebuild a projection from the result of :func:`describe`; ``live`` must be the callable if it is custom."""
    if description is None:
        return None
    restored: Projection = _serialization.restore("project", description, live, BY_NAME)
    return restored
