"""The objective of AUC maximization: as torch differentiates it, and in closed form for one class on the CPU."""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.autograd import forward_ad

from semaopt._validation import require
from semaopt.kernels.auc import Numbers, auc, auc_loop

_transformed = getattr(torch._C, "_are_functorch_transforms_active", None)


def objective(h: Tensor, w: Tensor, p: Tensor, *, s: Tensor, r: Tensor, y: Tensor) -> Tensor:
    """The mean over examples and classes: scores h and weights w (1 positive, 0 negative) are (n, C), the rest (C,)."""
    b = p - w  # p for a negative example, -(1-p) for a positive one
    d = h - torch.lerp(r, s, w)  # h - s or h - r: lerp is exact at 0 and 1
    each = b.abs() * d.square() + 2 * (1 + y) * b * h
    return (each.mean(0) - p * (1 - p) * y.square()).mean()


class ClosedForm(torch.autograd.Function):
    """:func:`objective` of one class, with its gradients from the same pass and no graph.

    Second derivatives go through :func:`objective`.
    """

    @staticmethod
    def forward(  # noqa: PLR0917  # torch differentiates by each argument
        ctx: Any, scores: Tensor, s: Tensor, r: Tensor, y: Tensor, labels: Tensor, p: Tensor, validate: bool
    ) -> Tensor:
        numbers = Numbers(p.item(), s.item(), r.item(), y.item())
        found = auc(scores, labels, numbers)
        if found is None:
            found = auc_loop(scores, positive(labels, scores.dtype, validate=validate), numbers)
        elif found.wrong and validate:
            refuse(labels)
        ctx.save_for_backward(scores, s, r, y, labels, p)
        ctx.found = found
        return torch.tensor(found.value, dtype=scores.dtype)  # too large a value becomes inf, as in torch's own losses

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # create_graph=True
            scores, s, r, y, labels, p = ctx.saved_tensors
            w = positive(labels, scores.dtype, validate=False)
            value = objective(scores.reshape(-1, 1), w.reshape(-1, 1), p, s=s, r=r, y=y)
            wanted = [z for z, need in zip((scores, s, r, y), ctx.needs_input_grad, strict=False) if need]
            found = iter(torch.autograd.grad(value, wanted, g, create_graph=True))
            return *(next(found) if need else None for need in ctx.needs_input_grad[:4]), None, None, None
        at, outer = ctx.found, g.item()
        numbers = [outer * at.by_s, outer * at.by_r, outer * at.by_y]
        return at.by_scores * g, *torch.tensor(numbers, dtype=g.dtype).view(3, 1).unbind(), None, None, None


def unseen() -> bool:
    """Whether nothing here wants to see the operations, so that :class:`ClosedForm` may stand for them."""
    return (
        _transformed is not None
        and not _transformed()
        and forward_ad._current_level < 0
        and not torch.compiler.is_compiling()
    )


def positive(b: Tensor, dtype: torch.dtype, *, validate: bool) -> Tensor:
    """1 for a positive label and 0 for a negative one, which may be written 0 or -1."""
    if b.dtype == torch.bool:
        return b.to(dtype)
    if validate:
        if torch.equal(b * b, b):  # all are 0 or 1
            return b.to(dtype)
        if not bool(((b == 1) | (b == -1)).all()):
            refuse(b)
    return (b == 1).to(dtype)


def refuse(b: Tensor) -> NoReturn:
    """Raise for labels that are neither {0, 1} nor {-1, 1}."""
    values = torch.unique(b)[:6].tolist()
    missing = bool(b.isnan().any())
    remedy = "leave out examples without a label" if missing else "map the classes to one of these pairs"
    raise ValueError(f"labels={values}: must be {{0, 1}} or {{-1, 1}}, 1 the positive class; {remedy}")


def one_hot(labels: Tensor, classes: int, *, validate: bool) -> Tensor:
    """Class numbers as one column a class."""
    ok = labels.dim() == 1 and not (labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool)
    rule = f"{classes} classes need whole numbers of shape (n,), or one column a class"
    remedy = (
        "try labels.flatten().long()" if labels.dim() < 2 or labels.shape[1:].numel() == 1 else "try labels.argmax(1)"
    )
    require(ok, "labels", f"{labels.dtype} of shape {tuple(labels.shape)}", rule, remedy)
    if validate and len(labels) > 0:
        ends = int(labels.min()), int(labels.max())
        ok = ends[0] >= 0 and ends[1] < classes
        require(ok, "labels", ends, f"must lie in 0..{classes - 1}", "number the classes from 0")
    return labels.unsqueeze(-1) == torch.arange(classes, device=labels.device)
