"""The objective of AUC maximization for one class and its gradients in one pass: compiled, and its slow twin."""

from __future__ import annotations

import ctypes
from typing import NamedTuple

import torch
from torch import Tensor

from semaopt.kernels.layout import PLAIN
from semaopt.kernels.loader import library


class Numbers(NamedTuple):
    """The prior, and the variables beside the scores."""

    p: float
    s: float
    r: float
    y: float


class Found(NamedTuple):
    """The mean objective, its derivatives, and whether a label is neither 0 or 1 nor -1 or 1."""

    value: float
    by_scores: Tensor
    by_s: float
    by_r: float
    by_y: float
    wrong: bool = False


#: As auc.c numbers them.
REALS = {torch.float32: 0, torch.float64: 1}
LABELS = {
    torch.bool: 0,
    torch.uint8: 0,
    torch.int8: 1,
    torch.int32: 2,
    torch.int64: 3,
    torch.float32: 4,
    torch.float64: 5,
}
_Struct = ctypes.c_double * 8


def auc(scores: Tensor, labels: Tensor, numbers: Numbers) -> Found | None:
    """In C, on scores and labels of the CPU with as many elements; None if it does not serve them.

    >>> found = auc(torch.tensor([1.0, 0.5]), torch.tensor([1, 0]), Numbers(p=0.5, s=1.0, r=0.0, y=-1.0))
    >>> found is None or found.value                                   # None without a compiler
    -0.1875
    """
    lib, real, label = library(), REALS.get(scores.dtype), LABELS.get(labels.dtype)
    plain = type(scores) in PLAIN and type(labels) in PLAIN and scores.is_contiguous() and labels.is_contiguous()
    if lib is None or real is None or label is None or not plain or scores.is_neg() or labels.is_neg():
        return None
    gradient, struct = torch.empty_like(scores), _Struct(*numbers)
    pointers = scores.data_ptr(), labels.data_ptr(), gradient.data_ptr()
    wrong = lib.auc(*pointers, scores.numel(), real, label, struct)
    value, by_s, by_r, by_y = struct[4:]
    return Found(value, gradient, by_s, by_r, by_y, bool(wrong))


def auc_loop(scores: Tensor, w: Tensor, numbers: Numbers) -> Found:
    """The slow twin of :func:`auc`, with 1 for a positive example in ``w`` and 0 for a negative one."""
    (p, s, r, y), h, w = numbers, scores.reshape(-1), w.reshape(-1)
    n, b = h.shape[0], p - w  # p for a negative example, -(1-p) for a positive one
    d = h - torch.full_like(h, r).masked_fill_(w == 1, s)
    e = b.abs() * d
    quadratic, linear = torch.dot(e, d).item(), torch.dot(b, h).item()
    by_s, by_both = torch.dot(w, e).item(), e.sum().item()
    return Found(
        (quadratic + 2 * (1 + y) * linear) / n - p * (1 - p) * y**2,
        torch.add(e, b, alpha=1 + y).mul_(2 / n).reshape(scores.shape),
        -2 * by_s / n,
        -2 * (by_both - by_s) / n,
        2 * (linear / n - p * (1 - p) * y),
    )
