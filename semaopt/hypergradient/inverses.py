r"""Approximations of :math:`w = [g_{yy}]^{-1} f_y`, side by side. Only :class:`Exact` forms a matrix.

:class:`FirstOrder` needs no second derivatives; all others multiply by g_yy and g_xy.

The hypergradient is :math:`f_x - g_{xy} w`. An inverse is called with the closures, a sample of f_y and its memory. It
returns :math:`g_y` and :math:`g_{xy} w`. **Every call of ``oracles.draw`` is one fresh call of ``inner()``**:

========================  ================================================  ====================================
inverse                   samples of g behind w                             sample behind g_y and g_xy
========================  ================================================  ====================================
:class:`Neumann`          one for each of the p products                    one more
:class:`NeumannSeries`    one for each of the k - 1 products                one more
:class:`CG`               one for the whole solve                           one more
:class:`Exact`            one                                               one more
:class:`TrackedSystem`    those of all previous steps                       one, which also updates w for the next step
:class:`FirstOrder`       those of all previous steps                       one for g_y, one for each of its k steps
========================  ================================================  ====================================

Any callable with the signature of :class:`Inverse` can be used in their place.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import torch

from semaopt import _serialization, projections
from semaopt._validation import DivergenceError, is_real, require, validate_integer_field
from semaopt.hypergradient.closures import Oracles, Partial, combine
from semaopt.hypergradient.linalg import (
    Vector,
    along_growth,
    axpy,
    curvature,
    dot,
    hessian_matrix,
    longer,
    power_iteration,
    scaled,
    solve,
)
from semaopt.kernels.rounding import splitmix64
from semaopt.projections import Projection

#: Number of times that a measured bound is raised in one step before the lower problem counts as not convex.
TRIES = 5


@dataclass
class Memory:
    """The state of an inverse between steps. An optimizer keeps it in its state dict.

    Attributes:
        numbers: plain values: ``t``, the number of steps taken, and ``bound``, the current curvature bound.
        states: one dict of tensors per lower parameter.
        rates: the step size of each lower parameter.
        projected: whether y is projected, so that it cannot diverge.
        projections: the projection of each lower parameter; empty if there are none.
    """

    numbers: dict[str, Any] = field(default_factory=lambda: {"t": 0, "bound": None})
    states: list[dict[str, Any]] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    projected: bool = False
    projections: list[Projection | None] = field(default_factory=list)

    def warn_if_expansive(self, curvature: float) -> None:
        """Warn if steps on y of the given sizes diverge along a direction of this curvature."""
        if self.rates and not self.projected and max(self.rates) * curvature > 2:
            warnings.warn(
                f"lower_lr={max(self.rates):g} is too large: inner() has curvature {curvature:g}, and steps on y above "
                f"2/curvature = {2 / curvature:.3g} diverge. Use lower_lr={1 / curvature:.2g}.",
                RuntimeWarning,
                stacklevel=2,
            )


class Inverse(Protocol):
    """Return g_y and g_xy w, where w approximates [g_yy]^{-1} f_y."""

    def __call__(self, oracles: Oracles, f_y: Vector, memory: Memory) -> tuple[Vector, Partial]: ...


def uniform(k: int, seed: int, t: int) -> int:
    """Return a number in 0..k-1 that depends on (seed, t) only: the same on every rank and after a resume."""
    golden = 0x9E3779B97F4A7C15  # the increment of SplitMix64, which ``splitmix64`` adds first
    bits = splitmix64(splitmix64(seed - golden) + t * golden)
    return int(bits) % 2**64 * k >> 64


def validate_positive(name: str, value: Any, remedy: str) -> None:
    """Raise unless ``value`` is None or a finite number > 0."""
    require(value is None or (is_real(value) and 0 < value < math.inf), name, value, "must be a number > 0", remedy)


@dataclass(frozen=True)
class _Series:
    """Base of the two Neumann series: k = ``terms``, C = ``bound``, and a test that C is a bound."""

    terms: int = 10
    bound: float | None = None

    def __post_init__(self) -> None:
        validate_integer_field(self, "terms", "try 10")
        validate_positive("bound", self.bound, "pass C >= |O_gyy|, or None to measure it by power iteration")

    def _product(self, oracles: Oracles, f_y: Vector, memory: Memory, p: int, summed: bool = False) -> Vector:
        r"""Return ``prod_{i<=p} (I - O_gyy,i/C) f_y``, or, if ``summed``, the sum of all p + 1 partial products.

        If :math:`0 \preceq O_{gyy} \preceq C`, no product is longer than f_y (``lem:ghadimi_h_to_g``). A product twice
        as long shows that C is not a bound or that g is not convex. A non-convex g is an error, and so is a given C
        that is too small. A measured C is at least doubled, and the product is repeated with fresh samples.
        """
        numbers, before = memory.numbers, memory.numbers["bound"]
        if self.bound is not None:
            numbers["bound"] = float(self.bound)
        elif before is None:
            numbers["bound"] = power_iteration(oracles, f_y)
            memory.warn_if_expansive(numbers["bound"])
        for _ in range(TRIES):
            C, h, total = numbers["bound"], f_y, f_y
            for _ in range(p):
                h = oracles.contracted(h, C)
                total = axpy(1.0, h, total) if summed else h
            if p == 0 or not longer(h, f_y, 2):
                return total
            numbers["bound"] = before  # restored in case the next lines raise
            least, seen = along_growth(oracles, f_y, C, p), power_iteration(oracles, f_y)
            if self.bound is not None or least < 0:
                break
            numbers["bound"] = max(2 * C, seen)
        numbers["bound"] = before
        grew = (
            f"bound={C:g}: a product of {p} factors I - O_gyy/bound more than doubled, so the series diverges. Nothing "
            "was changed."
        )
        if least < 0:
            raise DivergenceError(
                f"{grew} inner() has curvature {least:g} along that product, so it is not convex in the lower "
                "parameters: regularize it (lower_weight_decay)."
            )
        raise DivergenceError(
            f"{grew} inner() has curvature {seen:g}: pass a bound of at least that, or None to measure it. If the "
            "bound is larger already, inner() is not convex in the lower parameters: regularize it."
        )


@dataclass(frozen=True)
class Neumann(_Series):
    r"""The sampled Neumann series of ``alg:smb``, lines 3 and 4.

    .. math:: h = \frac{k}{C}\prod_{i=1}^{p}\Bigl(I - \frac{1}{C} O_{gyy,i}\Bigr), \qquad p \sim U\{0, \dots, k-1\}

    Its mean is the truncated series :math:`\frac1C\sum_{i<k}(I - g_{yy}/C)^i`, which differs from the inverse by at
    most :math:`\frac1\lambda(1-\lambda/C)^k` (``lem:ghadimi_h_to_g``). It takes (k-1)/2 products on average.

    Args:
        terms: k.
        bound: C, at least the largest eigenvalue of any sample of g_yy. None measures it in the first step by ten
            power iterations, each with a fresh call of ``inner()``. If a product later becomes more than twice as
            long as f_y, a measured bound is measured again and at least doubled; a given bound raises an error, and
            so does negative curvature along the product. Smaller violations are not detected, and then the series
            does not converge to the inverse.
        seed: determines p together with the step number, so p is the same on all ranks and after a resume.

    >>> semaopt.hypergradient.Neumann(terms=10, bound=2.0)
    Neumann(terms=10, bound=2.0, seed=0)
    """

    seed: int = 0

    def __call__(self, oracles: Oracles, f_y: Vector, memory: Memory) -> tuple[Vector, Partial]:
        # The paper draws p from 1..k. The mean of h then tends to the inverse minus I/C, and its bias bound fails.
        p = uniform(self.terms, self.seed, memory.numbers["t"])
        h = self._product(oracles, f_y, memory, p)
        last = oracles.draw(mixed=True)
        return last.g_y, last.mixed(scaled(self.terms / memory.numbers["bound"], h))


@dataclass(frozen=True)
class NeumannSeries(_Series):
    r"""The Neumann series with all its terms, :math:`\frac1C\sum_{i<k}\prod_{j\le i}(I - O_{gyy,j}/C)`, no random p.

    It has the same mean as :class:`Neumann` and a lower variance. It takes k - 1 products, as many as ``Neumann(2 *
    terms - 1)`` on average: at equal cost, compare ``NeumannSeries(k)`` with ``Neumann(2k - 1)``.

    Args:
        terms: k.
        bound: C, as in :class:`Neumann`.

    >>> semaopt.hypergradient.NeumannSeries(terms=5)
    NeumannSeries(terms=5, bound=None)
    """

    def __call__(self, oracles: Oracles, f_y: Vector, memory: Memory) -> tuple[Vector, Partial]:
        total = self._product(oracles, f_y, memory, self.terms - 1, summed=True)
        last = oracles.draw(mixed=True)
        return last.g_y, last.mixed(scaled(1 / memory.numbers["bound"], total))


@dataclass(frozen=True)
class TrackedSystem:
    r"""One warm-started gradient step on the linear system :math:`g_{yy} w = f_y` per optimizer step.

    .. math:: w_{t+1} = w_t - \rho\,(O_{gyy} w_t - O_{fy}), \qquad w_0 = \rho\, O_{fy}

    The hypergradient of step t uses :math:`w_t`. g_y, g_yy w and g_xy w come from one sample and one backward pass, as
    in SOBA (Dagréou, Ablin, Vaiter and Moreau, NeurIPS 2022). A step calls ``outer`` once and ``inner`` once, whatever
    the condition number of the lower problem.

    Args:
        lr: rho. None takes the ``lr`` of each lower group, which a schedule may change. If a product shows a curvature
            above 2/rho, steps of size rho would diverge; from then on the step size is the inverse of the largest
            curvature seen. This applies to :math:`w_0` too. If a product shows negative curvature, w is not updated.

    >>> semaopt.hypergradient.TrackedSystem()
    TrackedSystem(lr=None)
    """

    lr: float | None = None
    #: Names of the tensors that it keeps per lower parameter.
    buffers: ClassVar[tuple[str, ...]] = ("w",)
    #: The estimate is accurate only after many steps near one (x, y).
    tracks: ClassVar[bool] = True

    def __post_init__(self) -> None:
        validate_positive("lr", self.lr, "pass a number below 2/|g_yy|, or None for the lr of the lower group")

    def __call__(self, oracles: Oracles, f_y: Vector, memory: Memory) -> tuple[Vector, Partial]:
        numbers, states = memory.numbers, memory.states
        rates = _stable(memory.rates if self.lr is None else [float(self.lr)] * len(f_y), numbers["bound"])
        w = [state["w"] if "w" in state else f * rho for state, f, rho in zip(states, f_y, rates, strict=True)]
        sample = oracles.draw(mixed=True)
        hw, g_xy_w = sample.both(w)
        seen = curvature(w, hw)
        if not 0 <= seen < math.inf:  # no step size is stable along this w, so it is not updated
            rates = [0.0] * len(rates)
            numbers["bound"] = None  # curvature seen in products is a bound only where g is convex
        elif max(rates) * seen > 2:
            # Where g is not convex, w.Hw may be small and ``seen`` larger than any curvature; |Hw|/|w| is never larger.
            memory.warn_if_expansive(math.sqrt(dot(hw, hw) / dot(w, w)))
            if not any("w" in state for state in states):  # w_0 was too long; hw and g_xy_w are linear in it
                short = 1 / (max(rates) * seen)
                w, hw = scaled(short, w), scaled(short, hw)
                g_xy_w = [None if g is None else g * short for g in g_xy_w]
            # Keep the bound: near the solution w shows a smaller curvature than the one along which its error grows.
            numbers["bound"] = seen
            rates = _stable(rates, seen)
        for state, part, h, f, rho in zip(states, w, hw, f_y, rates, strict=True):
            state["w"] = part.add_(f, alpha=rho).sub_(h, alpha=rho)
        return sample.g_y, g_xy_w


def _stable(rates: list[float], bound: float | None) -> list[float]:
    """Return the step sizes, with 1/bound in place of those above 2/bound."""
    return rates if bound is None else [rho if rho * bound <= 2 else 1 / bound for rho in rates]


@dataclass(frozen=True)
class FirstOrder:
    r"""The penalty (value-function) hypergradient: gradients of f and g only, no second derivatives.

    .. math::
        y_\lambda &= \arg\min_y\; f(x, y) + \lambda\,[g(x, y) - g_y(x, y_t)\cdot y], \qquad
        w = \lambda\,(y_t - y_\lambda) \\
        \nabla F &\approx f_x(x, y_\lambda) + \lambda\,[g_x(x, y_\lambda) - g_x(x, y_t)]

    At :math:`y_t = y^*(x)` this is the gradient of :math:`\min_y f + \lambda(g - \min g)`. The linear term makes
    :math:`y_t` the minimizer of the bracket even before y has converged. The bias is of order :math:`1/\lambda`.

    A warm-started w replaces the exact minimizer. A step on :math:`y_\lambda` is a step on the linear system, with
    the finite difference :math:`\lambda[g_y(y_t) - g_y(y_t - w/\lambda)]` in place of :math:`g_{yy} w`:

    .. math:: w \leftarrow w - \tfrac{\lambda\rho}{1+\lambda}\,\bigl(\lambda[O_{gy}(x, y_t) - O_{gy}(x, y_\lambda)] -
        O_{fy}(x, y_\lambda)\bigr), \qquad w_0 = \rho\,O_{fy}

    A step calls ``outer`` 1 + k times and ``inner`` 1 + k times. It never differentiates twice, so no graph of
    gradients is kept. **Pass closures that use one batch per step**: differences of gradients on different
    batches are multiplied by lambda, and so is their noise.

    Args:
        penalty: lambda. A larger value lowers the bias and raises the noise and the rounding error.
        steps: k, the steps on w per optimizer step.
        lr: rho. None takes the ``lr`` of each lower group. Steps are stable for rho below 2/max(|f_yy|, |g_yy|).

    A lower tensor with a projection has no linear term, and :math:`y_\lambda` is projected too. Keep the lower
    parameters in float32 (autocast is fine): bfloat16 rounds most of :math:`w/\lambda` away.

    Reference: Kwon, Kwon, Wright and Nowak, "A fully first-order method for stochastic bilevel optimization", ICML
    2023.

    >>> semaopt.hypergradient.FirstOrder(penalty=50.0)
    FirstOrder(penalty=50.0, steps=1, lr=None)
    """

    penalty: float = 10.0
    steps: int = 1
    lr: float | None = None
    buffers: ClassVar[tuple[str, ...]] = ("w",)
    tracks: ClassVar[bool] = True

    def __post_init__(self) -> None:
        ok = is_real(self.penalty) and 0 < self.penalty < math.inf
        require(ok, "penalty", self.penalty, "must be a number > 0", "try 10.0")
        validate_integer_field(self, "steps", "try 1")
        validate_positive("lr", self.lr, "pass a number below 2/|g_yy|, or None for the lr of the lower group")

    def __call__(self, oracles: Oracles, f_y: Vector, memory: Memory) -> tuple[Vector, Partial]:
        lam, loss, f_x = self.penalty, oracles.loss, oracles.f_x
        rates = memory.rates if self.lr is None else [float(self.lr)] * len(f_y)
        fixed = memory.projections or [None] * len(f_y)
        w = [m["w"] if "w" in m else f * rho for m, f, rho in zip(memory.states, f_y, rates, strict=True)]
        g_x, g_y = oracles.g()
        for _ in range(self.steps):
            ys = [y.detach().sub(part.to(y.dtype), alpha=1 / lam) for y, part in zip(oracles.lower, w, strict=True)]
            for y, project in zip(ys, fixed, strict=True):
                projections.apply_(project, y)
            with oracles.lower_at(ys):
                _, near_f_x, near_f_y = oracles.f()
                near_g_x, near_g_y = oracles.g()
            for i, (f, g, rho) in enumerate(zip(near_f_y, near_g_y, rates, strict=True)):
                if fixed[i] is None:
                    w[i] = w[i].add(f.add(g - g_y[i], alpha=lam), alpha=lam * rho / (1 + lam))
                else:
                    moved = ys[i].to(f.dtype).sub(f.add(g, alpha=lam), alpha=rho / (1 + lam))
                    projections.apply_(fixed[i], moved)
                    w[i] = (oracles.lower[i].detach() - moved) * lam
        oracles.loss, oracles.f_x = loss, f_x  # those at y_t
        for m, part in zip(memory.states, w, strict=True):
            m["w"] = part
        implicit: Partial = [
            combine([(1.0, a), (-1.0, b), (lam, c), (-lam, d)])
            for a, b, c, d in zip(f_x, near_f_x, g_x, near_g_x, strict=True)
        ]
        return g_y, implicit


@dataclass(frozen=True)
class CG:
    """Conjugate gradients on :math:`g_{yy} w = f_y` from w = 0, with one sample of g_yy for the whole solve.

    Args:
        steps: the largest number of products.
        tolerance: stop when the residual is at most this fraction of f_y. The solve also stops at a direction of
            zero or negative curvature.

    >>> semaopt.hypergradient.CG(steps=5)
    CG(steps=5, tolerance=1e-10)
    """

    steps: int = 10
    tolerance: float = 1e-10

    def __post_init__(self) -> None:
        validate_integer_field(self, "steps", "try 10")
        ok = is_real(self.tolerance) and 0 <= self.tolerance < 1
        require(ok, "tolerance", self.tolerance, "must lie in [0, 1)", "try 1e-10")

    def __call__(self, oracles: Oracles, f_y: Vector, memory: Memory) -> tuple[Vector, Partial]:
        sample = oracles.draw()
        w, residual, direction = [torch.zeros_like(part) for part in f_y], f_y, f_y
        rr = first = dot(f_y, f_y)
        for _ in range(self.steps):
            if rr <= self.tolerance**2 * first:
                break
            product = sample.hessian(direction, keep=True)
            if not 0 < curvature(direction, product) < math.inf:
                break
            a = rr / dot(direction, product)
            w, residual = axpy(a, direction, w), axpy(-a, product, residual)
            rr, before = dot(residual, residual), rr
            direction = axpy(rr / before, direction, residual)
        last = oracles.draw(mixed=True)
        return last.g_y, last.mixed(w)


@dataclass(frozen=True)
class Exact:
    """A dense solve with the Hessian of one sample: O(d^2) memory and O(d^3) time, for small lower problems.

    Args:
        limit: the largest number of lower parameters that is accepted.

    >>> semaopt.hypergradient.Exact()
    Exact(limit=5000)
    """

    limit: int = 5000

    def __post_init__(self) -> None:
        validate_integer_field(self, "limit", "try 5000")

    def __call__(self, oracles: Oracles, f_y: Vector, memory: Memory) -> tuple[Vector, Partial]:
        w = solve(hessian_matrix(oracles.draw(), self.limit), f_y)
        last = oracles.draw(mixed=True)
        return last.g_y, last.mixed(w)


BY_NAME: dict[str, type[Any]] = {
    "neumann": Neumann,
    "neumann series": NeumannSeries,
    "tracked system": TrackedSystem,
    "first order": FirstOrder,
    "cg": CG,
    "exact": Exact,
}


class NoInverse:
    """Placeholder for methods that take no inverse; calling it is an error."""

    def __call__(self, oracles: Oracles, f_y: Vector, memory: Memory) -> tuple[Vector, Partial]:
        raise TypeError("this method does not use an inverse")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NoInverse)

    def __hash__(self) -> int:
        return hash(NoInverse)


def resolve(inverse: Any) -> Inverse:
    """Return the inverse itself, or :class:`TrackedSystem` for None."""
    if inverse is None:
        return TrackedSystem()
    if isinstance(inverse, type) or not callable(inverse):
        names = ", ".join(f"{kind.__name__}()" for kind in BY_NAME.values())
        raise TypeError(f"inverse={inverse!r}: must be an object of semaopt.hypergradient: {names}")
    found: Inverse = inverse
    return found


def describe(inverse: Inverse) -> dict[str, Any]:
    """Return an inverse as plain values. A user-defined inverse is described by its name only."""
    return _serialization.describe(inverse, BY_NAME)


def restore(description: dict[str, Any], live: Inverse) -> Inverse:
    """Return the inverse that :func:`describe` described. For a user-defined inverse, ``live`` must be of its class."""
    restored: Inverse = _serialization.restore("inverse", description, live, BY_NAME)
    return restored
