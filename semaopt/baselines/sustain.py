"""SUSTAIN: double momentum, for the gradient of g and for the hypergradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from semaopt._validation import is_real, require
from semaopt.estimator import Rate
from semaopt.hypergradient.closures import Partial, combine
from semaopt.hypergradient.inverses import Inverse, Neumann
from semaopt.hypergradient.numbered import numbered, validate_samples
from semaopt.optimizers._bilevel import BilevelOptimizer
from semaopt.optimizers._hooks import lean_hooks
from semaopt.projections import Projection

NumberedClosure = Callable[[int], Tensor]


def validate_weight(weight: Any) -> float:
    """Return the weight of the newest sample; raise unless it lies in (0, 1]."""
    require(is_real(weight) and 0 < weight <= 1, "weight", weight, "must lie in (0, 1]", "the benchmark takes 0.5")
    return float(weight)


def recursive(a: float, new: Partial, old: Partial, before: list[Tensor | None]) -> Partial:
    """Return ``new + (1 - a) (before - old)`` (STORM), or ``new`` where there is no direction ``before``."""
    pairs = zip(new, old, before, strict=True)
    return [n if d is None else combine([(1.0, n), (1 - a, d), (a - 1, o)]) for n, o, d in pairs]


class SUSTAIN(BilevelOptimizer):
    r"""Double momentum: the recursive estimator of STORM for the gradient of g and for the hypergradient.

    .. math::
        d^y_t &= O_{gy}(x_t, y_t) + (1 - a_t)\,\bigl(d^y_{t-1} - O_{gy}(x_{t-1}, y_{t-1})\bigr) \\
        d^x_t &= O_F(x_t, y_t) + (1 - a_t)\,\bigl(d^x_{t-1} - O_F(x_{t-1}, y_{t-1})\bigr), \qquad
            O_F = O_{fx} - O_{gxy} h\, O_{fy} \\
        y_{t+1} &= \Pi_Y[y_t - \eta_y (t+1)^{-1/3}\, d^y_t], \qquad x_{t+1} = x_t - \eta_x (t+1)^{-1/3}\, d^x_t

    with :math:`a_t = a\,(t+1)^{-2/3}`; the first step has d = O. Both points of a line use the same samples, so
    **the closures take the number of a sample**: ``outer(i)``, ``inner(i)``.

    Args:
        upper, lower, lr, lower_lr, lower_weight_decay, project, process_group, on_nonfinite: as in
            :class:`semaopt.SMB`; ``group["lr"]`` holds eta unchanged.
        inverse: h; None stands for :class:`semaopt.hypergradient.Neumann`. It must not keep a vector between steps.
        weight: a.
        samples: the numbers of samples of f and of g; None draws numbers below 2^31, to be used as seeds.
        seed: the seed of the sample numbers.

    Reference: Khanduri, Zeng, Hong, Wai, Wang and Yang, "A near-optimal algorithm for stochastic bilevel optimization
    via double-momentum", NeurIPS 2021.

    >>> x, y = torch.nn.Parameter(torch.tensor([1.0])), torch.nn.Parameter(torch.tensor([1.0]))
    >>> optimizer = semaopt.baselines.SUSTAIN(upper=[x], lower=[y], lr=0.1, lower_lr=1.0, samples=(2, 2),
    ...                                       inverse=semaopt.hypergradient.Exact())
    >>> noise = torch.tensor([-0.5, 0.5])
    >>> optimizer.step(lambda i: y.square().sum() / 2, lambda i: (y - x - 0 * noise[i]).square().sum() / 2)
    tensor(0.5000)
    >>> x.data
    tensor([0.9000])
    """

    shared: ClassVar[tuple[str, ...]] = ("weight", "samples", "seed")
    default_inverse: ClassVar[type[Any]] = Neumann
    lower_buffers: ClassVar[tuple[str, ...]] = ("previous", "direction")
    upper_buffers: ClassVar[tuple[str, ...]] = ("previous", "direction")

    def __init__(
        self,
        upper: ParamsT,
        lower: ParamsT | None = None,
        lr: Rate = 1e-2,
        lower_lr: Rate = 1e-1,
        *,
        inverse: Inverse | None = None,
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
            inverse=inverse,
            weight=validate_weight(weight),
            samples=None if samples is None else validate_samples(samples),
            seed=seed,
            lower_weight_decay=lower_weight_decay,
            project=project,
        )
        super().__init__(upper, lower, defaults, process_group=process_group, on_nonfinite=on_nonfinite)

    def _resolved(self, inverse: Inverse | None) -> Inverse:
        found = super()._resolved(inverse)
        if getattr(found, "buffers", ()):
            raise TypeError(
                f"inverse={found!r}: {type(self).__name__} applies it at two points in each step, and it remembers the "
                "last one. Use Neumann, NeumannSeries, CG or Exact."
            )
        return found

    @lean_hooks
    @torch.no_grad()
    def step(self, outer: NumberedClosure, inner: NumberedClosure) -> Tensor:  # type: ignore[override]
        """Take one step and return the loss of ``outer``; every sample is evaluated at two points."""
        options, t = self.param_groups[0], self.algorithm_state["t"]
        f, g = numbered(outer, inner, options["samples"], options["seed"], t)
        oracles = self._oracles(f, g)
        a, slower = min(1.0, options["weight"] * (t + 1) ** (-2 / 3)), (t + 1) ** (-1 / 3)
        xs = (*oracles.upper, *oracles.lower)
        with self._rollback() as rollback:
            estimate, g_y = self._hypergradient(oracles)
            loss, new = oracles.loss, [*estimate, *g_y]
            states = [self.state.get(x, {}) for x in xs]
            if any("previous" in state for state in states):
                f.back(f.calls)
                g.back(g.calls)
                places = [state.get("previous", x) for state, x in zip(states, xs, strict=True)]
                with oracles.at(places[: len(oracles.upper)], places[len(oracles.upper) :]):
                    old_estimate, old_g_y = self._hypergradient(oracles)
                oracles.loss = loss  # the loss at the new point
                new = recursive(a, new, [*old_estimate, *old_g_y], [state.get("direction") for state in states])
            places = [x.detach().clone() for x in xs]
            self._move_upper(oracles, new[: len(estimate)], rollback, factor=slower)
            self._move_lower([d for d in new[len(estimate) :] if d is not None], slower)
            for x, place, d in zip(xs, places, new, strict=True):
                if d is not None:
                    self.state[x].update(previous=place, direction=d)
            self._count(oracles.loss)
        return oracles.loss
