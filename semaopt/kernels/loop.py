"""The step of a param group, one parameter after the other: the definition that the fast paths agree with."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from semaopt.estimator import COUNTERS, Rate, arithmetic_dtype, average_, estimate, group_norm, real
from semaopt.kernels.rounding import round_state_
from semaopt.kernels.rule import StepRule
from semaopt.scalings import Seen


def descend_(
    x: Tensor, v: Tensor, u: Tensor | float, g0: float, eta: Rate, *, clip: tuple[float, float] | None
) -> None:
    """Compute ``x <- x - eta s v`` with ``s = 1/(sqrt(u) + g0)``, clipped to [c_l, c_u] if ``clip`` is given."""
    if isinstance(u, Tensor) and not torch.is_grad_enabled():  # temporary tensors can be overwritten
        root = u.sqrt().add_(g0)
        x.sub_((v / (root if clip is None else root.clamp_(1 / clip[1], 1 / clip[0]))).mul_(eta))
        return
    inverse_s = u**0.5 + g0
    if clip is not None:
        low, high = 1 / clip[1], 1 / clip[0]
        # SHB's u is a Python number: as a tensor it would be rounded to float32.
        inverse_s = inverse_s.clamp(low, high) if isinstance(inverse_s, Tensor) else min(max(inverse_s, low), high)
    x.sub_(v / inverse_s * eta)


def asa_(rule: StepRule, xs: list[Tensor], gs: list[Tensor], states: list[dict[str, Tensor]]) -> None:
    """Compute lines 3 to 5 of ``alg:adam`` for the parameters of one group, in place."""
    ts = [count_(m["step"]) for m in states]
    corrected = rule.bias_correction
    for m, g, t in zip(states, gs, ts, strict=True):
        average_(m, "v", g, rule.gamma, t, corrected=corrected)  # line 3

    norms: list[Tensor] = []

    def norm() -> Tensor:
        if not norms:
            norms.append(group_norm([estimate(m, "v", corrected=corrected) for m in states]))
        return norms[0]

    for x, g, m, t in zip(xs, gs, states, ts, strict=True):
        v = estimate(m, "v", corrected=corrected)
        u = rule.scaling.update_(m, Seen(g, v, t, norm, corrected))  # line 4
        descend_(x, v, u, rule.scaling.g0, rule.eta, clip=rule.clip_scaling)  # line 5


def count_(step: Tensor) -> Rate:
    """Add 1 to the step counter and return its previous value: a number if it is on the host, else a tensor."""
    t = step.item() if on_host(step) else step.clone()
    increment_(step)
    return t


def on_host(number: Tensor) -> bool:
    """Return whether the value of a tensor can be read now: it is on the CPU, and torch.compile is not tracing."""
    return number.is_cpu and not torch.compiler.is_compiling()


def increment_(step: Tensor) -> None:
    """Add 1 to a step counter."""
    # Through a view, since torch.compile loses what is written to a 0-dimensional float64 tensor.
    (step.view(1) if torch.compiler.is_compiling() else step).add_(1.0)


def loop_group(rule: StepRule, xs: list[Tensor], gs: list[Tensor], states: list[dict[str, Any]]) -> None:
    """Take one step: :func:`asa_`, plus sign, weight decay, complex numbers, storage dtypes and graph."""
    eta, decay = scalar_rate(rule.eta, xs[0]), scalar_rate(rule.weight_decay, xs[0])
    if rule.differentiable:
        for state in states:
            state.update({k: m.clone() for k, m in state.items() if k != "step"})
    ys, hs, wide = widened(xs, gs, states)
    if rule.maximize:
        hs = [-h for h in hs]
    if decay != 0 and rule.decoupled_weight_decay:
        for y in ys:
            y.mul_(1 - eta * decay)
    elif decay != 0:
        hs = [
            # alpha must be a number. If decay is differentiable, ``*`` saves its input: clone it before x.sub_.
            h + decay * y.clone() if isinstance(decay, Tensor) else h.add(y, alpha=decay)
            for h, y in zip(hs, ys, strict=True)
        ]
    asa_(rule if eta is rule.eta else replace(rule, eta=eta), ys, hs, wide)
    for x, y, state, m in zip(xs, ys, states, wide, strict=True):
        if y.dtype != real(x).dtype:
            x.copy_(y)
        round_state_(state, m)


def scalar_rate(rate: Rate, x: Tensor) -> Rate:
    """Return a tensor rate with 0 dimensions and at least the precision of x's arithmetic; a number as it is."""
    if not isinstance(rate, Tensor):
        return rate
    return rate.reshape(()).to(torch.promote_types(rate.dtype, arithmetic_dtype(real(x))))


def widened(
    xs: list[Tensor], gs: list[Tensor], states: list[dict[str, Any]]
) -> tuple[list[Tensor], list[Tensor], list[dict[str, Tensor]]]:
    """Return parameters, gradients and states as real tensors in the dtype of the arithmetic.

    They are views where the dtype is the right one already, and copies elsewhere.
    """
    ys = [real(x).to(arithmetic_dtype(real(x))) for x in xs]
    dtypes = [arithmetic_dtype(real(m["v"])) for m in states]
    hs = [real(g).to(dtype) for g, dtype in zip(gs, dtypes, strict=True)]
    wide = [
        {k: t if k in COUNTERS else real(t).to(dtype) for k, t in m.items()}
        for m, dtype in zip(states, dtypes, strict=True)
    ]
    return ys, hs, wide
