"""Arithmetic on vectors that are lists of tensors, one for each parameter."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

Vector = list[Tensor]


def axpy(a: float, x: Vector, y: Vector) -> Vector:
    """``a x + y``, a new vector."""
    return list(torch._foreach_add(y, x, alpha=a))


def scaled(a: float, x: Vector) -> Vector:
    """``a x``, a new vector."""
    return list(torch._foreach_mul(x, a))


def dot(x: Vector, y: Vector) -> float:
    """The inner product over all tensors."""
    parts = [torch.dot(a.flatten(), b.flatten()) for a, b in zip(x, y, strict=True)]
    if parts[0].device.type == "cpu":
        return sum(part.item() for part in parts)
    return torch.stack(parts).sum().item()  # one wait for the device instead of one for each tensor


def longer(x: Vector, y: Vector, times: float) -> bool:
    """Whether x is more than so many times as long as y, or holds NaN."""
    found = torch.stack(torch._foreach_norm(x + y)).tolist()  # one wait for the device
    return not math.hypot(*found[: len(x)]) <= times * math.hypot(*found[len(x) :])


def flat(x: Sequence[Tensor]) -> Tensor:
    """The vector as one tensor."""
    return torch.cat([part.flatten() for part in x])


def unflat(x: Tensor, like: Sequence[Tensor]) -> Vector:
    """The inverse of :func:`flat`."""
    parts = torch.split(x, [y.numel() for y in like])
    return [part.view(y.shape) for part, y in zip(parts, like, strict=True)]


def average(tensors: Vector, process_group: Any) -> Vector:
    """The mean of each tensor over the ranks of the group; the tensors themselves without one."""
    if process_group is None:
        return tensors
    import torch.distributed as dist

    mean = flat(tensors)
    dist.all_reduce(mean, group=process_group)
    mean /= dist.get_world_size(process_group)
    return [part.to(t.dtype) for part, t in zip(unflat(mean, tensors), tensors, strict=True)]
