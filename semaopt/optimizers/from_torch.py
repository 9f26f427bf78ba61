r"""Convert between torch's optimizers and :class:`semaopt.ASA`, with groups, hyper-parameters and state.

=========================================  ==========================================================================
torch                                      ASA
=========================================  ==========================================================================
Adam(lr, betas, eps, weight_decay)         scaling=Adam(beta2=betas[1], g0=eps), beta=betas[0], bias_correction=True
Adam(..., amsgrad=True)                    scaling=AMSGrad(...), the same otherwise
AdamW(...)                                 the same with decoupled_weight_decay=True
SGD(lr, momentum, dampening=momentum)      scaling="shb", beta=momentum, bias_correction=False
SGD(lr, momentum)                          the same with lr / (1 - momentum) and v_0 = 0
=========================================  ==========================================================================
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from semaopt import scalings
from semaopt._averages import sample_weight
from semaopt._validation import to_float
from semaopt.optimizers._state import restored
from semaopt.optimizers.asa import ASA

_KEPT = ("name", "initial_lr", "max_lr", "min_lr", "swa_lr")


def from_torch(optimizer: Optimizer) -> ASA:
    """Return an ASA that continues where torch's Adam, AdamW or SGD is, with equal steps up to rounding.

    It holds the same parameters and copies of the state and of tensor learning rates. Schedulers and hooks are not
    transferred: create them on the result. Any other class raises an error with the reason.

    Args:
        optimizer: ``torch.optim.Adam`` or ``AdamW``, with or without amsgrad, or ``SGD`` whose dampening is 0 or equal
            to its momentum.

    >>> x = torch.nn.Parameter(torch.ones(2))
    >>> optimizer = semaopt.from_torch(torch.optim.AdamW([x], lr=0.1, weight_decay=0.01))
    >>> optimizer.param_groups[0]["scaling"], optimizer.param_groups[0]["decoupled_weight_decay"]
    (Adam(beta2=0.999, g0=1e-08), True)
    """
    kind = type(optimizer)
    if kind not in _OPTIONS:
        raise TypeError(f"from_torch({kind.__name__}) is not possible: {_reason(kind)}")
    groups = [_group(optimizer, k, group) for k, group in enumerate(optimizer.param_groups)]
    converted = ASA(groups)
    states = _sgd_state if kind is torch.optim.SGD else _adam_state
    for group, given in zip(converted.param_groups, optimizer.param_groups, strict=True):
        for x in group["params"]:
            state = states(given, x, optimizer.state.get(x, {}))
            if state:
                converted.state[x].update(restored(state, x, None))
    return converted


def to_torch(optimizer: ASA) -> Optimizer:
    """Return the torch optimizer that continues where an ASA is, the inverse of :func:`from_torch`.

    The scalings Adam and AMSGrad with bias correction give ``Adam`` or ``AdamW``; SHB without it gives ``SGD`` with
    dampening equal to its momentum. Anything else is refused with the reason.

    >>> x = torch.nn.Parameter(torch.ones(2))
    >>> semaopt.to_torch(semaopt.ASA([x], lr=0.1, scaling="amsgrad")).param_groups[0]["amsgrad"]
    True
    """
    if not isinstance(optimizer, ASA):
        raise TypeError(f"to_torch({type(optimizer).__name__}) is not possible: only ASA has equivalents in torch")
    kinds = {_torch_kind(group, k) for k, group in enumerate(optimizer.param_groups)}
    if len(kinds) > 1:
        names = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise ValueError(f"the param groups need different optimizers of torch ({names}); convert them one by one")
    kind = kinds.pop()
    states = _to_sgd_state if kind is torch.optim.SGD else _to_adam_state
    converted: Optimizer = kind([_torch_group(group, kind) for group in optimizer.param_groups])
    for group in optimizer.param_groups:
        for x in group["params"]:
            if optimizer.state.get(x):
                converted.state[x] = states(group, x, optimizer.state[x])
    return converted


# ---- from torch -----------------------------------------------------------------------------------------------------


def _reason(kind: type[Any]) -> str:
    if issubclass(kind, tuple(_OPTIONS)):
        return f"it is a subclass of {kind.__mro__[1].__name__} and may compute something else"
    reasons = {
        "NAdam": "Nesterov momentum has no equivalent here",
        "RAdam": "its rectified step size has no equivalent here",
        "Adagrad": "it divides by the root of a sum of g^2; the nearest is ASA(scaling='adafom'), with their mean",
        "RMSprop": "its average of g^2 starts at 0 without correction; the nearest is ASA(scaling='adam', beta=0.0)",
        "Adamax": "its maximum of |g| has no equivalent here",
    }
    known = "torch.optim.Adam, AdamW and SGD can be converted"
    return f"{reasons[kind.__name__]}; {known}" if kind.__name__ in reasons else known


def _refuse(k: int, reason: str) -> ValueError:
    return ValueError(f"from_torch: group {k} cannot be converted: {reason}")


def _group(optimizer: Optimizer, k: int, group: dict[str, Any]) -> dict[str, Any]:
    """Return the param group of ASA for a group of torch's optimizer."""
    options = _OPTIONS[type(optimizer)](k, group)
    factor = options.pop("factor", 1.0)
    names, params = group.get("param_names"), group["params"]
    kept = {name: group[name] for name in _KEPT if name in group}
    lrs = {name: value * factor for name, value in {**kept, "lr": group["lr"]}.items() if name != "name"}
    lrs = {name: value.clone() if isinstance(value, Tensor) else value for name, value in lrs.items()}
    return {
        **kept,
        **lrs,
        "params": list(params) if names is None else list(zip(names, params, strict=True)),
        "weight_decay": group["weight_decay"],
        "maximize": group["maximize"],
        "differentiable": group["differentiable"],
        **options,
    }


