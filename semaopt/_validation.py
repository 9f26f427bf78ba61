"""Errors that say the value, the rule and the remedy."""

from __future__ import annotations

import math
from numbers import Integral
from typing import Any

from torch import Tensor


class NonFiniteError(RuntimeError):
    """NaN or Inf where a step needs numbers, found before anything has moved."""


def require(ok: bool, name: str, value: object, rule: str, remedy: str) -> None:
    """Raise ``ValueError("name=value: rule; remedy")`` unless ``ok``."""
    if not ok:
        raise ValueError(f"{name}={value!r}: {rule}; {remedy}")


def is_real(value: Any) -> bool:
    """A Python number (not a bool) or a real one-element tensor."""
    if isinstance(value, Tensor):
        return value.numel() == 1 and not value.is_complex()
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def whole(name: str, value: Any, remedy: str, least: int = 1) -> int:
    """``value`` as a Python int. NumPy's integers will do; what is below ``least``, or no integer, is refused."""
    ok = not isinstance(value, bool) and isinstance(value, Integral) and int(value) >= least
    require(ok, name, value, f"must be a whole number >= {least}", remedy)
    return int(value)


def hold_whole(owner: object, name: str, remedy: str, least: int = 1) -> None:
    """The same for an attribute of a frozen dataclass, which then holds the Python int."""
    object.__setattr__(owner, name, whole(name, getattr(owner, name), remedy, least))


def number(value: float | Tensor) -> float:
    """The value of what :func:`is_real` accepts; a differentiable tensor is read without torch's warning."""
    return float(value.detach() if isinstance(value, Tensor) else value)


def check_rate(name: str, value: Any, remedy: str) -> None:
    """A finite number >= 0, as a float or as a one-element tensor."""
    ok = is_real(value) and 0 <= number(value) < math.inf
    require(ok, name, value, "must be a finite number >= 0", _as_float(name, value) or remedy)


def _as_float(name: str, value: Any) -> str:
    """The remedy for a number of another library, such as NumPy's."""
    is_number = hasattr(value, "__float__") and not isinstance(value, (int, float, Tensor))
    return f"it is a {type(value).__module__}.{type(value).__name__}; pass float({name})" if is_number else ""


def check_beta(name: str, value: Any) -> None:
    """A momentum in [0, 1), as a float or as a one-element tensor."""
    ok = is_real(value) and 0 <= number(value) < 1
    remedy = _as_float(name, value) or f"gamma = 1 - {name} weighs the newest sample; try 0.9"
    require(ok, name, value, "must lie in [0, 1)", remedy)


#: Outside this range 1/s^2 is not a normal float32 number.
SMALLEST_BOUND, LARGEST_BOUND = 1e-18, 1e18


def check_bounds(name: str, value: Any) -> None:
    """A pair (c_l, c_u) with 0 < c_l <= c_u that float32 can hold squared."""
    pair = isinstance(value, (tuple, list)) and len(value) == 2 and all(map(is_real, value))
    ok = pair and SMALLEST_BOUND <= value[0] <= value[1] <= LARGEST_BOUND
    require(
        ok,
        name,
        value,
        f"must be (c_l, c_u) with {SMALLEST_BOUND:g} <= c_l <= c_u <= {LARGEST_BOUND:g}",
        "the scaling s = 1/(sqrt(u) + g0) is held between them; try (0.1, 1000.0)",
    )


def check_flag(name: str, value: Any) -> None:
    """True or False, and nothing that merely looks like it."""
    require(isinstance(value, bool), name, value, "must be True or False", "pass a bool")
