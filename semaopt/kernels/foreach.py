"""The step of a param group with ``torch._foreach_*``: any device, and few kernels under torch.compile.

The rows of Table 2 stand side by side as in :mod:`semaopt.scalings`, each for a whole list of tensors. The slow twin
is :func:`semaopt.kernels.loop.loop_group`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from semaopt import scalings
from semaopt.estimator import Rate, arithmetic_dtype, group_norm, largest, one_or, scalar
from semaopt.kernels.loop import scalar_rate
from semaopt.kernels.rounding import round_state_
from semaopt.kernels.rule import StepRule

Tensors = list[Tensor]
#: One number for all tensors of a bucket or, when traced, one 0-dimensional tensor per tensor.
Numbers = float | Tensors


class Bucket:
    """Parameters on one device with equal dtypes and, unless traced, equal counters."""

    def __init__(self) -> None:
        self.xs: Tensors = []
        self.gs: Tensors = []
        self.states: list[dict[str, Tensor]] = []

    def widen(self, rule: StepRule) -> None:
        """Convert everything to the dtype of the arithmetic, and count the step."""
        self.corrected, names = rule.bias_correction, ("v", *rule.scaling.buffers)
        self.dtype = arithmetic_dtype(self.states[0]["v"])
        self.ys = [x.to(arithmetic_dtype(x)) for x in self.xs]
        self.hs = [g.to(self.dtype) for g in self.gs]
        self.m = {name: [state[name].to(self.dtype) for state in self.states] for name in names}
        steps = [state["step"] for state in self.states]
        self.t: Numbers = [step.clone() for step in steps] if torch.compiler.is_compiling() else steps[0].item()
        # Through views: torch.compile loses what is written to a 0-dimensional float64 tensor.
        torch._foreach_add_([step.view(1) for step in steps], 1.0)

    def decay_(self, rule: StepRule) -> None:
        """Apply the sign and the weight decay."""
        eta, decay = _number(rule.eta, self.ys[0]), _number(rule.weight_decay, self.ys[0])
        if rule.maximize:
            self.hs = list(torch._foreach_neg(self.hs))
        if decay != 0 and rule.decoupled_weight_decay:
            torch._foreach_mul_(self.ys, 1 - eta * decay)
        elif decay != 0:
            penalties = torch._foreach_mul([y.to(self.dtype) for y in self.ys], decay)
            self.hs = list(torch._foreach_add(self.hs, penalties))

    def sema_(self, name: str, samples: Tensors, gamma: Rate) -> Tensors:
        """Do what :func:`semaopt.estimator.sema_` does, for a list of tensors."""
        if self.corrected:
            weights = [state[f"{name}_weight"].view(1) for state in self.states]
            _lerp_(weights, [torch.ones_like(w) for w in weights], gamma)
            _lerp_(self.m[name], samples, gamma)
            return list(torch._foreach_div(self.m[name], self.weight(name)))
        if isinstance(self.t, list):
            _lerp_(self.m[name], samples, [scalar(one_or(gamma, t, samples[0]), samples[0]) for t in self.t])
        else:
            _lerp_(self.m[name], samples, 1.0 if self.t == 0 else gamma)
        return self.m[name]

    def squares(self) -> Tensors:
        """Return what :func:`semaopt.estimator.square` returns, for a list of tensors."""
        squares = list(torch._foreach_mul(self.hs, self.hs))
        torch._foreach_clamp_max_(squares, largest(self.hs[0]))
        return squares

    def weight(self, name: str) -> Numbers:
        """Return the average of the constant 1 that corrects ``m[name]``."""
        weights = [state[f"{name}_weight"] for state in self.states]
        if torch.compiler.is_compiling():
            return [scalar(w, self.m[name][0]) for w in weights]
        return weights[0].item()

    def narrow(self) -> None:
        """Write back into parameters and states that are stored in fewer bits."""
        for x, y in zip(self.xs, self.ys, strict=True):
            if y is not x:
                x.copy_(y)
        for i, state in enumerate(self.states):
            round_state_(state, {name: averages[i] for name, averages in self.m.items()})


def foreach_group(rule: StepRule, xs: Tensors, gs: Tensors, states: list[dict[str, Any]]) -> None:
    """Take one step under a rule whose scaling is in ``SCALINGS``."""
    buckets = _buckets(xs, gs, states)
    vs = []
    for bucket in buckets:
        bucket.widen(rule)
        bucket.decay_(rule)
        vs.append(bucket.sema_("v", bucket.hs, _number(rule.gamma, bucket.ys[0])))  # line 3
    for bucket, v in zip(buckets, vs, strict=True):
        u = SCALINGS[type(rule.scaling)](rule.scaling, bucket, vs)  # line 4
        _descend_(bucket.ys, v, u, rule)  # line 5
        bucket.narrow()


def _buckets(xs: Tensors, gs: Tensors, states: list[dict[str, Any]]) -> list[Bucket]:
    found: dict[tuple[Any, ...], Bucket] = {}
    for x, g, state in zip(xs, gs, states, strict=True):
        key: tuple[Any, ...] = (x.device, x.dtype, state["v"].dtype)
        if not torch.compiler.is_compiling():
            key = (*key, *(state[name].item() for name in ("step", "v_weight", "u_weight") if name in state))
        bucket = found.setdefault(key, Bucket())
        bucket.xs.append(x)
        bucket.gs.append(g)
        bucket.states.append(state)
    return list(found.values())


def _number(rate: Rate, x: Tensor) -> Rate:
    """Return a tensor rate as a number; in a trace, as a tensor with at least the precision of x's arithmetic."""
    if isinstance(rate, Tensor) and not torch.compiler.is_compiling():
        return rate.item()
    return scalar_rate(rate, x)


