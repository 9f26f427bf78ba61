"""SMB, the stochastic momentum method for bilevel optimization of ``alg:smb``, and its adaptive variant."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.optim.optimizer import ParamsT

from semaopt.estimator import Rate
from semaopt.hypergradient.closures import Closure
from semaopt.hypergradient.inverses import Inverse
from semaopt.optimizers._base import FIXED
from semaopt.optimizers._bilevel import BilevelOptimizer
from semaopt.optimizers._hooks import grad_if_differentiable, lean_hooks
from semaopt.projections import Projection
from semaopt.scalings import Scaling


class SMB(BilevelOptimizer):
    r"""Stochastic momentum for :math:`\min_x f(x, y^*(x))`, :math:`y^*(x) = \arg\min_{y\in Y} g(x, y)` (``alg:smb``).

    .. math::
        h_{t+1} &\approx [\nabla_{yy}^2 g(x_t, y_t)]^{-1} \\
        z_{t+1} &= \beta z_t + (1-\beta)(O_{fx} - O_{gxy}\, h_{t+1} O_{fy}) \\
        x_{t+1} &= x_t - \eta_x\, z_{t+1}/(\sqrt{u_{t+1}} + G_0) \\
        y_{t+1} &= \Pi_Y[y_t - \eta_y O_{gy}(x_t, y_t)]

    The scaling ``"shb"`` gives the paper's SMB, any other scaling its adaptive variant.

    Args:
        upper: x: parameters, named parameters, or dicts with ``params`` and their own ``lr``, ``beta``, ``scaling``.
            Without ``lower``, one list of such dicts for both levels, each with a ``role``, "upper" or "lower".
        lower: y: parameters, named parameters, or dicts with ``params`` and their own ``lr``, ``weight_decay`` and
            ``project``.
        lr: eta_x, a number or a one-element tensor.
        lower_lr: eta_y. It is the ``lr`` of the lower groups, so schedules change it together with lr and gamma.
        beta: momentum of the hypergradient in [0, 1); with 0.0 a step uses only the newest estimate.
        scaling: scaling of x, as in :class:`semaopt.ASA`.
        inverse: how to apply :math:`[g_{yy}]^{-1}`, one of :mod:`semaopt.hypergradient`: ``TrackedSystem()`` (the
            default), ``Neumann(terms, bound)`` (the paper's), ``NeumannSeries``, ``CG``, ``Exact``, and ``FirstOrder``,
            which needs no second derivatives.
        lower_weight_decay: lambda of a term :math:`\frac\lambda2|y|^2` that is added to g in closed form. The result
            is the same as with this term in ``inner()``; for a linear model a step takes a third less time.
        project: projection onto Y, one of :mod:`semaopt.projections` or any callable that changes a tensor in place.
            Each lower tensor is projected on its own.
        weight_decay, decoupled_weight_decay, bias_correction, clip_scaling: for x, as in :class:`semaopt.ASA`.
        process_group: ranks over which every gradient and product is averaged (``torch.distributed.group.WORLD``), so
            that ranks with their own batches take the step of one process on the joint batch. The closures must use
            the bare module, not ``DistributedDataParallel``.
        on_nonfinite: policy for a loss of ``outer``, a derivative or an estimate with NaN or Inf. None takes the
            step, but raises an error for such a loss. ``"error"`` says where. ``"skip"`` skips the step, counts it in
            ``skipped_steps``, runs no post-hooks and returns the loss. In both cases variables, averages, counters
            and the memory of the inverse are unchanged; the samples are used up.

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
        lower: ParamsT | None = None,
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
        bias_correction: bool = True,
        clip_scaling: tuple[float, float] | None = None,
        process_group: Any = None,
        on_nonfinite: str | None = None,
    ) -> None:
        defaults = dict(
            FIXED,
            lr=lr,
            lower_lr=lower_lr,
            beta=beta,
            scaling=scaling,
            inverse=inverse,
            lower_weight_decay=lower_weight_decay,
            project=project,
            weight_decay=weight_decay,
            decoupled_weight_decay=decoupled_weight_decay,
            bias_correction=bias_correction,
            clip_scaling=clip_scaling,
        )
        super().__init__(upper, lower, defaults, process_group=process_group, on_nonfinite=on_nonfinite)

    @lean_hooks
    @grad_if_differentiable
    def step(self, outer: Closure, inner: Closure) -> Tensor:  # type: ignore[override]
        """Take one step and return the loss that ``outer`` computed.

        Args:
            outer: () -> f(x, y), on a fresh sample at each call; called once.
            inner: () -> g(x, y), on a fresh sample at each call; the inverse determines how often it is called.
        """
        oracles = self._oracles(outer, inner)
        with self._rollback() as rollback:
            estimate, g_y = self._hypergradient(oracles)  # lines 3, 4
            self._move_upper(oracles, estimate, rollback)  # lines 5, 6
            self._move_lower(g_y)  # line 7, with the sign that descends
            self._count(oracles.loss)
        return oracles.loss
