r"""Hyper-cleaning in small: a bilevel problem with logistic losses, y*(x) by Newton's method to the last digit."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import softplus

from semaopt._check import require
from semaopt.problems.oracles import Draw
from semaopt.theory.constants import Constants

#: The largest size of the second derivative of the sigmoid, the third of log(1 + e^-m).
_BEND = 1 / (6 * math.sqrt(3))


class LogisticBilevel:
    r"""Weights x of noisy training examples, chosen by the loss of clean ones.

    .. math::
        g(x, y) = \frac1n\sum_j s(x_j)\,\ell(a_j^Ty) + \frac\lambda2|y|^2, \qquad
        f(y) = \frac1m\sum_j \ell(a_j'^Ty), \qquad \ell(m) = \ln(1 + e^{-m})

    with the sigmoid s; the labels are in the signs of the examples, which have norm 1. A sample is the mean of
    ``batch`` random examples, each a fresh one.

    Since :math:`|\ell'| \le 1, \ell'' \le \frac14, |\ell'''| \le \frac1{6\sqrt3}` and the same bounds (1, 1/4, 1/(6
    sqrt 3)) hold for s, s', s'': C_fy = 1, L_fy = 1/4, L_gy = C_gyy = lambda + 1/4, :math:`C_{gxy} = \frac1{4\sqrt
    n}`, and with the parts that x and y move taken together :math:`L_{gxy}^2 = (\frac1{6\sqrt3\,n})^2 +
    (\frac1{16\sqrt n})^2`, :math:`L_{gyy}^2 = (\frac1{6\sqrt3})^2 + (\frac1{16\sqrt n})^2`. One example's pieces have
    a norm of at most 1, hence sigma2 = 1/batch. min F is not known; F(x_0) bounds F(x_0) - min F.
    """

    smallest = 0.0

    def __init__(
        self, n: int = 20, m: int = 20, *, dim_y: int = 3, lam: float = 0.5, batch: int = 10, seed: int = 0
    ) -> None:
        require(batch >= 1, "batch", batch, "must be at least 1", "a sample is the mean of so many examples")
        self.d, self.m, self.dim_y, self.lam, self.batch = n, m, dim_y, lam, batch
        generator = torch.Generator().manual_seed(seed)
        truth = torch.randn(dim_y, generator=generator, dtype=torch.float64)

        def examples(count: int, flipped: float) -> Tensor:
            a = torch.randn(count, dim_y, generator=generator, dtype=torch.float64)
            labels = (a @ truth).sign() * (1 - 2.0 * (torch.rand(count, generator=generator) < flipped))
            return torch.nn.functional.normalize(a) * labels.unsqueeze(1)

        self.noisy, self.clean = examples(n, 0.4), examples(m, 0.0)

    def F(self, x: Tensor) -> Tensor:
        return softplus(-self.y_star(x) @ self.clean.T).mean(-1)

    def y_star(self, x: Tensor) -> Tensor:
        """The minimizer of g(x, .) for every row, by Newton's method: g is strongly convex and smooth."""
        weights = x.sigmoid()
        y = torch.zeros(len(x), self.dim_y, dtype=x.dtype)
        for _ in range(30):
            margins = y @ self.noisy.T
            gradient = self._gy(weights, margins, y)
            if float(gradient.abs().max()) < 1e-15:
                break
            y = y - torch.linalg.solve(self._gyy(weights, margins), gradient.unsqueeze(-1)).squeeze(-1)
        return y

    def _gy(self, weights: Tensor, margins: Tensor, y: Tensor) -> Tensor:
        return (weights * -(-margins).sigmoid()) @ self.noisy / self.d + self.lam * y

    def _gyy(self, weights: Tensor, margins: Tensor) -> Tensor:
        curvature = weights * margins.sigmoid() * (-margins).sigmoid() / self.d
        return torch.einsum("sj,ja,jb->sab", curvature, self.noisy, self.noisy) + self.lam * torch.eye(
            self.dim_y, dtype=weights.dtype
        )

    def grad(self, x: Tensor) -> Tensor:
        """- g_xy g_yy^-1 f_y at y*(x)."""
        y, weights = self.y_star(x), x.sigmoid()
        margins = y @ self.noisy.T
        of_y = -(-(y @ self.clean.T)).sigmoid() @ self.clean / self.m
        solved = torch.linalg.solve(self._gyy(weights, margins), of_y.unsqueeze(-1)).squeeze(-1)
        found: Tensor = weights * (1 - weights) * (-margins).sigmoid() * (solved @ self.noisy.T) / self.d
        return found

    def start(self, seeds: int = 1) -> tuple[Tensor, Tensor]:
        """x_0 = 0 and y_0 = y*(x_0), once for every seed."""
        x = torch.zeros(seeds, self.d, dtype=torch.float64)
        return x, self.y_star(x)

    def constants(self) -> Constants:
        """All that ``thm:5`` asks for."""
        n = self.d
        return Constants(
            lam=self.lam,
            sigma2=1 / self.batch,
            delta_f=float(self.F(self.start()[0])),
            delta_y=0.0,
            L_fx=0.0,
            L_fy=0.25,
            L_gy=self.lam + 0.25,
            L_gxy=math.hypot(_BEND / n, 1 / (16 * math.sqrt(n))),
            L_gyy=math.hypot(_BEND, 1 / (16 * math.sqrt(n))),
            C_fy=1.0,
            C_gxy=1 / (4 * math.sqrt(n)),
            C_gyy=self.lam + 0.25,
            dim_y=self.dim_y,
        )

    def draw(self, steps: int, like: Tensor, k: int, generator: torch.Generator) -> Draw:
        """The examples of f_y, g_y, g_xy, those of k - 1 samples of g_yy, and how many of these are used."""
        shape = (len(like), self.batch)
        upper = torch.randint(self.m, (steps, *shape), generator=generator)
        lower = torch.randint(self.d, (steps, k + 1, *shape), generator=generator)
        return upper, lower, torch.randint(k, (steps, len(like), 1), generator=generator)

    def estimate(self, x: Tensor, y: Tensor, noise: Draw) -> tuple[Tensor, Tensor]:
        """(O_fx - O_gxy h O_fy, O_gy) at (x, y), each factor with its own examples."""
        upper, lower, p = noise
        k, weights = lower.shape[0] - 1, x.sigmoid()
        a = self.clean[upper]
        w = -torch.einsum("sb,sbi->si", (-torch.einsum("sbi,si->sb", a, y)).sigmoid(), a) / self.batch  # O_fy
        for i in range(k - 1):
            product = self._curvature(weights, y, w, lower[i]) / (self.lam + 0.25)
            w = torch.where(p > i, w - product, w)
        w = w * (k / (self.lam + 0.25))
        a = self.noisy[lower[-2]]
        chosen, pull = weights.gather(1, lower[-2]), (-torch.einsum("sbi,si->sb", a, y)).sigmoid()
        rows = chosen * (1 - chosen) * pull * torch.einsum("sbi,si->sb", a, w) / self.batch
        estimate = torch.zeros_like(x).scatter_add_(1, lower[-2], rows)
        a = self.noisy[lower[-1]]
        slope = weights.gather(1, lower[-1]) * (-torch.einsum("sbi,si->sb", a, y)).sigmoid()
        return estimate, self.lam * y - torch.einsum("sb,sbi->si", slope, a) / self.batch

    def _curvature(self, weights: Tensor, y: Tensor, w: Tensor, chosen: Tensor) -> Tensor:
        """A sample of g_yy times w."""
        a = self.noisy[chosen]
        margins = torch.einsum("sbi,si->sb", a, y)
        bend = weights.gather(1, chosen) * margins.sigmoid() * (-margins).sigmoid()
        return torch.einsum("sb,sbi->si", bend * torch.einsum("sbi,si->sb", a, w), a) / self.batch + self.lam * w
