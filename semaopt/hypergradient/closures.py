r"""What a bilevel method may ask of its two closures, and which sample answers.

``outer()`` is one fresh sample of f, ``inner()`` one fresh sample of g. One call of ``outer`` gives f_x and f_y; one
call of ``inner`` gives g_y and, on the same sample, products with g_yy and g_xy. Only products are formed: the graph of
g_y is built once a sample and dies with its :class:`Sample`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from semaopt._validation import NonFiniteError
from semaopt.estimator import NARROW, state_dtype
from semaopt.hypergradient.vectors import Vector, average, axpy

Closure = Callable[[], Tensor]
Seen = TypeVar("Seen", Tensor, Tensor | None)
LINEAR = "inner() is linear in the lower parameters and has no minimizer; regularize it"
Partial = list[Tensor | None]  # None stands for zero: autograd found no path


def slow_vjp(
    outputs: Sequence[Tensor], inputs: Sequence[Tensor], vectors: Sequence[Tensor], create: bool, keep: bool
) -> Sequence[Tensor | None]:
    """Vector-Jacobian products by ``torch.autograd.grad``, the twin of :func:`vjp`."""
    return torch.autograd.grad(outputs, inputs, vectors, create_graph=create, retain_graph=keep, allow_unused=True)


def vjp(
    outputs: Sequence[Tensor], inputs: Sequence[Tensor], vectors: Sequence[Tensor], create: bool, keep: bool
) -> Sequence[Tensor | None]:
    """:func:`slow_vjp` without the checks around it, which cost a seventh of a product of a small model."""
    found: Sequence[Tensor | None] = _run_backward(
        tuple(outputs), tuple(vectors), keep, create, tuple(inputs), allow_unreachable=True, accumulate_grad=False
    )
    return found


_run_backward = torch.autograd.Variable._execution_engine.run_backward


class Sample:
    """One sample of g at the present x and y: its gradient in y, and products with its second derivatives."""

    def __init__(self, oracles: Oracles, g_y: Vector) -> None:
        self.oracles = oracles
        self._g_y = g_y
        #: Where g_y has a graph; elsewhere it is constant, and its part of g_yy and g_xy is zero.
        self.curved = [i for i, g in enumerate(g_y) if g.requires_grad]
        self.outputs = [g_y[i] for i in self.curved]
        if not self.outputs:
            raise RuntimeError(LINEAR)

    @property
    def g_y(self) -> Vector:
        """The gradient in y."""
        o = self.oracles
        with torch.no_grad():
            return o.decayed(o.vector([g.detach() for g in self._g_y], o.lower), o.lower)

    def hessian(self, v: Vector, *, keep: bool = False) -> Vector:
        """g_yy v; ``keep=True`` if another product with this sample follows."""
        o = self.oracles
        return o.decayed(o.vector(self.products(v, o.lower, keep), o.lower), v)

    def mixed(self, v: Vector) -> Partial:
        """g_xy v; None for an upper parameter that g does not depend on."""
        return self.oracles.partial(self.products(v, self.oracles.upper, False), "inner")

    def both(self, v: Vector) -> tuple[Vector, Partial]:
        """g_yy v and g_xy v from one pass."""
        o, n = self.oracles, len(self.oracles.lower)
        found = self.products(v, o.lower + o.upper, False)
        if all(h is None for h in found[:n]):
            raise RuntimeError(LINEAR)
        return o.decayed(o.vector(found[:n], o.lower), v), o.partial(found[n:], "inner")

    def products(self, v: Vector, inputs: list[Tensor], keep: bool) -> Sequence[Tensor | None]:
        """The derivatives of g_y in ``inputs`` times v, as autograd gives them."""
        vectors = [v[i] for i in self.curved]
        if self.oracles.low:
            vectors = [part.to(g.dtype) for part, g in zip(vectors, self.outputs, strict=True)]
        return vjp(self.outputs, inputs, vectors, False, keep)


class Oracles:
    """The two closures and the parameters they are differentiated in. Runs where gradients are enabled.

    Args:
        outer, inner: one fresh sample of f, of g, at each call.
        upper, lower: x and y; those with ``requires_grad=False`` are left out.
        decay: lambda for each of ``lower``: g is ``inner()`` plus ``lambda/2 |y|^2``, added in closed form.
        process_group: if given, every gradient and every product is averaged over its ranks before it enters the
            next one: one process on the joint batch has a product of averages, not an average of products.
        watch: if given, sees every gradient and product, by what an error calls it, and may raise.

    ``loss`` is what ``outer`` returned last; NaN before.
    """

    loss = torch.tensor(math.nan)

    def __init__(
        self,
        outer: Closure,
        inner: Closure,
        upper: Sequence[Tensor],
        lower: Sequence[Tensor],
        *,
        decay: Sequence[float] = (),
        process_group: Any = None,
        watch: Callable[[list[tuple[str, Tensor]]], None] | None = None,
    ) -> None:
        self._outer, self._inner, self._ranks, self._watch = outer, inner, process_group, watch
        self.upper = [x for x in upper if x.requires_grad]
        self.lower = [y for y in lower if y.requires_grad]
        self.decay = [lam for lam, y in zip(decay, lower, strict=True) if y.requires_grad] if any(decay) else []
        self._one_decay = len(set(self.decay)) == 1
        #: Whether vectors are kept in another dtype than their parameters.
        self.low = any(state_dtype(p) != p.dtype for p in (*self.upper, *self.lower))
        #: Whether what autograd gives is what is used: neither averaged nor in another dtype.
        self.plain = process_group is None and not self.low

    def f(self) -> tuple[Tensor, Partial, Vector]:
        """One call of ``outer``: the loss, f_x and f_y."""
        loss, n = scalar("outer", self._outer()), len(self.upper)
        found = vjp([loss], self.upper + self.lower, [torch.ones_like(loss)], False, False)
        if all(g is None for g in found[n:]):
            raise RuntimeError(
                "outer() does not depend on any lower parameter, so there is no second level; compute f with the "
                "parameters given as lower= (no copies, no detach)"
            )
        value = self.loss = self.average([loss.detach()])[0]
        if not math.isfinite(value):
            raise NonFiniteError(f"outer() returned {value.item()}; nothing was changed: take a smaller lr or lower_lr")
        return value, self.partial(found[:n], "outer"), self.vector(found[n:], self.lower, "outer")

    def draw(self, *, mixed: bool = False) -> Sample:
        """One call of ``inner``. Without ``mixed`` its graph leaves x out, which is cheaper."""
        return Sample(self, self._gradient(True) if mixed else self._without_upper(True))

    def contracted(self, v: Vector, C: float) -> Vector:
        """``(I - g_yy/C) v`` with one call of ``inner``."""
        if not self.plain or (self.decay and not self._one_decay):
            return axpy(-1 / C, self.draw().hessian(v), v)
        # The same with -1/C where autograd starts, and written out: the first model that a method is tried on is so
        # small that calls, not sums, are what a product costs.
        for x in self.upper:
            x.requires_grad_(False)
        try:
            loss = scalar("inner", self._inner())
            narrow = loss.dtype in NARROW  # of autocast: -1/C would be rounded there
            start = torch.full_like(loss, 1.0 if narrow else -1 / C)
            g_y = self._complete(vjp([loss], self.lower, [start], True, True))
        finally:
            for x in self.upper:
                x.requires_grad_(True)
        if narrow:
            return axpy(-1 / C, Sample(self, g_y).hessian(v), v)
        curved = all(g.requires_grad for g in g_y)
        found = vjp(g_y, self.lower, v, False, False) if curved else Sample(self, g_y).products(v, self.lower, False)
        full = [torch.zeros_like(y) if h is None else h for h, y in zip(found, self.lower, strict=True)]
        if self._watch is not None:
            self.seen(full, "inner")
        return axpy(1 - self.decay[0] / C if self.decay else 1.0, v, full)

    def lower_gradient(self) -> Vector:
        """One call of ``inner`` for g_y alone."""
        return self.decayed(self.vector(self._without_upper(False), self.lower), self.lower)

    def _without_upper(self, create: bool) -> Vector:
        """g_y by a graph that does not reach x."""
        for x in self.upper:
            x.requires_grad_(False)
        try:
            return self._gradient(create)
        finally:
            for x in self.upper:
                x.requires_grad_(True)

    def _gradient(self, create: bool) -> Vector:
        loss = scalar("inner", self._inner())
        return self._complete(vjp([loss], self.lower, [torch.ones_like(loss)], create, create))

    def _complete(self, g_y: Sequence[Tensor | None]) -> Vector:
        """The same, if there is one for each lower parameter."""
        found = [g for g in g_y if g is not None]
        if len(found) < len(g_y):
            i = next(i for i, g in enumerate(g_y) if g is None)
            raise RuntimeError(
                f"inner() does not depend on lower parameter {i}, of shape {tuple(self.lower[i].shape)}, so y*(x) is "
                "not unique; leave it out of lower=, or regularize it in inner()"
            )
        return found

    def vector(self, found: Sequence[Tensor | None], like: Sequence[Tensor], source: str = "inner") -> Vector:
        """Gradients or products, with zeros for None, in the dtype they are added up in, averaged over the ranks."""
        if any(g is None for g in found):
            found = [torch.zeros_like(y) if g is None else g for g, y in zip(found, like, strict=True)]
        return self.seen(self.average([self._wide(g) for g in found if g is not None]), source)

    def partial(self, found: Sequence[Tensor | None], source: str) -> Partial:
        """The same for x, with None kept; g must depend on x, f need not."""
        if source == "inner" and all(g is None for g in found):
            raise RuntimeError(
                f"{source}() does not depend on any upper parameter, so y*(x) is constant and there is no second "
                "level; compute g with the parameters given as upper= (no copies, no detach)"
            )
        if any(g is not None and g.is_sparse for g in found):
            raise RuntimeError("the gradient in an upper parameter is sparse; use nn.Embedding(sparse=False)")
        if self._ranks is not None:
            return [*self.vector(found, self.upper, source)]
        return self.seen([None if g is None else self._wide(g) for g in found], source)

    def seen(self, found: list[Seen], source: str) -> list[Seen]:
        """The same tensors, after ``watch`` has seen them."""
        if self._watch is not None:
            name = f"a derivative that {source}() gave (number {{}} of its variables)"
            self._watch([(name.format(i), g) for i, g in enumerate(found) if g is not None])
        return found

    def decayed(self, g: Vector, v: Sequence[Tensor]) -> Vector:
        """``g + lambda v``: a derivative of ``inner()``, and that of ``lambda/2 |y|^2`` beside it."""
        if not self.decay:
            return g
        if self._one_decay:  # one call for all of them
            return list(torch._foreach_add(g, list(v), alpha=self.decay[0]))
        return [a.add(b, alpha=lam) for a, b, lam in zip(g, v, self.decay, strict=True)]

    def _wide(self, g: Tensor) -> Tensor:
        return g.to(state_dtype(g)) if self.low else g

    def average(self, tensors: Vector) -> Vector:
        """The mean over the ranks."""
        return tensors if self._ranks is None else average(tensors, self._ranks)


def scalar(name: str, loss: Any) -> Tensor:
    """The loss that a closure returned, if it is one."""
    if not isinstance(loss, Tensor):
        raise TypeError(f"{name}() returned {type(loss).__name__}; return the loss, a tensor with one element")
    if loss.numel() != 1:
        raise ValueError(f"{name}() returned shape {tuple(loss.shape)}: must be one number; take its .mean()")
    if not loss.requires_grad:
        raise RuntimeError(f"{name}() returned a loss without a graph; compute it without no_grad() or detach()")
    return loss
