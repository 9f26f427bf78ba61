"""SOBA: the stochastic bilevel algorithm that tracks y, the linear system and x in one loop."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from semaopt.estimator import Rate
from semaopt.hypergradient.closures import Closure
from semaopt.hypergradient.inverses import TrackedSystem
from semaopt.optimizers._base import options_of
from semaopt.optimizers._bilevel import BilevelOptimizer
from semaopt.optimizers._hooks import quiet
from semaopt.projections import Projection


class SOBA(BilevelOptimizer):
    r"""One step on y, on the linear system and on x at a time; :class:`semaopt.SMB` with ``TrackedSystem``, gamma = 1.

    .. math::
        y_{t+1} &= \Pi_Y[y_t - \eta_y O_{gy}], \qquad w_{t+1} = w_t - \rho\,(O_{gyy} w_t - O_{fy}) \\
        x_{t+1} &= x_t - \eta_x (O_{fx} - O_{gxy} w_t)

    All at :math:`(x_t, y_t, w_t)`, with one sample of f and one of g.

    Args:
        upper, lower, lr, lower_lr, lower_weight_decay, project, process_group, on_nonfinite: as in
            :class:`semaopt.SMB`.
        system_lr: rho; None takes ``lower_lr``.

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
        lower: ParamsT,
        lr: Rate = 1e-2,
        lower_lr: Rate = 1e-1,
        *,
        system_lr: float | None = None,
        lower_weight_decay: float = 0.0,
        project: Projection | None = None,
        process_group: Any = None,
        on_nonfinite: str | None = None,
    ) -> None:
        given = options_of(locals())
        given["inverse"] = TrackedSystem(given.pop("system_lr"))
        super().__init__(upper, lower, {**given, "beta": None})

    @quiet
    @torch.no_grad()
    def step(self, outer: Closure, inner: Closure) -> Tensor:  # type: ignore[override]
        """One step; ``outer`` and ``inner`` are called once each. Returns the loss that ``outer`` computed."""
        oracles = self._oracles(outer, inner)
        with self._all_or_nothing():
            _, estimate, g_y = self._hypergradient(oracles)
            self._move_upper(oracles, estimate)
            self._move_lower(g_y)
            self._count()
        return oracles.loss
