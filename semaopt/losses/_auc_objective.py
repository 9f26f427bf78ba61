"""The min-max objective of AUC maximization: differentiated by torch, and in closed form for one class."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from semaopt.kernels.auc import DeviceResult, Numbers, auc, auc_loop, auc_on_device
from semaopt.losses._labels import is_positive, is_present, refuse
from semaopt.losses._scores import SCORES

_transforms_active = getattr(torch._C, "_are_functorch_transforms_active", None)


def objective(  # noqa: PLR0917  # the symbols of the formula
    h: Tensor, w: Tensor, present: Tensor | None, p: Tensor, s: Tensor, r: Tensor, y: Tensor, margin: float
) -> Tensor:
    """Return the mean over the examples of each column, then over the columns that have a label.

    Args:
        h: scores (n, C).
        w: (n, C), 1 for a positive example, else 0.
        present: (n, C), False where the label is missing; None if none is.
        p, s, r, y: prior and variables (C,).
        margin: m.
    """
    b = p - w  # p for a negative example, -(1-p) for a positive one
    d = h - torch.lerp(r, s, w)  # h - s or h - r: lerp is exact at 0 and 1
    each = b.abs() * d.square() + 2 * (margin + y) * b * h
    concave = p * (1 - p) * y.square()
    if present is None:
        return (each.mean(0) - concave).mean()
    count = present.sum(0)
    columns = torch.where(present, each, 0.0).sum(0) / count.clamp_min(1) - concave
    labelled = count > 0
    return torch.where(labelled, columns, 0.0).sum() / labelled.sum().clamp_min(1)


class ClosedForm(torch.autograd.Function):
    """:func:`objective` of one class with its gradients from the same pass, without a graph.

    Second derivatives go through :func:`objective`.
    """

    @staticmethod
    def forward(  # noqa: PLR0917  # torch differentiates with respect to each argument
        ctx: Any,
        scores: Tensor,
        s: Tensor,
        r: Tensor,
        y: Tensor,
        labels: Tensor,
        p: Tensor,
        margin: float,
        score: str,
        validate: bool,
    ) -> Tensor:
        numbers = Numbers(p.item(), s.item(), r.item(), y.item(), margin, score == "sigmoid")
        found = auc(scores, labels, numbers)
        if found is None:
            w = is_positive(labels, scores.dtype, validate=validate)
            found = auc_loop(scores, w, is_present(labels), numbers)
        elif found.wrong and validate:
            refuse(labels)
        ctx.save_for_backward(scores, s, r, y, labels, p)
        ctx.found, ctx.margin, ctx.score = found, margin, score
        # A value too large for the dtype becomes inf, as in torch's own losses.
        return torch.tensor(found.value, dtype=scores.dtype, device=scores.device)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        rest = (None,) * 5
        if torch.is_grad_enabled():  # create_graph=True
            return *_differentiable_gradients(ctx, g), *rest
        at, outer = ctx.found, g.item()
        numbers = [outer * at.by_s, outer * at.by_r, outer * at.by_y]
        by_variables = torch.tensor(numbers, dtype=g.dtype, device=g.device).view(3, 1).unbind()
        return at.by_scores * g, *by_variables, *rest


def objective_on_device(  # noqa: PLR0917  # the arguments of ClosedForm
    scores: Tensor,
    s: Tensor,
    r: Tensor,
    y: Tensor,
    labels: Tensor,
    p: Tensor,
    margin: float,
    score: str,
    validate: bool,
) -> Tensor | None:
    """Return :func:`objective` of one class by a Triton kernel, or None if it does not support these tensors.

    Nothing waits for the device unless labels are validated.
    """
    with torch.no_grad():
        variables = torch.cat([p, s, r, y]).to(torch.float64)
        found = auc_on_device(scores, labels, variables, margin, sigmoid=score == "sigmoid")
    if found is None:
        return None
    if validate and found.numbers[-1].item():
        refuse(labels)
    value: Tensor = ClosedFormOnDevice.apply(  # type: ignore[no-untyped-call]
        scores, s, r, y, labels, p, margin, score, found
    )
    return value


class ClosedFormOnDevice(torch.autograd.Function):
    """:class:`ClosedForm` with a result that is on the device already."""

    @staticmethod
    def forward(  # noqa: PLR0917  # torch differentiates with respect to each argument
        ctx: Any,
        scores: Tensor,
        s: Tensor,
        r: Tensor,
        y: Tensor,
        labels: Tensor,
        p: Tensor,
        margin: float,
        score: str,
        found: DeviceResult,
    ) -> Tensor:
        ctx.save_for_backward(scores, s, r, y, labels, p)
        ctx.found, ctx.margin, ctx.score = found, margin, score
        return found.numbers[0].to(scores.dtype, copy=True)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        rest = (None,) * 5
        if torch.is_grad_enabled():  # create_graph=True
            return *_differentiable_gradients(ctx, g), *rest
        by_variables = (ctx.found.numbers[1:4] * g).to(g.dtype).view(3, 1).unbind()
        return ctx.found.by_scores * g, *by_variables, *rest


class ClosedFormColumns(torch.autograd.Function):
    """:func:`objective` of several columns with its gradients, without a graph.

    Second derivatives go through :func:`objective`.
    """

    @staticmethod
    def forward(  # noqa: PLR0917  # torch differentiates with respect to each argument
        ctx: Any,
        scores: Tensor,
        s: Tensor,
        r: Tensor,
        y: Tensor,
        w: Tensor,
        present: Tensor | None,
        p: Tensor,
        margin: float,
        score: str,
    ) -> Tensor:
        h, b = SCORES[score](scores), p - w  # b is p for a negative example, -(1-p) for a positive one
        count: Tensor | int = len(h)
        mean: Tensor | float = 1 / h.shape[1]  # weight of a column in the mean over the columns that have a label
        if present is not None:
            h, b = h.masked_fill(~present, 0.0), b.masked_fill(~present, 0.0)
            count = present.sum(0).clamp_min(1)
            mean = present.any(0).to(h.dtype)
            mean = mean / mean.sum().clamp_min(1)
        share = mean / count
        d = h - torch.lerp(r, s, w)
        e = b.abs() * d
        quadratic, linear, total = (e * d).sum(0), (b * h).sum(0), e.sum(0)
        by_s, spread = (w * e).sum(0), p * (1 - p) * mean * y
        gradient = (e + (margin + y) * b) * (2 * share)
        if score == "sigmoid":
            gradient = gradient * h * (1 - h)
        ctx.save_for_backward(scores, s, r, y, w, present, p)
        ctx.gradients = gradient, -2 * share * by_s, -2 * share * (total - by_s), 2 * (linear * share - spread)
        ctx.margin, ctx.score = margin, score
        return ((quadratic + 2 * (margin + y) * linear) * share - spread * y).sum()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        rest = (None,) * 5
        if torch.is_grad_enabled():  # create_graph=True
            scores, s, r, y, w, present, p = ctx.saved_tensors
            value = objective(SCORES[ctx.score](scores), w, present, p, s, r, y, ctx.margin)
            return *_wanted_gradients(ctx, value, (scores, s, r, y), g), *rest
        return *(one * g for one in ctx.gradients), *rest


def _differentiable_gradients(ctx: Any, g: Tensor) -> Iterator[Tensor | None]:
    """Return the gradients with respect to scores, s, r and y with a graph, or None where none is needed."""
    scores, s, r, y, labels, p = ctx.saved_tensors
    w = is_positive(labels, scores.dtype, validate=False).reshape(-1, 1)
    present = is_present(labels)
    present = None if present is None else present.reshape(-1, 1)
    value = objective(SCORES[ctx.score](scores.reshape(-1, 1)), w, present, p, s, r, y, ctx.margin)
    return _wanted_gradients(ctx, value, (scores, s, r, y), g)


def _wanted_gradients(ctx: Any, value: Tensor, variables: tuple[Tensor, ...], g: Tensor) -> Iterator[Tensor | None]:
    wanted = [z for z, need in zip(variables, ctx.needs_input_grad, strict=False) if need]
    found = iter(torch.autograd.grad(value, wanted, g, create_graph=True))
    return (next(found) if need else None for need in ctx.needs_input_grad[:4])


def is_eager() -> bool:
    """Return whether operations run directly, without a transform or a compiler.

    Then data-dependent validation is possible and :class:`ClosedForm` may replace the operations.
    """
    return (
        _transforms_active is not None
        and not _transforms_active()
        and forward_ad._current_level < 0
        and not torch.compiler.is_compiling()
    )
