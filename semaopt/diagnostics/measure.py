"""Read measurements from an optimizer's state after a step, without changing the step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from semaopt._averages import buffer_multiple, moving_average, sample_weight
from semaopt._validation import to_float
from semaopt.estimator import COUNTERS, group_norm, real
from semaopt.scalings import Seen
from semaopt.schedules.momentum import gamma_of

#: Number of coordinates of a tensor that enter the median of s.
SAMPLE = 4096
_SMALLEST = 1e-15  # a smaller norm is computed in float64, where the squares of its terms are normal numbers


@dataclass(frozen=True)
class Record:
    """Measurements of one step; None where something could not be measured."""

    step: int
    c_l: float | None = None
    """The smallest s of the step."""
    median: float | None = None
    """The median of s over a sample of the coordinates."""
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
    signal: float | None = None
    """|grad F(x_t)|^2; without a full gradient an unbiased estimate of it from |O(x_t)|^2 and |v_{t+1}|^2."""
    variance: float | None = None
    """|O(x_t) - grad F(x_t)|^2; without a full gradient an unbiased estimate from |O(x_t)|^2 and |v_{t+1}|^2."""
    secant: float | None = None
    """|grad F(x_t) - grad F(x_s)|/|x_t - x_s| for the previous measured step s: at most L."""
    gap: float | None = None
    """The estimate of the duality gap."""
    shadow_errors: tuple[float, ...] | None = None
    """The mean error of each shadow average since the last measured step, in the order of ``shadow_gammas``."""
    best_gamma: float | None = None
    """The gamma of the shadow average with the smallest error since the last measured step."""


def item(x: Tensor) -> float:
    """Return a one-element tensor as a float; a sharded one (FSDP2) is gathered."""
    return float(x.full_tensor() if hasattr(x, "full_tensor") else x)


def averaged(optimizer: Optimizer) -> list[dict[str, Any]]:
    """Return the param groups whose gradients are averaged: they hold x, not the y of a min-max or bilevel problem."""
    return [group for group in optimizer.param_groups if _is_averaged(group)]


def _is_averaged(group: dict[str, Any]) -> bool:
    if "beta" in group:
        return "scaling" in group and group["beta"] is not None
    gamma = gamma_of(group)
    return gamma is not None and ("betas" in group or gamma < 1)


def reals(state: dict[str, Any]) -> dict[str, Any]:
    """Return a parameter's state with complex tensors as pairs of reals."""
    return {k: real(m) if isinstance(m, Tensor) and k not in COUNTERS else m for k, m in state.items()}


def step_count(state: dict[str, Any]) -> float | None:
    """Return how many steps a parameter has taken, or None if its optimizer does not count them (torch's SGD)."""
    return to_float(state["step"]) if "step" in state else None


Estimate = tuple[Tensor, dict[str, Any], Tensor]
"""A parameter, its state, and v after the step."""


def estimates(optimizer: Optimizer, group: dict[str, Any]) -> list[Estimate]:
    """Return (x, its state, v_{t+1}) for the parameters of a group that have an average."""
    found = []
    for x in group["params"]:
        v = moving_average(optimizer, group, x)
        if v is not None:
            state = optimizer.state[x]
            found.append((x, reals(state), real(v)) if v.is_complex() else (x, state, v))
    return found


