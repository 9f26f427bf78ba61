r"""A bilevel problem with y*(x), F(x) = f(x, y*(x)), grad F and all constants of ``ass:5`` in closed form."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from semaopt._check import require
from semaopt.problems.minimization import STEEPEST, bump, bump_slope
from semaopt.problems.oracles import Draw, signs
from semaopt.theory.constants import Constants


class Pieces(NamedTuple):
    """One sample of everything that SMB and SBMA look at; matrices are diagonal and kept as vectors."""

    fx: Tensor
    fy: Tensor
    gxy: Tensor
    h: Tensor
    gy: Tensor

    @property
    def hypergradient(self) -> Tensor:
        """O_fx - O_gxy h O_fy."""
        return self.fx - self.gxy * self.h * self.fy


@dataclass(frozen=True)
class QuadraticBilevel:
    r"""The lower problem is quadratic, the upper one bounded and not convex, coordinate by coordinate:

    .. math::
        g(x, y) = \sum_i \frac{h_i}2y_i^2 - b\,x_iy_i, \qquad f(x, y) = \sum_i r(y_i) + \alpha\,r(x_i), \qquad r(t) =
        \frac{t^2}{1+t^2}

    with :math:`h_i` from ``lam`` to ``curvature``; :math:`y^*_i = bx_i/h_i`, :math:`F(x) = \sum_i r(bx_i/h_i) +
    \alpha r(x_i)`.

    Oracles: every coordinate of :math:`f_x, f_y, g_y` and of the diagonal of :math:`g_{xy}` has a random sign times
    :math:`\sqrt{\sigma^2/d}` added, so each has the variance sigma2 (in the Frobenius norm); a sample of
    :math:`g_{yy}` is :math:`h_i(1 \pm` ``spread`` :math:`)`, between 0 and C_gyy = curvature (1 + spread).
    """

    d: int = 2
    lam: float = 1.0
    curvature: float = 1.0
    b: float = 1.0
    alpha: float = 0.0
    sigma2: float = 0.01
    spread: float = 0.1
    x0: float = 1.0
    smallest = 0.0

    def __post_init__(self) -> None:
        require(0 <= self.spread < 1, "spread", self.spread, "must lie in [0, 1)", "samples of g_yy must stay positive")
        ok = 0 < self.lam <= self.curvature
        require(ok, "lam", self.lam, f"must lie in (0, curvature={self.curvature}]", "g is lam-strongly convex in y")

    @property
    def dim_y(self) -> int:
        return self.d

    @property
    def h(self) -> Tensor:
        """The diagonal of g_yy."""
        return torch.linspace(self.lam, self.curvature, self.d, dtype=torch.float64)

    @property
    def C_gyy(self) -> float:
        return self.curvature * (1 + self.spread)

    def F(self, x: Tensor) -> Tensor:
        return (bump(self.y_star(x)) + self.alpha * bump(x)).sum(-1)

    def grad(self, x: Tensor) -> Tensor:
        slope = self.b / self.h
        return bump_slope(x * slope).mul_(slope).add_(bump_slope(x), alpha=self.alpha)

    def y_star(self, x: Tensor) -> Tensor:
        return x * (self.b / self.h)

    def start(self, seeds: int = 1) -> tuple[Tensor, Tensor]:
        """x_0 and y_0 = y*(x_0), once for every seed."""
        x = torch.full((seeds, self.d), self.x0, dtype=torch.float64)
        return x, self.y_star(x)

    def constants(self) -> Constants:
        """All that ``thm:5`` and ``thm:6`` ask for."""
        x, y = self.start()
        return Constants(
            L=2 * (self.b / self.lam) ** 2 + 2 * self.alpha,
            lam=self.lam,
            sigma2=self.sigma2,
            delta_f=float(self.F(x)) - self.smallest,
            delta_y=float((y - self.y_star(x)).square().sum()),
            L_fx=2 * self.alpha,
            L_fy=2.0,
            L_gy=self.curvature,
            L_gxy=0.0,
            L_gyy=0.0,
            C_fy=math.sqrt(self.d) * STEEPEST,
            C_gxy=self.b,
            C_gyy=self.C_gyy,
            dim_y=self.dim_y,
        )

    def draw(self, steps: int, like: Tensor, k: int, generator: torch.Generator) -> Draw:
        """The randomness of ``steps`` steps: four noises, k - 1 samples of g_yy, and how many of them are used."""
        noise = signs((steps, 4, *like.shape), like, generator).mul_(math.sqrt(self.sigma2 / self.d))
        factors = signs((steps, k - 1, *like.shape), like, generator).mul_(self.spread).add_(1)
        factors.mul_(self.h / -self.C_gyy).add_(1)
        # p is uniform on 0..k-1: the factors from p on are not in the product.
        p = torch.randint(k, (steps, 1, len(like), 1), generator=generator)
        unused = torch.arange(k - 1).view(-1, 1, 1) >= p
        return noise, factors.masked_fill_(unused, 1.0).prod(1).mul_(k / self.C_gyy)

    def sample(self, x: Tensor, y: Tensor, noise: Draw) -> Pieces:
        """One fresh sample of every piece at (x, y)."""
        fx, fy, gxy, gy = noise[0].unbind(0)
        return Pieces(
            fx if self.alpha == 0 else fx.add(bump_slope(x), alpha=self.alpha),
            bump_slope(y).add_(fy),
            gxy - self.b,
            noise[1],
            gy.addcmul(y, self.h).sub_(x, alpha=self.b),
        )
