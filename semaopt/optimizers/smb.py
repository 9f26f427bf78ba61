"""SMB, the stochastic momentum method for bilevel optimization of ``alg:smb``, and its adaptive variant."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from semaopt.estimator import Rate
from semaopt.hypergradient.closures import Closure
from semaopt.hypergradient.inverses import Inverse
from semaopt.optimizers._base import options_of
from semaopt.optimizers._bilevel import BilevelOptimizer
from semaopt.optimizers._hooks import quiet
from semaopt.projections import Projection
from semaopt.scalings import Scaling


class SMB(BilevelOptimizer):
    r"""Stochastic momentum for :math:`\min_x f(x, y^*(x))`, :math:`y^*(x) = \arg\min_{y\in Y} g(x, y)` (``alg:smb``).

    .. math::
        h_{t+1} &\approx [\nabla_{yy}^2 g(x_t, y_t)]^{-1} \\
        z_{t+1} &= \beta z_t + (1-\beta)(O_{fx} - O_{gxy}\, h_{t+1} O_{fy}),
            \qquad z_0 = \text{the first estimate} \\
        x_{t+1} &= x_t - \eta_x\, z_{t+1}/(\sqrt{u_{t+1}} + G_0) \\
        y_{t+1} &= \Pi_Y[y_t - \eta_y O_{gy}(x_t, y_t)]

    With the scaling ``"shb"`` it is the paper's SMB, with another its adaptive variant.

    Args:
        upper: x: parameters, named parameters, or dicts with ``params`` and their own ``lr``, ``beta``, ``scaling``.
        lower: y: the same, a dict with its own ``lr``, ``weight_decay`` and ``project``.
        lr: eta_x, a number or a one-element tensor.
        lower_lr: eta_y; it is the ``lr`` of the lower groups, so schedules move it with lr and gamma.
        beta: momentum of the hypergradient in [0, 1); with 0.0 a step uses the fresh estimate alone.
        scaling: of x, as in :class:`semaopt.ASA`.
        inverse: how :math:`[g_{yy}]^{-1}` is applied, one of :mod:`semaopt.hypergradient`: ``TrackedSystem()`` (the
            default), ``Neumann(terms, bound)`` (the paper's), ``NeumannSeries``, ``CG``, ``Exact``.
        lower_weight_decay: adds :math:`\frac\lambda2|y|^2` to g, in closed form: the same as in ``inner()``, at a
            third less time for a linear model.
        project: onto Y, one of :mod:`semaopt.projections` or any callable that maps a tensor in place. Each lower
            tensor is projected on its own.
        weight_decay, decoupled_weight_decay, bias_correction, clip_scaling: of x, as in :class:`semaopt.ASA`.
        process_group: averages every gradient and product over its ranks (``torch.distributed.group.WORLD``), so that
            ranks with their own batches take the step of one process on the joint batch. The closures use the bare
            module, not ``DistributedDataParallel``.
        on_nonfinite: what to do when a loss of ``outer``, a derivative or the estimate holds NaN or Inf. None takes the
            step, but refuses such a loss. ``"error"`` says where. ``"skip"`` leaves the step out, counts it in
            ``skipped_steps`` and returns the loss. Either way variables, averages, counters and what the inverse
            carries are as before; the samples are used up.

    After a step ``x.grad`` holds its hypergradient estimate.

    >>> x, y = torch.nn.Parameter(torch.tensor([1.0])), torch.nn.Parameter(torch.tensor([1.0]))
    >>> optimizer = semaopt.SMB(upper=[x], lower=[y], lr=0.1, lower_lr=0.5, inverse=semaopt.hypergradient.Exact())
    >>> def outer():                           # f = y^2/2 + x^2/2
    ...     return (y.square() + x.square()).sum() / 2
    >>> def inner():                           # y*(x) = x, so F(x) = x^2
    ...     return (y - x).square().sum() / 2
    >>> optimizer.step(outer, inner)
    tensor(1.)
    >>> x.data, x.grad
    (tensor([0.8000]), tensor([2.]))
    """

    def __init__(
        self,
        upper: ParamsT,
        lower: ParamsT,
        lr: Rate = 1e-2,
        lower_lr: Rate = 1e-1,
        beta: Rate = 0.9,
        *,
        scaling: str | Scaling = "shb",
        inverse: Inverse | None = None,
        lower_weight_decay: float = 0.0,
        project: Projection | None = None,
        weight_decay: float = 0.0,
        decoupled_weight_decay: bool = False,
        bias_correction: bool = False,
        clip_scaling: tuple[float, float] | None = None,
        process_group: Any = None,
        on_nonfinite: str | None = None,
    ) -> None:
        given = options_of(locals())
        super().__init__(upper, lower, given)

    @quiet
    @torch.no_grad()
    def step(self, outer: Closure, inner: Closure) -> Tensor:  # type: ignore[override]
        """One step; returns the loss that ``outer`` computed.

        Args:
            outer: () -> f(x, y), on a fresh sample at each call; called once.
            inner: () -> g(x, y), on a fresh sample at each call; called as often as the inverse says.
        """
        oracles = self._oracles(outer, inner)
        with self._all_or_nothing():
            _, estimate, g_y = self._hypergradient(oracles)  # lines 3, 4
            self._move_upper(oracles, estimate)  # lines 5, 6
            self._move_lower(g_y)  # line 7, with the sign that descends
            self._count()
        return oracles.loss
