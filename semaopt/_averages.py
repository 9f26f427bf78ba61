"""Read the moving average of the gradient from the state of an optimizer, ours or torch's.

============================  =====================================================================================
state                         estimate of the gradient
============================  =====================================================================================
``v`` (semaopt)               v, divided by the weight of its samples under bias correction
``exp_avg`` (Adam, ...)       exp_avg over the weight of its samples, 1 - beta1^t
``momentum_buffer`` (SGD)     buffer (1 - momentum)/(1 - dampening), an average without bias correction
============================  =====================================================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from semaopt._validation import to_float
from semaopt.estimator import estimate


def moving_average(optimizer: Optimizer, group: dict[str, Any], x: Tensor) -> Tensor | None:
    """Return the estimate v of the gradient in ``x`` after the last step, or None where nothing is averaged."""
    state = optimizer.state.get(x, {})
    if "v" in state:
        return estimate(state, "v", corrected=group.get("bias_correction", False))
    if "exp_avg" in state and "betas" in group:
        return state["exp_avg"] / sample_weight(group, state)  # type: ignore[no-any-return]
    buffer = state.get("momentum_buffer")
    return None if buffer is None else buffer / buffer_multiple(group)


def sample_weight(group: Mapping[str, Any], state: Mapping[str, Any]) -> float:
    """Return the total weight of the samples in the stored average; it is 1 unless the average started at 0."""
    if "v" in state:
        return float(state["v_weight"]) if group.get("bias_correction", False) else 1.0
    if "exp_avg" not in state:
        return 1.0
    beta, t = to_float(group["betas"][0]), to_float(state["step"])
    # Adam under a schedule of beta1 stores the product of its betas (semaopt.schedules.bias). The group may already
    # have the beta of the next step.
    last = state.get("beta1", beta)
    product: float = state.get("beta1_product", 1.0) * last ** (t - state.get("beta1_since", 0.0))
    return 1 - product


def buffer_multiple(group: dict[str, Any]) -> float:
    """Return the ratio of SGD's momentum buffer to the moving average that it represents."""
    return (1 - to_float(group.get("dampening", group["momentum"]))) / (1 - to_float(group["momentum"]))
