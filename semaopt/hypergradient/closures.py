"""Derivatives of the two closures of a bilevel problem.

Each call of ``outer()`` returns a fresh sample of f, each call of ``inner()`` a fresh sample of g. One call of
``outer`` gives f_x and f_y. One call of ``inner`` gives g_y and products with g_yy and g_xy, all on the same sample.
Only products are formed, never a matrix. The graph of g_y is built once per sample and freed with its :class:`Sample`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor

from semaopt._validation import DivergenceError, NonFiniteError
from semaopt.estimator import NARROW, state_dtype
from semaopt.hypergradient.counts import count
from semaopt.hypergradient.linalg import Vector, average, axpy, full_precision, norm

Closure = Callable[[], Tensor]
Seen = TypeVar("Seen", Tensor, Tensor | None)
LINEAR = "inner() is linear in the lower parameters and has no minimizer: add a regularizer to inner()"


#: The growth of the outer loss that counts as divergence of the lower variable.
EXPLOSION = 1e8
#: What to do when the lower variable diverges.
SMALLER = "Use a smaller lower_lr (below 2/|g_yy|), or lower_weight_decay if inner() is not convex."
#: A derivative in x. None stands for zero: autograd found no path.
Partial = list[Tensor | None]


def slow_vjp(
    outputs: Sequence[Tensor], inputs: Sequence[Tensor], vectors: Sequence[Tensor], create: bool, keep: bool
) -> Sequence[Tensor | None]:
    """Compute vector-Jacobian products by ``torch.autograd.grad``: the readable twin of :func:`vjp`."""
    return torch.autograd.grad(outputs, inputs, vectors, create_graph=create, retain_graph=keep, allow_unused=True)


def vjp(
    outputs: Sequence[Tensor], inputs: Sequence[Tensor], vectors: Sequence[Tensor], create: bool, keep: bool
) -> Sequence[Tensor | None]:
    """Compute :func:`slow_vjp` without its argument checks, which take a seventh of the time on a small model."""
    device = "cpu" if outputs[0].is_cpu else outputs[0].device.type  # device.type makes a new string in each call
    if torch.is_autocast_enabled(device):  # backward passes belong outside autocast
        with full_precision(outputs[0]):
            return vjp(outputs, inputs, vectors, create, keep)
    found: Sequence[Tensor | None] = _run_backward(
        tuple(outputs), tuple(vectors), keep, create, tuple(inputs), allow_unreachable=True, accumulate_grad=False
    )
    return found


_run_backward = torch.autograd.Variable._execution_engine.run_backward


class Sample:
    """One sample of g at the current x and y: its gradient in y, and products with its second derivatives."""

    def __init__(self, oracles: Oracles, g_y: Vector) -> None:
        self.oracles = oracles
        self._g_y = g_y
        #: Indices where g_y has a graph. Elsewhere g_y is constant, and its rows of g_yy and g_xy are zero.
        self.curved = [i for i, g in enumerate(g_y) if g.requires_grad]
        self.outputs = [g_y[i] for i in self.curved]
        if not self.outputs:
            raise RuntimeError(LINEAR)

    @property
    def g_y(self) -> Vector:
        """The gradient of g in y, weight decay included."""
        o = self.oracles
        with torch.set_grad_enabled(False):  # half the time of no_grad()
            return o.decayed(o.vector(self._g_y if o.decay else [g.detach() for g in self._g_y], o.lower), o.lower)

    def hessian(self, v: Vector, *, keep: bool = False) -> Vector:
        """Return g_yy v. Pass ``keep=True`` if another product with this sample follows."""
        o = self.oracles
        count(hessian_products=1)
        return o.decayed(o.vector(self.products(v, o.lower, keep), o.lower), v)

    def mixed(self, v: Vector) -> Partial:
        """Return g_xy v, with None for an upper parameter that g does not depend on."""
        count(mixed_products=1)
        return self.oracles.partial(self.products(v, self.oracles.upper, False), "inner")

    def both(self, v: Vector) -> tuple[Vector, Partial]:
        """Return g_yy v and g_xy v from one backward pass."""
        o, n = self.oracles, len(self.oracles.lower)
        count(hessian_products=1, mixed_products=1)
        found = self.products(v, o.lower + o.upper, False)
        if all(h is None for h in found[:n]):
            raise RuntimeError(LINEAR)
        return o.decayed(o.vector(found[:n], o.lower), v), o.partial(found[n:], "inner")

    def products(self, v: Vector, inputs: list[Tensor], keep: bool) -> Sequence[Tensor | None]:
        """Return v times the derivatives of g_y in ``inputs``, as autograd gives them."""
        vectors = [v[i] for i in self.curved]
        if self.oracles.low:
            vectors = [part.to(g.dtype) for part, g in zip(vectors, self.outputs, strict=True)]
        return vjp(self.outputs, inputs, vectors, False, keep)


class Oracles:
    """The two closures and the parameters with respect to which they are differentiated. Use it with gradients enabled.

    Args:
        outer: returns a fresh sample of f at each call.
        inner: returns a fresh sample of g at each call.
        upper, lower: x and y. Parameters with ``requires_grad=False`` are left out.
        decay: lambda for each of ``lower``; g is ``inner()`` plus ``lambda/2 |y|^2``, added in closed form.
        process_group: if given, every gradient and every product is averaged over its ranks before it enters the
            next product. The result is the same as on one process with the joint batch: a product of averages, not an
            average of products.
        watch: if given, receives every gradient and product with a name for the error message, and may raise.
        first_loss: the value of ``outer()`` in the first step. A loss 1e8 times as large is an error.
        lower_norm: the norm of y at the start of the step, kept for the optimizer.

    ``loss`` is the last value of ``outer()``, and NaN before the first call; ``f_x`` is its gradient in x.
    """

    loss = torch.tensor(math.nan)
    f_x: Partial

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
        first_loss: float | None = None,
        lower_norm: float | None = None,
    ) -> None:
        self._first_loss, self.lower_norm = first_loss, lower_norm
        self._outer, self._inner, self._ranks, self._watch = outer, inner, process_group, watch
        self.upper = [x for x in upper if x.requires_grad]
        self.lower = [y for y in lower if y.requires_grad]
        self.decay = [lam for lam, y in zip(decay, lower, strict=True) if y.requires_grad] if any(decay) else []
        self._one_decay = len(set(self.decay)) == 1
        #: Whether the dtype of vectors differs from that of their parameters (float32 for bfloat16).
        self.low = any(p.dtype in NARROW for p in (*self.upper, *self.lower))
        #: Whether the results of autograd are used as they are: not averaged over ranks, not converted.
        self.plain = process_group is None and not self.low

    def f(self) -> tuple[Tensor, Partial, Vector]:
        """Call ``outer`` once; return the loss, f_x and f_y."""
        count(gradients=1)
        loss, n = scalar("outer", self._outer()), len(self.upper)
        found = vjp([loss], self.upper + self.lower, [torch.ones_like(loss)], False, False)
        if all(g is None for g in found[n:]):
            raise RuntimeError(
                "outer() does not depend on any lower parameter, so this is not a bilevel problem. Compute f with the "
                "parameters passed as lower= (no copies, no detach)."
            )
        value = self.loss = self.average([loss.detach()])[0]
        number = value.item()
        if not math.isfinite(number):
            if not math.isfinite(length := norm(self.lower)):
                raise DivergenceError(
                    f"the lower variable diverges: its norm is {length}, and outer() returned {number}; nothing was "
                    f"changed. {SMALLER}"
                )
            raise NonFiniteError(f"outer() returned {number}; nothing was changed. Use a smaller lr or lower_lr.")
        if self._first_loss is not None and abs(number) > EXPLOSION * max(1.0, abs(self._first_loss)):
            raise DivergenceError(
                f"the lower variable diverges: outer() returned {number:g}, and {self._first_loss:g} in the first "
                f"step; nothing was changed. {SMALLER}"
            )
        self.f_x = self.partial(found[:n], "outer")
        return value, self.f_x, self.vector(found[n:], self.lower, "outer")

    def g(self) -> tuple[Partial, Vector]:
        """Call ``inner`` once; return g_x and g_y, without second derivatives."""
        count(gradients=1)
        loss, n = scalar("inner", self._inner()), len(self.upper)
        found = vjp([loss], self.upper + self.lower, [torch.ones_like(loss)], False, False)
        g_y = self.decayed(self.vector(self._complete(found[n:]), self.lower), self.lower)
        return self.partial(found[:n], "inner"), g_y

    @contextmanager
    def lower_at(self, values: Sequence[Tensor]) -> Iterator[None]:
        """Give the lower parameters other values inside this context."""
        with self.at(self.upper, values):
            yield

    @contextmanager
    def at(self, upper: Sequence[Tensor], lower: Sequence[Tensor]) -> Iterator[None]:
        """Give the parameters of both levels other values inside this context."""
        pairs = [
            (x, x.detach().clone(), value)
            for x, value in zip((*self.upper, *self.lower), (*upper, *lower), strict=True)
            if x is not value
        ]
        try:
            _assign((x, value) for x, _, value in pairs)
            yield
        finally:
            _assign((x, before) for x, before, _ in pairs)

    def draw(self, *, mixed: bool = False) -> Sample:
        """Call ``inner`` once. Without ``mixed`` the graph does not reach x, which is cheaper."""
        return Sample(self, self._gradient(True) if mixed else self._without_upper(True))

    def contracted(self, v: Vector, C: float) -> Vector:
        """Return ``(I - g_yy/C) v`` with one call of ``inner``."""
        if not self.plain or (self.decay and not self._one_decay):
            return axpy(-1 / C, self.draw().hessian(v), v)
        count(gradients=1, hessian_products=1)
        # The same product, with the factor -1/C as the vector that starts the backward pass, and without helper calls:
        # on a small model the calls cost more than the arithmetic.
        for x in self.upper:
            x.requires_grad_(False)
        try:
            loss = scalar("inner", self._inner())
            narrow = loss.dtype in NARROW  # under autocast -1/C would be rounded
            start = torch.full_like(loss, 1.0 if narrow else -1 / C)
            g_y = self._complete(vjp([loss], self.lower, [start], True, True))
        finally:
            for x in self.upper:
                x.requires_grad_(True)
        if narrow:
            product = self.vector(Sample(self, g_y).products(v, self.lower, False), self.lower)
            return axpy(-1 / C, self.decayed(product, v), v)
        curved = all(g.requires_grad for g in g_y)
        found = vjp(g_y, self.lower, v, False, False) if curved else Sample(self, g_y).products(v, self.lower, False)
        full = [torch.zeros_like(y) if h is None else h for h, y in zip(found, self.lower, strict=True)]
        if self._watch is not None:
            self.seen(full, "inner")
        return axpy(1 - self.decay[0] / C if self.decay else 1.0, v, full)

    def lower_gradient(self) -> Vector:
        """Call ``inner`` once and return g_y only."""
        return self.decayed(self.vector(self._without_upper(False), self.lower), self.lower)

    def _without_upper(self, create: bool) -> Vector:
        """Return g_y from a graph that does not reach x."""
        for x in self.upper:
            x.requires_grad_(False)
        try:
            return self._gradient(create)
        finally:
            for x in self.upper:
                x.requires_grad_(True)

    def _gradient(self, create: bool) -> Vector:
        count(gradients=1)
        loss = scalar("inner", self._inner())
        return self._complete(vjp([loss], self.lower, [torch.ones_like(loss)], create, create))

    def _complete(self, g_y: Sequence[Tensor | None]) -> Vector:
        """Return g_y; raise if it lacks a lower parameter."""
        found = [g for g in g_y if g is not None]
        if len(found) < len(g_y):
            i = next(i for i, g in enumerate(g_y) if g is None)
            raise RuntimeError(
                f"inner() does not depend on lower parameter {i}, of shape {tuple(self.lower[i].shape)}, so y*(x) is "
                "not unique. Remove it from lower=, or regularize it in inner()."
            )
        return found

    def vector(self, found: Sequence[Tensor | None], like: Sequence[Tensor], source: str = "inner") -> Vector:
        """Convert gradients or products for use: zeros for None, accumulation dtype, averaged over the ranks."""
        full = [torch.zeros_like(y) if g is None else g for g, y in zip(found, like, strict=True)]
        if self.plain and self._watch is None:
            return full
        return self.seen(self.average([self._wide(g) for g in full]), source)

    def partial(self, found: Sequence[Tensor | None], source: str) -> Partial:
        """Convert a derivative in x in the same way, but keep None. g must depend on x; f need not."""
        if source == "inner" and all(g is None for g in found):
            raise RuntimeError(
                f"{source}() does not depend on any upper parameter, so y*(x) is constant and this is not a "
                "bilevel problem. Compute g with the parameters passed as upper= (no copies, no detach)."
            )
        if any(g is not None and g.is_sparse for g in found):
            raise RuntimeError("the gradient in an upper parameter is sparse: use nn.Embedding(sparse=False)")
        if self.plain and self._watch is None:
            return [*found]
        if self._ranks is not None:
            return [*self.vector(found, self.upper, source)]
        return self.seen([None if g is None else self._wide(g) for g in found], source)

    def seen(self, found: list[Seen], source: str) -> list[Seen]:
        """Pass the tensors to ``watch``, if there is one, and return them."""
        if self._watch is not None:
            name = f"a derivative of {source}() in its variable number {{}}"
            self._watch([(name.format(i), g) for i, g in enumerate(found) if g is not None])
        return found

    def decayed(self, g: Vector, v: Sequence[Tensor]) -> Vector:
        """Return ``g + lambda v``: add the derivative of ``lambda/2 |y|^2`` to that of ``inner()``."""
        if not self.decay:
            return g
        if self._one_decay:  # one call for all tensors
            return list(torch._foreach_add(g, list(v), alpha=self.decay[0]))
        return [a.add(b, alpha=lam) for a, b, lam in zip(g, v, self.decay, strict=True)]

    def _wide(self, g: Tensor) -> Tensor:
        return g.to(state_dtype(g)) if self.low else g

    def average(self, tensors: Vector) -> Vector:
        """Return the mean over the ranks."""
        return tensors if self._ranks is None else average(tensors, self._ranks)


def combine(terms: Sequence[tuple[float, Tensor | None]]) -> Tensor | None:
    """Return the sum of ``factor * tensor``, where None stands for zero."""
    known = [tensor * factor for factor, tensor in terms if tensor is not None]
    return sum(known[1:], known[0]) if known else None


def _assign(pairs: Iterable[tuple[Tensor, Tensor]]) -> None:
    """Copy values into parameters."""
    with torch.no_grad():
        for parameter, value in pairs:
            parameter.copy_(value)


def scalar(name: str, loss: Any) -> Tensor:
    """Return the loss of a closure; raise if it is not a scalar with a graph."""
    if not isinstance(loss, Tensor):
        raise TypeError(f"{name}() returned {type(loss).__name__}: return the loss, a tensor with one element")
    if loss.numel() != 1:
        raise ValueError(f"{name}() returned shape {tuple(loss.shape)}: it must return one number. Return the .mean().")
    if not loss.requires_grad:
        raise RuntimeError(f"{name}() returned a loss without a graph: compute it without no_grad() or detach()")
    return loss
