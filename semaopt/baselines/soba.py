"""SOBA: the stochastic bilevel algorithm that tracks y, the linear system and x in one loop."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from semaopt.estimator import Rate
from semaopt.hypergradient.closures import Closure
from semaopt.hypergradient.inverses import TrackedSystem
from semaopt.optimizers._bilevel import BilevelOptimizer
from semaopt.optimizers._hooks import lean_hooks
from semaopt.projections import Projection


class SOBA(BilevelOptimizer):
    r"""Simultaneous steps on y, on the linear system and on x: :class:`semaopt.SMB` with ``TrackedSystem``, gamma = 1.

    .. math::
        y_{t+1} &= \Pi_Y[y_t - \eta_y O_{gy}], \qquad w_{t+1} = w_t - \rho\,(O_{gyy} w_t - O_{fy}) \\
        x_{t+1} &= x_t - \eta_x (O_{fx} - O_{gxy} w_t)

    All are taken at :math:`(x_t, y_t, w_t)`, with one sample of f and one of g.

    Args:
        upper, lower, lr, lower_lr, lower_weight_decay, project, process_group, on_nonfinite: as in
            :class:`semaopt.SMB`.
        system_lr: rho; None stands for ``lower_lr``.

    Reference: Dagréou, Ablin, Vaiter and Moreau, "A framework for bilevel optimization that enables stochastic and
    global variance reduction algorithms", NeurIPS 2022.

    >>> x, y = torch.nn.Parameter(torch.tensor([1.0])), torch.nn.Parameter(torch.tensor([1.0]))
    >>> optimizer = semaopt.baselines.SOBA(upper=[x], lower=[y], lr=0.1, lower_lr=1.0)
    >>> optimizer.step(lambda: y.square().sum() / 2, lambda: (y - x).square().sum() / 2)    # F(x) = x^2/2
    tensor(0.5000)
    >>> x.data
    tensor([0.9000])
    """

    def __init__(
        self,
        upper: ParamsT,
        lower: ParamsT | None = None,
        lr: Rate = 1e-2,
        lower_lr: Rate = 1e-1,
        *,
        system_lr: float | None = None,
        lower_weight_decay: float = 0.0,
        project: Projection | None = None,
        process_group: Any = None,
        on_nonfinite: str | None = None,
    ) -> None:
        defaults = dict(
            lr=lr,
            lower_lr=lower_lr,
            beta=None,
            inverse=TrackedSystem(system_lr),
            lower_weight_decay=lower_weight_decay,
            project=project,
        )
        super().__init__(upper, lower, defaults, process_group=process_group, on_nonfinite=on_nonfinite)

    @lean_hooks
    @torch.no_grad()
    def step(self, outer: Closure, inner: Closure) -> Tensor:  # type: ignore[override]
        """Take one step, calling ``outer`` and ``inner`` once each, and return the loss of ``outer``."""
        oracles = self._oracles(outer, inner)
        with self._rollback() as rollback:
            estimate, g_y = self._hypergradient(oracles)
            self._move_upper(oracles, estimate, rollback)
            self._move_lower(g_y)
            self._count(oracles.loss)
        return oracles.loss
