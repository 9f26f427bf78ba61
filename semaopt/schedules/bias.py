r"""Exact bias correction of torch's Adam and AdamW while beta1 changes.

Torch divides the average of step t by :math:`1 - \beta_t^t` with the newest beta1. The weight of the samples in it is
:math:`1 - \beta_1\cdots\beta_t`. The two agree only if beta1 is constant: after 99 steps at 0.9, a switch to 0.99 makes
the next step 1.58 times as long. :func:`compensate` multiplies the lr by their ratio during each step. A decoupled
weight decay is divided by this ratio, so that ``lr * weight_decay`` does not change.

The product of the past betas is stored with the state of each parameter (``beta1_product``, up to step ``beta1_since``,
and ``beta1`` afterwards), so the optimizer's own checkpoint resumes exactly.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import groupby
from types import MethodType
from typing import Any

import torch
from torch.optim import Optimizer

from semaopt._validation import to_float

_MARK = "_semaopt_bias_compensated"


def compensate(optimizer: Optimizer) -> None:
    """Correct the bias exactly in every further step; does nothing unless this is torch's Adam or AdamW."""
    if not isinstance(optimizer, (torch.optim.Adam, torch.optim.AdamW)) or hasattr(optimizer.step, _MARK):
        return
    inner: Callable[..., Any] = optimizer.step

    @functools.wraps(inner)  # keeps the mark by which torch's schedulers recognize a step that they have wrapped
    def step(self: Optimizer, *args: Any, **kwargs: Any) -> Any:
        with _rescaled(self):
            return inner(*args, **kwargs)

    setattr(step, _MARK, True)
    optimizer.step = MethodType(step, optimizer)  # type: ignore[method-assign]


@contextmanager
def _rescaled(optimizer: Optimizer) -> Iterator[None]:
    """Replace the param groups by copies with rescaled rates for the duration of a step."""
    groups = optimizer.param_groups
    parts = [part for group in groups for part in _parts(optimizer, group)]
    if any(part is not group for part, group in zip(parts, groups, strict=False)):
        optimizer.param_groups = parts
    try:
        yield
    finally:
        optimizer.param_groups = groups
    for group in groups:
        for x in group["params"]:
            state = optimizer.state.get(x, {})
            if "step" in state and "beta1" not in state:
                state.update(beta1_product=1.0, beta1_since=0.0, beta1=_beta(group))


def _parts(optimizer: Optimizer, group: dict[str, Any]) -> list[dict[str, Any]]:
    """Split a group into runs of parameters with the same ratio, in the same order."""
    beta = _beta(group)
    ratios = [_ratio(optimizer.state.get(x, {}), beta) for x in group["params"]]
    if all(ratio == 1 for ratio in ratios):
        return [group]
    decoupled = group.get("decoupled_weight_decay", isinstance(optimizer, torch.optim.AdamW))
    parts = []
    for ratio, run in groupby(zip(ratios, group["params"], strict=True), key=lambda pair: pair[0]):
        part = {**group, "params": [x for _, x in run], "lr": group["lr"] * ratio}
        if decoupled:
            part["weight_decay"] = group["weight_decay"] / ratio
        parts.append(part)
    return parts


def _ratio(state: dict[str, Any], beta: float) -> float:
    """Return the ratio of torch's divisor to the weight of the samples, both after the next step."""
    if "step" not in state:
        return 1.0
    t = to_float(state["step"])
    if "beta1" not in state:
        state.update(beta1_product=1.0, beta1_since=0.0, beta1=beta)
    if state["beta1"] != beta:
        state["beta1_product"] *= state["beta1"] ** (t - state["beta1_since"])
        state.update(beta1_since=t, beta1=beta)
    weight: float = 1 - state["beta1_product"] * beta ** (t + 1 - state["beta1_since"])
    divisor: float = 1 - beta ** (t + 1)
    return divisor / weight


def _beta(group: dict[str, Any]) -> float:
    return to_float(group["betas"][0])
