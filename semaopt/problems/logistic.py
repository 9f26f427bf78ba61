"""A small hyper-cleaning problem with logistic losses. Newton's method gives y*(x) to rounding."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.nn.functional import softplus

from semaopt._validation import require
from semaopt.hypergradient.closures import Closure
from semaopt.problems.oracles import Draw
from semaopt.theory.constants import Constants

#: The largest absolute value of the sigmoid's second derivative, which is the third derivative of log(1 + e^-m).
_BEND = 1 / (6 * math.sqrt(3))


class LogisticBilevel:
    r"""Weights x of noisy training examples, chosen by the loss on clean examples.

    .. math::
        g(x, y) = \frac1n\sum_j s(x_j)\,\ell(a_j^Ty) + \frac\lambda2|y|^2, \qquad
        f(y) = \frac1m\sum_j \ell(a_j'^Ty), \qquad \ell(m) = \ln(1 + e^{-m})

    where s is the sigmoid. The examples have norm 1 and are multiplied by their labels; 40% of the noisy ones have the
    wrong sign. A sample is the mean over ``batch`` independent random examples.

    The constants: :math:`|\ell'| \le 1`, :math:`\ell'' \le \frac14`, :math:`|\ell'''| \le \frac1{6\sqrt3}`, and s, s',
    s'' have the same bounds. Hence C_fy = 1, L_fy = 1/4, L_gy = C_gyy = lambda + 1/4 and
    :math:`C_{gxy} = \frac1{4\sqrt n}`. Moving x and y together gives
    :math:`L_{gxy}^2 = (\frac1{6\sqrt3\,n})^2 + (\frac1{16\sqrt n})^2` and
    :math:`L_{gyy}^2 = (\frac1{6\sqrt3})^2 + (\frac1{16\sqrt n})^2`. The derivatives at one example have norm at most 1,
    so sigma2 = 1/batch. min F is unknown; F(x_0) is a bound of F(x_0) - min F.

    Args:
        n, m: the numbers of noisy and of clean examples.
        d_y: the dimension of y.
        lam: lambda.
        batch: the examples per sample; None takes all of them.
        seed: seed of the problem and of the samples.
    """

    smallest = 0.0

    def __init__(
        self, n: int = 20, m: int = 20, *, d_y: int = 3, lam: float = 0.5, batch: int | None = 10, seed: int = 0
    ) -> None:
        ok = batch is None or batch >= 1
        require(ok, "batch", batch, "must be at least 1", "it is the number of examples per sample; None takes all")
        self.d_x, self.m, self.d_y, self.lam, self.batch = n, m, d_y, lam, batch
        self.generator = generator = torch.Generator().manual_seed(seed)
        truth = torch.randn(d_y, generator=generator, dtype=torch.float64, device="cpu")

        def examples(count: int, flipped: float) -> Tensor:
            a = torch.randn(count, d_y, generator=generator, dtype=torch.float64, device="cpu")
            labels = (a @ truth).sign() * (1 - 2.0 * (torch.rand(count, generator=generator, device="cpu") < flipped))
            return torch.nn.functional.normalize(a) * labels.unsqueeze(1)

        self.noisy, self.clean = examples(n, 0.4), examples(m, 0.0)

    def F(self, x: Tensor) -> Tensor:
        """Return f(y*(x)) for every row."""
        return softplus(-self.y_star(x) @ self.clean.T).mean(-1)

    def y_star(self, x: Tensor) -> Tensor:
        """Return the minimizer of g(x, .) for every row, by Newton's method."""
        weights = x.detach().sigmoid()
        y = torch.zeros(len(x), self.d_y, dtype=x.dtype, device="cpu")
        for _ in range(30):
            margins = y @ self.noisy.T
            gradient = self._gy(weights, margins, y)
            if float(gradient.abs().max()) < 1e-15:
                break
            y = y - torch.linalg.solve(self._gyy(weights, margins), gradient.unsqueeze(-1)).squeeze(-1)
        return y

    def _gy(self, weights: Tensor, margins: Tensor, y: Tensor) -> Tensor:
        return (weights * -(-margins).sigmoid()) @ self.noisy / self.d_x + self.lam * y

    def _gyy(self, weights: Tensor, margins: Tensor) -> Tensor:
        curvature = weights * margins.sigmoid() * (-margins).sigmoid() / self.d_x
        return torch.einsum("sj,ja,jb->sab", curvature, self.noisy, self.noisy) + self.lam * torch.eye(
            self.d_y, dtype=weights.dtype, device="cpu"
        )

    def hessian(self, x: Tensor, y: Tensor) -> Tensor:
        """Return g_yy on all examples, for every row."""
        return self._gyy(x.detach().sigmoid(), y.detach() @ self.noisy.T)

    def grad(self, x: Tensor) -> Tensor:
        """Return grad F for every row."""
        return self.hypergradient(x, self.y_star(x))

    def hypergradient(self, x: Tensor, y: Tensor) -> Tensor:
        """Return -g_xy [g_yy]^{-1} f_y at any y, on all examples."""
        weights, y = x.detach().sigmoid(), y.detach()
        margins = y @ self.noisy.T
        of_y = -(-(y @ self.clean.T)).sigmoid() @ self.clean / self.m
        solved = torch.linalg.solve(self._gyy(weights, margins), of_y.unsqueeze(-1)).squeeze(-1)
        found: Tensor = weights * (1 - weights) * (-margins).sigmoid() * (solved @ self.noisy.T) / self.d_x
        return found

    def start(self, copies: int = 1) -> tuple[Parameter, Parameter]:
        """Return x_0 = 0 and y_0 = y*(x_0), one row per copy."""
        x = torch.zeros(copies, self.d_x, dtype=torch.float64, device="cpu")
        return Parameter(x), Parameter(self.y_star(x))

    def _chosen(self, of: int, copies: int) -> Tensor:
        if self.batch is None:
            return torch.arange(of, device="cpu").expand(copies, of)
        return torch.randint(of, (copies, self.batch), generator=self.generator, device="cpu")

    def outer(self, x: Tensor, y: Tensor) -> Closure:
        """Return a closure that computes a fresh sample of f, summed over the copies."""

        def f() -> Tensor:
            a = self.clean[self._chosen(self.m, len(y))]
            return softplus(-torch.einsum("sbi,si->sb", a, y)).mean(-1).sum()

        return f

    def inner(self, x: Tensor, y: Tensor) -> Closure:
        """Return a closure that computes a fresh sample of g, summed over the copies."""

        def g() -> Tensor:
            chosen = self._chosen(self.d_x, len(y))
            losses = softplus(-torch.einsum("sbi,si->sb", self.noisy[chosen], y))
            return (x.sigmoid().gather(1, chosen) * losses).mean(-1).sum() + self.lam / 2 * y.square().sum()

        return g

    def constants(self) -> Constants:
        """Return the constants that ``thm:5`` needs."""
        n = self.d_x
        return Constants(
            lam=self.lam,
            sigma2=1 / self.batch if self.batch else 0.0,
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
            dim_y=self.d_y,
        )

    def draw(self, steps: int, copies: int, k: int, generator: torch.Generator) -> Draw:
        """Draw the examples for f_y, for g_xy, g_y and k - 1 samples of g_yy, and the number p of these to use."""
        shape = (copies, self._examples())
        upper = torch.randint(self.m, (steps, *shape), generator=generator, device="cpu")
        lower = torch.randint(self.d_x, (steps, k + 1, *shape), generator=generator, device="cpu")
        return upper, lower, torch.randint(k, (steps, copies, 1), generator=generator, device="cpu")

    def _examples(self) -> int:
        if self.batch is None:
            raise ValueError("batch=None: the simulator samples examples. Pass batch=1 or more.")
        return self.batch

    def estimate(self, x: Tensor, y: Tensor, noise: Draw) -> tuple[Tensor, Tensor]:
        """Return (O_fx - O_gxy h O_fy, O_gy) at (x, y), with independent examples for each factor."""
        upper, lower, p = noise
        batch = self._examples()
        k, weights = lower.shape[0] - 1, x.sigmoid()
        a = self.clean[upper]
        w = -torch.einsum("sb,sbi->si", (-torch.einsum("sbi,si->sb", a, y)).sigmoid(), a) / batch  # O_fy
        for i in range(k - 1):
            product = self._curvature(weights, y, w, lower[i]) / (self.lam + 0.25)
            w = torch.where(p > i, w - product, w)
        w = w * (k / (self.lam + 0.25))
        a = self.noisy[lower[-2]]
        chosen, pull = weights.gather(1, lower[-2]), (-torch.einsum("sbi,si->sb", a, y)).sigmoid()
        rows = chosen * (1 - chosen) * pull * torch.einsum("sbi,si->sb", a, w) / batch
        estimate = torch.zeros_like(x).scatter_add_(1, lower[-2], rows)
        a = self.noisy[lower[-1]]
        slope = weights.gather(1, lower[-1]) * (-torch.einsum("sbi,si->sb", a, y)).sigmoid()
        return estimate, self.lam * y - torch.einsum("sb,sbi->si", slope, a) / batch

    def _curvature(self, weights: Tensor, y: Tensor, w: Tensor, chosen: Tensor) -> Tensor:
        """Return a sample of g_yy times w."""
        a = self.noisy[chosen]
        margins = torch.einsum("sbi,si->sb", a, y)
        bend = weights.gather(1, chosen) * margins.sigmoid() * (-margins).sigmoid()
        return torch.einsum("sb,sbi->si", bend * torch.einsum("sbi,si->sb", a, w), a) / self._examples() + self.lam * w
