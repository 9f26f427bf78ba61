"""Quadratic saddle problems with known constants; each row of the variables is one seed."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class Saddle:
    """f(x, y) = x'Ax/2 + x'By - y'Cy/2 with A indefinite, C >= 0, range(B') in range(C): F(x) = x'(A + B C^+ B')x/2."""

    A: Tensor
    B: Tensor
    C: Tensor
    sigma: float

    @property
    def hessian(self) -> Tensor:
        return self.A + self.B @ torch.linalg.pinv(self.C) @ self.B.T

    @property
    def lam(self) -> float:
        """Smallest positive eigenvalue of C: the strong concavity or, for singular C, the dual PL constant."""
        values = torch.linalg.eigvalsh(self.C)
        return values[values > 1e-10].min().item()

    @property
    def lipschitz(self) -> float:
        return torch.linalg.matrix_norm(
            torch.cat([torch.cat([self.A, self.B], 1), torch.cat([self.B.T, -self.C], 1)]), ord=2
        ).item()

    @property
    def smoothness(self) -> float:
        return torch.linalg.matrix_norm(self.hessian, ord=2).item()

    @property
    def kappa(self) -> float:
        return self.lipschitz / self.lam

    def value(self, x: Tensor) -> Tensor:
        return ((x @ self.hessian) * x).sum(-1) / 2

    def best(self, x: Tensor) -> Tensor:
        return x @ self.B @ torch.linalg.pinv(self.C)

    def sample_(self, x: Tensor, y: Tensor, generator: torch.Generator) -> None:
        """Write unbiased gradients with variance sigma^2 per row to ``.grad``."""
        noise = [
            torch.randn(z.shape, generator=generator, dtype=z.dtype) * self.sigma / math.sqrt(z.shape[-1])
            for z in (x, y)
        ]
        with torch.no_grad():
            x.grad = x @ self.A + y @ self.B.T + noise[0]
            y.grad = x @ self.B - y @ self.C + noise[1]


def saddle(kappa: float, sigma: float, rank_deficient: bool = False, dtype: torch.dtype = torch.float64) -> Saddle:
    """Return a saddle that is nonconvex in x; the maximization has a condition number of about ``kappa``."""
    dim, generator = 6, torch.Generator().manual_seed(1)
    Q, P = (torch.linalg.qr(torch.randn(dim, dim, generator=generator, dtype=torch.float64)).Q for _ in range(2))
    curvature = torch.linspace(1 / kappa, 1.0, dim, dtype=torch.float64)
    if rank_deficient:
        curvature[:2] = 0.0
        curvature[2] = 1 / kappa
    C = P @ torch.diag(curvature) @ P.T
    B = Q @ torch.diag(curvature.sqrt() * 0.7) @ P.T
    bend = torch.linspace(-0.2, 0.4, dim, dtype=torch.float64)  # F adds 0.49 on the range of B
    if rank_deficient:
        bend = torch.tensor([0.3, 0.4, *bend[: dim - 2]], dtype=torch.float64)
    A = Q @ torch.diag(bend) @ Q.T
    return Saddle(A.to(dtype), B.to(dtype), C.to(dtype), sigma)


@dataclass(frozen=True)
class Plan:
    """Rates that satisfy the conditions of section:PDAda, and the bound they give."""

    eta_x: float
    eta_y: float
    gamma: float
    terms: dict[str, float]

    @property
    def bound(self) -> float:
        return sum(self.terms.values())


def plan(f: Saddle, T: int, x: Tensor, y: Tensor, c_l: float = 1.0, c_u: float = 1.0, dual_pl: bool = False) -> Plan:
    """Return the plan with the smallest bound on a grid of allowed rates; f starts at (x, y)."""
    halves = [2.0**-j for j in range(12)]
    # eta_y <= lam/L_f^2 (not lam, as lem:03_1 says), half of that under the dual PL condition; gamma < 1/4.
    cap_y = f.lam / (2 if dual_pl else 1) / f.lipschitz**2
    return min(
        (_plan(f, T, x, y, (c_l, c_u), dual_pl, cap_y * j, 0.2499 * k) for j in halves for k in halves),
        key=lambda rates: rates.bound,
    )


def _plan(f, T, x, y, bounds, dual_pl, eta_y, gamma) -> Plan:
    lam, L_f, L_F, kappa, (c_l, c_u) = f.lam, f.lipschitz, f.smoothness, f.kappa, bounds
    eta_x = math.sqrt(c_l / c_u**3) * min(eta_y * lam / (48 * L_f * kappa), gamma / (8 * L_F))
    eta_x = min(eta_x, c_l / (2 * L_F * c_u**2))
    ratio, sigma2 = c_u / c_l, f.sigma**2
    # v_1 = g_0, so the initial tracking error is the noise plus the error of y_0.
    d_y = (y - f.best(x)).square().sum(-1).mean().item()
    d_x = sigma2 + L_f**2 * d_y
    twice = 2 if dual_pl else 1  # lem:03_withoutSC has eta_y lam / 4 where lem:03 has eta_y lam / 2
    terms = {
        "descent": 2 * f.value(x).mean().item() / (eta_x * c_l * T),
        "tracking": 2 * ratio * d_x / (gamma * T),
        "tracking noise": 8 * ratio * gamma * sigma2,
        "dual": twice * 40 * ratio * L_f**2 * d_y / (eta_y * lam * T),
        "dual noise": twice * 80 * ratio * L_f**2 * eta_y * sigma2 / lam,
    }
    return Plan(eta_x, eta_y, gamma, terms)
