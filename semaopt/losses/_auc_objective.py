"""The min-max objective of AUC maximization: differentiated by torch, and in closed form."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from semaopt.kernels.auc import Columns, Numbers, auc, auc_columns, auc_columns_loop, auc_loop, auc_on_device
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


def objective_of_columns(  # noqa: PLR0917  # the arguments of ClosedForm
    scores: Tensor,
    s: Tensor,
    r: Tensor,
    y: Tensor,
    labels: Tensor,
    p: Tensor,
    margin: float,
    score: str,
    validate: bool,
) -> tuple[Tensor, Tensor | None]:
    """Return :func:`objective` of (n, C) scores and labels, and which columns have a label (None: all)."""
    variables, sigmoid = (p, s, r, y), score == "sigmoid"
    with torch.no_grad():
        found = auc_columns(scores, labels, variables, margin, sigmoid)
        if found is None:
            w = is_positive(labels, scores.dtype, validate=validate)
            found = auc_columns_loop(scores, w, is_present(labels), variables, margin, sigmoid)
        elif found.wrong and validate:
            refuse(labels)
    value = KnownGradients.apply(scores, s, r, y, labels, p, margin, score, found)  # type: ignore[no-untyped-call]
    return value, found.labelled


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
        result = auc_on_device(scores, labels, variables, margin, sigmoid=score == "sigmoid")
    if result is None:
        return None
    if validate and result.numbers[-1].item():
        refuse(labels)
    found = Columns(result.numbers[0], result.by_scores, result.numbers[1:4].view(3, 1))
    value: Tensor = KnownGradients.apply(  # type: ignore[no-untyped-call]
        scores, s, r, y, labels, p, margin, score, found
    )
    return value


class KnownGradients(torch.autograd.Function):
    """:func:`objective` with a value and gradients that have been computed already."""

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
        found: Columns,
    ) -> Tensor:
        ctx.save_for_backward(scores, s, r, y, labels, p)
        ctx.found, ctx.margin, ctx.score = found, margin, score
        return found.value.to(scores.dtype, copy=True)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        rest = (None,) * 5
        if torch.is_grad_enabled():  # create_graph=True
            return *_differentiable_gradients(ctx, g), *rest
        by_variables = (ctx.found.by_variables * g).to(g.dtype).unbind()
        return ctx.found.by_scores * g, *by_variables, *rest


def _differentiable_gradients(ctx: Any, g: Tensor) -> Iterator[Tensor | None]:
    """Return the gradients with respect to scores, s, r and y with a graph, or None where none is needed."""
    scores, s, r, y, labels, p = ctx.saved_tensors
    rows, labels = scores.reshape(-1, len(p)), labels.reshape(-1, len(p))
    w = is_positive(labels, scores.dtype, validate=False)
    value = objective(SCORES[ctx.score](rows), w, is_present(labels), p, s, r, y, ctx.margin)
    wanted = [z for z, need in zip((scores, s, r, y), ctx.needs_input_grad, strict=False) if need]
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