def _lerp_(v: Tensors, samples: Tensors, gamma: Numbers | Tensor) -> None:
    if isinstance(gamma, float):
        torch._foreach_lerp_(v, samples, gamma)
        return
    moves = torch._foreach_sub(samples, v)
    torch._foreach_mul_(moves, gamma)
    torch._foreach_add_(v, moves)


def _descend_(xs: Tensors, v: Tensors, u: Tensors | Tensor | float, rule: StepRule) -> None:
    """Do what :func:`semaopt.kernels.loop.descend_` does, for a list of tensors."""
    eta, g0, clip = _number(rule.eta, xs[0]), rule.scaling.g0, rule.clip_scaling
    if not isinstance(u, list):  # one number for all coordinates
        # A Python number as a tensor of torch's default dtype would be rounded to float32.
        u = u if isinstance(u, Tensor) else torch.full((), u, dtype=v[0].dtype, device=v[0].device)
        inverse_s = u**0.5 + g0
        inverse_s = inverse_s if clip is None else inverse_s.clamp(1 / clip[1], 1 / clip[0])
        moves = torch._foreach_mul(v, inverse_s.reciprocal().to(v[0].dtype))
    else:
        denominators = torch._foreach_sqrt(u)
        torch._foreach_add_(denominators, g0)
        if clip is not None:
            torch._foreach_clamp_min_(denominators, 1 / clip[1])
            torch._foreach_clamp_max_(denominators, 1 / clip[0])
        if isinstance(eta, float):
            torch._foreach_addcdiv_(xs, v, denominators, value=-eta)
            return
        moves = torch._foreach_div(v, denominators)
    torch._foreach_mul_(moves, eta)
    torch._foreach_sub_(xs, moves)


# ---- the rows of Table 2 -------------------------------------------------------------------------------------------


def _shb(row: scalings.SHB, b: Bucket, vs: list[Tensors]) -> float:
    return 1.0


def _adam(row: scalings.Adam, b: Bucket, vs: list[Tensors]) -> Tensors:
    return b.sema_("u", b.squares(), 1 - row.beta2)


def _amsgrad(row: scalings.AMSGrad, b: Bucket, vs: list[Tensors]) -> Tensors:
    b.sema_("u", b.squares(), 1 - row.beta2)
    torch._foreach_maximum_(b.m["u_max"], b.m["u"])
    return list(torch._foreach_div(b.m["u_max"], b.weight("u"))) if b.corrected else b.m["u_max"]


def _adafom(row: scalings.AdaFom, b: Bucket, vs: list[Tensors]) -> Tensors:
    gamma = [1 / (t.to(b.hs[0]) + 1) for t in b.t] if isinstance(b.t, list) else 1 / (b.t + 1)
    _lerp_(b.m["u_mean"], b.squares(), gamma)
    return b.m["u_mean"]


def _adam_plus(row: scalings.AdamPlus, b: Bucket, vs: list[Tensors]) -> Tensor:
    return group_norm([v for bucket in vs for v in bucket]).to(b.hs[0].device)


def _adabound(row: scalings.AdaBound, b: Bucket, vs: list[Tensors]) -> Tensors:
    u = b.sema_("u", b.squares(), 1 - row.beta2)
    clipped = list(torch._foreach_clamp_min(u, row.c_u**-2))
    torch._foreach_clamp_max_(clipped, row.c_l**-2)
    return clipped


#: Functions of (row, bucket, corrected v of all buckets) that return u. Subclasses of a row are not included: they may
#: have another formula.
SCALINGS: dict[type, Callable[[Any, Bucket, list[Tensors]], Tensors | Tensor | float]] = {
    scalings.SHB: _shb,
    scalings.Adam: _adam,
    scalings.AMSGrad: _amsgrad,
    scalings.AdaFom: _adafom,
    scalings.AdamPlus: _adam_plus,
    scalings.AdaBound: _adabound,
}
