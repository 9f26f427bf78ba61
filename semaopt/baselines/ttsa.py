"""TTSA: two-timescale stochastic approximation."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from semaopt._validation import is_real, require
from semaopt.estimator import Rate
from semaopt.hypergradient.closures import Closure
from semaopt.hypergradient.inverses import Inverse, Neumann
from semaopt.optimizers._bilevel import BilevelOptimizer
from semaopt.optimizers._hooks import lean_hooks
from semaopt.projections import Projection


class TTSA(BilevelOptimizer):
    r"""One step on y, then one on x at the new y, with x on the slower timescale.

    .. math::
        y_{t+1} &= \Pi_Y[y_t - \eta_y (t+1)^{-2/5}\, O_{gy}(x_t, y_t)] \\
        x_{t+1} &= x_t - \eta_x (t+1)^{-3/5}\, (O_{fx} - O_{gxy} h\, O_{fy})(x_t, y_{t+1})

    Args:
        upper, lower, lr, lower_lr, lower_weight_decay, project, process_group, on_nonfinite: as in
            :class:`semaopt.SMB`; ``group["lr"]`` holds eta unchanged.
        inverse: h; None stands for :class:`semaopt.hypergradient.Neumann`.
        powers: exponents of 1/(t+1) for y and for x.

    Reference: Hong, Wai, Wang and Yang, "A two-timescale stochastic algorithm framework for bilevel optimization:
    complexity analysis and application to actor-critic", SIAM Journal on Optimization 2023.

    >>> x, y = torch.nn.Parameter(torch.tensor([1.0])), torch.nn.Parameter(torch.tensor([0.0]))
    >>> optimizer = semaopt.baselines.TTSA(upper=[x], lower=[y], lr=0.1, lower_lr=1.0,
    ...                                    inverse=semaopt.hypergradient.Exact())
    >>> optimizer.step(lambda: y.square().sum() / 2, lambda: (y - x).square().sum() / 2)    # F(x) = x^2/2
    tensor(0.5000)
    >>> x.data, y.data
    (tensor([0.9000]), tensor([1.]))
    """

    shared: ClassVar[tuple[str, ...]] = ("powers",)
    default_inverse: ClassVar[type[Any]] = Neumann

    def __init__(
        self,
        upper: ParamsT,
        lower: ParamsT | None = None,
        lr: Rate = 1e-2,
        lower_lr: Rate = 1e-1,
        *,
        inverse: Inverse | None = None,
        powers: tuple[float, float] = (0.4, 0.6),
        lower_weight_decay: float = 0.0,
        project: Projection | None = None,
        process_group: Any = None,
        on_nonfinite: str | None = None,
    ) -> None:
        pair = isinstance(powers, (tuple, list)) and len(powers) == 2 and all(is_real(a) and a >= 0 for a in powers)
        require(pair, "powers", powers, "must be two numbers >= 0, for y and for x", "the paper has (0.4, 0.6)")
        defaults = dict(
            lr=lr,
            lower_lr=lower_lr,
            beta=None,
            inverse=inverse,
            powers=powers,
            lower_weight_decay=lower_weight_decay,
            project=project,
        )
        super().__init__(upper, lower, defaults, process_group=process_group, on_nonfinite=on_nonfinite)

    @lean_hooks
    @torch.no_grad()
    def step(self, outer: Closure, inner: Closure) -> Tensor:  # type: ignore[override]
        """Take one step and return the loss of ``outer``, which is called once.

        ``inner`` is called once more than the inverse needs.
        """
        oracles = self._oracles(outer, inner)
        t, (lower_power, upper_power) = self.algorithm_state["t"] + 1, self.param_groups[0]["powers"]
        with self._rollback(moves=True) as rollback:
            self._descend_lower(oracles, t**-lower_power)
            estimate, _ = self._hypergradient(oracles)
            self._move_upper(oracles, estimate, rollback, factor=t**-upper_power)
            self._count(oracles.loss)
        return oracles.loss
