r"""Averages stored in bfloat16 with stochastic rounding, which is unbiased.

With gamma = 1e-3 an average moves by less than half a unit of bf16's 8 bits in almost every step, so rounding to
nearest would leave it unchanged. Stochastic rounding rounds up with a probability equal to the part that is cut off,
in units of the last bit,

.. math:: P(\text{up}) = (v - \lfloor v \rfloor) / (\lceil v \rceil - \lfloor v \rfloor), \qquad E[\text{stored}] = v .

The random bits are a hash of (parameter key, step, position of the element). There is no generator to save, so a
checkpoint resumes to the bit and the result does not depend on threads. ``step.c`` computes the same hash.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from semaopt._validation import require
from semaopt.estimator import COUNTERS, Rate
from semaopt.kernels.layout import PLAIN, is_dense

_LOW_32 = 0xFFFFFFFF
Key = int | Tensor


def _wrapped(z: Key) -> Key:
    """Wrap an int to signed 64 bits, as an int64 tensor does."""
    return z if isinstance(z, Tensor) else (z + 2**63) % 2**64 - 2**63


def _shifted(z: Key, by: int) -> Key:
    """Shift right, filling with zeros."""
    return (z >> by) & ((1 << (64 - by)) - 1)


def splitmix64(z: Key) -> Key:
    """Hash 64 bits (Steele, Lea and Flood, OOPSLA 2014), given as an int or, when traced, as an int64 tensor."""
    z = _wrapped(z + -0x61C8864680B583EB)
    z = _wrapped((z ^ _shifted(z, 30)) * -0x40A7B892E31B1A47)
    z = _wrapped((z ^ _shifted(z, 27)) * -0x6B2FB644ECCEEE15)
    return z ^ _shifted(z, 31)


def validate_state_dtype(chosen: Any, params: Sequence[Tensor]) -> None:
    """Raise unless ``state_dtype`` is None, or torch.bfloat16 for float32 and bf16 parameters."""
    ok = chosen is None or chosen == torch.bfloat16
    require(
        ok,
        "state_dtype",
        chosen,
        "must be None or torch.bfloat16",
        "None stores v and u in the dtype of the arithmetic",
    )
    for i, x in enumerate(params if chosen is not None else ()):
        ok = x.dtype in (torch.float32, torch.bfloat16) and type(x) in PLAIN
        what = f"{x.dtype} in a {type(x).__name__} (parameter {i}, shape {tuple(x.shape)})"
        rule = f"it is available for plain float32 and bfloat16 tensors, not for {what}"
        require(ok, "state_dtype", chosen, rule, "put that parameter into a group with state_dtype=None")


def first_key(seed: int, group: int, position: int) -> int:
    """Return the key of a parameter, kept in ``state["rounding"]``."""
    key = splitmix64(splitmix64(seed) + (group << 32) + position)
    assert isinstance(key, int)
    return key


def key_of(rounding: Tensor, t: Rate) -> Key:
    """Return the key of step ``t`` of a parameter."""
    if isinstance(t, Tensor):
        return splitmix64(splitmix64(splitmix64(rounding) + t.to(torch.int64)))
    return splitmix64(splitmix64(splitmix64(int(rounding)) + int(t)))


def random_bits(like: Tensor, key: Key) -> Tensor:
    """Return 16 random bits per element of ``like``, hashed from its position in memory (random_bits in numbers.h)."""
    if like.numel() > 2**32:
        raise ValueError(
            f"shape {tuple(like.shape)}: tensors with more than 2^32 elements need the C step; see kernels.available()"
        )
    i = torch.arange(like.numel(), device=like.device)
    i = i.as_strided(like.shape, like.stride()) if is_dense(like) else i.view(like.shape)
    h = (((i + (key & _LOW_32)) & _LOW_32) * 0x9E3779B9) & _LOW_32
    h = h ^ (_shifted(key, 32))
    h = ((h ^ (h >> 15)) * 0xD35A2D97) & _LOW_32
    return h >> 16


def store_(target: Tensor, value: Tensor, random: Tensor) -> None:
    """Store float32 ``value`` in bf16 ``target``, rounded up where adding the 16 random bits carries; NaN stays NaN.

    >>> target, value = torch.zeros(4096, dtype=torch.bfloat16), torch.full((4096,), 1 + 2**-9)
    >>> store_(target, value, random_bits(target, 0))
    >>> target.unique().tolist(), round(target.double().mean().item(), 3)
    ([1.0, 1.0078125], 1.002)
    """
    bits = (value.view(torch.int32) + random.to(torch.int32)) & -65536
    target.copy_(torch.where(value.isnan(), value, bits.view(torch.float32)))


def round_state_(state: Mapping[str, Tensor], wide: Mapping[str, Tensor]) -> None:
    """Write float32 averages back into a state that stores them in bf16; the step has been counted already.

    All averages of an element share its random bits: each is unbiased, and a new maximum is rounded like the average
    that it equals. A state in another dtype was already updated in place, so nothing is written.
    """
    if "rounding" not in state:
        return
    step, tracing = state["step"], torch.compiler.is_compiling()
    random = random_bits(
        state["v"], key_of(state["rounding"], (step.item() if step.is_cpu and not tracing else step) - 1)
    )
    for name, value in wide.items():
        if name not in COUNTERS:
            store_(state[name], value, random)
