"""Where the elements of a tensor lie."""

from __future__ import annotations

import torch
from torch import Tensor

#: Types whose values are in their own memory; a subclass may keep them elsewhere.
PLAIN = frozenset({Tensor, torch.nn.Parameter})


def same_layout(a: Tensor, x: Tensor) -> bool:
    """Whether a and x have their elements in the same order, both on the CPU."""
    if a.shape != x.shape or not (a.is_cpu and x.is_cpu) or a.layout != torch.strided:
        return False
    strides = zip(a.shape, a.stride(), x.stride(), strict=True)
    return x.numel() <= 1 or all(size == 1 or mine == its for size, mine, its in strides)


def is_dense(x: Tensor) -> bool:
    """Whether the elements of x fill a block of memory, each place once, in any order of the dimensions.

    >>> is_dense(torch.zeros(3, 4).t()), is_dense(torch.zeros(3, 4)[:, :2])
    (True, False)
    """
    expected = 1
    for stride, size in sorted((stride, size) for stride, size in zip(x.stride(), x.shape, strict=True) if size != 1):
        if stride != expected and x.numel() > 0:
            return False
        expected *= size
    return True
