"""A compositional problem with F, grad F and its minimizer in closed form."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import Parameter

from semaopt._validation import require


@dataclass
class QuadraticComposition:
    r"""The squared distance of an expected affine map to a target, :math:`F(x) = \tfrac12|E[A_\xi x + b_\xi] - c|^2`.

    The entries of :math:`A_\xi` and :math:`b_\xi` have standard deviation ``noise`` around A and b, so

    .. math::
        \nabla F(x) = A^\top(Ax + b - c), \qquad
        E\,\nabla\tfrac12|g(x;\xi) - c|^2 = \nabla F(x) + m\,\text{noise}^2 x

    with m the number of rows. Stochastic gradient descent on f(g(x; xi)) therefore has a known bias.

    Args:
        d, m: the dimensions of x and of g.
        lam, C: the smallest and the largest singular value of A, so mu = lam^2 and L_F = C^2.
        noise: the standard deviation of each entry of a sample.
        seed: seed of the problem and of the samples.
        dtype: dtype of all tensors.

    >>> problem = semaopt.problems.QuadraticComposition(noise=0.0)
    >>> x = problem.start()
    >>> torch.autograd.grad(problem.outer(problem.inner(x)()), x)[0].allclose(problem.grad(x))
    True
    """

    d: int = 4
    m: int = 5
    lam: float = 0.5
    C: float = 1.0
    noise: float = 0.3
    seed: int = 0
    dtype: torch.dtype = torch.float64
    A: Tensor = field(init=False, repr=False)
    b: Tensor = field(init=False, repr=False)
    c: Tensor = field(init=False, repr=False)

    def __post_init__(self) -> None:
        require(1 <= self.d <= self.m, "d", self.d, f"must lie in 1..{self.m}", "A must have full column rank")
        self.generator = torch.Generator().manual_seed(self.seed)
        u, _, vh = torch.linalg.svd(self._randn(self.m, self.d), full_matrices=False)
        self.A = u @ torch.diag(torch.linspace(self.lam, self.C, self.d, dtype=self.dtype, device="cpu")) @ vh
        self.b, self.c = self._randn(self.m), self._randn(self.m)

    def _randn(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.generator, dtype=self.dtype, device="cpu")

    def start(self, copies: int | None = None) -> Parameter:
        """Return x_0, which is 1 in every coordinate; with ``copies``, one row per copy."""
        shape = (self.d,) if copies is None else (copies, self.d)
        return Parameter(torch.ones(shape, dtype=self.dtype, device="cpu"))

    def sample(self, x: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return a fresh g(x; xi) and its Jacobian, with independent noise for every row of x."""
        rows = (*x.shape[:-1], self.m)
        A, b = (
            torch.randn(shape, generator=generator, dtype=self.dtype, device="cpu") for shape in ((*rows, self.d), rows)
        )
        A, b = A.mul_(self.noise).add_(self.A), b.mul_(self.noise).add_(self.b)
        return (A @ x.unsqueeze(-1)).squeeze(-1) + b, A

    def inner(self, x: Tensor) -> Callable[[], Tensor]:
        """Return a closure that computes a fresh sample of g."""
        return lambda: self.sample(x, self.generator)[0]

    def outer(self, z: Tensor) -> Tensor:
        """Return f(z), summed over the rows."""
        return (z - self.c).square().sum() / 2

    def mean_inner(self, x: Tensor) -> Tensor:
        """Return E[g(x; xi)] for every row."""
        return x.detach() @ self.A.T + self.b

    def F(self, x: Tensor) -> Tensor:
        """Return f(E[g(x; xi)]) for every row."""
        return (self.mean_inner(x) - self.c).square().sum(-1) / 2

    def grad(self, x: Tensor) -> Tensor:
        """Return grad F for every row."""
        return (self.mean_inner(x) - self.c) @ self.A

    @property
    def smallest(self) -> float:
        """The minimum of F."""
        return float(self.F(self.minimizer()))

    def minimizer(self) -> Tensor:
        """Return the minimizer of F."""
        found: Tensor = torch.linalg.lstsq(self.A, self.c - self.b).solution
        return found

    def naive_minimizer(self) -> Tensor:
        """Return the limit of stochastic gradient descent on f(g(x; xi))."""
        shift = self.m * self.noise**2 * torch.eye(self.d, dtype=self.dtype, device="cpu")
        found: Tensor = torch.linalg.solve(self.A.T @ self.A + shift, self.A.T @ (self.c - self.b))
        return found
