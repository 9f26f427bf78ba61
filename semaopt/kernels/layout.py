"""The memory layout of tensors."""

from __future__ import annotations

import torch
from torch import Tensor

#: Types that store their values in their own memory; a subclass may store them elsewhere.
PLAIN = frozenset({Tensor, torch.nn.Parameter})


def same_layout(a: Tensor, x: Tensor) -> bool:
    """Return whether a and x are on the CPU with the same shape and order of elements."""
    return a.is_cpu and x.is_cpu and a.layout == torch.strided and same_strides(a, x)


def same_strides(a: Tensor, x: Tensor) -> bool:
    """Return whether a and x have the same shape and order of elements; strides of dimensions of size 1 are ignored."""
    if a.shape != x.shape:
        return False
    strides = zip(a.shape, a.stride(), x.stride(), strict=True)
    return x.numel() <= 1 or all(size == 1 or mine == its for size, mine, its in strides)


def is_dense(x: Tensor) -> bool:
    """Return whether the elements of x fill a block of memory without gaps or overlaps, in any order of dimensions.

    >>> is_dense(torch.zeros(3, 4).t()), is_dense(torch.zeros(3, 4)[:, :2])
    (True, False)
    """
    expected = 1
    for stride, size in sorted((stride, size) for stride, size in zip(x.stride(), x.shape, strict=True) if size != 1):
        if stride != expected and x.numel() > 0:
            return False
        expected *= size
    return True
