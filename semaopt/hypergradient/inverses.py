r"""Ways to apply :math:`[g_{yy}]^{-1}` to :math:`f_y`, side by side; none of them forms a matrix but :class:`Exact`.

The hypergradient is :math:`f_x - g_{xy} w` with :math:`w \approx [g_{yy}]^{-1} f_y`. An inverse is called with a way to
draw samples of g, a sample of f_y and its memory, and gives :math:`g_y` and :math:`g_{xy} w`. By contract
**every call of ``draw`` is one fresh call of ``inner()``**, and

========================  ================================================  ====================================
inverse                   samples of g behind w                             sample behind g_y and g_xy
========================  ================================================  ====================================
:class:`Neumann`          one for each of the p products                    one more
:class:`NeumannSeries`    one for each of the k - 1 products                one more
:class:`CG`               one for the whole solve                           one more
:class:`Exact`            one                                               one more
:class:`TrackedSystem`    all of the steps before                           one, which also moves w for the next step
========================  ================================================  ====================================

An inverse of your own is any callable with the signature of :class:`Inverse`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from semaopt import _serialization
from semaopt._validation import is_real, require, validate_integer_field
from semaopt.hypergradient.closures import Oracles, Partial
from semaopt.hypergradient.curvature import along_growth, curvature, power_iteration
from semaopt.hypergradient.dense import hessian_matrix, solve
from semaopt.hypergradient.memory import Inverse, Memory
from semaopt.hypergradient.sampling import uniform
from semaopt.hypergradient.vectors import Vector, axpy, dot, longer, scaled

#: How often a measured bound is raised in one step before the lower problem is taken to be not convex.
TRIES = 5


def check_positive(name: str, value: Any, remedy: str) -> None:
    require(value is None or (is_real(value) and 0 < value < math.inf), name, value, "must be a number > 0", remedy)


@dataclass(frozen=True)
class _Series:
    """What the two Neumann series share: k = ``terms``, C = ``bound``, and a guard that C is a bound."""

    terms: int = 10
    bound: float | None = None

    def __post_init__(self) -> None:
        validate_integer_field(self, "terms", "try 10")
        check_positive("bound", self.bound, "C >= |O_gyy|; None measures it by power iteration")

    def _product(self, oracles: Oracles, f_y: Vector, memory: Memory, p: int, summed: bool = False) -> Vector:
        r"""``prod_{i<=p} (I - O_gyy,i/C) f_y``, or the sum of the p + 1 products on the way to it.

        With :math:`0 \preceq O_{gyy} \preceq C` none is longer than f_y (``lem:ghadimi_h_to_g``). One of twice the
        length shows that C is no bound, or that g is not convex: then it is an error. Else it is one if C was given; if
        C was measured, it is doubled, or more, and fresh samples are drawn.
        """
        numbers, before = memory.numbers, memory.numbers["bound"]
        if self.bound is not None:
            numbers["bound"] = float(self.bound)
        elif before is None:
            numbers["bound"] = power_iteration(oracles, f_y)
        for _ in range(TRIES):
            C, h, total = numbers["bound"], f_y, f_y
            for _ in range(p):
                h = oracles.contracted(h, C)
                total = axpy(1.0, h, total) if summed else h
            if p == 0 or not longer(h, f_y, 2):
                return total
            numbers["bound"] = before  # until C is known to be what is wrong
            least, seen = along_growth(oracles, f_y, C, p), power_iteration(oracles, f_y)
            if self.bound is not None or least < 0:
                break
            numbers["bound"] = max(2 * C, seen)
        numbers["bound"] = before
        grew = (
            f"bound={C:g}: a product of {p} factors I - O_gyy/bound more than doubled, so the series diverges; nothing"
        )
        if least < 0:
            raise RuntimeError(
                f"{grew} was changed: inner() has curvature {least:g} where it grew, so it is not convex in the lower "
                "parameters: regularize it (lower_weight_decay)"
            )
        raise RuntimeError(
            f"{grew} was changed: inner() has curvature {seen:g}, give a bound of at least that (or None to have it "
            "measured); if it is larger already, inner() is not convex in the lower parameters: regularize it"
        )


@dataclass(frozen=True)
class Neumann(_Series):
    r"""The sampled Neumann series of ``alg:smb``, lines 3 and 4.

    .. math:: h = \frac{k}{C}\prod_{i=1}^{p}\Bigl(I - \frac{1}{C} O_{gyy,i}\Bigr), \qquad p \sim U\{0, \dots, k-1\}

    Its mean is the truncated series :math:`\frac1C\sum_{i<k}(I - g_{yy}/C)^i`, off the inverse by at most
    :math:`\frac1\lambda(1-\lambda/C)^k` (``lem:ghadimi_h_to_g``). It costs (k-1)/2 products in mean.

    Args:
        terms: k.
        bound: C, at least the largest eigenvalue of any sample of g_yy. None measures it: ten power iterations in the
            first step, each a fresh call of ``inner()``. It is kept until a product is more than twice as long as f_y,
            and then raised to what ten more show, at least to twice itself. Such a product is an error where the bound
            was given, and where the curvature along it is negative. A bound too small, or a g not convex, by so little
            that no product doubles is not noticed: the series is then off the inverse.
        seed: of p, which is a function of the seed and the step, so the same on all ranks and after a resume.

    >>> semaopt.hypergradient.Neumann(terms=10, bound=2.0)
    Neumann(terms=10, bound=2.0, seed=0)
    """

    seed: int = 0

    def __call__(self, oracles: Oracles, f_y: Vector, memory: Memory) -> tuple[Vector, Partial]:
        # The paper draws p from 1..k: the mean of h then tends to the inverse minus I/C, and its bias bound fails.
        p = uniform(self.terms, self.seed, memory.numbers["t"])
        h = self._product(oracles, f_y, memory, p)
        last = oracles.draw(mixed=True)
        return last.g_y, last.mixed(scaled(self.terms / memory.numbers["bound"], h))


@dataclass(frozen=True)
class NeumannSeries(_Series):
    r"""All terms of the series, :math:`\frac1C\sum_{i<k}\prod_{j\le i}(I - O_{gyy,j}/C)`: no random p.

    The mean is that of :class:`Neumann`, the variance is lower. It costs k - 1 products, the mean of
    ``Neumann(2 * terms - 1)``; so compare ``NeumannSeries(k)`` with ``Neumann(2k - 1)`` at equal cost.

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
    r"""One step a step on the linear system :math:`g_{yy} w = f_y`, from where the last step left w.

    .. math:: w_{t+1} = w_t - \rho\,(O_{gyy} w_t - O_{fy}), \qquad w_0 = \rho\, O_{fy}

    The hypergradient of step t has :math:`w_t`, and g_y, g_yy w and g_xy w come from one sample and one pass (as in
    SOBA, Dagréou, Ablin, Vaiter and Moreau, NeurIPS 2022): one call of ``outer`` and one of ``inner`` a step, however
    ill-conditioned the lower problem.

    Args:
        lr: rho; None takes the ``lr`` of each lower group, which a schedule may move. Where a product shows a curvature
            above 2/rho, steps of rho would diverge: from then on they are those of the inverse of the largest curvature
            shown, :math:`w_0` included, and the limit is the same. Where it shows a negative one, w waits.

    >>> semaopt.hypergradient.TrackedSystem()
    TrackedSystem(lr=None)
    """

    lr: float | None = None
    #: Its estimate at (x, y) is right only after many steps near (x, y).
    tracks: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_positive("lr", self.lr, "below 2/|g_yy|; None takes the lr of the lower group")

    def __call__(self, oracles: Oracles, f_y: Vector, memory: Memory) -> tuple[Vector, Partial]:
        numbers, states = memory.numbers, memory.states
        rates = _stable(memory.rates if self.lr is None else [float(self.lr)] * len(f_y), numbers["bound"])
        w = [state["w"] if "w" in state else f * rho for state, f, rho in zip(states, f_y, rates, strict=True)]
        sample = oracles.draw(mixed=True)
        hw, g_xy_w = sample.both(w)
        seen = curvature(w, hw)
        if not 0 <= seen < math.inf:  # along such a w no step on the system is stable: it waits
            rates = [0.0] * len(rates)
            numbers["bound"] = None  # what products show is a bound only where g is convex
        elif max(rates) * seen > 2:
            if not any("w" in state for state in states):  # w_0 was too long; what follows from it is linear in it
                short = 1 / (max(rates) * seen)
                w, hw = scaled(short, w), scaled(short, hw)
                g_xy_w = [None if g is None else g * short for g in g_xy_w]
            # Kept, since near the solution w shows another curvature than the largest, along which its error grows.
            numbers["bound"] = seen
            rates = _stable(rates, seen)
        for state, part, h, f, rho in zip(states, w, hw, f_y, rates, strict=True):
            state["w"] = part.add_(f, alpha=rho).sub_(h, alpha=rho)
        return sample.g_y, g_xy_w


