"""Simulation of SCMA on a compositional problem."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from semaopt.estimator import track_
from semaopt.problems.compositional import QuadraticComposition
from semaopt.problems.simulate.runs import Averages, Chain, Simulation, summarize
from semaopt.scalings import Scaling


def compositional(
    problem: QuadraticComposition,
    scaling: str | Scaling,
    rates: Mapping[str, float],
    T: int,
    *,
    seeds: int = 256,
    seed: int = 0,
) -> Simulation:
    """Run SCMA for the steps 0..T with ``rates["eta"]``, ``rates["gamma"]`` and ``rates["inner_gamma"]``.

    With ``inner_gamma`` 1 the inner value is the newest sample.
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
            averages.add_u(chain.descend(x, g, v, rates["eta"]))
    return summarize(problem.F(x) - problem.smallest, chain, averages)
