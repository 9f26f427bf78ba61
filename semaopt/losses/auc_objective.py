"""The objective of AUC maximization: as torch differentiates it, and in closed form for the usual case."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

_transformed = getattr(torch._C, "_are_functorch_transforms_active", None)


def objective(h: Tensor, w: Tensor, p: Tensor, *, s: Tensor, r: Tensor, y: Tensor) -> Tensor:
    """The mean over examples and classes: scores h and weights w (1 positive, 0 negative) are (n, C), the rest (C,)."""
    b = p - w  # p for a negative example, -(1-p) for a positive one
    d = h - torch.lerp(r, s, w)  # h - s or h - r: lerp is exact at 0 and 1
    each = b.abs() * d.square() + 2 * (1 + y) * b * h
    return (each.mean(0) - p * (1 - p) * y.square()).mean()


class ClosedForm(torch.autograd.Function):
    """:func:`objective` of one class on the CPU: a third of its operations, the gradients without a graph.

    Numbers are Python's here: on the CPU they cost nothing to read. Second derivatives go through :func:`objective`.
    """

    @staticmethod
    def forward(ctx: Any, scores: Tensor, s: Tensor, r: Tensor, y: Tensor, w: Tensor, p: Tensor) -> Tensor:  # noqa: PLR0917
        h = scores.view(-1)
        b = p - w
        d = h - torch.lerp(r, s, w)
        e = b.abs().mul_(d)
        total = torch.dot(e, d)
        linear, y_, p_, n = torch.dot(b, h).item(), y.item(), p.item(), h.shape[0]
        spread = p_ * (1 - p_)
        ctx.save_for_backward(scores, s, r, y, w, p)
        ctx.parts = e, b, linear / n - spread * y_, y_
        return total.fill_((total.item() + 2 * (1 + y_) * linear) / n - spread * y_ * y_)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # create_graph=True
            scores, s, r, y, w, p = ctx.saved_tensors
            value = objective(scores.reshape(-1, 1), w.unsqueeze(1), p, s=s, r=r, y=y)
            wanted = [z for z, need in zip((scores, s, r, y), ctx.needs_input_grad, strict=False) if need]
            found = iter(torch.autograd.grad(value, wanted, g, create_graph=True))
            return *(next(found) if need else None for need in ctx.needs_input_grad[:4]), None, None
        e, b, slope, y_ = ctx.parts
        n, twice = e.shape[0], 2 * g.item()
        positive, total = torch.dot(ctx.saved_tensors[4], e).item() / n, e.sum().item() / n
        g_h = torch.add(e, b, alpha=1 + y_).mul_(twice / n).view(ctx.saved_tensors[0].shape)
        numbers = [-twice * positive, -twice * (total - positive), twice * slope]
        return g_h, *torch.tensor(numbers, dtype=e.dtype).view(3, 1).unbind(), None, None


def unseen() -> bool:
    """Whether nothing here wants to see the operations, so that :class:`ClosedForm` may stand for them."""
    return (
        _transformed is not None
        and not _transformed()
        and forward_ad._current_level < 0
        and not torch.compiler.is_compiling()
    )
