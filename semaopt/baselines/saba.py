"""SABA: SOBA with the variance reduction of SAGA on finite sums."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from semaopt.baselines.sustain import NumberedClosure
from semaopt.estimator import Rate, state_dtype
from semaopt.hypergradient.inverses import NoInverse, validate_positive
from semaopt.hypergradient.numbered import numbered, validate_samples
from semaopt.optimizers._bilevel import BilevelOptimizer, subtract
from semaopt.optimizers._hooks import lean_hooks
from semaopt.optimizers._nonfinite import Rollback
from semaopt.optimizers._state import zero_state
from semaopt.projections import Projection

#: The tables of each level: name, and which closure their samples come from (0: outer, 1: inner).
TABLES = {"upper": {"f_x": 0, "g_xy": 1}, "lower": {"f_y": 0, "g_y": 1, "g_yy": 1}}


class SABA(BilevelOptimizer):
    r"""The steps of :class:`SOBA` on finite sums, with the last value of every sample in a table (SAGA).

    .. math::
        f = \frac1m\sum_{j<m} f_j, \quad g &= \frac1n\sum_{i<n} g_i, \qquad
        \hat D[\phi]_i = \phi_i - T_i + \tfrac1n\textstyle\sum_k T_k, \quad T_i \leftarrow \phi_i \\
        y_{t+1} &= \Pi_Y[y_t - \eta_y \hat D[g_y]_i], \qquad
        w_{t+1} = w_t - \rho\,(\hat D[g_{yy} w_t]_i - \hat D[f_y]_j) \\
        x_{t+1} &= x_t - \eta_x\,(\hat D[f_x]_j - \hat D[g_{xy} w_t]_i)

    i and j are uniform, and all terms are taken at :math:`(x_t, y_t, w_t)`. The tables and w start at 0. The variance
    of the directions tends to 0 near a solution, so the method converges with constant step sizes.

    The method must know which sample a loss belongs to: **the closures take its number**. ``inner(i)`` returns
    :math:`g_i` for i in 0..n-1, for instance the mean loss of batch i of a fixed partition. The tables hold n or m
    copies of every variable: with batches of 64 rows that is one copy per 64 rows.

    Args:
        upper, lower, lr, lower_lr, lower_weight_decay, project, process_group, on_nonfinite: as in
            :class:`semaopt.SMB`.
        samples: (m, n), the numbers of samples of f and of g.
        system_lr: rho; None stands for the ``lr`` of the lower group.
        seed: the seed of the sample numbers.

    Reference: Dagréou, Ablin, Vaiter and Moreau, "A framework for bilevel optimization that enables stochastic and
    global variance reduction algorithms", NeurIPS 2022.

    >>> x, y = torch.nn.Parameter(torch.tensor([1.0])), torch.nn.Parameter(torch.tensor([1.0]))
    >>> optimizer = semaopt.baselines.SABA(upper=[x], lower=[y], lr=0.1, lower_lr=0.5, samples=(1, 2))
    >>> noise = torch.tensor([-0.5, 0.5])
    >>> for _ in range(200):
    ...     loss = optimizer.step(lambda j: y.square().sum() / 2, lambda i: (y - x - noise[i]).square().sum() / 2)
    >>> x.abs().item() < 1e-3, y.abs().item() < 1e-3               # F(x) = x^2/2
    (True, True)
    """

    shared: ClassVar[tuple[str, ...]] = ("samples", "system_lr", "seed")
    default_inverse: ClassVar[type[Any]] = NoInverse
    lower_buffers: ClassVar[tuple[str, ...]] = ("w",)

    def __init__(
        self,
        upper: ParamsT,
        lower: ParamsT | None = None,
        lr: Rate = 1e-2,
        lower_lr: Rate = 1e-1,
        *,
        samples: tuple[int, int],
        system_lr: float | None = None,
        seed: int = 0,
        lower_weight_decay: float = 0.0,
        project: Projection | None = None,
        process_group: Any = None,
        on_nonfinite: str | None = None,
    ) -> None:
        validate_positive("system_lr", system_lr, "pass a number below 2/|g_yy|, or None for the lr of the lower group")
        defaults = dict(
            lr=lr,
            lower_lr=lower_lr,
            beta=None,
            inverse=None,
            samples=validate_samples(samples),
            system_lr=system_lr,
            seed=seed,
            lower_weight_decay=lower_weight_decay,
            project=project,
        )
        super().__init__(upper, lower, defaults, process_group=process_group, on_nonfinite=on_nonfinite)

    def _init_state(self, group: dict[str, Any], i: int, x: Tensor) -> None:
        super()._init_state(group, i, x)
        for name, side in TABLES[group["role"]].items():
            self.state[x].update(empty_table(x, name, group["samples"][side]))

    @lean_hooks
    @torch.no_grad()
    def step(self, outer: NumberedClosure, inner: NumberedClosure) -> Tensor:  # type: ignore[override]
        """Take one step, calling ``outer`` and ``inner`` once each, and return the loss of ``outer``."""
        options = self.param_groups[0]
        f, g = numbered(outer, inner, options["samples"], options["seed"], self.algorithm_state["t"])
        oracles = self._oracles(f, g)
        # Nothing is written before x moves, so the tables need no backup; undoing a step only removes new entries of
        # the state.
        new, enabled = [y for y in oracles.lower if y not in self.state], self.on_nonfinite is not None
        with Rollback(self, self._nonfinite, new, values=False, enabled=enabled) as rollback:
            memory, rho = self._memory(), options["system_lr"]
            rates = memory.rates if rho is None else [rho] * len(memory.states)
            with torch.enable_grad():
                _, f_x, f_y = oracles.f()
                sample = oracles.draw(mixed=True)
                w = [state.get("w", torch.zeros_like(part)) for state, part in zip(memory.states, f_y, strict=True)]
                products, implicit = sample.both(w)
                g_y = sample.g_y
            uppers = [self.state.get(x, {}) for x in oracles.upper]
            estimate = [
                subtract(reduced(state, "f_x", f.last, a), reduced(state, "g_xy", g.last, b))
                for state, a, b in zip(uppers, f_x, implicit, strict=True)
            ]
            lower = zip(memory.states, f_y, g_y, products, strict=True)
            directions = [
                (reduced(m, "f_y", f.last, a), reduced(m, "g_y", g.last, b), reduced(m, "g_yy", g.last, c))
                for m, a, b, c in lower
            ]
            self._move_upper(oracles, estimate, rollback)
            self._move_lower([d for _, d, _ in directions if d is not None])
            numbers = {"f": f.last, "g": g.last}
            for y, part, (a, _, c), rate, *values in zip(
                oracles.lower, w, directions, rates, f_y, g_y, products, strict=True
            ):
                self._remember(y, "lower", numbers, values)
                self.state[y]["w"] = part if a is None or c is None else part - (c - a) * rate
            for x, *values in zip(oracles.upper, f_x, implicit, strict=True):
                self._remember(x, "upper", numbers, values)
            self._count(oracles.loss)
        return oracles.loss

    def _remember(self, x: Tensor, role: str, numbers: dict[str, int], values: list[Tensor | None]) -> None:
        """Write the newest values of one parameter into its tables."""
        state, samples = self.state[x], self.param_groups[0]["samples"]
        for (name, side), value in zip(TABLES[role].items(), values, strict=True):
            if value is None:
                continue
            if name not in state:
                state.update(empty_table(x, name, samples[side]))
            i, n = numbers[name[0]], samples[side]
            state[f"{name}_mean"] += (value - state[name][i]) / n
            state[name][i] = value


def empty_table(x: Tensor, name: str, n: int) -> dict[str, Tensor]:
    """Return a table of n zeros in the shape of x, and its mean."""
    table = torch.zeros((n, *x.shape), dtype=state_dtype(x), device=x.device)
    return {name: table, f"{name}_mean": zero_state(x, ("mean",))["mean"]}


def reduced(state: dict[str, Any], name: str, i: int, value: Tensor | None) -> Tensor | None:
    """Return ``value - T_i + mean(T)``, where a missing table is zero."""
    if value is None or name not in state:
        return value
    direction: Tensor = value - state[name][i] + state[f"{name}_mean"]
    return direction
