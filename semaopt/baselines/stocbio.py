"""stocBiO: a loop on y with constant steps, then all terms of a Neumann series."""

from __future__ import annotations

from typing import Any, ClassVar

from torch.optim.optimizer import ParamsT

from semaopt.baselines.bsa import BSA
from semaopt.estimator import Rate
from semaopt.hypergradient.inverses import Inverse, NeumannSeries
from semaopt.optimizers._base import options_of
from semaopt.projections import Projection


class StocBiO(BSA):
    r"""The loops of :class:`BSA` with a constant step size inside, and all terms of the Neumann series as h.

    .. math::
        y^{s+1} &= \Pi_Y[y^s - \eta_y\, O_{gy}(x_t, y^s)], \qquad s = 0, \dots, S-1 \\
        x_{t+1} &= x_t - \eta_x\, (O_{fx} - O_{gxy} h\, O_{fy})(x_t, y^S)

    Args:
        upper, lower, lr, lower_lr, lower_weight_decay, project, process_group, on_nonfinite: as in
            :class:`semaopt.SMB`.
        inverse: h, :class:`semaopt.hypergradient.NeumannSeries` if None.
        lower_steps: S.

    Reference: Ji, Yang and Liang, "Bilevel optimization: convergence analysis and enhanced design", ICML 2021.

    >>> x, y = torch.nn.Parameter(torch.tensor([1.0])), torch.nn.Parameter(torch.tensor([0.0]))
    >>> optimizer = semaopt.baselines.StocBiO(upper=[x], lower=[y], lr=0.1, lower_lr=0.5, lower_steps=2)
    >>> optimizer.step(lambda: y.square().sum() / 2, lambda: (y - x).square().sum() / 2)
    tensor(0.2812)
    >>> y.data
    tensor([0.7500])
    """

    usual: ClassVar[type[Any]] = NeumannSeries

    def __init__(
        self,
        upper: ParamsT,
        lower: ParamsT,
        lr: Rate = 1e-2,
        lower_lr: Rate = 1e-1,
        *,
        inverse: Inverse | None = None,
        lower_steps: int = 10,
        lower_weight_decay: float = 0.0,
        project: Projection | None = None,
        process_group: Any = None,
        on_nonfinite: str | None = None,
    ) -> None:
        given = options_of(locals())
        super().__init__(upper, lower, **given)

    def _decay(self, s: int) -> float:
        return 1.0
