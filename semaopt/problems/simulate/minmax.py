"""Simulations of PDSM and PDAda on min-max problems."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from semaopt.kernels.ascend import ascend_
from semaopt.problems.minmax import MinMax
from semaopt.problems.oracles import Oracle, blocks
from semaopt.problems.simulate.runs import Averages, Chain, Simulation, summarize
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
) -> Simulation:
    """Run ``alg:pdadam`` for the steps 0..T with ``rates["eta_x"]``, ``rates["eta_y"]`` and ``rates["gamma"]``."""
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
            averages.add_u(chain.descend(x, g, v, eta_x))  # lines 4 and 5
            ascend_(y, ascent, eta_y, problem.project_)  # line 6
    return summarize(problem.F(x) - problem.smallest, chain, averages)
