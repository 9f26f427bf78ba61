"""Many runs of PDSM, PDAda, SMB, SBMA and SCMA as one tensor, by the verbs of the library."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from semaopt.estimator import sema_, track_
from semaopt.kernels.ascend import ascend_
from semaopt.problems.bilevel import QuadraticBilevel
from semaopt.problems.compositional import QuadraticComposition
from semaopt.problems.logistic import LogisticBilevel
from semaopt.problems.minmax import MinMax
from semaopt.problems.oracles import Draw, Oracle, blocks
from semaopt.problems.simulate.single import Averages, Chain, Run, finish
from semaopt.projections import SpectralBall
from semaopt.scalings import Scaling


def minmax(
    problem: MinMax,
    oracle: Oracle,
    scaling: str | Scaling,
    rates: Mapping[str, float],
    T: int,
    *,
    seeds: int = 256,
    seed: int = 0,
    clip: tuple[float, float] | None = None,
) -> Run:
    """``alg:pdadam`` for the steps 0..T with ``rates["eta_x"]``, ``rates["eta_y"]``, ``rates["gamma"]``."""
    x, y = problem.start(seeds)
    eta_x, eta_y, gamma = rates["eta_x"], rates["eta_y"], rates["gamma"]
    chain, averages = Chain(x, scaling, clip), Averages()
    generator = torch.Generator().manual_seed(seed)
    of_x, of_y = blocks(oracle, T + 1, x, generator), blocks(oracle, T + 1, y, generator)
    with torch.no_grad():
        for noise_x, noise_y in zip(of_x, of_y, strict=True):
            gx, gy = problem.grads(x, y)
            g, ascent = oracle.sample(x, gx, noise_x), oracle.sample(y, gy, noise_y)
            v = chain.track(g, gamma)  # line 3
            gradient = problem.grad(x)
            averages.add(gradient=gradient, tracking=v - gradient, follower=y - problem.y_star(x, y))
            averages.saw(chain.descend(x, g, v, eta_x))  # lines 4 and 5
            ascend_(y, ascent, eta_y, problem.project_)  # line 6
    return finish(problem.F(x) - problem.smallest, chain, averages)


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
) -> Run:
    """``alg:smb``, or its adaptive variant, for the steps 0..T from y_0 = y*(x_0), with p uniform on 0..k-1."""
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
            averages.saw(chain.descend(x, g, z, eta_x))  # line 6
            y.sub_(gy, alpha=eta_y)  # line 7: y minimizes g
    return finish(problem.F(x) - problem.smallest, chain, averages)


def sbma(
    problem: QuadraticBilevel, rates: Mapping[str, float], k: int, T: int, *, seeds: int = 256, seed: int = 0
) -> Run:
    """SBMA (``eqn:sbo_proj``) for the steps 0..T from y_0 = y*(x_0).

    All samples of h have the eigenvectors of A, so H is tracked and clipped by its eigenvalues.
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
            averages.saw(chain.descend(x, z, z, eta_x))
            y.sub_(pieces.gy, alpha=eta_y)
    return finish(problem.F(x) - problem.smallest, chain, averages)


def compositional(
    problem: QuadraticComposition,
    scaling: str | Scaling,
    rates: Mapping[str, float],
    T: int,
    *,
    seeds: int = 256,
    seed: int = 0,
) -> Run:
    """SCMA for the steps 0..T with ``rates["eta"]``, ``rates["gamma"]`` and ``rates["inner_gamma"]`` (1 is SCGD's
    inner loop).
    """
    x = problem.start(seeds).detach()
    chain, averages = Chain(x, scaling, None), Averages()
    generator = torch.Generator().manual_seed(seed)
    z = x.new_zeros(seeds, problem.m)
    with torch.no_grad():
        for t in range(T + 1):
            value, _ = problem.sample(x, generator)
            track_(z, value, 1.0 if t == 0 else rates["inner_gamma"])
            _, jacobian = problem.sample(x, generator)
            g = torch.einsum("smd,sm->sd", jacobian, z - problem.c)
            v = chain.track(g, rates["gamma"])
            gradient = problem.grad(x)
            averages.add(gradient=gradient, tracking=v - gradient, follower=z - problem.mean_inner(x))
            averages.saw(chain.descend(x, g, v, rates["eta"]))
    return finish(problem.F(x) - problem.smallest, chain, averages)


def _draws(problem: QuadraticBilevel | LogisticBilevel, k: int, steps: int, copies: int, seed: int) -> Iterator[Draw]:
    """One step's randomness after the other; a block holds about a million numbers."""
    generator = torch.Generator().manual_seed(seed)
    size = max(1, 2**20 // (copies * problem.d_y * (problem.d_x + k + 4)))
    for start in range(0, steps, size):
        draw = problem.draw(min(size, steps - start), copies, k, generator)
        yield from zip(*(part.unbind(0) for part in draw), strict=True)
