"""Simulations of SMB and SBMA on bilevel problems."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from semaopt.estimator import sema_
from semaopt.problems.bilevel import QuadraticBilevel
from semaopt.problems.logistic import LogisticBilevel
from semaopt.problems.oracles import Draw
from semaopt.problems.simulate.runs import Averages, Chain, Simulation, summarize
from semaopt.projections import SpectralBall
from semaopt.scalings import Scaling


def smb(
    problem: QuadraticBilevel | LogisticBilevel,
    scaling: str | Scaling,
    rates: Mapping[str, float],
    k: int,
    T: int,
    *,
    seeds: int = 256,
    seed: int = 0,
    clip: tuple[float, float] | None = None,
) -> Simulation:
    """Run ``alg:smb``, or its adaptive variant, for the steps 0..T from y_0 = y*(x_0), with p uniform on 0..k-1."""
    x = problem.start(seeds)[0].detach()
    y = problem.y_star(x)
    eta_x, eta_y, gamma = rates["eta_x"], rates["eta_y"], rates["gamma"]
    chain, averages = Chain(x, scaling, clip), Averages()
    with torch.no_grad():
        for noise in _draws(problem, k, T + 1, seeds, seed):
            g, gy = problem.estimate(x, y, noise)
            z = chain.track(g, gamma)  # line 5
            gradient = problem.grad(x)
            averages.add(gradient=gradient, tracking=z - gradient, follower=y - problem.y_star(x))
            averages.add_u(chain.descend(x, g, z, eta_x))  # line 6
            y.sub_(gy, alpha=eta_y)  # line 7, with the sign that minimizes g
    return summarize(problem.F(x) - problem.smallest, chain, averages)


def sbma(
    problem: QuadraticBilevel, rates: Mapping[str, float], k: int, T: int, *, seeds: int = 256, seed: int = 0
) -> Simulation:
    """Run SBMA (``eqn:sbo_proj``) for the steps 0..T from y_0 = y*(x_0).

    All samples of h have the eigenvectors of A, so H is averaged and clipped by its eigenvalues.
    """
    x = problem.start(seeds)[0].detach()
    y = problem.y_star(x)
    eta_x, eta_y, gamma = rates["eta_x"], rates["eta_y"], rates["gamma"]
    C_fy, inverse = problem.constants().get("C_fy"), 1 / problem.lam
    clip_ = SpectralBall(problem.C_gxy)
    chain, averages = Chain(x, "shb", None), Averages()
    wide = x.new_zeros(seeds, problem.d_x, problem.d_y)
    m = {"u": torch.zeros_like(x), "v": torch.zeros_like(y), "V": wide, "H": torch.zeros_like(y)}
    with torch.no_grad():
        for t, noise in enumerate(_draws(problem, k, T + 1, seeds, seed)):
            pieces = problem.sample(x, y, noise)
            u = sema_(m, "u", pieces.fx, gamma, t, corrected=False)
            v = sema_(m, "v", pieces.fy, gamma, t, corrected=False)
            v.mul_(C_fy / torch.linalg.vector_norm(v, dim=-1, keepdim=True).clamp_min(C_fy))
            V = clip_(sema_(m, "V", pieces.gxy, gamma, t, corrected=False))
            H = sema_(m, "H", pieces.h, gamma, t, corrected=False).clamp_(-inverse, inverse)
            z = u - torch.einsum("sij,sj->si", V, problem.apply(H, v))
            gradient = problem.grad(x)
            averages.add(gradient=gradient, tracking=z - gradient, follower=y - problem.y_star(x))
            averages.add_u(chain.descend(x, z, z, eta_x))
            y.sub_(pieces.gy, alpha=eta_y)
    return summarize(problem.F(x) - problem.smallest, chain, averages)


def _draws(problem: QuadraticBilevel | LogisticBilevel, k: int, steps: int, copies: int, seed: int) -> Iterator[Draw]:
    """Yield the noise of each step, drawn in blocks of about a million numbers."""
    generator = torch.Generator().manual_seed(seed)
    size = max(1, 2**20 // (copies * problem.d_y * (problem.d_x + k + 4)))
    for start in range(0, steps, size):
        draw = problem.draw(min(size, steps - start), copies, k, generator)
        yield from zip(*(part.unbind(0) for part in draw), strict=True)
