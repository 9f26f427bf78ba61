"""Compare hypergradient estimates with the exact implicit gradient, on small problems."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from semaopt._validation import require, validate_integer
from semaopt.hypergradient.closures import Closure, Oracles, Partial, scalar
from semaopt.hypergradient.inverses import Exact, Inverse, Memory, resolve
from semaopt.hypergradient.linalg import Vector, axpy, flat, hessian_matrix, power_iteration, scaled, solve

#: The default number of samples and estimates, and of warm-up steps of a tracked system.
MANY = 400


@dataclass(frozen=True)
class Comparison:
    r"""The result of :func:`compare`. Print it, or read its attributes.

    Attributes:
        relative_error: :math:`|\bar e - \nabla F|/|\nabla F|` for the mean estimate :math:`\bar e`. The part
            ``spread / sqrt(estimates)`` is noise, the rest is bias.
        cosine: cosine of the angle between :math:`\bar e` and :math:`\nabla F`.
        spread: the root mean square distance of one estimate from the mean, divided by :math:`|\nabla F|`.
        estimates, samples: how many estimates were averaged, and how many samples the exact gradient is a mean of.
        norm: :math:`|\nabla F|`.
        exact, estimate: :math:`\nabla F` and :math:`\bar e`, one tensor per upper parameter.
    """

    relative_error: float
    cosine: float
    spread: float
    estimates: int
    samples: int
    norm: float
    exact: list[Tensor] = field(repr=False)
    estimate: list[Tensor] = field(repr=False)

    def __str__(self) -> str:
        return (
            f"relative error {self.relative_error:.3g}, cosine {self.cosine:.6f} against the exact implicit gradient "
            f"of norm {self.norm:.4g} ({self.samples} samples); mean of {self.estimates} estimates, spread of one "
            f"{self.spread:.3g}"
        )


def compare(
    outer: Closure,
    inner: Closure,
    upper: Iterable[Tensor],
    lower: Iterable[Tensor],
    inverse: Inverse | None = None,
    *,
    estimates: int | None = None,
    samples: int | None = None,
    lower_weight_decay: float = 0.0,
) -> Comparison:
    r"""Compare estimates of the hypergradient with :math:`f_x - g_{xy} g_{yy}^{-1} f_y` at the current x and y.

    The exact gradient is computed from the means of f_x, f_y, g_yy and g_xy over ``samples`` calls of the closures. It
    forms the Hessian, so the lower problem may have at most a few thousand parameters. No parameter moves.

    Args:
        outer, inner, lower_weight_decay: as in :class:`semaopt.SMB`.
        upper, lower: x and y, as lists of parameters or of named parameters.
        inverse: the inverse to test; ``TrackedSystem()`` if None. Its memory is kept from one estimate to the next.
            ``TrackedSystem`` first takes 400 warm-up steps; unless it has its own ``lr``, its step size is the inverse
            of a measured bound on g_yy.
        estimates: the number of estimates to average. None means 1 if nothing is random, and 400 otherwise.
        samples: the number of samples behind the exact gradient. None means 1 if two calls of each closure return
            the same value, and 400 otherwise.

    >>> x, y = torch.nn.Parameter(torch.tensor([3.0])), torch.nn.Parameter(torch.tensor([2.0]))
    >>> def outer():
    ...     return y.square().sum() / 2
    >>> def inner():                               # y*(x) = x/2
    ...     return (2 * y - x).square().sum() / 2
    >>> found = semaopt.hypergradient.compare(outer, inner, [x], [y], semaopt.hypergradient.NeumannSeries(2, bound=8.0))
    >>> found.exact, found.estimate, found.relative_error
    ([tensor([1.])], [tensor([0.7500])], 0.25)
    """
    for name, closure in (("outer", outer), ("inner", inner)):
        if not callable(closure):
            raise TypeError(f"{name}={closure!r}: must be a function that returns a loss. Pass lambda: ...")
    xs, ys = _parameters("upper", upper), _parameters("lower", lower)
    used = resolve(inverse)
    oracles = Oracles(outer, inner, xs, ys, decay=[lower_weight_decay] * len(ys))
    with torch.enable_grad():
        same = _repeats("outer", outer) and _repeats("inner", inner)
        samples = (1 if same else MANY) if samples is None else samples
        estimates = (1 if same and not hasattr(used, "seed") else MANY) if estimates is None else estimates
        samples, estimates = (
            validate_integer("samples", samples, "try 10"),
            validate_integer("estimates", estimates, "try 10"),
        )
        exact = exact_hypergradient(oracles, samples)
        found = _estimates(used, oracles, estimates)
    return _compare(exact, found, samples)


def _parameters(role: str, given: Any) -> list[Tensor]:
    """Return the parameters, given plain or named, that require grad."""
    if isinstance(given, Tensor):
        raise TypeError(f"{role}: got one tensor. Pass a list: [tensor]")
    if not isinstance(given, Iterable):
        raise TypeError(f"{role}: got {type(given).__name__}. Pass parameters, such as model.parameters()")
    found = [x[1] if isinstance(x, tuple) and len(x) == 2 else x for x in given]
    for x in found:
        if not isinstance(x, Tensor):
            raise TypeError(f"{role}: got {type(x).__name__} among the parameters. Pass tensors, such as [x, y]")
    found = [x for x in found if x.requires_grad]
    require(bool(found), role, found, "must hold a parameter that requires grad", "a generator can be read only once")
    return found


def _repeats(name: str, closure: Closure) -> bool:
    """Return whether two calls give the same value."""
    return scalar(name, closure()).item() == scalar(name, closure()).item()


def exact_hypergradient(oracles: Oracles, samples: int) -> Vector:
    """Return f_x - g_xy [g_yy]^{-1} f_y, each factor a mean over ``samples`` samples."""
    fs = [oracles.f() for _ in range(samples)]
    f_x = _mean([_zeros(f, oracles.upper) for _, f, _ in fs])
    f_y = _mean([f for _, _, f in fs])
    g_yy = hessian_matrix(oracles.draw(), Exact().limit)
    for _ in range(samples - 1):
        g_yy += hessian_matrix(oracles.draw(), Exact().limit)
    w = solve(g_yy / samples, f_y)
    g_xy_w = _mean([_zeros(oracles.draw(mixed=True).mixed(w), oracles.upper) for _ in range(samples)])
    return axpy(-1.0, g_xy_w, f_x)


def _estimates(inverse: Inverse, oracles: Oracles, count: int) -> list[Vector]:
    """Return ``count`` estimates at the current x and y."""
    memory, tracks = Memory(states=[{} for _ in oracles.lower]), getattr(inverse, "tracks", False)
    if tracks:
        memory.rates = [1 / power_iteration(oracles, oracles.f()[2])] * len(oracles.lower)
    found = []
    for t in range(count + MANY if tracks else count):
        memory.numbers["t"] = t
        _, f_x, f_y = oracles.f()
        _, implicit = inverse(oracles, f_y, memory)
        found.append(axpy(-1.0, _zeros(implicit, oracles.upper), _zeros(f_x, oracles.upper)))
    return found[-count:]


def _compare(exact: Vector, found: list[Vector], samples: int) -> Comparison:
    mean, truth = _mean(found), flat(exact)
    average, norm = flat(mean), torch.linalg.vector_norm(truth).item()
    off = [torch.linalg.vector_norm(flat(one) - average).item() for one in found]
    length = torch.linalg.vector_norm(average).item()
    return Comparison(
        relative_error=_ratio(torch.linalg.vector_norm(average - truth).item(), norm),
        cosine=torch.dot(average, truth).item() / (norm * length) if norm * length else math.nan,
        spread=_ratio(math.sqrt(sum(d * d for d in off) / max(1, len(off) - 1)), norm),
        estimates=len(found),
        samples=samples,
        norm=norm,
        exact=exact,
        estimate=mean,
    )


def _ratio(a: float, b: float) -> float:
    return a / b if b else (0.0 if a == 0 else math.inf)


def _mean(vectors: list[Any]) -> Vector:
    total = vectors[0]
    for one in vectors[1:]:
        total = axpy(1.0, one, total)
    return scaled(1 / len(vectors), total)


def _zeros(found: Partial, like: list[Tensor]) -> Vector:
    return [torch.zeros_like(x) if g is None else g for g, x in zip(found, like, strict=True)]
