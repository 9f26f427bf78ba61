"""The optimizer state and the measurements of many simulated runs, one row per seed."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from semaopt import scalings
from semaopt.estimator import sema_
from semaopt.kernels.loop import descend_
from semaopt.scalings import Scaling, Seen


@dataclass
class Simulation:
    """Results of a simulation, one number per seed. Averages are over the steps 0..T."""

    gradient: Tensor
    """The average of |grad F(x_t)|^2."""
    tracking: Tensor
    """The average of |v_{t+1} - grad F(x_t)|^2."""
    gap: Tensor
    """F - min F at the output: the last iterate, or the output of the last stage."""
    scaling_bounds: tuple[float, float]
    """The smallest and the largest scaling s over all steps and seeds."""
    follower: Tensor | None = None
    """The average of |y_t - y*(x_t)|^2, or None for a problem without y."""


class Averages:
    """Running sums of squared errors and the range of u. The path of the run is not stored."""

    def __init__(self) -> None:
        self.squares: dict[str, Tensor] = {}
        self.steps = 0
        self.u_range = [math.inf, -math.inf]
        self._u: list[Tensor] = []

    def add(self, **errors: Tensor) -> None:
        """Add the error vectors of one step to the averages of their squared norms."""
        for name, error in errors.items():
            if name in self.squares:
                self.squares[name].addcmul_(error, error)
            else:
                self.squares[name] = error.square()
        self.steps += 1

    def add_u(self, u: Tensor | float) -> None:
        """Extend the range of u to include the u of one step."""
        if not isinstance(u, Tensor):
            self.u_range = [min(self.u_range[0], u), max(self.u_range[1], u)]
        elif not self._u:
            self._u = [u.clone(), u.clone()]
        else:
            torch.minimum(self._u[0], u, out=self._u[0])
            torch.maximum(self._u[1], u, out=self._u[1])

    def mean(self, name: str) -> Tensor:
        """Return the average squared norm of the named vectors, one number per seed."""
        return self.squares[name].sum(-1) / self.steps

    def scaling_bounds(self, g0: float, clip: tuple[float, float] | None) -> tuple[float, float]:
        """Return the smallest and the largest s = 1/(sqrt(u) + g0), clipped to ``clip``."""
        low, high = (float(self._u[0].min()), float(self._u[1].max())) if self._u else self.u_range
        bounds = 1 / (math.sqrt(high) + g0), 1 / (math.sqrt(low) + g0) if low > 0 or g0 > 0 else math.inf
        return bounds if clip is None else (max(bounds[0], clip[0]), min(bounds[1], clip[1]))


class Chain:
    """The state of ASA for all seeds: v, the buffers of the scaling, and the number of steps taken.

    Adam+ uses the norm over all parameters of a group. Here every row is a model of its own, so the norm is per row.
    """

    def __init__(self, like: Tensor, scaling: str | Scaling, clip: tuple[float, float] | None) -> None:
        self.scaling = scalings.resolve(scaling)
        self.clip = clip
        self.state = {name: torch.zeros_like(like) for name in ("v", *self.scaling.buffers)}
        self.t = 0

    def track(self, g: Tensor, gamma: float) -> Tensor:
        """Update v by line 3 of ``alg:adam`` and return it."""
        return sema_(self.state, "v", g, gamma, self.t, corrected=False)

    def descend(self, x: Tensor, g: Tensor, v: Tensor, eta: float) -> Tensor | float:
        """Update x by lines 4 and 5 of ``alg:adam`` and return u."""

        def norm() -> Tensor:
            length: Tensor = torch.linalg.vector_norm(v, dim=-1, keepdim=True)
            return length

        u = self.scaling.update_(self.state, Seen(g, v, self.t, norm, False))
        descend_(x, v, u, self.scaling.g0, eta, clip=self.clip)
        self.t += 1
        return u


def summarize(gap: Tensor, chain: Chain, averages: Averages) -> Simulation:
    """Return the results of runs that end with this ``gap``."""
    return Simulation(
        averages.mean("gradient"),
        averages.mean("tracking"),
        gap,
        averages.scaling_bounds(chain.scaling.g0, chain.clip),
        averages.mean("follower") if "follower" in averages.squares else None,
    )
