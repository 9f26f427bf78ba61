"""SGDA, stochastic gradient descent ascent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import ParamsT

from semaopt.estimator import Rate
from semaopt.kernels import StepRule
from semaopt.optimizers._hooks import lean_hooks
from semaopt.optimizers._minmax import MinMaxOptimizer, evaluate
from semaopt.projections import Projection


class SGDA(MinMaxOptimizer):
    r"""Stochastic gradient descent ascent; :class:`semaopt.PDSM` with gamma = 1.

    .. math:: x_{t+1} = x_t - \eta_x O_x(x_t, y_t), \qquad y_{t+1} = \Pi_Y[y_t + \eta_y O_y(x_t, y_t)]

    Args:
        primal, dual, lr, dual_lr, project: as in :class:`semaopt.PDAda`.
        weight_decay: factor of x that is added to the primal gradient.
        on_nonfinite: ``"error"`` or ``"skip"`` for gradients with NaN or Inf, as in :class:`semaopt.PDAda`.

    Reference: Lin, Jin and Jordan, "On Gradient Descent Ascent for Nonconvex-Concave Minimax Problems", ICML 2020.

    >>> x, y = torch.nn.Parameter(torch.tensor([1.0])), torch.nn.Parameter(torch.tensor([0.0]))
    >>> optimizer = semaopt.baselines.SGDA(primal=[x], dual=[y], lr=0.1, dual_lr=0.5)
    >>> (x.square() / 2 + x * y - y.square() / 2).sum().backward()
    >>> optimizer.step()
    >>> x.data, y.data
    (tensor([0.9000]), tensor([0.5000]))
    """

    def __init__(
        self,
        primal: ParamsT,
        dual: ParamsT | None = None,
        lr: Rate = 1e-3,
        dual_lr: Rate = 1e-2,
        *,
        project: Projection | None = None,
        weight_decay: float = 0.0,
        on_nonfinite: str | None = None,
    ) -> None:
        defaults = dict(lr=lr, dual_lr=dual_lr, beta=None, project=project, weight_decay=weight_decay)
        super().__init__(primal, dual, defaults, on_nonfinite=on_nonfinite)

    @lean_hooks
    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step.

        Args:
            closure: computes the loss and the gradients; its value is returned. Optional.
        """
        loss = evaluate(closure)
        self._validate_step()
        if self._skips():
            return loss
        for group, zs, gs in self._each():
            if group["role"] == "primal":
                self._descend(StepRule.sgd(group["lr"], group["weight_decay"]), zs, gs)
            else:
                self._ascend(group, zs, gs, group["lr"])
        return loss