def _adam_options(k: int, group: dict[str, Any]) -> dict[str, Any]:
    beta, beta2 = (to_float(value) for value in group["betas"])
    eps = to_float(group["eps"])
    if eps < 1e-30:
        raise _refuse(k, f"eps={eps!r} is below 1e-30, the smallest g0 that float32 keeps")
    scaling = (scalings.AMSGrad if group["amsgrad"] else scalings.Adam)(beta2, eps)
    decoupled = group.get("decoupled_weight_decay", False)
    return {"beta": beta, "scaling": scaling, "bias_correction": True, "decoupled_weight_decay": decoupled}


def _adamw_options(k: int, group: dict[str, Any]) -> dict[str, Any]:
    return {**_adam_options(k, group), "decoupled_weight_decay": True}


def _sgd_options(k: int, group: dict[str, Any]) -> dict[str, Any]:
    momentum, dampening = to_float(group["momentum"]), to_float(group["dampening"])
    if group["nesterov"]:
        raise _refuse(k, "nesterov=True has no equivalent here")
    if momentum >= 1:
        raise _refuse(k, f"momentum={momentum!r}: an average needs beta < 1")
    if dampening not in (0.0, momentum):
        raise _refuse(k, f"dampening={dampening!r} is neither 0 nor the momentum {momentum!r}")
    factor = 1.0 if dampening == momentum else 1 / (1 - momentum)
    return {"beta": momentum, "scaling": scalings.SHB(), "bias_correction": False, "factor": factor}


_OPTIONS: dict[type[Optimizer], Callable[[int, dict[str, Any]], dict[str, Any]]] = {
    torch.optim.Adam: _adam_options,
    torch.optim.AdamW: _adamw_options,
    torch.optim.SGD: _sgd_options,
}


