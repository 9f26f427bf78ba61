"""The NDCG loss with its gradient and moving averages in one C call.

Its slow twin is :class:`semaopt.losses.NDCG` with ``compiled = False``.
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


class Lists(NamedTuple):
    """The queries of the training set."""

    query: Tensor
    """Query of each example, int32."""
    counts: Tensor
    """Number of items of each query, int64."""
    scale: Tensor
    """That number over the ideal gain of the query; 0 for a query without relevant items."""


class Options(NamedTuple):
    """Everything else that the loss depends on except the batch and the averages."""

    margin: float
    sigmoid: bool
    """Whether the score is the sigmoid of the raw score."""
    gamma: float
    """Weight of the newest inner value, 1 - inner_beta."""
    top_k: int = 0
    """0 for all ranks."""
    temperature: float = 1.0
    """Width of the sigmoid that gates the top ranks."""


_Struct = ctypes.c_double * 6


def gains(  # noqa: PLR0917  # the batch, then what it belongs to
    scores: Tensor,
    relevance: Tensor,
    index: Tensor,
    averages: tuple[Tensor, Tensor | None],
    lists: Lists,
    options: Options,
) -> Ranking | None:
    """Update the averages in C; return None if the library is missing or does not support these tensors.

    Args:
        scores: raw scores on the CPU.
        relevance: of the same examples.
        index: their rows of the averages, int64.
        averages: those of the examples and, for the top ranks, the thresholds of the queries. They do not change if
            the status is not ``ranking.OK``.
        lists: the queries of the training set.
        options: everything else.

    >>> lists = Lists(torch.zeros(2, dtype=torch.int32), torch.tensor([2]), torch.tensor([2.0]))
    >>> z, options = torch.full((2,), torch.nan), Options(1.0, False, 0.1)
    >>> found = gains(torch.tensor([1.0, 0.0]), torch.tensor([1.0, 0.0]), torch.arange(2), (z, None), lists, options)
    >>> found is None or round(found.value, 4)                         # None without a compiler
    0.0
    """
    z, thresholds = averages
    lib, real, wide = library(), REALS.get(scores.dtype), REALS.get(z.dtype)
    second = z if thresholds is None else thresholds
    if lib is None or real is None or wide is None or index.dtype != torch.int64:
        return None
    if second.dtype != z.dtype or lists.scale.dtype != z.dtype:
        return None
    relevance = relevance.to(torch.float64)
    tensors = (scores, relevance, index, z, second, *lists)
    for x in tensors:
        if type(x) not in PLAIN or not x.is_cpu or not x.is_contiguous() or x.is_neg():
            return None
    gradient = torch.empty_like(scores)
    struct = _Struct(*options)
    first, rest = tensors[:3], tensors[3:]
    pointers = (x.data_ptr() for x in (*first, gradient, *rest))
    status = lib.gains(*pointers, scores.numel(), len(z), real, wide, struct)
    return Ranking(struct[5], gradient, status)
