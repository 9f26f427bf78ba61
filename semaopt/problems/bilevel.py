"""A bilevel problem with y*(x), F(x) = f(x, y*(x)), grad F and all constants of ``ass:5`` in closed form."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import Parameter

from semaopt._validation import require
from semaopt.hypergradient.closures import Closure
from semaopt.problems.minimization import STEEPEST, bump_slope
from semaopt.problems.oracles import Draw, signs
from semaopt.theory.constants import Constants


class Pieces(NamedTuple):
    """One sample of every derivative that SMB and SBMA use. h is given by its eigenvalues in the eigenbasis of A."""

    fx: Tensor
    fy: Tensor
    gxy: Tensor
    h: Tensor
    gy: Tensor


@dataclass
class QuadraticBilevel:
    r"""A quadratic lower problem under a quadratic or bounded upper objective.

    .. math::
        f(x, y) &= \sum_i\varphi(y_i - c_i) + \mu\sum_i\varphi(x_i), \qquad \varphi(t) = \frac{t^2}{2(1+\rho t^2)},
        \qquad g(x, y) = \tfrac12 y^\top A y - y^\top(Bx + b) \\
        y^*(x) &= A^{-1}(Bx + b), \qquad \nabla F(x) = \mu\varphi'(x) + B^\top A^{-1}\varphi'(y^*(x) - c)

    A has eigenvalues from ``lam`` to ``C_gyy / (1 + noise)``. With rho = 0 both levels are quadratic. With rho > 0, F
    is bounded and not convex, f_y is bounded as ``ass:5`` requires, and :meth:`constants` gives all constants
    (:math:`|\varphi''| \le 1`, :math:`|\varphi'| \le 3\sqrt3/(16\sqrt\rho)`).

    The noise of each derivative is independent. A sample of g_yy is :math:`(1+s)A` with s uniform on [-noise, noise].
    Samples of f_x, f_y, g_y and g_xy add random signs of equal size to the entries, with total variance sigma2. In the
    closures, the noise of the second derivatives is a quadratic form around the current point, so it does not change
    the gradients. A random A would make their variance grow with y.

    Args:
        d_x, d_y: the dimensions.
        lam: the smallest eigenvalue of A, the strong convexity of g in y.
        C_gyy: an upper bound of every sample of g_yy.
        C_gxy: the spectral norm of B.
        mu: the weight of x in f.
        rho: how fast f flattens.
        shift: the standard deviation of the entries of b and c. With 0.0, min F = 0 at x = 0; otherwise 0 is a lower
            bound of F.
        noise: the relative noise of g_yy.
        sigma2: the variance of the other samples. With ``noise`` and ``sigma2`` 0.0 the closures are deterministic.
        x0: every coordinate of x_0.
        seed: seed of the problem and of the samples of the closures.
        dtype: dtype of all tensors.

    >>> problem = semaopt.problems.QuadraticBilevel(d_x=3, d_y=2)
    >>> x, y = problem.start()
    >>> y.data = problem.y_star(x)
    >>> found = semaopt.hypergradient.compare(problem.outer(x, y), problem.inner(x, y), [x], [y],
    ...                                     semaopt.hypergradient.Exact(), estimates=1)
    >>> torch.allclose(found.estimate[0], problem.grad(x))
    True
    """

    d_x: int = 4
    d_y: int = 5
    lam: float = 0.5
    C_gyy: float = 2.0
    C_gxy: float = 1.0
    mu: float = 0.1
    rho: float = 0.0
    shift: float = 1.0
    noise: float = 0.0
    sigma2: float = 0.0
    x0: float = 1.0
    seed: int = 0
    dtype: torch.dtype = torch.float64
    A: Tensor = field(init=False, repr=False)
    B: Tensor = field(init=False, repr=False)
    b: Tensor = field(init=False, repr=False)
    c: Tensor = field(init=False, repr=False)
    smallest = 0.0

    def __post_init__(self) -> None:
        require(0 <= self.noise < 1, "noise", self.noise, "must lie in [0, 1)", "larger values make g non-convex")
        largest = self.C_gyy / (1 + self.noise)
        require(0 < self.lam <= largest, "lam", self.lam, f"must lie in (0, {largest:g}]", "C_gyy/(1 + noise) bounds A")
        self.generator = torch.Generator().manual_seed(self.seed)
        self._basis, _ = torch.linalg.qr(self._randn(self.d_y, self.d_y))
        self._values = torch.linspace(self.lam, largest, self.d_y, dtype=self.dtype, device="cpu")
        self.A = self._basis * self._values @ self._basis.T
        self._inverse = self._basis / self._values @ self._basis.T
        B = self._randn(self.d_y, self.d_x)
        self.B = B * (self.C_gxy / torch.linalg.matrix_norm(B, 2))
        self.b, self.c = self.shift * self._randn(self.d_y), self.shift * self._randn(self.d_y)

    def _randn(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.generator, dtype=self.dtype, device="cpu")

    def start(self, copies: int = 1) -> tuple[Parameter, Parameter]:
        """Return x_0 and y = 0, one row per copy. Copies are independent runs side by side."""
        x = torch.full((copies, self.d_x), self.x0, dtype=self.dtype, device="cpu")
        return Parameter(x), Parameter(torch.zeros(copies, self.d_y, dtype=self.dtype, device="cpu"))

    def _phi(self, t: Tensor) -> Tensor:
        square = t.square()
        return square / (2 + 2 * self.rho * square)

    def _slope(self, t: Tensor) -> Tensor:
        if self.rho == 0:
            return t
        root = math.sqrt(self.rho)
        return bump_slope(t if root == 1 else t * root).mul_(0.5 / root)

    def f(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the upper objective for every row, without noise."""
        return self._phi(y - self.c).sum(-1) + self.mu * self._phi(x).sum(-1)

    def outer(self, x: Tensor, y: Tensor) -> Closure:
        """Return a closure that computes a fresh sample of f, summed over the copies."""

        def f() -> Tensor:
            value = self.f(x, y).sum()
            if self.sigma2:
                value = value + (x * self._additive(x)).sum() + (y * self._additive(y)).sum()
            return value

        return f

    def inner(self, x: Tensor, y: Tensor) -> Closure:
        """Return a closure that computes a fresh sample of g, summed over the copies."""

        def g() -> Tensor:
            value = (y * (y @ self.A / 2 - x @ self.B.T - self.b)).sum()
            d_x, d_y = x - x.detach(), y - y.detach()
            if self.noise:
                s = torch.rand(len(y), 1, generator=self.generator, dtype=self.dtype, device="cpu").mul_(2).sub_(1)
                value = value + self.noise * (s * d_y * (d_y @ self.A)).sum() / 2
            if self.sigma2:
                mixed = self._additive(x.new_empty(len(x), self.d_x, self.d_y))
                value = value + (y * self._additive(y)).sum() + torch.einsum("si,sij,sj->", d_x, mixed, d_y)
            return value

        return g

    def _additive(self, like: Tensor) -> Tensor:
        """Return noise of variance sigma2 for every row."""
        return signs(tuple(like.shape), like, self.generator).mul_(math.sqrt(self.sigma2 / like[0].numel()))

    def y_star(self, x: Tensor) -> Tensor:
        """Return the minimizer of g(x, .) for every row."""
        solution: Tensor = torch.addmm(self.b, x.detach(), self.B.T) @ self._inverse
        return solution

    def F(self, x: Tensor) -> Tensor:
        """Return f(x, y*(x)) for every row."""
        return self.f(x.detach(), self.y_star(x))

    def grad(self, x: Tensor) -> Tensor:
        """Return grad F for every row."""
        return self.hypergradient(x, self.y_star(x))

    def hypergradient(self, x: Tensor, y: Tensor) -> Tensor:
        """Return f_x - g_xy [g_yy]^{-1} f_y at any y."""
        through_y: Tensor = self._slope(y.detach() - self.c) @ self._inverse @ self.B
        return through_y.add_(self._slope(x.detach()), alpha=self.mu) if self.mu else through_y

    @property
    def L(self) -> float:
        """The Lipschitz constant of grad F."""
        return self.mu + float(torch.linalg.matrix_norm(self._inverse @ self.B, 2)) ** 2

    def constants(self) -> Constants:
        """Return the constants that ``thm:5`` and ``thm:6`` need for y_0 = y*(x_0)."""
        ok = self.rho > 0
        require(ok, "rho", self.rho, "must be > 0: the theorems need a bounded f_y", "pass rho > 0")
        x, _ = self.start()
        return Constants(
            L=self.L,
            lam=self.lam,
            sigma2=self.sigma2,
            delta_f=float(self.F(x)) - self.smallest,
            delta_y=0.0,
            L_fx=self.mu,
            L_fy=1.0,
            L_gy=float(self._values[-1]),
            L_gxy=0.0,
            L_gyy=0.0,
            C_fy=math.sqrt(self.d_y / self.rho) * STEEPEST / 2,
            C_gxy=self.C_gxy,
            C_gyy=self.C_gyy,
            dim_y=self.d_y,
        )

    def draw(self, steps: int, copies: int, k: int, generator: torch.Generator) -> Draw:
        """Draw the noise of ``steps`` steps: four noise terms, and h from k - 1 samples of g_yy and a random p."""
        like = self.A
        shapes = ((self.d_x,), (self.d_y,), (self.d_x, self.d_y), (self.d_y,))
        noises = [
            signs((steps, copies, *shape), like, generator).mul_(math.sqrt(self.sigma2 / math.prod(shape)))
            for shape in shapes
        ]
        s = torch.rand(steps, k - 1, copies, 1, generator=generator, dtype=self.dtype, device="cpu").mul_(2).sub_(1)
        factors = 1 - s.mul_(self.noise).add_(1) * (self._values / self.C_gyy)
        # p is uniform on 0..k-1, and only the first p factors enter the product.
        p = torch.randint(k, (steps, 1, copies, 1), generator=generator, device="cpu")
        unused = torch.arange(k - 1, device="cpu").view(-1, 1, 1) >= p
        return *noises, factors.masked_fill_(unused, 1.0).prod(1).mul_(k / self.C_gyy)

    def sample(self, x: Tensor, y: Tensor, noise: Draw) -> Pieces:
        """Return one sample of every derivative at (x, y)."""
        fx, fy, gxy, gy, h = noise
        return Pieces(
            fx.add(self._slope(x), alpha=self.mu) if self.mu else fx,
            fy + self._slope(y - self.c),
            gxy - self.B.T,
            h,
            torch.addmm(gy, y, self.A).sub_(torch.addmm(self.b, x, self.B.T)),
        )

    def apply(self, h: Tensor, w: Tensor) -> Tensor:
        """Return w times the matrix with the eigenvectors of A and the eigenvalues h."""
        product: Tensor = (w @ self._basis * h) @ self._basis.T
        return product

    def estimate(self, x: Tensor, y: Tensor, noise: Draw) -> tuple[Tensor, Tensor]:
        """Return (O_fx - O_gxy h O_fy, O_gy) at (x, y)."""
        fx, fy, gxy, h, gy = self.sample(x, y, noise)
        return fx - torch.linalg.vecdot(gxy, self.apply(h, fy).unsqueeze(1)), gy
