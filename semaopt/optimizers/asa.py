"""ASA, the adaptive stochastic algorithms of ``alg:adam``: one method, six scalings and your own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT, _use_grad_for_differentiable

from semaopt.estimator import COUNTERS, Rate, arithmetic_dtype, group_norm, real, sema_
from semaopt.kernels import dispatch
from semaopt.kernels.rounding import round_state_
from semaopt.optimizers._base import SemaOptimizer, options_of
from semaopt.optimizers._hooks import quiet
from semaopt.scalings import Scaling, Seen


class Rates(NamedTuple):
    """The numbers of one step of one group."""

    eta: Rate
    gamma: Rate
    clip: tuple[float, float] | None = None
    corrected: bool = False


def descend_(
    x: Tensor, v: Tensor, u: Tensor | float, g0: float, eta: Rate, *, clip: tuple[float, float] | None
) -> None:
    """``x <- x - eta s v`` with ``s = 1/(sqrt(u) + g0)``, held in [c_l, c_u] if asked for."""
    inverse_s = u**0.5 + g0
    if clip is not None:
        low, high = 1 / clip[1], 1 / clip[0]
        # SHB's u is a Python number: as a tensor it would be rounded to float32.
        inverse_s = inverse_s.clamp(low, high) if isinstance(inverse_s, Tensor) else min(max(inverse_s, low), high)
    x.sub_(v / inverse_s * eta)


def asa_(xs: list[Tensor], gs: list[Tensor], states: list[dict[str, Tensor]], scaling: Scaling, rates: Rates) -> None:
    """Lines 3 to 5 of ``alg:adam`` for the parameters of one group, in place."""
    ts = [count_(m["step"]) for m in states]
    vs = [
        sema_(m, "v", g, rates.gamma, t, corrected=rates.corrected)  # line 3
        for m, g, t in zip(states, gs, ts, strict=True)
    ]
    norms: list[Tensor] = []

    def norm() -> Tensor:
        if not norms:
            norms.append(group_norm(vs))
        return norms[0]

    for x, g, m, v, t in zip(xs, gs, states, vs, ts, strict=True):
        u = scaling.update_(m, Seen(g, v, t, norm, rates.corrected))  # line 4
        descend_(x, v, u, scaling.g0, rates.eta, clip=rates.clip)  # line 5


def count_(step: Tensor) -> Rate:
    """The number of steps before this one; adds this one. A tensor only inside torch.compile."""
    t = step.clone() if torch.compiler.is_compiling() else step.item()
    step += 1
    return t


class ASA(SemaOptimizer):
    r"""Adaptive stochastic algorithms with the moving-average gradient (``alg:adam``).

    .. math::
        v_{t+1} &= \beta_t v_t + (1-\beta_t) O_F(x_t),  \qquad v_0 = O_F(x_0) \\
        u_{t+1} &= h_t(O_F(x_0), \dots, O_F(x_t)) \\
        x_{t+1} &= x_t - \eta_t\, v_{t+1} / (\sqrt{u_{t+1}} + G_0)

    ``group["lr"]`` is :math:`\eta_t` and ``group["beta"]`` is :math:`\beta_t`; the schedules of
    :mod:`semaopt.schedules` move them together.

    Args:
        params: parameters, named parameters, or dicts with ``params`` and their own hyper-parameters.
        lr: step size eta, a number or a one-element tensor.
        beta: momentum in [0, 1); gamma = 1 - beta weighs the newest gradient.
        scaling: ``"shb" "adam" "amsgrad" "adafom" "adam+" "adabound"``, one of :mod:`semaopt.scalings`, or
            an object of your own with the members of :class:`semaopt.scalings.Scaling`.
        weight_decay: adds ``weight_decay * x`` to the gradient, or, with ``decoupled_weight_decay``, shrinks x
            by ``lr * weight_decay`` as AdamW does.
        maximize: ascend instead.
        bias_correction: start v and u at 0 and divide by ``1 - prod(beta_i)`` (the "folklore" Adam, exact also
            when beta changes) instead of starting them at the first sample.
        clip_scaling: ``(c_l, c_u)`` holds s = 1/(sqrt(u) + G0) between them (the remedy where ``ass:2`` fails).
        differentiable: let gradients flow through the step, at the cost of copies.
        implementation: ``"auto"`` takes the fastest path that serves: ``"c"``, the compiled step for plain CPU tensors
            (see :func:`semaopt.kernels.available`); ``"foreach"``, on any device and inside torch.compile; ``"loop"``,
            the readable definition, for everything else. Naming one that cannot serve is an error that says why.
        state_dtype: ``torch.bfloat16`` keeps v and u of float32 and bf16 parameters in bf16, rounded at random so that
            they are right in the mean: half the memory of the averages, and a faster step where memory is the limit.
        rounding_seed: of that rounding; ranks that train one model together must share it.
        on_nonfinite: what to do when a gradient holds NaN or Inf. None does not look. ``"error"`` names the parameter.
            ``"skip"`` leaves the step out, counts it in ``skipped_steps`` and returns the closure's loss. Either way
            no parameter, average or counter of any group has changed. It is this object's: no state dict holds it.

    bf16 and float16 parameters keep v and u in float32. Complex parameters are pairs of reals. Sparse gradients
    are refused.

    >>> x = torch.nn.Parameter(torch.tensor([1.0, -2.0]))
    >>> optimizer = semaopt.ASA([x], lr=0.1, beta=0.9, scaling="shb")
    >>> x.square().sum().backward()
    >>> optimizer.step()
    >>> x.data
    tensor([ 0.8000, -1.6000])
    """

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
        bias_correction: bool = False,
        clip_scaling: tuple[float, float] | None = None,
        differentiable: bool = False,
        implementation: str = "auto",
        state_dtype: torch.dtype | None = None,
        rounding_seed: int = 0,
        on_nonfinite: str | None = None,
    ) -> None:
        defaults = options_of(locals())
        super().__init__(params, defaults)

    @quiet
    @_use_grad_for_differentiable
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step; ``closure``, if given, computes the loss and the gradients first and its value is returned."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self._leaves_out():
            return loss
        for group, xs, gs, states in self._ready():
            step_group(group, xs, gs, states)
        return loss


def step_group(group: dict[str, Any], xs: list[Tensor], gs: list[Tensor], states: list[dict[str, Any]]) -> None:
    """One step of one param group, on the path that :mod:`semaopt.kernels.dispatch` chooses."""
    dispatch.run(group, xs, gs, states, loop_group)


def loop_group(group: dict[str, Any], xs: list[Tensor], gs: list[Tensor], states: list[dict[str, Any]]) -> None:
    """A param group's options around :func:`asa_`: sign, weight decay, complex numbers, dtypes, graph.

    This is the definition of the step; the fast paths of :mod:`semaopt.kernels` agree with it to rounding.
    """
    eta, decay = (scalar_rate(group[name], xs[0]) for name in ("lr", "weight_decay"))
    if group["differentiable"]:
        for state in states:
            state.update({k: m.clone() for k, m in state.items() if k != "step"})
    ys, hs, wide = widened(xs, gs, states)
    if group["maximize"]:
        hs = [-h for h in hs]
    if decay != 0 and group["decoupled_weight_decay"]:
        for y in ys:
            y.mul_(1 - eta * decay)
    elif decay != 0:
        hs = [
            # alpha must be a number; the clone leaves what * saved for a differentiable decay untouched by the step.
            h + decay * y.clone() if isinstance(decay, Tensor) else h.add(y, alpha=decay)
            for h, y in zip(hs, ys, strict=True)
        ]
    rates = Rates(eta, 1 - group["beta"], group["clip_scaling"], group["bias_correction"])
    asa_(ys, hs, wide, group["scaling"], rates)
    for x, y, state, m in zip(xs, ys, states, wide, strict=True):
        if y.dtype != real(x).dtype:
            x.copy_(y)
        round_state_(state, m)


def scalar_rate(rate: Rate, x: Tensor) -> Rate:
    """A tensor of shape (1,) must not give a 0-dimensional x a dimension, nor one in float32 round what is float64."""
    if not isinstance(rate, Tensor):
        return rate
    return rate.reshape(()).to(torch.promote_types(rate.dtype, arithmetic_dtype(real(x))))


def widened(
    xs: list[Tensor], gs: list[Tensor], states: list[dict[str, Any]]
) -> tuple[list[Tensor], list[Tensor], list[dict[str, Tensor]]]:
    """Parameters, gradients and states as reals in the dtype of the arithmetic: views, or copies where they are not."""
    ys = [real(x).to(arithmetic_dtype(real(x))) for x in xs]
    dtypes = [arithmetic_dtype(real(m["v"])) for m in states]
    hs = [real(g).to(dtype) for g, dtype in zip(gs, dtypes, strict=True)]
    wide = [
        {k: t if k in COUNTERS else real(t).to(dtype) for k, t in m.items()}
        for m, dtype in zip(states, dtypes, strict=True)
    ]
    return ys, hs, wide
