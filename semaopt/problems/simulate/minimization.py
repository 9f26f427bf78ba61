"""Simulations of ASA on minimization problems, with constant or decreasing rates and in stages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from semaopt.problems.minimization import Minimization
from semaopt.problems.oracles import Oracle, blocks
from semaopt.problems.simulate.runs import Averages, Chain, Simulation, summarize
from semaopt.scalings import Scaling

#: A function t -> (eta_t, gamma_t), or a constant pair.
Schedule = Callable[[int], tuple[float, float]] | tuple[float, float]


def minimize(
    problem: Minimization,
    oracle: Oracle,
    scaling: str | Scaling,
    schedule: Schedule,
    T: int,
    *,
    seeds: int = 256,
    seed: int = 0,
    clip: tuple[float, float] | None = None,
) -> Simulation:
    """Run ``alg:adam`` for the steps 0..T.

    Args:
        problem, oracle: the function to minimize and its stochastic gradient.
        scaling: a row of Table 2.
        schedule: (eta, gamma), or a function t -> (eta_t, gamma_t).
        T: the last step.
        seeds: the number of runs.
        seed: seed of the noise.
        clip: bounds (c_l, c_u) of the scaling.

    >>> from semaopt import problems
    >>> problem, oracle = problems.Bounded(d=2), problems.Additive(0.1)
    >>> found = problems.simulate.minimize(problem, oracle, "adam", (0.01, 0.1), T=9, seeds=4)
    >>> found.gradient.shape
    torch.Size([4])
    """
    x = problem.start(seeds)
    chain, averages = Chain(x, scaling, clip), Averages()
    generator = torch.Generator().manual_seed(seed)
    rates = schedule if callable(schedule) else None
    eta, gamma = (0.0, 0.0) if callable(schedule) else schedule
    with torch.no_grad():
        for t, noise in enumerate(blocks(oracle, T + 1, x, generator)):
            if rates is not None:
                eta, gamma = rates(t)
            gradient = problem.grad(x)
            g = oracle.sample(x, gradient, noise)
            v = chain.track(g, gamma)
            averages.add(gradient=gradient, tracking=v - gradient)
            averages.add_u(chain.descend(x, g, v, eta))
    return summarize(problem.F(x) - problem.smallest, chain, averages)


def minimize_in_stages(
    problem: Minimization,
    oracle: Oracle,
    scaling: str | Scaling,
    stages: Sequence[Any],
    *,
    seeds: int = 256,
    seed: int = 0,
    clip: tuple[float, float] | None = None,
) -> list[Simulation]:
    """Run ``alg:adam_PL``. Return one :class:`Simulation` per stage, whose ``gap`` is measured at its output x_tau."""
    x = problem.start(seeds)
    chain = Chain(x, scaling, clip)
    generator = torch.Generator().manual_seed(seed)
    found = []
    with torch.no_grad():
        for stage in stages:
            averages = Averages()
            # tau is uniform on 0..T, independently for every seed.
            chosen: dict[int, list[int]] = {}
            for row, tau in enumerate(torch.randint(stage.T + 1, (seeds,), generator=generator, device="cpu").tolist()):
                chosen.setdefault(tau, []).append(row)
            x_tau, v_tau = torch.empty_like(x), torch.empty_like(x)
            for t, noise in enumerate(blocks(oracle, stage.T + 1, x, generator)):
                gradient = problem.grad(x)
                g = oracle.sample(x, gradient, noise)
                v = chain.track(g, stage.gamma)
                averages.add(gradient=gradient, tracking=v - gradient)
                if t in chosen:
                    rows = chosen[t]
                    x_tau[rows], v_tau[rows] = x[rows], v[rows]
                averages.add_u(chain.descend(x, g, v, stage.eta))
            x.copy_(x_tau)
            chain.state["v"].copy_(v_tau)
            found.append(summarize(problem.F(x) - problem.smallest, chain, averages))
    return found
