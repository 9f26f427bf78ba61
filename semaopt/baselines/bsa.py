"""BSA and stocBiO: an inner loop on y, then one step on x."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from semaopt._validation import validate_integer
from semaopt.estimator import Rate
from semaopt.hypergradient.closures import Closure
from semaopt.hypergradient.inverses import Inverse, Neumann, NeumannSeries
from semaopt.optimizers._bilevel import BilevelOptimizer
from semaopt.optimizers._hooks import lean_hooks
from semaopt.projections import Projection


class BSA(BilevelOptimizer):
    r"""Several steps on y with decreasing step sizes, then one step on x at the last y.

    .. math::
        y^{s+1} &= \Pi_Y\Bigl[y^s - \frac{2\eta_y}{s+2}\, O_{gy}(x_t, y^s)\Bigr], \qquad s = 0, \dots, S-1 \\
        x_{t+1} &= x_t - \eta_x\, (O_{fx} - O_{gxy} h\, O_{fy})(x_t, y^S)

    The inner loop starts where the last one ended.

    Args:
        upper, lower, lr, lower_lr, lower_weight_decay, project, process_group, on_nonfinite: as in
            :class:`semaopt.SMB`.
        inverse: h; None stands for :class:`semaopt.hypergradient.Neumann`.
        lower_steps: S.

    Reference: Ghadimi and Wang, "Approximation methods for bilevel programming", arXiv 1802.02246.

    >>> x, y = torch.nn.Parameter(torch.tensor([1.0])), torch.nn.Parameter(torch.tensor([0.0]))
    >>> optimizer = semaopt.baselines.BSA(upper=[x], lower=[y], lr=0.1, lower_lr=1.0,
    ...                                   inverse=semaopt.hypergradient.Exact())
    >>> optimizer.step(lambda: y.square().sum() / 2, lambda: (y - x).square().sum() / 2)    # F(x) = x^2/2
    tensor(0.5000)
    >>> x.data, y.data
    (tensor([0.9000]), tensor([1.]))
    """

    shared: ClassVar[tuple[str, ...]] = ("lower_steps",)
    default_inverse: ClassVar[type[Any]] = Neumann

    def __init__(
        self,
        upper: ParamsT,
        lower: ParamsT | None = None,
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
        defaults = dict(
            lr=lr,
            lower_lr=lower_lr,
            beta=None,
            inverse=inverse,
            lower_steps=validate_integer("lower_steps", lower_steps, "try 10"),
            lower_weight_decay=lower_weight_decay,
            project=project,
        )
        super().__init__(upper, lower, defaults, process_group=process_group, on_nonfinite=on_nonfinite)

    @staticmethod
    def lower_decay(s: int) -> float:
        """Return the factor of eta_y in step s of the inner loop."""
        return 2 / (s + 2)

    @lean_hooks
    @torch.no_grad()
    def step(self, outer: Closure, inner: Closure) -> Tensor:  # type: ignore[override]
        """Take one step on x and return the loss of ``outer``; the loop calls ``inner`` ``lower_steps`` times."""
        oracles = self._oracles(outer, inner)
        with self._rollback(moves=True) as rollback:
            for s in range(self.param_groups[0]["lower_steps"]):
                self._descend_lower(oracles, self.lower_decay(s))
            estimate, _ = self._hypergradient(oracles)
            self._move_upper(oracles, estimate, rollback)
            self._count(oracles.loss)
        return oracles.loss


class StocBiO(BSA):  # derives from another method, because it differs from BSA in two lines only
    r"""The loops of :class:`BSA` with a constant step size on y and the whole Neumann series as h.

    .. math::
        y^{s+1} &= \Pi_Y[y^s - \eta_y\, O_{gy}(x_t, y^s)], \qquad s = 0, \dots, S-1 \\
        x_{t+1} &= x_t - \eta_x\, (O_{fx} - O_{gxy} h\, O_{fy})(x_t, y^S)

    Args:
        upper, lower, lr, lower_lr, lower_weight_decay, project, process_group, on_nonfinite: as in
            :class:`semaopt.SMB`.
        inverse: h; None stands for :class:`semaopt.hypergradient.NeumannSeries`.
        lower_steps: S.

    Reference: Ji, Yang and Liang, "Bilevel optimization: convergence analysis and enhanced design", ICML 2021.

    >>> x, y = torch.nn.Parameter(torch.tensor([1.0])), torch.nn.Parameter(torch.tensor([0.0]))
    >>> optimizer = semaopt.baselines.StocBiO(upper=[x], lower=[y], lr=0.1, lower_lr=0.5, lower_steps=2)
    >>> optimizer.step(lambda: y.square().sum() / 2, lambda: (y - x).square().sum() / 2)
    tensor(0.2812)
    >>> y.data
    tensor([0.7500])
    """

    default_inverse: ClassVar[type[Any]] = NeumannSeries

    @staticmethod
    def lower_decay(s: int) -> float:
        """Return 1: the step size is constant."""
        return 1.0
