r"""Min-max problems with F(x) = max_y f(x, y), grad F, y*(x) and all constants in closed form.

Both have :math:`f(x, y) = \sum_i r(x_i) + b\,s(x_i)w_i - \frac\lambda2w_i^2` with :math:`r(t) = t^2/(1+t^2)` and
:math:`b^2 = \beta\lambda`. So :math:`F(x) = \sum_i r(x_i) + \frac\beta2s(x_i)^2` does not depend on lambda, and kappa
can be varied without changing F.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from semaopt.problems._scaled import scaled
from semaopt.problems.minimization import STEEPEST, bump, bump_slope
from semaopt.problems.oracles import Additive, Noiseless
from semaopt.scalings import Scaling
from semaopt.theory.constants import Constants


def spectral_norm(a: float, b: float, c: float) -> float:
    """Return the norm of [[a, b], [b, c]] for a, b, c >= 0, a bound for matrices with smaller absolute entries."""
    return (a + c) / 2 + math.hypot((a - c) / 2, b)


class MinMax(ABC):
    """Abstract problem: minimize over x, maximize over y."""

    d: int
    lam: float
    beta: float
    x0: float
    smallest: float = 0.0
    dual: str

    @property
    def b(self) -> float:
        """The strength of the coupling."""
        return math.sqrt(self.beta * self.lam)

    @property
    @abstractmethod
    def L_f(self) -> float:
        """The Lipschitz constant of the gradient of f."""

    @property
    @abstractmethod
    def L(self) -> float:
        """The Lipschitz constant of grad F."""

    @property
    def kappa(self) -> float:
        """L_f / lambda."""
        return self.L_f / self.lam

    @abstractmethod
    def F(self, x: Tensor) -> Tensor:
        """Return max_y f(x, y) for every row."""

    @abstractmethod
    def grad(self, x: Tensor) -> Tensor:
        """Return grad F for every row."""

    @abstractmethod
    def f(self, x: Tensor, y: Tensor) -> Tensor:
        """Return f for every row."""

    @abstractmethod
    def grads(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradients of f in x and in y."""

    @abstractmethod
    def y_star(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        """Return the maximizer of f(x, .), or the one nearest to y if there are several."""

    @abstractmethod
    def project_(self, y: Tensor) -> Tensor:
        """Project y onto Y in place."""

    @abstractmethod
    def start(self, seeds: int = 1) -> tuple[Tensor, Tensor]:
        """Return (x_0, y_0), one row per seed."""

    @abstractmethod
    def steepest(self) -> float:
        """Return an upper bound of every coordinate of the gradient in x."""

    def constants(
        self,
        oracle: Additive | Noiseless,
        scaling: str | Scaling = "shb",
        clip: tuple[float, float] | None = None,
    ) -> Constants:
        """Return the constants that ``thm:PDAda`` needs if ``oracle`` is used for both gradients."""
        x, y = self.start()
        c = Constants(
            L=self.L,
            L_f=self.L_f,
            lam=self.lam,
            sigma2=oracle.variance(self.d)[0],
            delta_f=float(self.F(x)) - self.smallest,
            delta_y=float((y - self.y_star(x, y)).square().sum()),
        )
        return scaled(c, scaling, oracle.largest(self.steepest(), self.d), self.d, clip)


@dataclass(frozen=True)
class StronglyConcave(MinMax):
    r"""A problem that is non-convex in x and lambda-strongly concave in y.

    s = sin, and w = y lies in the box :math:`|y_i| \le b/\lambda`. :math:`y^*(x) = (b/\lambda)\sin x` never leaves the
    box, and :math:`F = \sum r(x_i) + \frac\beta2\sin^2x_i` is not convex. The gradient in x is bounded, so every row of
    Table 2 has its c_l. In the box :math:`|f_{xx}| \le 2 + \beta` and :math:`|f_{xy}| \le b`.
    """

    d: int = 10
    lam: float = 1.0
    beta: float = 0.5
    x0: float = 1.0
    dual = "strongly concave"

    @property
    def radius(self) -> float:
        """Half the width of the box."""
        return self.b / self.lam

    @property
    def L_f(self) -> float:
        return spectral_norm(2 + self.beta, self.b, self.lam)

    @property
    def L(self) -> float:
        return 2 + self.beta

    def F(self, x: Tensor) -> Tensor:
        return (bump(x) + self.beta / 2 * x.sin().square()).sum(-1)

    def grad(self, x: Tensor) -> Tensor:
        return bump_slope(x).add_(x.mul(2).sin_(), alpha=self.beta / 2)

    def f(self, x: Tensor, y: Tensor) -> Tensor:
        return (bump(x) + self.b * x.sin() * y - self.lam / 2 * y.square()).sum(-1)

    def grads(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        of_x = bump_slope(x).addcmul_(x.cos(), y, value=self.b)
        return of_x, x.sin().mul_(self.b).sub_(y, alpha=self.lam)

    def y_star(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        return x.sin().mul_(self.radius)

    def project_(self, y: Tensor) -> Tensor:
        return y.clamp_(-self.radius, self.radius)

    def start(self, seeds: int = 1) -> tuple[Tensor, Tensor]:
        x = torch.full((seeds, self.d), self.x0, dtype=torch.float64, device="cpu")
        return x, torch.zeros_like(x)

    def steepest(self) -> float:
        return STEEPEST + self.beta  # b times the radius


@dataclass(frozen=True)
class DualPL(MinMax):
    r"""A problem that is concave and lambda-PL in y, but not strongly concave.

    s(x) = x and :math:`w_i = (y_i + y_{d+i})/\sqrt2` with y in R^2d. :math:`|\nabla_yf|^2 = |bx - \lambda w|^2 =
    2\lambda(\max_yf - f)`, so PL holds with equality. The maximizers form an affine space of dimension d.
    :math:`F = \sum r(x_i) + \frac\beta2x_i^2` has F'' in :math:`[\beta - \frac12, \beta + 2]` and is not convex for
    beta < 1/2.
    """

    d: int = 10
    lam: float = 1.0
    beta: float = 0.25
    x0: float = 1.0
    dual = "pl"

    @property
    def L_f(self) -> float:
        return spectral_norm(2.0, self.b, self.lam)

    @property
    def L(self) -> float:
        return 2 + self.beta

    def w(self, y: Tensor) -> Tensor:
        """Return the d combinations of y that f depends on."""
        return (y[..., : self.d] + y[..., self.d :]).mul_(math.sqrt(0.5))

    def F(self, x: Tensor) -> Tensor:
        return (bump(x) + self.beta / 2 * x.square()).sum(-1)

    def grad(self, x: Tensor) -> Tensor:
        return bump_slope(x).add_(x, alpha=self.beta)

    def f(self, x: Tensor, y: Tensor) -> Tensor:
        w = self.w(y)
        return (bump(x) + self.b * x * w - self.lam / 2 * w.square()).sum(-1)

    def grads(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        w = self.w(y)
        slope = x.mul(self.b).sub_(w, alpha=self.lam).mul_(math.sqrt(0.5))
        return bump_slope(x).add_(w, alpha=self.b), torch.cat([slope, slope], -1)

    def y_star(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        y = torch.zeros(*x.shape[:-1], 2 * self.d, dtype=x.dtype, device="cpu") if y is None else y
        shift = x.mul(self.b / self.lam).sub_(self.w(y)).mul_(math.sqrt(0.5))
        return y + torch.cat([shift, shift], -1)

    def project_(self, y: Tensor) -> Tensor:
        return y

    def start(self, seeds: int = 1) -> tuple[Tensor, Tensor]:
        x = torch.full((seeds, self.d), self.x0, dtype=torch.float64, device="cpu")
        return x, torch.zeros(seeds, 2 * self.d, dtype=torch.float64, device="cpu")

    def steepest(self) -> float:
        return math.inf
