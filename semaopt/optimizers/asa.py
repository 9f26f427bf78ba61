"""ASA, the adaptive stochastic algorithms of ``alg:adam``: one method, six scalings and your own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch.optim.optimizer import ParamsT

from semaopt.estimator import Rate
from semaopt.kernels import dispatch
from semaopt.optimizers._base import SemaOptimizer, require_dense, rule_of
from semaopt.optimizers._hooks import grad_if_differentiable, lean_hooks
from semaopt.scalings import Scaling


class ASA(SemaOptimizer):
    r"""Adaptive stochastic algorithms with the moving-average gradient (``alg:adam``).

    .. math::
        v_{t+1} &= \beta_t v_t + (1-\beta_t) O_F(x_t) \\
        u_{t+1} &= h_t(O_F(x_0), \dots, O_F(x_t)) \\
        x_{t+1} &= x_t - \eta_t\, v_{t+1} / (\sqrt{u_{t+1}} + G_0)

    ``group["lr"]`` is :math:`\eta_t` and ``group["beta"]`` is :math:`\beta_t`; the schedules of
    :mod:`semaopt.schedules` change them together.

    Args:
        params: parameters, named parameters, or dicts with ``params`` and their own hyper-parameters.
        lr: step size eta, a number or a one-element tensor.
        beta: momentum in [0, 1); gamma = 1 - beta is the weight of the newest gradient.
        scaling: ``"shb" "adam" "amsgrad" "adafom" "adam+" "adabound"``, one of :mod:`semaopt.scalings`, or
            a custom object with the attributes of :class:`semaopt.scalings.Scaling`.
        weight_decay: factor of x that is added to the gradient or, with ``decoupled_weight_decay``, shrinks x by
            ``lr * weight_decay`` as AdamW does.
        decoupled_weight_decay: whether weight decay acts on x instead of the gradient.
        maximize: whether to ascend.
        bias_correction: start v and u at 0 and divide them by ``1 - prod(beta_i)``, which is exact even when beta
            changes. False is the paper's start :math:`v_0 = O_F(x_0)`, which gives the first gradient the weight
            ``prod(beta_i)``: on networks it ends with a loss 1 to 10% higher.
        clip_scaling: bounds ``(c_l, c_u)`` of s = 1/(sqrt(u) + G0), the remedy where ``ass:2`` fails; None does not
            clip.
        differentiable: let gradients flow through the step, at the cost of copies.
        implementation: ``"auto"`` takes the fastest supported path: ``"c"``, the compiled step for plain CPU
            tensors (see :func:`semaopt.kernels.available`); ``"triton"``, one kernel for plain CUDA tensors;
            ``"foreach"``, on any device and inside torch.compile; ``"loop"``, the readable definition, for everything
            else. A path that does not support a parameter raises an error with the reason.
        state_dtype: ``torch.bfloat16`` stores v and u of float32 and bf16 parameters in bf16 with stochastic rounding:
            half the memory of the averages, and a faster step where memory is the limit.
        rounding_seed: seed of that rounding; ranks that train one model together must share it.
        device_counters: keep step counts and bias weights on the device of the parameters, so that a CUDA graph can
            capture the step, as with torch's ``capturable=True``. Pass ``lr`` and ``beta`` as tensors on that device
            if they change between replays. On the CPU it changes nothing. Not saved in the state dict.
        on_nonfinite: policy for a gradient with NaN or Inf. None (default) does not search for them. ``"error"``
            raises an error that names the parameter. ``"skip"`` skips the step, counts it in ``skipped_steps``, runs
            no post-hooks and returns the closure's loss. In both cases no parameter, average or counter of any group
            has changed. This option is not saved in the state dict.

    bf16 and float16 parameters keep v and u in float32. Complex parameters are treated as pairs of reals. Sparse
    gradients are refused.

    >>> x = torch.nn.Parameter(torch.tensor([1.0, -2.0]))
    >>> optimizer = semaopt.ASA([x], lr=0.1, beta=0.9, scaling="shb")
    >>> x.square().sum().backward()
    >>> optimizer.step()
    >>> x.data
    tensor([ 0.8000, -1.6000])
    """

    #: Whether every parameter moves in :func:`semaopt.kernels.dispatch.run`, which updates averages of iterates.
    updates_averages: ClassVar[bool] = True

    def __init__(
        self,
        params: ParamsT,
        lr: Rate = 1e-3,
        beta: Rate = 0.9,
        scaling: str | Scaling = "adam",
        *,
        weight_decay: float = 0.0,
        decoupled_weight_decay: bool = False,
        maximize: bool = False,
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
            beta=beta,
            scaling=scaling,
            weight_decay=weight_decay,
            decoupled_weight_decay=decoupled_weight_decay,
            maximize=maximize,
            bias_correction=bias_correction,
            clip_scaling=clip_scaling,
            differentiable=differentiable,
            implementation=implementation,
            state_dtype=state_dtype,
            rounding_seed=rounding_seed,
            device_counters=device_counters,
        )
        super().__init__(params, defaults, on_nonfinite=on_nonfinite)

    @lean_hooks
    @grad_if_differentiable
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step.

        Args:
            closure: computes the loss and the gradients; its value is returned. Optional.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self._skips():
            return loss
        for group, xs, gs, states in self._ready():
            try:
                dispatch.run(rule_of(group), xs, gs, states)
            except dispatch.SparseGradientError:
                require_dense(group, xs, gs, 0)  # raises an error that names the parameter
        return loss