def scaling_range(
    optimizer: Optimizer,
    group: dict[str, Any],
    stepped: Callable[[Tensor], bool] = lambda x: True,
    known: Sequence[Estimate] | None = None,
) -> tuple[float, float, float] | None:
    """Return the smallest, the median and the largest s = 1/(sqrt(u) + G0) of a group's last step, or None.

    s falls with u, so one pass over u finds both ends. The median is taken over a sample of the coordinates.

    Args:
        optimizer: the optimizer of the group.
        group: one of its averaged groups.
        stepped: whether a parameter took part in the last step; by default all that have an average.
        known: the :func:`estimates` of the group, if they are known already.
    """
    found = estimates(optimizer, group) if known is None else known
    taken = [(m, v) for x, m, v in found if stepped(x)]
    if not taken or not is_readable(group):
        return None
    sample: list[Tensor] = []
    larger: list[Tensor] = []  # those of which the sample has only a part
    for u in _second_moments(group, taken):
        if u.numel() == 0:
            continue
        sharded = hasattr(u, "full_tensor")
        local = (u.to_local() if sharded else u).detach().reshape(-1)  # type: ignore[attr-defined]
        stride = max(1, local.numel() // SAMPLE)
        sample.append((local[::stride] if stride > 1 else local).cpu())
        if sharded or stride > 1:
            larger.append(u)
    if not sample:
        return None
    values = torch.cat(sample)
    ends: list[float] = []
    for u in (values, *larger) if values.numel() > 0 else larger:
        ends += map(item, (u.amin(), u.amax()) if hasattr(u, "full_tensor") else torch.aminmax(u))
    s = _scaling_of(group)
    # min() and max() ignore a NaN that is not the first.
    low, high = (math.nan, math.nan) if any(map(math.isnan, ends)) else (min(ends), max(ends))
    return s(high), s(float(values.median())), s(low)


def scaling_quantiles(optimizer: Optimizer, group: dict[str, Any], shares: Sequence[float]) -> tuple[float, ...] | None:
    """Return quantiles of s = 1/(sqrt(u) + G0) over all coordinates of a group's last step, or None.

    Args:
        optimizer: the optimizer of the group.
        group: one of its averaged groups.
        shares: the share of coordinates below each quantile: 0 is the smallest s, 1 the largest.
    """
    taken = [(m, v) for _, m, v in estimates(optimizer, group)]
    if not taken or not is_readable(group):
        return None
    pairs = zip(_second_moments(group, taken), taken, strict=True)
    moments = [u.detach().expand_as(v).reshape(-1) for u, (_, v) in pairs]
    sizes = torch.cat([u.double().cpu() for u in moments]).sort().values  # s falls with u
    if sizes.isnan().any():
        return (math.nan,) * len(shares)
    s = _scaling_of(group)
    return tuple(s(float(sizes[int((1 - share) * (len(sizes) - 1))])) for share in shares)


def _scaling_of(group: dict[str, Any]) -> Callable[[float], float]:
    """Return the function from u to s of a group."""
    multiple = buffer_multiple(group) if "momentum" in group else 1.0
    g0 = group["scaling"].g0 if "scaling" in group else group.get("eps", 0.0)
    clip = group.get("clip_scaling")

    def s(u: float) -> float:
        size = math.sqrt(u) + g0
        value = math.inf if size == 0 else multiple / size
        return value if clip is None else min(max(value, clip[0]), clip[1])

    return s


def is_readable(group: dict[str, Any]) -> bool:
    """Return whether the scaling s of a group can be read: semaopt's, torch's Adam and AdamW, and SGD's."""
    if "scaling" in group:
        return hasattr(group["scaling"], "read")
    return "momentum" in group or {"betas", "eps", "amsgrad"} <= group.keys()


def _second_moments(group: dict[str, Any], taken: list[tuple[dict[str, Any], Tensor]]) -> list[Tensor]:
    """Return u of each parameter as the step used it."""
    if "scaling" in group:
        corrected = group.get("bias_correction", False)
        norm = cache(lambda: group_norm([v for _, v in taken]))
        found = [group["scaling"].read(m, Seen(v, v, m["step"].item() - 1, norm, corrected)) for m, v in taken]
        return [u if isinstance(u, Tensor) else torch.tensor(float(u), device="cpu") for u in found]
    if "momentum" in group:
        return [torch.ones((), device="cpu")] * len(taken)
    key, beta2 = "max_exp_avg_sq" if group["amsgrad"] else "exp_avg_sq", to_float(group["betas"][1])
    return [m[key] / (1 - beta2 ** to_float(m["step"])) for m, _ in taken]


def squared_norm(tensors: Iterable[Tensor]) -> float:
    """Return |.|^2 of all tensors as one vector."""
    return sum(squared_norms(list(tensors)))


def squared_norms(tensors: Sequence[Tensor]) -> list[float]:
    """Return |.|^2 of each tensor.

    Sums of squares in float32 are accurate to about 1e-6; they are repeated in float64 where they overflow or vanish.
    """
    plain = [x for x in tensors if x.dtype in (torch.float32, torch.float64) and not hasattr(x, "full_tensor")]
    if len(plain) < len(tensors) or len({(x.device, x.dtype) for x in plain}) > 1:
        return [_squared(float(group_norm([x]))) for x in tensors]
    norms = torch.stack(torch._foreach_norm(plain)).tolist() if plain else []
    safe = [_SMALLEST < norm < math.inf for norm in norms]
    return [_squared(norm if ok else float(group_norm([x]))) for x, norm, ok in zip(plain, norms, safe, strict=True)]


def _squared(norm: float) -> float:
    return norm * norm  # inf, where ** raises


def coupled_decay(optimizer: Optimizer, group: dict[str, Any]) -> float:
    """Return the weight decay that is part of the gradient."""
    decoupled = group.get("decoupled_weight_decay", isinstance(optimizer, torch.optim.AdamW))
    return 0.0 if decoupled else to_float(group.get("weight_decay", 0.0))


def oracle(optimizer: Optimizer, group: dict[str, Any], x: Tensor, g: Tensor) -> Tensor:
    """Return the stochastic gradient that the step averages, with the sign of ``maximize`` and coupled decay."""
    g = -g if group.get("maximize", False) else g
    decay = coupled_decay(optimizer, group)
    return g.add(x.detach(), alpha=decay) if decay != 0 else g


def innovation_factor(gamma: float, weight: float, t: float | None) -> float | None:
    r"""Return (O - v_t)/(O - v_{t+1}) for the sample O of step t; None in the first step.

    :math:`v_{t+1} = [(w_{t+1} - \gamma)v_t + \gamma O]/w_{t+1}`, so :math:`O - v_t = (O -
    v_{t+1})w_{t+1}/(w_{t+1} - \gamma)`. The weight w of all samples is 1 without bias correction.
    """
    before = (weight - 1) + (1 - gamma)  # exact where weight = 1
    return weight / before if t != 1 and before > 0 else None


def effective_samples(gamma: float, t: float | None, *, starts_at_sample: bool) -> float:
    r"""Return 1 over the sum of the squared weights of the samples in v, for a constant beta.

    It is :math:`(2-\gamma)/\gamma` in the limit. The average of n independent samples has 1/n of their variance.
    """
    if t is None:
        return (2 - gamma) / gamma
    beta = 1 - gamma
    if starts_at_sample:
        squares = beta ** (2 * (t - 1)) + gamma / (2 - gamma) * (1 - beta ** (2 * (t - 1)))
    else:
        squares = gamma / (2 - gamma) * (1 - beta ** (2 * t)) / (1 - beta**t) ** 2
    return float(1 / squares)


def weights(group: dict[str, Any], m: dict[str, Any]) -> tuple[float | None, float]:
    """Return the innovation factor and the number of effective samples of a parameter with the state ``m``."""
    gamma, weight, t = gamma_of(group), sample_weight(group, m), step_count(m)
    factor = None if gamma is None else innovation_factor(gamma, weight, t)
    return factor, effective_samples(gamma or 1.0, t, starts_at_sample=weight == 1.0 and "exp_avg" not in m)


def gradients(optimizer: Optimizer, full_gradient: Callable[[], Any]) -> dict[int, Tensor]:
    """Return {id of a parameter: its full gradient} from a closure that returns a loss or a list of gradients."""
    xs = [x for group in optimizer.param_groups for x in group["params"]]
    with torch.enable_grad():
        given = full_gradient()
    if isinstance(given, Tensor):
        if given.numel() != 1 or not given.requires_grad:
            raise ValueError(
                f"full_gradient returned a tensor of shape {tuple(given.shape)} with requires_grad="
                f"{given.requires_grad}. Return the loss on all data (one number, not detached), or the list of "
                "gradients in the order of the optimizer's parameters."
            )
        wanted = [x for x in xs if x.requires_grad]
        found: Sequence[Tensor | None] = torch.autograd.grad(given.sum(), wanted, allow_unused=True)
        lower = {id(x) for group in optimizer.param_groups if group.get("role") == "lower" for x in group["params"]}
        if any(id(x) in lower and g is not None for x, g in zip(wanted, found, strict=True)):
            raise TypeError(
                f"full_gradient returned a loss f(x, y), but {type(optimizer).__name__} follows the hypergradient, "
                "which also depends on y*(x). Return a list with the gradients in x and None for each lower parameter "
                "(semaopt.hypergradient.compare(...).exact has them for small lower problems), or F(x)."
            )
        pairs = zip(wanted, found, strict=True)
    else:
        listed = list(given)
        if len(listed) != len(xs):
            raise ValueError(
                f"full_gradient returned {len(listed)} gradients for {len(xs)} parameters. "
                "Return one for each parameter."
            )
        pairs = zip(xs, listed, strict=True)
    return {id(x): g.detach() for x, g in pairs if g is not None}
