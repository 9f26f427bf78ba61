"""Bilevel test beds with closed forms: the lower solution, the exact hypergradient and the constants of the theory."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import Parameter

from semaopt._check import require
from semaopt.hypergradient.oracles import Closure


@dataclass
class QuadraticBilevel:
    r"""A quadratic on top of a quadratic, with everything known.

    .. math::
        f(x, y) &= \tfrac12|y - c|^2 + \tfrac\mu2|x|^2, \qquad g(x, y) = \tfrac12 y^\top A y - y^\top(Bx + b) \\
        y^*(x) &= A^{-1}(Bx + b), \qquad \nabla F(x) = \mu x + B^\top A^{-1}(y^*(x) - c)

    A has eigenvalues from ``lam`` to ``C / (1 + noise)``. A sample has :math:`A_\xi = (1+s_\xi) A` with s uniform on
    [-noise, noise], so :math:`0\preceq A_\xi\preceq C`, and Gaussian noise of that standard deviation on b and c.

    Args:
        d_x, d_y: the dimensions.
        lam: the smallest eigenvalue of A, the strong convexity of g in y.
        C: no sample of g_yy is larger.
        mu: of f.
        noise: of the samples; 0.0 makes the closures deterministic.
        copies: so many independent problems side by side, x and y being matrices: the cheap way to average over runs.
        seed: of the problem and of the samples.

    >>> from semaopt.problems.bilevel import QuadraticBilevel
    >>> problem = QuadraticBilevel(d_x=3, d_y=2)
    >>> x, y = problem.start()
    >>> y.data = problem.solution(x)
    >>> found = semaopt.hypergradient.check(problem.outer(x, y), problem.inner(x, y), [x], [y],
    ...                                     semaopt.hypergradient.Exact(), estimates=1)
    >>> torch.allclose(found.estimate[0], problem.gradient(x))
    True
    """

    d_x: int = 4
    d_y: int = 5
    lam: float = 0.5
    C: float = 2.0
    mu: float = 0.1
    noise: float = 0.0
    copies: int = 1
    seed: int = 0
    dtype: torch.dtype = torch.float64
    A: Tensor = field(init=False, repr=False)
    B: Tensor = field(init=False, repr=False)
    b: Tensor = field(init=False, repr=False)
    c: Tensor = field(init=False, repr=False)
    _inverse: Tensor = field(init=False, repr=False)

    def __post_init__(self) -> None:
        require(0 <= self.noise < 1, "noise", self.noise, "must lie in [0, 1)", "g must stay convex")
        largest = self.C / (1 + self.noise)
        require(0 < self.lam <= largest, "lam", self.lam, f"must lie in (0, {largest:g}]", "C/(1 + noise) bounds A")
        self.generator = torch.Generator().manual_seed(self.seed)
        q, _ = torch.linalg.qr(self._randn(self.d_y, self.d_y))
        self.A = q @ torch.diag(torch.linspace(self.lam, largest, self.d_y, dtype=self.dtype)) @ q.T
        self.B = self._randn(self.d_y, self.d_x) / self.d_x**0.5
        self.b, self.c = self._randn(self.d_y), self._randn(self.d_y)
        self._inverse = torch.linalg.inv(self.A)

    def _randn(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.generator, dtype=self.dtype)

    def start(self) -> tuple[Parameter, Parameter]:
        """X at random and y at 0, a row for each copy."""
        x, y = self._randn(self.copies, self.d_x), torch.zeros(self.copies, self.d_y, dtype=self.dtype)
        return Parameter(x), Parameter(y)

    def outer(self, x: Tensor, y: Tensor) -> Closure:
        """() -> a fresh sample of f, summed over the copies."""

        def f() -> Tensor:
            c = self.c + self.noise * self._randn(self.copies, self.d_y) if self.noise else self.c
            return ((y - c).square().sum() + self.mu * x.square().sum()) / 2

        return f

    def inner(self, x: Tensor, y: Tensor) -> Closure:
        """() -> a fresh sample of g, summed over the copies."""

        def g() -> Tensor:
            A_y, b = y @ self.A, x @ self.B.T + self.b
            if self.noise:
                s = 2 * torch.rand(self.copies, 1, generator=self.generator, dtype=self.dtype) - 1
                A_y, b = (1 + self.noise * s) * A_y, b + self.noise * self._randn(self.copies, self.d_y)
            return (y * (A_y / 2 - b)).sum()

        return g

    def solution(self, x: Tensor) -> Tensor:
        """y*(x)."""
        return (x.detach() @ self.B.T + self.b) @ self._inverse

    def value(self, x: Tensor) -> Tensor:
        """F(x), of each copy; the variance of the samples of c is left out."""
        x = x.detach()
        return ((self.solution(x) - self.c).square().sum(-1) + self.mu * x.square().sum(-1)) / 2

    def gradient(self, x: Tensor) -> Tensor:
        """The gradient of F at x, of each copy."""
        return self.hypergradient(x, self.solution(x))

    def hypergradient(self, x: Tensor, y: Tensor) -> Tensor:
        """f_x - g_xy [g_yy]^{-1} f_y at any y."""
        return self.mu * x.detach() + (y.detach() - self.c) @ self._inverse @ self.B

    @property
    def smoothness(self) -> float:
        """L_F, the Lipschitz constant of the gradient of F."""
        sensitivity = self._inverse @ self.B
        return self.mu + float(torch.linalg.matrix_norm(sensitivity, 2)) ** 2

    @property
    def c_gxy(self) -> float:
        """C_gxy, the spectral norm of g_xy."""
        return float(torch.linalg.matrix_norm(self.B, 2))


@dataclass
class LogisticBilevel:
    r"""Per-feature regularization of logistic regression by a validation loss.

    .. math::
        f(y) = \frac1m\sum_i \log(1 + e^{-b'_i a'_i\cdot y}), \qquad
        g(x, y) = \frac1n\sum_i \log(1 + e^{-b_i a_i\cdot y}) + \tfrac12\sum_j e^{x_j} y_j^2

    Args:
        train, valid: pairs (a, b) of features and labels in {-1, 1}.
        batch: examples in a sample of f and of g; None takes all.
        seed: of the samples.
    """

    train: tuple[Tensor, Tensor]
    valid: tuple[Tensor, Tensor]
    batch: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        self.generator = torch.Generator().manual_seed(self.seed)

    def start(self, log_weight: float = -2.0) -> tuple[Parameter, Parameter]:
        """X constant and y at 0."""
        a, _ = self.train
        return Parameter(a.new_full((a.shape[1],), log_weight)), Parameter(a.new_zeros(a.shape[1]))

    def _sample(self, data: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        a, b = data
        if self.batch is None:
            return data
        i = torch.randint(len(b), (self.batch,), generator=self.generator)
        return a[i], b[i]

    def outer(self, x: Tensor, y: Tensor) -> Closure:
        """() -> the validation loss, on a fresh batch."""

        def f() -> Tensor:
            a, b = self._sample(self.valid)
            return torch.nn.functional.softplus(-b * (a @ y)).mean()

        return f

    def inner(self, x: Tensor, y: Tensor) -> Closure:
        """() -> the regularized training loss, on a fresh batch."""

        def g() -> Tensor:
            a, b = self._sample(self.train)
            return torch.nn.functional.softplus(-b * (a @ y)).mean() + (x.exp() * y.square()).sum() / 2

        return g

    def hessian(self, x: Tensor, y: Tensor) -> Tensor:
        """g_yy on all training data."""
        a, b = self.train
        s = torch.sigmoid(b * (a @ y.detach()))
        return (a * (s * (1 - s) / len(b))[:, None]).T @ a + torch.diag(x.detach().exp())

    def solution(self, x: Tensor, steps: int = 50) -> Tensor:
        """y*(x) by Newton's method with halved steps."""
        a, b = self.train
        y, weight = a.new_zeros(a.shape[1]), x.detach().exp()

        def g(y: Tensor) -> Tensor:
            return torch.nn.functional.softplus(-b * (a @ y)).mean() + (weight * y.square()).sum() / 2

        for _ in range(steps):
            gradient = a.T @ (-b * torch.sigmoid(-b * (a @ y))) / len(b) + weight * y
            step = torch.linalg.solve(self.hessian(x, y), gradient)
            while g(y - step) > g(y) and step.norm() > 1e-12:
                step = step / 2
            y = y - step
        return y

    def hypergradient(self, x: Tensor, y: Tensor) -> Tensor:
        """f_x - g_xy [g_yy]^{-1} f_y at any y, on all data."""
        a, b = self.valid
        y = y.detach()
        f_y = a.T @ (-b * torch.sigmoid(-b * (a @ y))) / len(b)
        w: Tensor = torch.linalg.solve(self.hessian(x, y), f_y)
        return -x.detach().exp() * y * w
