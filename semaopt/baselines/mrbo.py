"""MRBO: the momentum-based recursive bilevel optimizer."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from semaopt.baselines.sustain import NumberedClosure, double_momentum_step, validate_weight, without_memory
from semaopt.estimator import Rate
from semaopt.hypergradient.inverses import Inverse, NeumannSeries
from semaopt.hypergradient.numbered import validate_samples
from semaopt.optimizers._bilevel import BilevelOptimizer
from semaopt.optimizers._hooks import lean_hooks
from semaopt.projections import Projection


class MRBO(BilevelOptimizer):
    r"""The recursions of :class:`SUSTAIN` with the whole Neumann series as h.

    .. math::
        d^y_t &= O_{gy}(x_t, y_t) + (1 - a_t)\,\bigl(d^y_{t-1} - O_{gy}(x_{t-1}, y_{t-1})\bigr) \\
        d^x_t &= O_F(x_t, y_t) + (1 - a_t)\,\bigl(d^x_{t-1} - O_F(x_{t-1}, y_{t-1})\bigr), \qquad
            O_F = O_{fx} - O_{gxy} h\, O_{fy} \\
        y_{t+1} &= \Pi_Y[y_t - \eta_y (t+1)^{-1/3}\, d^y_t], \qquad x_{t+1} = x_t - \eta_x (t+1)^{-1/3}\, d^x_t

    with :math:`a_t = a\,(t+1)^{-2/3}`. **The closures take the number of a sample**: ``outer(i)``, ``inner(i)``.

    Args:
        upper, lower, lr, lower_lr, lower_weight_decay, project, process_group, on_nonfinite: as in
            :class:`semaopt.SMB`; ``group["lr"]`` holds eta unchanged.
        inverse: h; None stands for :class:`semaopt.hypergradient.NeumannSeries`. It must not keep a vector between
            steps.
        weight, samples, seed: as in :class:`SUSTAIN`.

    Reference: Yang, Ji and Liang, "Provably faster algorithms for bilevel optimization", NeurIPS 2021.

    >>> x, y = torch.nn.Parameter(torch.tensor([1.0])), torch.nn.Parameter(torch.tensor([0.0]))
    >>> optimizer = semaopt.baselines.MRBO(upper=[x], lower=[y], lr=0.1, lower_lr=0.5,
    ...                                    inverse=semaopt.hypergradient.NeumannSeries(terms=3, bound=1.0))
    >>> optimizer.step(lambda i: y.square().sum() / 2, lambda i: (y - x).square().sum() / 2)    # i is not used
    tensor(0.)
    >>> y.data
    tensor([0.5000])
    """

    shared: ClassVar[tuple[str, ...]] = ("weight", "samples", "seed")
    default_inverse: ClassVar[type[Any]] = NeumannSeries
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
        return without_memory(super()._resolved(inverse), type(self).__name__)

    @lean_hooks
    @torch.no_grad()
    def step(self, outer: NumberedClosure, inner: NumberedClosure) -> Tensor:  # type: ignore[override]
        """Take one step and return the loss of ``outer``; every sample is evaluated at two points."""
        return double_momentum_step(self, outer, inner)
