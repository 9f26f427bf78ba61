"""FSLA: the fully single-loop algorithm, with a recursive estimator of the hypergradient."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from semaopt.baselines.sustain import NumberedClosure, recursive, validate_weight
from semaopt.estimator import Rate
from semaopt.hypergradient.closures import Oracles, Partial
from semaopt.hypergradient.inverses import NoInverse
from semaopt.hypergradient.linalg import Vector
from semaopt.hypergradient.numbered import numbered, validate_samples
from semaopt.optimizers._bilevel import BilevelOptimizer, subtract
from semaopt.optimizers._hooks import lean_hooks
from semaopt.projections import Projection


class FSLA(BilevelOptimizer):
    r"""One step on y, one on the linear system, one on x along the recursive estimator of STORM.

    .. math::
        y_{t+1} &= \Pi_Y[y_t - \eta_y\delta_t\, O_{gy}(x_t, y_t)] \\
        w_{t+1} &= w_t - \eta_y\delta_t\,(O_{gyy} w_t - O_{fy})(x_t, y_{t+1}) \\
        d_t &= O_F(x_t, y_{t+1}, w_{t+1}) + (1 - a_t)\,\bigl(d_{t-1} - O_F(x_{t-1}, y_t, w_t)\bigr), \qquad
            O_F = O_{fx} - O_{gxy} w \\
        x_{t+1} &= x_t - \eta_x\delta_t\, d_t

    with :math:`\delta_t = (t+1)^{-1/2}` and :math:`a_t = a\,\delta_t`; w starts at 0, and the first step has d = O_F.
    Both O_F use the same samples, so **the closures take the number of a sample**: ``outer(i)``, ``inner(i)``.

    Args:
        upper, lower, lr, lower_lr, lower_weight_decay, project, process_group, on_nonfinite: as in
            :class:`semaopt.SMB`; ``group["lr"]`` holds eta unchanged.
        weight: a.
        samples: the numbers of samples of f and of g; None draws numbers below 2^31, to be used as seeds.
        seed: the seed of the sample numbers.

    Reference: Li, Gu and Huang, "A fully single loop algorithm for bilevel optimization without Hessian inverse", AAAI
    2022.

    >>> x, y = torch.nn.Parameter(torch.tensor([1.0])), torch.nn.Parameter(torch.tensor([0.0]))
    >>> optimizer = semaopt.baselines.FSLA(upper=[x], lower=[y], lr=0.1, lower_lr=1.0)
    >>> optimizer.step(lambda i: y.square().sum() / 2, lambda i: (y - x).square().sum() / 2)    # F(x) = x^2/2
    tensor(0.5000)
    >>> x.data, y.data
    (tensor([0.9000]), tensor([1.]))
    """

    shared: ClassVar[tuple[str, ...]] = ("weight", "samples", "seed")
    default_inverse: ClassVar[type[Any]] = NoInverse
    lower_buffers: ClassVar[tuple[str, ...]] = ("w",)
    upper_buffers: ClassVar[tuple[str, ...]] = ("previous", "direction")

    def __init__(
        self,
        upper: ParamsT,
        lower: ParamsT | None = None,
        lr: Rate = 1e-2,
        lower_lr: Rate = 1e-1,
        *,
        weight: float = 0.5,
        samples: tuple[int, int] | None = None,
        seed: int = 0,
        lower_weight_decay: float = 0.0,
        project: Projection | None = None,
        process_group: Any = None,
        on_nonfinite: str | None = None,
    ) -> None:
        defaults = dict(
            lr=lr,
            lower_lr=lower_lr,
            beta=None,
            inverse=None,
            weight=validate_weight(weight),
            samples=None if samples is None else validate_samples(samples),
            seed=seed,
            lower_weight_decay=lower_weight_decay,
            project=project,
        )
        super().__init__(upper, lower, defaults, process_group=process_group, on_nonfinite=on_nonfinite)

    @lean_hooks
    @torch.no_grad()
    def step(self, outer: NumberedClosure, inner: NumberedClosure) -> Tensor:  # type: ignore[override]
        """Take one step and return the loss of ``outer`` at the new y."""
        options, t = self.param_groups[0], self.algorithm_state["t"]
        f, g = numbered(outer, inner, options["samples"], options["seed"], t)
        oracles, delta = self._oracles(f, g), (t + 1) ** -0.5
        with self._rollback(moves=True) as rollback:
            last_y = [y.detach().clone() for y in oracles.lower]
            self._descend_lower(oracles, delta)
            memory = self._memory()
            with torch.enable_grad():
                loss, _, f_y = oracles.f()
                zeros = [torch.zeros_like(part) for part in f_y]
                last_w = [state.get("w", zero) for state, zero in zip(memory.states, zeros, strict=True)]
                products = oracles.draw().hessian(last_w)
            pieces = zip(last_w, products, f_y, memory.rates, strict=True)
            w = [part - (h - b) * (rate * delta) for part, h, b, rate in pieces]
            d = implicit_estimate(oracles, w)
            states = [self.state.get(x, {}) for x in oracles.upper]
            if any("previous" in state for state in states):
                f.back(1)
                g.back(1)
                places = [state.get("previous", x) for state, x in zip(states, oracles.upper, strict=True)]
                with oracles.at(places, last_y):
                    old = implicit_estimate(oracles, last_w)
                d = recursive(options["weight"] * delta, d, old, [state.get("direction") for state in states])
            for state, part in zip(memory.states, w, strict=True):
                state["w"] = part
            places = [x.detach().clone() for x in oracles.upper]
            self._move_upper(oracles, d, rollback, factor=delta)
            for x, place, direction in zip(oracles.upper, places, d, strict=True):
                if direction is not None:
                    self.state[x].update(previous=place, direction=direction)
            oracles.loss = loss
            self._count(loss)
        return oracles.loss


def implicit_estimate(oracles: Oracles, w: Vector) -> Partial:
    """Return ``O_fx - O_gxy w`` with one sample of f and one of g."""
    with torch.enable_grad():
        _, f_x, _ = oracles.f()
        implicit = oracles.draw(mixed=True).mixed(w)
    return [subtract(a, b) for a, b in zip(f_x, implicit, strict=True)]
