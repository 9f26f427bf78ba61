"""The objective of AUC maximization with its gradients in one pass, in C and Triton, and slow twins."""

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


class Columns(NamedTuple):
    """The mean objective over the columns that have a label, and its derivatives."""

    value: Tensor
    by_scores: Tensor
    by_variables: Tensor
    """By s, r and y, shape (3, C)."""
    labelled: Tensor | None = None
    """Which columns have a label; None: all."""
    wrong: bool = False
    """Whether a label is neither {0, 1} nor {-1, 1} nor missing."""


def auc_columns(
    scores: Tensor, labels: Tensor, variables: tuple[Tensor, ...], margin: float, sigmoid: bool
) -> Columns | None:
    """Compute value and gradients of several classes in C; return None if it does not support these tensors.

    Args:
        scores: raw scores (n, C) on the CPU.
        labels: (n, C) on the CPU; NaN is a missing label.
        variables: p, s, r and y, each (C,).
        margin: m.
        sigmoid: whether the score is the sigmoid of the raw score.

    >>> p, s, r, y = torch.tensor([0.5, 0.5]), torch.ones(2), torch.zeros(2), -torch.ones(2)
    >>> scores, labels = torch.tensor([[1.0, 0.0], [0.5, 1.0]]), torch.tensor([[1, 0], [0, 1]])
    >>> found = auc_columns(scores, labels, (p, s, r, y), margin=1.0, sigmoid=False)
    >>> found is None or found.value                                   # None without a compiler
    tensor(-0.2188)
    """
    lib, real, label = library(), REALS.get(scores.dtype), LABELS.get(labels.dtype)
    plain = type(scores) in PLAIN and type(labels) in PLAIN and scores.is_cpu and labels.is_cpu
    if lib is None or real is None or label is None or not plain or scores.is_neg() or labels.is_neg():
        return None
    scores, labels, (n, classes) = scores.contiguous(), labels.contiguous(), scores.shape
    inputs, out = torch.stack(variables).to(torch.float64), torch.empty(5, classes, dtype=torch.float64)
    gradient = torch.empty_like(scores)
    pointers = scores.data_ptr(), labels.data_ptr(), gradient.data_ptr()
    shape = n, classes, real, label, margin, sigmoid
    wrong = lib.auc_columns(*pointers, *shape, inputs.data_ptr(), out.data_ptr())
    labelled = out[4] > 0 if labels.is_floating_point() else None
    return Columns(out[0].sum().to(scores.dtype), gradient, out[1:4], labelled, bool(wrong))


def auc_columns_loop(  # noqa: PLR0917  # the symbols of the formula
    scores: Tensor, w: Tensor, present: Tensor | None, variables: tuple[Tensor, ...], margin: float, sigmoid: bool
) -> Columns:
    """The slow twin of :func:`auc_columns`, for every device.

    Args:
        scores: raw scores (n, C).
        w: (n, C), 1 for a positive example, else 0.
        present: (n, C), whether the label is known; None if all are.
        variables: p, s, r and y, each (C,).
        margin: m.
        sigmoid: whether the score is the sigmoid of the raw score.
    """
    p, s, r, y = variables
    h, b = scores.sigmoid() if sigmoid else scores, p - w  # b is p for a negative example, -(1-p) for a positive one
    count: Tensor | int = len(h)
    mean: Tensor | float = 1 / h.shape[1]  # weight of a column in the mean over the columns that have a label
    labelled = None if present is None else present.any(0)
    if present is not None and labelled is not None:
        h, b = h.masked_fill(~present, 0.0), b.masked_fill(~present, 0.0)
        count = present.sum(0).clamp_min(1)
        mean = labelled.to(h.dtype) / labelled.sum().clamp_min(1)
    share = mean / count
    d = h - torch.lerp(r, s, w)
    e = b.abs() * d
    quadratic, linear, total = (e * d).sum(0), (b * h).sum(0), e.sum(0)
    by_s, spread = (w * e).sum(0), p * (1 - p) * mean * y
    gradient = (e + (margin + y) * b) * (2 * share)
    if sigmoid:
        gradient = gradient * h * (1 - h)
    by_variables = torch.stack([-2 * share * by_s, -2 * share * (total - by_s), 2 * (linear * share - spread)])
    value = ((quadratic + 2 * (margin + y) * linear) * share - spread * y).sum()
    return Columns(value, gradient, by_variables, labelled)


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
