"""Ranking losses of one class with their gradients and moving averages in one C call.

Their slow twins are the losses of :mod:`semaopt.losses` with ``compiled = False``.
"""

from __future__ import annotations

import ctypes
import math
from typing import NamedTuple

import torch
from torch import Tensor

from semaopt.kernels.auc import LABELS, REALS
from semaopt.kernels.layout import PLAIN
from semaopt.kernels.loader import library

#: Codes of the losses in ranking.c.
KINDS = {"average_precision": 0, "kl": 1, "two_way_kl": 2, "cvar": 3, "two_way_cvar": 4}
#: Status of a call that found no invalid label and no index out of range.
OK = 0


class Options(NamedTuple):
    """Everything that a loss depends on except the batch and the averages."""

    kind: str
    """One of ``KINDS``."""
    margin: float
    sigmoid: bool
    """Whether the score is the sigmoid of the raw score."""
    gamma: float
    """Weight of the newest inner value, 1 - inner_beta."""
    prior: float = math.nan
    """Share of positives in the data, for average precision; NaN for that of the batch."""
    temperature: float = 1.0
    outer: float = 1.0
    """Temperature over the positives of the two-way KL loss, share of the positives of the two-way CVaR loss."""
    share: float = 1.0
    """Share of the negatives that count, of the CVaR losses."""
    validate: bool = True
    """Whether other labels than {0, 1} or {-1, 1} are an error."""


class Ranking(NamedTuple):
    """The value, its gradient with respect to the raw scores, and the status of the call."""

    value: float
    by_scores: Tensor
    status: int


_Struct = ctypes.c_double * 9


def ranking(
    scores: Tensor, labels: Tensor, index: Tensor, averages: tuple[Tensor, Tensor | None], options: Options
) -> Ranking | None:
    """Update the averages in C; return None if the library is missing or does not support these tensors.

    Args:
        scores: raw scores on the CPU.
        labels: as many labels on the CPU; NaN is a missing label.
        index: rows of the averages, int64.
        averages: the averages of the examples and, for a two-way loss, the average over the positives. They do not
            change if the status is not ``OK``.
        options: everything else.

    >>> z, options = torch.full((2, 2), torch.nan), Options("average_precision", 1.0, False, 0.1)
    >>> found = ranking(torch.tensor([1.0, 0.5]), torch.tensor([1, 0]), torch.arange(2), (z, None), options)
    >>> found is None or round(found.value, 4)                         # None without a compiler
    0.2
    """
    z, w = averages
    lib, real, label = library(), REALS.get(scores.dtype), LABELS.get(labels.dtype)
    if lib is None or real is None or label is None or z.dtype not in REALS or index.dtype != torch.int64:
        return None
    if w is not None and w.dtype != z.dtype:
        return None
    for x in (scores, labels, index, z, z if w is None else w):
        if type(x) not in PLAIN or not x.is_cpu or not x.is_contiguous() or x.is_neg():
            return None
    gradient = torch.empty_like(scores)
    struct = _Struct(*options[1:])
    pointers = (x.data_ptr() for x in (scores, labels, index, gradient, z, z if w is None else w))
    codes = KINDS[options.kind], real, label, REALS[z.dtype]
    status = lib.ranking(*pointers, scores.numel(), len(z), *codes, struct)
    return Ranking(struct[8], gradient, status)