def _adam_state(group: dict[str, Any], x: Tensor, state: Mapping[str, Any]) -> dict[str, Any]:
    if not state:
        return {}
    t = to_float(state["step"])
    beta2 = to_float(group["betas"][1])
    converted = {
        "step": t,
        "v": state["exp_avg"],
        "v_weight": sample_weight(group, state),
        "u": state["exp_avg_sq"],
        "u_weight": 1 - beta2**t,
    }
    if group["amsgrad"]:
        converted["u_max"] = state["max_exp_avg_sq"]
    return converted


def _sgd_state(group: dict[str, Any], x: Tensor, state: Mapping[str, Any]) -> dict[str, Any]:
    """Return v as a multiple of torch's buffer. torch's SGD counts no steps, so the counter starts at 1."""
    momentum, dampening = to_float(group["momentum"]), to_float(group["dampening"])
    buffer = state.get("momentum_buffer")
    if dampening == momentum:
        return {} if buffer is None else {"step": 1.0, "v": buffer}
    # The sum of torch is v/(1 - momentum) for an average v that starts at 0, not at the first gradient.
    return {"step": 1.0, "v": torch.zeros_like(x) if buffer is None else buffer * (1 - momentum)}


# ---- to torch -------------------------------------------------------------------------------------------------------


def _torch_kind(group: dict[str, Any], k: int) -> type[Any]:
    scaling, corrected = group["scaling"], group["bias_correction"]
    if group["clip_scaling"] is not None:
        raise ValueError(f"to_torch: group {k} cannot be converted: torch has no clip_scaling")
    if (
        type(scaling) is scalings.SHB
        and not corrected
        and not (group["decoupled_weight_decay"] and group["weight_decay"])
    ):
        return torch.optim.SGD
    if type(scaling) in (scalings.Adam, scalings.AMSGrad) and corrected:
        return torch.optim.AdamW if group["decoupled_weight_decay"] else torch.optim.Adam
    raise ValueError(
        f"to_torch: group {k} cannot be converted: torch has no equivalent of scaling={scaling!r} with "
        f"bias_correction={corrected} and decoupled_weight_decay={group['decoupled_weight_decay']}"
    )


def _torch_group(group: dict[str, Any], kind: type[Any]) -> dict[str, Any]:
    names, params, beta = group.get("param_names"), group["params"], to_float(group["beta"])
    options = {name: group[name] for name in (*_KEPT, "weight_decay", "maximize", "differentiable") if name in group}
    options["params"] = list(params) if names is None else list(zip(names, params, strict=True))
    options["lr"] = group["lr"].clone() if isinstance(group["lr"], Tensor) else group["lr"]
    if kind is torch.optim.SGD:
        return {**options, "momentum": beta, "dampening": beta}
    scaling = group["scaling"]
    amsgrad = type(scaling) is scalings.AMSGrad
    return {**options, "betas": (beta, scaling.beta2), "eps": scaling.g0, "amsgrad": amsgrad}


def _to_adam_state(group: dict[str, Any], x: Tensor, state: Mapping[str, Tensor]) -> dict[str, Any]:
    t = state["step"].item()
    for name, beta in (("v", to_float(group["beta"])), ("u", group["scaling"].beta2)):
        weight, expected = state[f"{name}_weight"].item(), 1 - beta**t
        if not math.isclose(weight, expected, rel_tol=1e-6):
            raise ValueError(
                f"to_torch: the weight of {name} is {weight:g}, and torch would divide by 1 - beta^t = {expected:g}: "
                "beta has changed, and torch's Adam assumes that it was constant"
            )
    converted = {"step": torch.tensor(t, dtype=torch.float32, device="cpu")}
    names = {"v": "exp_avg", "u": "exp_avg_sq", "u_max": "max_exp_avg_sq"}
    return {**converted, **{names[name]: state[name].to(x.dtype, copy=True) for name in names if name in state}}


def _to_sgd_state(group: dict[str, Any], x: Tensor, state: Mapping[str, Tensor]) -> dict[str, Any]:
    return {"momentum_buffer": state["v"].to(x.dtype, copy=True)} if to_float(group["beta"]) > 0 else {}
