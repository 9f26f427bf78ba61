"""PDSM and PDAda, the primal-dual methods of ``alg:pdadam``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import ParamsT

from semaopt.estimator import Rate
from semaopt.optimizers._base import rule_of
from semaopt.optimizers._hooks import grad_if_differentiable, lean_hooks
from semaopt.optimizers._minmax import MinMaxOptimizer, evaluate
from semaopt.projections import Projection
from semaopt.scalings import Scaling


def primal_dual_step(optimizer: MinMaxOptimizer, closure: Callable[[], Any] | None) -> Any:
    """Take one step of ``alg:pdadam``; return the closure's loss, or None without a closure."""
    loss = evaluate(closure)
    if not torch.compiler.is_compiling():
        optimizer._validate_step()
    if optimizer._skips():
        return loss
    for group, zs, gs in optimizer._each():
        if group["role"] == "primal":
            optimizer._descend(rule_of(group), zs, gs)  # lines 3 to 5
        else:
            optimizer._ascend(group, zs, gs, group["lr"])  # line 6
    return loss


class PDAda(MinMaxOptimizer):
    r"""Primal-dual adaptive method for :math:`\min_x\max_{y\in Y} f(x, y)` (``alg:pdadam``).

    .. math::
        v_{t+1} &= \beta v_t + (1-\beta) O_x(x_t, y_t) \\
        u_{t+1} &= h_t(O_x(x_0, y_0), \dots, O_x(x_t, y_t)) \\
        x_{t+1} &= x_t - \eta_x\, v_{t+1} / (\sqrt{u_{t+1}} + G_0) \\
        y_{t+1} &= \Pi_Y[y_t + \eta_y O_y(x_t, y_t)]

    Both gradients are taken at the same :math:`(x_t, y_t)`, so one ``backward()`` gives them. Only x is adaptive.

    Args:
        primal: x: parameters, named parameters, or dicts with ``params`` and their own ``lr``, ``beta``,
            ``scaling``, ``weight_decay``, ... Without ``dual``, one list of such dicts for both sides, each with a
            ``role``, "primal" or "dual".
        dual: y: parameters, named parameters, or dicts with ``params`` and their own ``lr`` and ``project``.
        lr: eta_x, a number or a one-element tensor.
        dual_lr: eta_y. It is the ``lr`` of the dual groups, so schedules change it together with lr and gamma.
        beta: momentum of x in [0, 1); gamma = 1 - beta is the weight of the newest gradient.
        scaling: scaling of x, as in :class:`semaopt.ASA`.
        project: projection onto Y, one of :mod:`semaopt.projections` or any callable that changes a tensor in place;
            None if y is unconstrained. Each dual tensor is projected on its own.
        weight_decay, decoupled_weight_decay, bias_correction, clip_scaling, differentiable, implementation,
            state_dtype, rounding_seed: for x, as in :class:`semaopt.ASA`.
        device_counters: keep the counters of both sides on the device, as in :class:`semaopt.ASA`.
        on_nonfinite: ``"error"`` or ``"skip"`` for gradients with NaN or Inf, on either side, as in
            :class:`semaopt.ASA`.

    A group added later must name its side: ``add_param_group({"params": ..., "role": "dual"})``.

    >>> x, y = torch.nn.Parameter(torch.tensor([1.0])), torch.nn.Parameter(torch.tensor([0.0]))
    >>> optimizer = semaopt.PDAda(primal=[x], dual=[y], lr=0.1, dual_lr=0.5, scaling="shb",
    ...                           project=semaopt.projections.Box(-1.0, 0.25))
    >>> (x.square() / 2 + x * y - y.square() / 2).sum().backward()
    >>> optimizer.step()
    >>> x.data, y.data
    (tensor([0.9000]), tensor([0.2500]))
    """

    def __init__(
        self,
        primal: ParamsT,
        dual: ParamsT | None = None,
        lr: Rate = 1e-3,
        dual_lr: Rate = 1e-2,
        beta: Rate = 0.9,
        *,
        scaling: str | Scaling = "adam",
        project: Projection | None = None,
        weight_decay: float = 0.0,
        decoupled_weight_decay: bool = False,
        bias_correction: bool = True,
        clip_scaling: tuple[float, float] | None = None,
        differentiable: bool = False,
        implementation: str = "auto",
        state_dtype: torch.dtype | None = None,
        rounding_seed: int = 0,
        device_counters: bool = False,
        on_nonfinite: str | None = None,
    ) -> None:
        defaults = dict(
            lr=lr,
            dual_lr=dual_lr,
            beta=beta,
            scaling=scaling,
            project=project,
            weight_decay=weight_decay,
            decoupled_weight_decay=decoupled_weight_decay,
            maximize=False,
            bias_correction=bias_correction,
            clip_scaling=clip_scaling,
            differentiable=differentiable,
            implementation=implementation,
            state_dtype=state_dtype,
            rounding_seed=rounding_seed,
            device_counters=device_counters,
        )
        super().__init__(primal, dual, defaults, on_nonfinite=on_nonfinite)

    @lean_hooks
    @grad_if_differentiable
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step.

        Args:
            closure: computes the loss and the gradients; its value is returned. Optional.
        """
        return primal_dual_step(self, closure)


class PDSM(MinMaxOptimizer):
    r"""Primal-dual stochastic momentum: :class:`PDAda` with the scaling SHB (``eqn:sgdama``).

    .. math::
        v_{t+1} = \beta v_t + (1-\beta) O_x(x_t, y_t), \quad x_{t+1} = x_t - \eta_x v_{t+1}, \quad
        y_{t+1} = \Pi_Y[y_t + \eta_y O_y(x_t, y_t)]

    The arguments are those of :class:`PDAda`. With ``beta=0.0`` it is :class:`semaopt.baselines.SGDA`.
    The default rates suit :class:`semaopt.losses.AUCMinMax` with its sigmoid score; other problems need their own.

    >>> x, y = torch.nn.Parameter(torch.tensor([1.0])), torch.nn.Parameter(torch.tensor([0.0]))
    >>> optimizer = semaopt.PDSM(primal=[x], dual=[y], lr=0.1, dual_lr=0.5, beta=0.9)
    >>> (x.square() / 2 + x * y - y.square() / 2).sum().backward()
    >>> optimizer.step()
    >>> x.data, y.data
    (tensor([0.9000]), tensor([0.5000]))
    """

    def __init__(
        self,
        primal: ParamsT,
        dual: ParamsT | None = None,
        lr: Rate = 0.3,
        dual_lr: Rate = 0.3,
        beta: Rate = 0.9,
        *,
        project: Projection | None = None,
        weight_decay: float = 0.0,
        decoupled_weight_decay: bool = False,
        bias_correction: bool = True,
        differentiable: bool = False,
        implementation: str = "auto",
        state_dtype: torch.dtype | None = None,
        rounding_seed: int = 0,
        device_counters: bool = False,
        on_nonfinite: str | None = None,
    ) -> None:
        defaults = dict(
            lr=lr,
            dual_lr=dual_lr,
            beta=beta,
            scaling="shb",
            project=project,
            weight_decay=weight_decay,
            decoupled_weight_decay=decoupled_weight_decay,
            maximize=False,
            bias_correction=bias_correction,
            clip_scaling=None,
            differentiable=differentiable,
            implementation=implementation,
            state_dtype=state_dtype,
            rounding_seed=rounding_seed,
            device_counters=device_counters,
        )
        super().__init__(primal, dual, defaults, on_nonfinite=on_nonfinite)

    @lean_hooks
    @grad_if_differentiable
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step.

        Args:
            closure: computes the loss and the gradients; its value is returned. Optional.
        """
        return primal_dual_step(self, closure)
