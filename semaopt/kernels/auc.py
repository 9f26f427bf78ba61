"""The objective of AUC maximization for one class with its gradients in one pass, in C and Triton, and a slow twin."""

from __future__ import annotations

import ctypes
from typing import NamedTuple

import torch
from torch import Tensor

from semaopt.kernels import triton_launch
from semaopt.kernels.layout import PLAIN
from semaopt.kernels.loader import library


class Numbers(NamedTuple):
    """The prior, the variables s, r and y, the margin, and whether the score is the sigmoid of the raw score."""

    p: float
    s: float
    r: float
    y: float
    margin: float = 1.0
    sigmoid: bool = False


class Result(NamedTuple):
    """The mean objective and its derivatives; ``wrong`` if a label is neither {0, 1} nor {-1, 1} nor missing."""

    value: float
    by_scores: Tensor
    by_s: float
    by_r: float
    by_y: float
    wrong: bool = False


#: Codes of the dtypes in auc.c.
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
_Struct = ctypes.c_double * 10


def auc(scores: Tensor, labels: Tensor, numbers: Numbers) -> Result | None:
    """Compute value and gradients in C; return None if the library is missing or does not support these tensors.

    Args:
        scores: raw scores on the CPU.
        labels: one label per score, on the CPU; NaN is a missing label.
        numbers: everything else that the objective depends on.

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
    value, by_s, by_r, by_y = struct[6:]
    return Result(value, gradient, by_s, by_r, by_y, bool(wrong))


class DeviceResult(NamedTuple):
    """The contents of :class:`Result` as tensors on the device, so that the CPU need not wait for them."""

    numbers: Tensor
    """value, by_s, by_r, by_y and wrong (0 or 1), in float64."""
    by_scores: Tensor


def auc_on_device(
    scores: Tensor, labels: Tensor, variables: Tensor, margin: float, sigmoid: bool
) -> DeviceResult | None:
    """Compute value and gradients with Triton; return None if it is missing or does not support these tensors.

    Args:
        scores: raw scores on a CUDA device.
        labels: one label per score, on the same device; NaN is a missing label.
        variables: p, s, r and y in float64 on the same device.
        margin: m.
        sigmoid: whether the score is the sigmoid of the raw score.
    """
    plain = type(scores) in PLAIN and type(labels) in PLAIN and scores.is_contiguous() and labels.is_contiguous()
    fits = plain and scores.dtype in REALS and labels.dtype in LABELS and labels.device == scores.device
    kernels = triton_launch.kernels_for(scores.device, "triton_auc") if fits else None
    if kernels is None or scores.is_neg() or labels.is_neg():
        return None
    labels = labels.view(torch.uint8) if labels.dtype == torch.bool else labels
    gradient = torch.empty_like(scores)
    numbers = torch.empty(kernels.OUTPUTS.value, dtype=torch.float64, device=scores.device)
    floating = labels.dtype.is_floating_point
    constants = {
        "SIGMOID": sigmoid, "FLOATING": floating, "SIGNED": labels.dtype != torch.uint8, "BLOCK": kernels.BLOCK,
        **triton_launch.compiler_options(kernels.WARPS),
    }  # fmt: skip
    arguments = (scores, labels, gradient, variables, numbers, scores.numel(), margin)
    if not triton_launch.compiles(kernels.objective, arguments, constants, scores.device):
        return None
    triton_launch.launch(kernels.objective, 1, arguments, constants, scores.device)
    return DeviceResult(numbers, gradient)


def auc_loop(scores: Tensor, w: Tensor, present: Tensor | None, numbers: Numbers) -> Result:
    """The slow twin of :func:`auc`.

    Args:
        scores: raw scores.
        w: 1 for a positive example, else 0.
        present: whether the label of each example is known; None if all are.
        numbers: everything else that the objective depends on.
    """
    (p, s, r, y, margin, sigmoid), h, w = numbers, scores.reshape(-1), w.reshape(-1)
    h = h.sigmoid() if sigmoid else h
    b = p - w  # p for a negative example, -(1-p) for a positive one
    n = float(h.shape[0])
    if present is not None:
        b = b.masked_fill(~present.reshape(-1), 0.0)
        n = present.sum().item()
    spread, n = (p * (1 - p) if n > 0 else 0.0), max(n, 1.0)
    d = h - torch.full_like(h, r).masked_fill_(w == 1, s)
    e = b.abs() * d
    quadratic, linear = torch.dot(e, d).item(), torch.dot(b, h).item()
    by_s, by_both = torch.dot(w, e).item(), e.sum().item()
    gradient = torch.add(e, b, alpha=margin + y).mul_(2 / n)
    if sigmoid:
        gradient = gradient * h * (1 - h)
    return Result(
        (quadratic + 2 * (margin + y) * linear) / n - spread * y**2,
        gradient.reshape(scores.shape),
        -2 * by_s / n,
        -2 * (by_both - by_s) / n,
        2 * (linear / n - spread * y),
    )
