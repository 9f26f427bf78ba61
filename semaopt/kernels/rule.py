"""The hyper-parameters of one step, as every implementation of the step takes them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from semaopt.estimator import Rate
from semaopt.scalings import SHB, Scaling

_ONE = SHB()


# eq=False: rules are hashed by identity, so that a path can cache what it derives from one.
@dataclass(frozen=True, eq=False)
class StepRule:
    """Arithmetic of one step of a param group.

    Optimizers make it from a param group; nothing below ``semaopt.optimizers`` reads a param group.

    Attributes:
        eta: step size; a tensor is read in the step, not before.
        gamma: weight of the newest gradient in v, 1 - beta.
        scaling: row of Table 2 that gives u.
        weight_decay: factor of x that is added to the gradient or, if decoupled, shrinks x by ``eta * weight_decay``.
        decoupled_weight_decay: whether weight decay acts on x instead of the gradient.
        clip_scaling: bounds (c_l, c_u) of s = 1/(sqrt(u) + g0), or None.
        bias_correction: whether averages start at 0 and are divided by their weight.
        maximize: whether to ascend.
        differentiable: whether to record a graph of the step.
        implementation: ``"auto"``, ``"c"``, ``"triton"``, ``"foreach"`` or ``"loop"``.
        state_dtype: dtype that the averages are stored in; None means the dtype of the arithmetic.

    >>> from semaopt.kernels import StepRule
    >>> StepRule.sgd(0.1).gamma
    1.0
    """

    eta: Rate
    gamma: Rate
    scaling: Scaling
    weight_decay: Rate = 0.0
    decoupled_weight_decay: bool = False
    clip_scaling: tuple[float, float] | None = None
    bias_correction: bool = False
    maximize: bool = False
    differentiable: bool = False
    implementation: str = "auto"
    state_dtype: torch.dtype | None = None

    @property
    def remote_rate(self) -> torch.device | None:
        """The device of a rate that the host cannot read without waiting, or None if there is none."""
        for rate in (self.eta, self.gamma):
            if isinstance(rate, torch.Tensor) and not rate.is_cpu:
                return rate.device
        return None

    @classmethod
    def sgd(cls, lr: Rate, weight_decay: Rate = 0.0) -> StepRule:
        """Return the rule of plain stochastic gradient descent: gamma = 1 and s = 1."""
        return cls(lr, 1.0, _ONE, weight_decay)
