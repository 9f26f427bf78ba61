"""PDSM and PDAda, the primal-dual methods of ``alg:pdadam``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.optim.optimizer import ParamsT, _use_grad_for_differentiable

from semaopt.estimator import Rate
from semaopt.optimizers._base import options_of
from semaopt.optimizers._hooks import quiet
from semaopt.optimizers._minmax import MinMaxOptimizer, evaluate
from semaopt.optimizers.asa import step_group
from semaopt.projections import Projection
from semaopt.scalings import Scaling


class PDAda(MinMaxOptimizer):
    r"""Primal-dual adaptive method for :math:`\min_x\max_{y\in Y} f(x, y)` (``alg:pdadam``).

    .. math::
        v_{t+1} &= \beta v_t + (1-\beta) O_x(x_t, y_t),  \qquad v_0 = O_x(x_0, y_0) \\
        u_{t+1} &= h_t(O_x(x_0, y_0), \dots, O_x(x_t, y_t)) \\
        x_{t+1} &= x_t - \eta_x\, v_{t+1} / (\sqrt{u_{t+1}} + G_0) \\
        y_{t+1} &= \Pi_Y[y_t + \eta_y O_y(x_t, y_t)]

    Both gradients are taken at the same :math:`(x_t, y_t)`: one ``backward()`` gives them. Only x is adaptive.

    Args:
        primal: x: parameters, named parameters, or dicts with ``params`` and their own ``lr``, ``beta``,
            ``scaling``, ``weight_decay``, ...
        dual: y: the same, a dict with its own ``lr`` and ``project``.
        lr: eta_x, a number or a one-element tensor.
        dual_lr: eta_y; it is the ``lr`` of the dual groups, so schedules move it with lr and gamma.
        beta: momentum of x in [0, 1); gamma = 1 - beta weighs the newest gradient.
        scaling: of x, as in :class:`semaopt.ASA`.
        project: onto Y, one of :mod:`semaopt.projections` or any callable that maps a tensor in place; None where
            y is free. Each dual tensor is projected on its own.
        weight_decay, decoupled_weight_decay, bias_correction, clip_scaling, differentiable: of x, as in
            :class:`semaopt.ASA`.
        on_nonfinite: ``"error"`` or ``"skip"`` for gradients with NaN or Inf, on either side, as in
            :class:`semaopt.ASA`.

    A group added later says its side: ``add_param_group({"params": ..., "role": "dual"})``.

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
        dual: ParamsT,
        lr: Rate = 1e-3,
        dual_lr: Rate = 1e-2,
        beta: Rate = 0.9,
        *,
        scaling: str | Scaling = "adam",
        project: Projection | None = None,
        weight_decay: float = 0.0,
        decoupled_weight_decay: bool = False,
        bias_correction: bool = False,
        clip_scaling: tuple[float, float] | None = None,
        differentiable: bool = False,
        on_nonfinite: str | None = None,
    ) -> None:
        given = options_of(locals())
        super().__init__(primal, dual, given)

    @quiet
    @_use_grad_for_differentiable
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step; ``closure``, if given, computes the loss and the gradients first and its value is returned."""
        loss = evaluate(closure)
        self._check_step()
        if self._leaves_out():
            return loss
        for group, zs, gs in self._each():
            if group["role"] == "primal":
                step_group(group, zs, gs, [self.state[x] for x in zs])  # lines 3 to 5
            else:
                self._ascend(group, zs, gs, group["lr"])  # line 6
        return loss


class PDSM(PDAda):
    r"""Primal-dual stochastic momentum: :class:`PDAda` with the scaling SHB (``eqn:sgdama``).

    .. math::
        v_{t+1} = \beta v_t + (1-\beta) O_x(x_t, y_t), \quad x_{t+1} = x_t - \eta_x v_{t+1}, \quad
        y_{t+1} = \Pi_Y[y_t + \eta_y O_y(x_t, y_t)]

    The arguments are those of :class:`PDAda`. With ``beta=0.0`` it is :class:`semaopt.baselines.SGDA`.

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
        dual: ParamsT,
        lr: Rate = 1e-3,
        dual_lr: Rate = 1e-2,
        beta: Rate = 0.9,
        *,
        project: Projection | None = None,
        weight_decay: float = 0.0,
        decoupled_weight_decay: bool = False,
        bias_correction: bool = False,
        differentiable: bool = False,
        on_nonfinite: str | None = None,
    ) -> None:
        given = options_of(locals())
        super().__init__(primal, dual, scaling="shb", **given)
