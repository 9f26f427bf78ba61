"""Validate arguments; every error names the value, the rule and the remedy.

``lr=-1.0 is invalid: it must be a finite number >= 0. Try 1e-3.``
"""

from __future__ import annotations

import math
import re
import reprlib
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor

#: Smallest and largest bound of the scaling s: outside this range 1/s^2 is not a normal float32 number.
SMALLEST_BOUND, LARGEST_BOUND = 1e-18, 1e18

# A first word that may be capitalized: not a symbol (gamma = ...), a call or a dotted name.
_PLAIN_WORD = re.compile(r"[a-z]+(?= (?!=)|,|$)")


class NonFiniteError(RuntimeError):
    """NaN or Inf in the input of a step, raised before the step changes anything."""


class DivergenceError(RuntimeError):
    """A variable or a series that diverges, raised before the step changes anything."""


def require(ok: bool, name: str, value: object, rule: str, remedy: str) -> None:
    """Raise ``ValueError`` unless ``ok``.

    Args:
        ok: whether the value is valid.
        name: the argument.
        value: what was passed.
        rule: ``"must ..."``, or a clause that says what is wrong.
        remedy: what to do; a sentence, whose capital letter and period may be left out.
    """
    if not ok:
        raise ValueError(invalid(name, value, rule, remedy))


def invalid(name: str, value: object, rule: str, remedy: str) -> str:
    """Return the text of an error, ``name=value is invalid: it <rule>. <Remedy>.``

    >>> from semaopt._validation import invalid
    >>> invalid("lr", -1.0, "must be >= 0", "try lr=1e-3")
    'lr=-1.0 is invalid: it must be >= 0. Try lr=1e-3.'
    """
    clause = f"it {rule}" if rule.startswith("must ") else rule
    first = _PLAIN_WORD.match(remedy)
    sentence = remedy[0].upper() + remedy[1:] if first else remedy
    return f"{name}={value!r} is invalid: {clause}. {sentence}{'' if sentence.endswith(('.', '?')) else '.'}"


def is_real(value: Any) -> bool:
    """Return whether ``value`` is a real number (NumPy's included, bool excluded) or a real one-element tensor."""
    if isinstance(value, Tensor):
        return value.numel() == 1 and not value.is_complex()
    return isinstance(value, Real) and not isinstance(value, bool)


def to_float(value: float | Tensor) -> float:
    """Convert a number or a one-element tensor to float; a tensor that requires grad raises no warning."""
    return float(value.item() if isinstance(value, Tensor) else value)


def as_tensor_of(value: Any, name: str) -> Tensor:
    """Return data of a user as a tensor: a tensor stays on its device, anything else is copied to the CPU.

    Series, data frames and other objects with ``__array__`` are read by NumPy: torch would look up positions in the
    index of a series.
    """
    if isinstance(value, Tensor):
        return value.detach()
    data, kind = value, ""
    try:
        if hasattr(value, "__array__"):
            import numpy as np

            array = np.asarray(value)
            # A copy that torch accepts: writable, with positive strides and native byte order.
            array = array.astype(array.dtype.newbyteorder("="), order="C")
            data, kind = array, f" (dtype {array.dtype}, shape {array.shape})"
        return torch.as_tensor(data, device="cpu")
    except Exception as error:  # an object with __array__ or __getitem__ may raise anything
        start = reprlib.repr(data.ravel()[:6].tolist() if kind else data)
        raise ValueError(
            f"{name}={start}{kind} is invalid: it must hold numbers or booleans of one dtype, in rows of equal "
            f"length. Convert classes to numbers, e.g. with {name} == 'yes', and missing values to NaN."
        ) from error


def validate_integer(name: str, value: Any, remedy: str, minimum: int = 1) -> int:
    """Return ``value`` as an int. It may be a NumPy integer or an integral float such as 1e6."""
    integral = isinstance(value, Integral) or (isinstance(value, Real) and float(value).is_integer())
    ok = integral and not isinstance(value, bool) and int(value) >= minimum
    require(ok, name, value, f"must be a whole number >= {minimum}", remedy)
    return int(value)


def validate_integer_field(owner: object, name: str, remedy: str, minimum: int = 1) -> None:
    """Validate an attribute of a frozen dataclass and store it as an int."""
    object.__setattr__(owner, name, validate_integer(name, getattr(owner, name), remedy, minimum))


def validate_rate(name: str, value: Any, remedy: str) -> None:
    """Require a finite number >= 0, or a one-element tensor that holds one."""
    ok = is_real(value) and 0 <= to_float(value) < math.inf
    rule = "must be a finite number >= 0" + (", not a string" if isinstance(value, str) else "")
    require(ok, name, value, rule, remedy)


def validate_beta(name: str, value: Any) -> None:
    """Require a momentum in [0, 1), or a one-element tensor that holds one."""
    ok = is_real(value) and 0 <= to_float(value) < 1
    require(ok, name, value, "must lie in [0, 1)", f"Try {name}=0.9; gamma = 1 - {name} is the weight of a new sample.")


def validate_bounds(name: str, value: Any) -> None:
    """Require a pair (c_l, c_u) with 0 < c_l <= c_u whose squares float32 can represent."""
    pair = isinstance(value, (tuple, list)) and len(value) == 2 and all(map(is_real, value))
    require(
        pair and SMALLEST_BOUND <= value[0] <= value[1] <= LARGEST_BOUND,
        name,
        value,
        f"must be (c_l, c_u) with {SMALLEST_BOUND:g} <= c_l <= c_u <= {LARGEST_BOUND:g}",
        "These bounds clip the scaling s = 1/(sqrt(u) + g0); try (0.1, 1000.0).",
    )


def validate_flag(name: str, value: Any) -> None:
    """Require True or False; 0, 1 and None are not accepted."""
    require(isinstance(value, bool), name, value, "must be True or False", "Pass a bool.")
