"""Many runs of ASA as one tensor ``[seeds, d]``, by the verbs of the library, measured against exact gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from semaopt import scalings
from semaopt.estimator import sema_
from semaopt.kernels.loop import descend_
from semaopt.problems.minimization import Minimization
from semaopt.problems.oracles import Oracle, blocks
from semaopt.scalings import Scaling, Seen

#: t -> (eta_t, gamma_t), or the two numbers.
Schedule = Callable[[int], tuple[float, float]] | tuple[float, float]


@dataclass
class Run:
    """Averages over the steps 0..T, one number per seed."""

    gradient: Tensor
    """Of |grad F(x_t)|^2."""
    tracking: Tensor
    """Of |v_{t+1} - grad F(x_t)|^2."""
    gap: Tensor
    """F - min F at what the run returns: the last iterate, or that of the last stage."""
    scaling_bounds: tuple[float, float]
    """The smallest and the largest s seen."""
    follower: Tensor | None = None
    """Of |y_t - y*(x_t)|^2, where there is a y."""


class Averages:
    """Sums of squares per coordinate while a run goes on: nothing of the path is stored."""

    def __init__(self) -> None:
        self.squares: dict[str, Tensor] = {}
        self.steps = 0
        self.u_range = [math.inf, -math.inf]
        self._u: list[Tensor] = []

    def add(self, **errors: Tensor) -> None:
        """One step's vectors, whose squared norms are averaged."""
        for name, error in errors.items():
            if name in self.squares:
                self.squares[name].addcmul_(error, error)
            else:
                self.squares[name] = error.square()
        self.steps += 1

    def saw(self, u: Tensor | float) -> None:
        """One step's u."""
        if not isinstance(u, Tensor):
            self.u_range = [min(self.u_range[0], u), max(self.u_range[1], u)]
        elif not self._u:
            self._u = [u.clone(), u.clone()]
        else:
            torch.minimum(self._u[0], u, out=self._u[0])
            torch.maximum(self._u[1], u, out=self._u[1])

    def mean(self, name: str) -> Tensor:
        return self.squares[name].sum(-1) / self.steps

    def scaling_bounds(self, g0: float, clip: tuple[float, float] | None) -> tuple[float, float]:
        low, high = (float(self._u[0].min()), float(self._u[1].max())) if self._u else self.u_range
        bounds = 1 / (math.sqrt(high) + g0), 1 / (math.sqrt(low) + g0) if low > 0 or g0 > 0 else math.inf
        return bounds if clip is None else (max(bounds[0], clip[0]), min(bounds[1], clip[1]))


class Chain:
    """The state of ASA for all seeds: v, the scaling's buffers, and how many steps were taken.

    Adam+ takes the norm over all parameters of a group; here every row is a model of its own, so it is taken per row.
    """

    def __init__(self, like: Tensor, scaling: str | Scaling, clip: tuple[float, float] | None) -> None:
        self.scaling = scalings.resolve(scaling)
        self.clip = clip
        self.state = {name: torch.zeros_like(like) for name in ("v", *self.scaling.buffers)}
        self.t = 0

    def track(self, g: Tensor, gamma: float) -> Tensor:
        """Line 3 of ``alg:adam``."""
        return sema_(self.state, "v", g, gamma, self.t, corrected=False)

    def descend(self, x: Tensor, g: Tensor, v: Tensor, eta: float) -> Tensor | float:
        """Lines 4 and 5; returns u."""

        def norm() -> Tensor:
            length: Tensor = torch.linalg.vector_norm(v, dim=-1, keepdim=True)
            return length

        u = self.scaling.update_(self.state, Seen(g, v, self.t, norm, False))
        descend_(x, v, u, self.scaling.g0, eta, clip=self.clip)
        self.t += 1
        return u


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
) -> Run:
    """``alg:adam`` for the steps 0..T.

    >>> from semaopt import problems
    >>> bed, oracle = problems.Bounded(d=2), problems.Additive(0.1)
    >>> run = problems.simulate.minimize(bed, oracle, "adam", (0.01, 0.1), T=9, seeds=4)
    >>> run.gradient.shape
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
            averages.saw(chain.descend(x, g, v, eta))
    return finish(problem.F(x) - problem.smallest, chain, averages)


def finish(gap: Tensor, chain: Chain, averages: Averages) -> Run:
    """What is left of a run that ends with that ``gap``."""
    return Run(
        averages.mean("gradient"),
        averages.mean("tracking"),
        gap,
        averages.scaling_bounds(chain.scaling.g0, chain.clip),
        averages.mean("follower") if "follower" in averages.squares else None,
    )


def minimize_in_stages(
    problem: Minimization,
    oracle: Oracle,
    scaling: str | Scaling,
    stages: Sequence[Any],
    *,
    seeds: int = 256,
    seed: int = 0,
    clip: tuple[float, float] | None = None,
) -> list[Run]:
    """``alg:adam_PL``: one :class:`Run` per stage, whose ``gap`` is that of the output x_tau."""
    x = problem.start(seeds)
    chain = Chain(x, scaling, clip)
    generator = torch.Generator().manual_seed(seed)
    runs = []
    with torch.no_grad():
        for stage in stages:
            averages = Averages()
            # tau is uniform on 0..T, for every seed by itself.
            chosen: dict[int, list[int]] = {}
            for row, tau in enumerate(torch.randint(stage.T + 1, (seeds,), generator=generator).tolist()):
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
                averages.saw(chain.descend(x, g, v, stage.eta))
            x.copy_(x_tau)
            chain.state["v"].copy_(v_tau)
            runs.append(finish(problem.F(x) - problem.smallest, chain, averages))
    return runs
