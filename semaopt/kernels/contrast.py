"""The global contrastive loss with its gradient and moving averages in one C call.

Its slow twin is :class:`semaopt.losses.GlobalContrastive` with ``closed_form = False``.
"""

from __future__ import annotations

import ctypes
from typing import NamedTuple

import torch
from torch import Tensor

from semaopt.kernels.auc import REALS
from semaopt.kernels.layout import PLAIN
from semaopt.kernels.loader import library
from semaopt.kernels.ranking import Ranking


class Options(NamedTuple):
    """Everything that the loss depends on except the batch and the averages."""

    temperature: float
    eps: float
    gamma: float
    """Weight of the newest inner value, 1 - inner_beta."""


_Struct = ctypes.c_double * 4


def contrast(similarities: Tensor, index: Tensor, z: Tensor, options: Options) -> Ranking | None:
    """Update the averages in C; return None if the library is missing or does not support these tensors.

    Args:
        similarities: on the CPU; (n, n) of the first features with the second, or (2n, 2n) of both with both.
        index: rows of the averages of the n examples, int64.
        z: the averages (size, 2). They do not change if the status is not ``ranking.OK``.
        options: everything else.

    The gradient in the result is that with respect to the similarities, for a (2n, 2n) matrix plus its transpose.

    >>> z = torch.full((2, 2), torch.nan)
    >>> found = contrast(torch.eye(2), torch.arange(2), z, Options(0.5, 0.0, 0.1))
    >>> found is None or round(found.value, 4)                         # None without a compiler
    -1.0
    """
    lib, real, wide = library(), REALS.get(similarities.dtype), REALS.get(z.dtype)
    if lib is None or real is None or wide is None or index.dtype != torch.int64:
        return None
    for x in (similarities, index, z):
        if type(x) not in PLAIN or not x.is_cpu or not x.is_contiguous() or x.is_neg():
            return None
    gradient = torch.zeros_like(similarities)
    struct = _Struct(*options)
    pointers = (x.data_ptr() for x in (similarities, gradient, index, z))
    n, views = index.numel(), len(similarities) == 2 * index.numel()
    status = lib.contrast(*pointers, n, len(z), views, real, wide, struct)
    return Ranking(struct[3], gradient, status)
