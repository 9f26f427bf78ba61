"""The state of one parameter: its initial value, and how it is restored from a checkpoint."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from semaopt._validation import require
from semaopt.estimator import COUNTERS, state_dtype
from semaopt.kernels.layout import PLAIN

_REMEDY = "load it into the optimizer of the same model, with the same scaling"


def counter(name: str, value: float | Tensor = 0.0, device: torch.device | str = "cpu") -> Tensor:
    """Return one of :data:`COUNTERS` as a tensor, by default on the CPU, where reading it does not wait for a device.

    It is 0-dimensional: torch.distributed.checkpoint expects tensors with dimensions on the parameters' device.
    """
    # float64 counts steps exactly. A float32 counter, as in torch, stops at 2^24 and would freeze the rounding key.
    dtype = torch.int64 if name == "rounding" else torch.float64
    return torch.as_tensor(value, dtype=dtype, device=device).clone()


def pack(value: Any) -> Any:
    """Return a tensor as bytes and any other value as it is.

    torch.distributed.checkpoint loads a tensor only into one of the same shape, and the shapes of algorithm state are
    unknown before the first step. It loads bytes into anything.
    """
    if not isinstance(value, Tensor):
        return value
    file = io.BytesIO()
    torch.save(value.detach().cpu(), file)
    return file.getvalue()


def unpack(value: Any, device: torch.device | None) -> Any:
    """Return the tensor that :func:`pack` stored, on this device (None: the CPU), and any other value as it is."""
    if not isinstance(value, bytes):
        return value
    tensor = torch.load(io.BytesIO(value), map_location="cpu", weights_only=True)
    return tensor if device is None else tensor.to(device)


def zero_state(
    x: Tensor,
    buffers: Sequence[str],
    *,
    weights: bool = False,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
) -> dict[str, Tensor]:
    """Return the state of ``x`` before its first step: a counter, zero buffers and, if asked for, their weights.

    ``device`` is the device of the counter and the weights.
    """
    state = {"step": counter("step", device=device)}
    for name in buffers:
        state[name] = torch.zeros_like(x, dtype=state_dtype(x, dtype), memory_format=torch.preserve_format)
        weight = f"{name}_weight"
        if weights and weight in COUNTERS:
            state[weight] = counter(weight, device=device)
    return state


def validate_saved(saved: Mapping[str, Any] | None, x: Tensor, names: Iterable[str], where: str) -> None:
    """Raise unless a saved state is empty or has all averages, each with the shape of its parameter."""
    for name in names if saved else ():
        value = saved.get(name) if saved else None
        require(isinstance(value, Tensor), name, value, f"the checkpoint has no such average of {where}", _REMEDY)
        if isinstance(value, Tensor) and {type(value), type(x)} <= PLAIN:
            shapes = f"{where} has shape {tuple(x.shape)}"
            require(value.shape == x.shape, name, tuple(value.shape), shapes, _REMEDY)


def restored(
    saved: Mapping[str, Any], x: Tensor, chosen: torch.dtype | None, device: torch.device | str = "cpu"
) -> dict[str, Tensor]:
    """Return copies of one parameter's saved counters and averages, the averages in their proper dtype."""
    state = {}
    for name, value in saved.items():
        if name in COUNTERS:
            state[name] = counter(name, value, device)
        elif isinstance(value, Tensor) and value.shape == x.shape and {type(value), type(x)} <= PLAIN:
            state[name] = torch.empty_like(x, dtype=state_dtype(x, chosen)).copy_(value)
        elif isinstance(value, Tensor):
            state[name] = value.to(x.device, state_dtype(x, chosen), copy=True)
    return state
