"""What can be read from an optimizer's state after a step, without taking part in it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from semaopt._validation import to_float
from semaopt.estimator import COUNTERS, estimate, group_norm, real
from semaopt.scalings import Seen

#: So many coordinates of a tensor are looked at for the median of s.
SAMPLE = 4096


@dataclass(frozen=True)
class Record:
    """One measured step; None is what could not be measured."""

    step: int
    c_l: float | None = None
    """The smallest s of the step."""
    median: float | None = None
    """The median of s, of a sample of the coordinates."""
    c_u: float | None = None
    """The largest s of the step."""
    gradient_norm: float | None = None
    """|grad F(x_t)|."""
    tracking_error: float | None = None
    """|v_{t+1} - grad F(x_t)|^2, the Delta_t of the theorems."""
    noise: float | None = None
    """|O(x_t) - grad F(x_t)|^2, whose mean is the variance; without a full gradient |O(x_t) - v_t|^2. None for SBMA,
    which has no sample of the whole gradient.
    """
    secant: float | None = None
    """|grad F(x_t) - grad F(x_s)|/|x_t - x_s| with the measured step s before: at most L."""
    gap: float | None = None
    """The proxy of the duality gap."""


def whole(x: Tensor) -> float:
    """A one-element tensor as a float, the global value where it is sharded (FSDP2)."""
    return float(x.full_tensor() if hasattr(x, "full_tensor") else x)


def averaged(optimizer: Optimizer) -> list[dict[str, Any]]:
    """The param groups that are scaled and averaged: those of x, not the y of a min-max or bilevel problem."""
    return [group for group in optimizer.param_groups if "scaling" in group and group.get("beta") is not None]


def reals(state: dict[str, Any]) -> dict[str, Any]:
    """A parameter's state with complex tensors as pairs of reals."""
    return {k: real(m) if isinstance(m, Tensor) and k not in COUNTERS else m for k, m in state.items()}


def estimates(optimizer: Optimizer, group: dict[str, Any]) -> list[tuple[Tensor, dict[str, Any], Tensor]]:
    """(x, its state, v_{t+1}) for the parameters of a group that have taken a step."""
    found = []
    for x in group["params"]:
        state = optimizer.state.get(x)
        if state and "v" in state:
            m = reals(state)
            found.append((x, m, estimate(m, "v", corrected=group.get("bias_correction", False))))
    return found


def scaling_range(optimizer: Optimizer, group: dict[str, Any]) -> tuple[float, float, float] | None:
    """The smallest, the median and the largest s = 1/(sqrt(u) + G0) of a group's last step; None without ``read``.

    s falls with u, so one pass over u finds both ends. The median is that of a sample of the coordinates.
    """
    scaling, clip, corrected = group["scaling"], group.get("clip_scaling"), group.get("bias_correction", False)
    if not hasattr(scaling, "read"):
        return None
    steps = estimates(optimizer, group)
    if not steps:
        return None
    norm = cache(lambda: group_norm([v for _, _, v in steps]))
    ends: list[float] = []
    sample: list[Tensor] = []
    for _, m, v in steps:
        u = scaling.read(m, Seen(v, v, m["step"].item() - 1, norm, corrected))
        if not isinstance(u, Tensor):
            u = torch.tensor(float(u))
        if u.numel() == 0:
            continue
        ends += whole(u.amin()), whole(u.amax())
        local = (u.to_local() if hasattr(u, "to_local") else u).detach().reshape(-1)
        sample.append(local[:: max(1, local.numel() // SAMPLE)].double().cpu())
    if not sample:
        return None

    def s(u: float) -> float:
        size = math.sqrt(u) + scaling.g0
        value = math.inf if size == 0 else 1 / size
        return value if clip is None else min(max(value, clip[0]), clip[1])

    # min() and max() pass over a NaN that is not the first.
    low, high = (math.nan, math.nan) if any(map(math.isnan, ends)) else (min(ends), max(ends))
    return s(high), s(float(torch.cat(sample).median())), s(low)


def squared_norm(tensors: Iterable[Tensor]) -> float:
    """|.|^2 over all tensors as one vector."""
    listed = list(tensors)
    norm = float(group_norm(listed)) if listed else 0.0
    return norm * norm  # inf, where ** raises


def coupled_decay(group: dict[str, Any]) -> float:
    """The weight decay that is part of the gradient."""
    return 0.0 if group.get("decoupled_weight_decay", False) else to_float(group.get("weight_decay", 0.0))


def oracle(group: dict[str, Any], x: Tensor, g: Tensor) -> Tensor:
    """The stochastic gradient that the step averages: the sign of ``maximize`` and a coupled weight decay included."""
    g = -g if group.get("maximize", False) else g
    decay = coupled_decay(group)
    return g.add(x.detach(), alpha=decay) if decay != 0 else g


def innovation(group: dict[str, Any], m: dict[str, Any], sample: Tensor, v: Tensor) -> Tensor | None:
    r"""The sample minus the estimate before it, from the estimate after it; None in a parameter's first step.

    :math:`v_{t+1} = [(w_{t+1} - \gamma)v_t + \gamma O]/w_{t+1}`, so :math:`O - v_t = (O -
    v_{t+1})w_{t+1}/(w_{t+1} - \gamma)`. The weight w of all samples is 1 without bias correction.
    """
    weight = float(m["v_weight"]) if group.get("bias_correction", False) else 1.0
    before = (weight - 1) + to_float(group["beta"])  # exact where weight = 1
    return (sample - v) * (weight / before) if m["step"] > 1 and before > 0 else None


def gradients(optimizer: Optimizer, full_gradient: Callable[[], Any]) -> dict[int, Tensor]:
    """Id of a parameter -> its full gradient, from a closure that returns a loss or the list of gradients."""
    xs = [x for group in optimizer.param_groups for x in group["params"]]
    with torch.enable_grad():
        given = full_gradient()
    if isinstance(given, Tensor):
        if given.numel() != 1 or not given.requires_grad:
            raise ValueError(
                f"full_gradient returned a tensor of shape {tuple(given.shape)} with requires_grad="
                f"{given.requires_grad}; return the loss on all data (one number, not detached), or the list of "
                "gradients in the order of the optimizer's parameters"
            )
        wanted = [x for x in xs if x.requires_grad]
        found: Sequence[Tensor | None] = torch.autograd.grad(given.sum(), wanted, allow_unused=True)
        lower = {id(x) for group in optimizer.param_groups if group.get("role") == "lower" for x in group["params"]}
        if any(id(x) in lower and g is not None for x, g in zip(wanted, found, strict=True)):
            raise TypeError(
                f"full_gradient returned a loss f(x, y), but {type(optimizer).__name__} follows the hypergradient, "
                "which also goes through y*(x); return one list, the gradients in x and None for each lower parameter "
                "(semaopt.hypergradient.compare(...).exact has the former for small lower problems), or F(x)"
            )
        pairs = zip(wanted, found, strict=True)
    else:
        listed = list(given)
        if len(listed) != len(xs):
            raise ValueError(f"full_gradient returned {len(listed)} gradients for {len(xs)} parameters; one for each")
        pairs = zip(xs, listed, strict=True)
    return {id(x): g.detach() for x, g in pairs if g is not None}
