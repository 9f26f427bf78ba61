r"""Minimization problems with F, grad F, min F, L and mu in closed form. ``x`` has the shape ``[seeds, d]``."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from semaopt._validation import require
from semaopt.problems._scaled import scaled
from semaopt.problems.oracles import Draw, Oracle
from semaopt.scalings import Scaling
from semaopt.theory.constants import Constants

#: The largest slope of t^2/(1+t^2), at t = 1/sqrt(3).
STEEPEST = 3 * math.sqrt(3) / 8


def bump(t: Tensor) -> Tensor:
    """Return t^2/(1+t^2). It is bounded by 1, and its second derivative (2 - 6t^2)/(1+t^2)^3 lies in [-1/2, 2]."""
    square = t.square()
    return square / (1 + square)


def bump_slope(t: Tensor) -> Tensor:
    """Return 2t/(1+t^2)^2, the derivative of :func:`bump`."""
    return t.div(t.square().add_(1).square_()).mul_(2)


class Minimization(ABC):
    """Abstract minimization problem. Every seed starts at the same point."""

    d: int
    #: The Lipschitz constant of grad F.
    L: float
    #: The PL constant, if F has one.
    mu: float | None = None
    #: The minimum of F.
    smallest: float = 0.0
    #: An upper bound of every coordinate of grad F.
    steepest: float = math.inf

    @abstractmethod
    def F(self, x: Tensor) -> Tensor:
        """Return F for every row of x."""

    @abstractmethod
    def grad(self, x: Tensor) -> Tensor:
        """Return grad F for every row of x."""

    @abstractmethod
    def start(self, seeds: int = 1) -> Tensor:
        """Return x_0, one row per seed."""

    def constants(
        self,
        oracle: Oracle,
        scaling: str | Scaling = "shb",
        clip: tuple[float, float] | None = None,
    ) -> Constants:
        """Return the constants that ``thm:2``, ``thm:SHB_decrease`` and, if F is PL, ``thm:min_PL`` need."""
        sigma2, growth = oracle.variance(self.d)
        require(
            sigma2 > 0 or growth == 0,
            "sigma2",
            sigma2,
            "must be > 0 if the noise grows with the gradient",
            "add a little noise",
        )
        c = Constants(
            L=self.L,
            mu=self.mu,
            sigma2=sigma2,
            c=growth / sigma2 if growth else 0.0,
            delta_f=float(self.F(self.start())) - self.smallest,
        )
        return scaled(c, scaling, oracle.largest(self.steepest, self.d), self.d, clip)


@dataclass(frozen=True)
class Bounded(Minimization):
    r"""F(x) = sum of :math:`x_i^2/(1+x_i^2)`: non-convex and bounded, with L = 2 and min F = 0.

    Args:
        d: the dimension.
        x0: every coordinate of x_0.
    """

    d: int = 10
    x0: float = 1.0
    L = 2.0
    steepest = STEEPEST

    def F(self, x: Tensor) -> Tensor:
        return bump(x).sum(-1)

    def grad(self, x: Tensor) -> Tensor:
        return bump_slope(x)

    def start(self, seeds: int = 1) -> Tensor:
        return torch.full((seeds, self.d), self.x0, dtype=torch.float64, device="cpu")


@dataclass(frozen=True)
class Wavy(Minimization):
    r"""F(x) = sum of :math:`x_i^2 + 3\sin^2x_i`: non-convex but PL, with min F = 0.

    :math:`F'' = 2 + 6\cos2x \in [-4, 8]`, so L = 8. mu = 0.175: the smallest :math:`F'^2/(2F)` on the line is 0.17553,
    at x = 2.2017, and where :math:`|x| \ge 4` it is at least :math:`(2|x|-3)^2/(2x^2+6) > 0.6`. A sum of PL functions
    of different coordinates has the same mu. The example is from Karimi, Nutini and Schmidt (2016), who give 1/32.

    Args:
        d: the dimension.
        x0: every coordinate of x_0.
    """

    d: int = 10
    x0: float = 2.0
    L = 8.0
    mu = 0.175

    def F(self, x: Tensor) -> Tensor:
        return (x.square() + 3 * x.sin().square()).sum(-1)

    def grad(self, x: Tensor) -> Tensor:
        return x.mul(2).sin_().mul_(3).add_(x, alpha=2)

    def start(self, seeds: int = 1) -> Tensor:
        return torch.full((seeds, self.d), self.x0, dtype=torch.float64, device="cpu")


class LeastSquares(Minimization):
    r"""F(x) = :math:`\frac1{2n}|Ax - b|^2` with A of rank r < d: PL, but not strongly convex.

    A has n = 2r rows. The eigenvalues of :math:`A^TA/n` are L (once), mu (r - 1 times) and 0. The part of b outside the
    range of A has norm :math:`\sqrt{2n\,}\sqrt{\text{residual}}`, so min F = residual. x_0 = 0.

    Args:
        d: the dimension.
        rank: r.
        L: the largest eigenvalue.
        mu: the smallest nonzero eigenvalue, which is the PL constant.
        residual: min F.
        distance: F(x_0) - min F.
        seed: seed of A.
    """

    def __init__(
        self,
        d: int = 10,
        rank: int = 5,
        *,
        L: float = 1.0,
        mu: float = 0.5,
        residual: float = 0.0,
        distance: float = 1.0,
        seed: int = 0,
    ) -> None:
        require(2 <= rank <= d, "rank", rank, f"must lie between 2 and d={d}", "the eigenvalues are L and mu")
        self.d, self.L, self.mu, self.smallest = d, L, mu, residual
        generator = torch.Generator().manual_seed(seed)
        n = 2 * rank
        left = torch.linalg.qr(torch.randn(n, n, generator=generator, dtype=torch.float64, device="cpu"))[0]
        right = torch.linalg.qr(torch.randn(d, d, generator=generator, dtype=torch.float64, device="cpu"))[0]
        values = torch.full((rank,), mu, dtype=torch.float64, device="cpu")
        values[0] = L
        self.A = left[:, :rank] * (n * values).sqrt() @ right[:, :rank].T
        # F(0) - min F is |the part of b in the range of A|^2 / 2n.
        inside = (
            left[:, :rank] @ torch.ones(rank, dtype=torch.float64, device="cpu") * math.sqrt(2 * n * distance / rank)
        )
        self.b = inside + left[:, rank] * math.sqrt(2 * n * residual)
        self.gram, self.moment = self.A.T @ self.A / n, self.A.T @ self.b / n

    def F(self, x: Tensor) -> Tensor:
        residual: Tensor = x @ self.A.T - self.b
        return residual.square().mean(-1) / 2

    def grad(self, x: Tensor) -> Tensor:
        return torch.addmm(self.moment, x, self.gram, beta=-1)

    def start(self, seeds: int = 1) -> Tensor:
        return torch.zeros(seeds, self.d, dtype=torch.float64, device="cpu")


@dataclass(frozen=True)
class Sampled:
    r"""An oracle that returns the gradient of one random term of a :class:`LeastSquares`, :math:`a_i(a_i^Tx - b_i)`.

    With :math:`R = \max|a_i|`, :math:`E|O|^2 = \frac1n\sum|a_i|^2(a_i^Tx-b_i)^2 \le R^2\cdot2F`, and by the PL property
    :math:`F - \min F \le |\nabla F|^2/(2\mu)`. So sigma2 = 2R^2 min F and growth = R^2/mu.
    """

    problem: LeastSquares

    def draw(self, steps: int, like: Tensor, generator: torch.Generator) -> Draw:
        return (torch.randint(len(self.problem.b), (steps, len(like)), generator=generator, device="cpu"),)

    def sample(self, x: Tensor, gradient: Tensor, noise: Draw) -> Tensor:
        rows = self.problem.A[noise[0]]
        residual: Tensor = torch.linalg.vecdot(rows, x) - self.problem.b[noise[0]]
        g: Tensor = rows * residual.unsqueeze(-1)
        return g

    def variance(self, d: int) -> tuple[float, float]:
        largest = float(self.problem.A.square().sum(1).max())
        return 2 * largest * self.problem.smallest, largest / float(self.problem.mu or 0)

    def largest(self, G: float, d: int) -> float:
        return math.inf
