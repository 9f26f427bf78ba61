r"""A compositional problem F(x) = f(E[g(x; xi)]) with F and grad F in closed form."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from semaopt.problems.minimization import bump, bump_slope
from semaopt.problems.oracles import Draw, signs


@dataclass(frozen=True)
class Compositional:
    r"""g(x) = :math:`b\,\sin x` coordinate by coordinate, f(z) = sum of :math:`z_i^2/(1+z_i^2)`.

    :math:`F(x) = \sum_i r(b\sin x_i)`, min F = 0. A sample of g has a random sign times :math:`\sqrt{\sigma^2/d}`
    added to every coordinate, one of the (diagonal) Jacobian too. f is not linear, so the gradient of f at a sample
    of g is biased: this is what the moving average of g is for.
    """

    d: int = 10
    b: float = 2.0
    sigma2: float = 1.0
    x0: float = 1.0
    smallest = 0.0

    def inner(self, x: Tensor) -> Tensor:
        """E[g(x; xi)]."""
        return x.sin().mul_(self.b)

    def F(self, x: Tensor) -> Tensor:
        return bump(self.inner(x)).sum(-1)

    def grad(self, x: Tensor) -> Tensor:
        return bump_slope(self.inner(x)).mul_(x.cos()).mul_(self.b)

    def start(self, seeds: int = 1) -> Tensor:
        return torch.full((seeds, self.d), self.x0, dtype=torch.float64)

    def draw(self, steps: int, like: Tensor, generator: torch.Generator) -> Draw:
        """The noise of g and that of its Jacobian, which are independent."""
        return (signs((steps, 2, *like.shape), like, generator).mul_(math.sqrt(self.sigma2 / self.d)),)

    def sample_inner(self, x: Tensor, noise: Draw) -> Tensor:
        """g(x; xi)."""
        return self.inner(x).add_(noise[0][0])

    def sample_gradient(self, x: Tensor, z: Tensor, noise: Draw) -> Tensor:
        """J_g(x; xi')^T grad f(z)."""
        return bump_slope(z).mul_(x.cos().mul_(self.b).add_(noise[0][1]))