def _stable(rates: list[float], bound: float | None) -> list[float]:
    """The step sizes, where they are expansive for that curvature its inverse."""
    return rates if bound is None else [rho if rho * bound <= 2 else 1 / bound for rho in rates]


@dataclass(frozen=True)
class CG:
    """Conjugate gradients on :math:`g_{yy} w = f_y` from w = 0, with one sample of g_yy for the whole solve.

    Args:
        steps: at most so many products.
        tolerance: ends the solve when the residual is so small against f_y. A direction without positive curvature
            ends it too.

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
    """The Hessian of one sample as a matrix, and a solve: O(d^2) memory and O(d^3) time, for small lower problems.

    Args:
        limit: the largest number of lower parameters it takes on.

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
    "cg": CG,
    "exact": Exact,
}


def resolve(inverse: Any) -> Inverse:
    """The inverse itself, or :class:`TrackedSystem` for None."""
    if inverse is None:
        return TrackedSystem()
    if isinstance(inverse, type) or not callable(inverse):
        names = ", ".join(f"{kind.__name__}()" for kind in BY_NAME.values())
        raise TypeError(f"inverse={inverse!r}: must be an object of semaopt.hypergradient: {names}")
    found: Inverse = inverse
    return found


def describe(inverse: Inverse) -> dict[str, Any]:
    """An inverse as plain values; of a user's own the name alone."""
    return _serialization.describe(inverse, BY_NAME)


def restore(description: dict[str, Any], live: Inverse) -> Inverse:
    """The inverse that :func:`describe` described; a user's own must be ``live`` already."""
    restored: Inverse = _serialization.restore("inverse", description, live, BY_NAME)
    return restored
