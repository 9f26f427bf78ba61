"""BSA: bilevel stochastic approximation, a loop on y inside the loop on x."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from semaopt._validation import validate_integer
from semaopt.estimator import Rate
from semaopt.hypergradient.closures import Closure
from semaopt.hypergradient.inverses import Inverse, Neumann
from semaopt.optimizers._base import options_of
from semaopt.optimizers._bilevel import BilevelOptimizer
from semaopt.optimizers._hooks import quiet
from semaopt.projections import Projection


class BSA(BilevelOptimizer):
    r"""Several steps on y with decreasing step sizes, then one on x at the last of them.

    .. math::
        y^{s+1} &= \Pi_Y\Bigl[y^s - \frac{2\eta_y}{s+2}\, O_{gy}(x_t, y^s)\Bigr], \qquad s = 0, \dots, S-1 \\
        x_{t+1} &= x_t - \eta_x\, (O_{fx} - O_{gxy} h\, O_{fy})(x_t, y^S)

    The inner loop starts where the last one ended.

    Args:
        upper, lower, lr, lower_lr, lower_weight_decay, project, process_group, on_nonfinite: as in
            :class:`semaopt.SMB`.
        inverse: h, :class:`semaopt.hypergradient.Neumann` if None.
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
    usual: ClassVar[type[Any]] = Neumann

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
        given["lower_steps"] = validate_integer("lower_steps", lower_steps, "try 10")
        super().__init__(upper, lower, {**given, "beta": None})

    def _decay(self, s: int) -> float:
        """The step size of step s of the inner loop, against eta_y."""
        return 2 / (s + 2)

    @quiet
    @torch.no_grad()
    def step(self, outer: Closure, inner: Closure) -> Tensor:  # type: ignore[override]
        """One step on x; returns the loss of ``outer``. The loop calls ``inner`` ``lower_steps`` times."""
        oracles = self._oracles(outer, inner)
        with self._all_or_nothing(moved=True):
            for s in range(self.param_groups[0]["lower_steps"]):
                self._descend_lower(oracles, self._decay(s))
            _, estimate, _ = self._hypergradient(oracles)
            self._move_upper(oracles, estimate)
            self._count()
        return oracles.loss
