"""Bounds c_l and c_u of a scaling on a test problem."""

from __future__ import annotations

import math
from dataclasses import replace

from semaopt import scalings
from semaopt._validation import require
from semaopt.theory.constants import Constants


def scaled(
    c: Constants, scaling: str | scalings.Scaling, largest: float, d: int, clip: tuple[float, float] | None
) -> Constants:
    """Return ``c`` with the bounds of ``clip``, or else of Table 2 for samples with coordinates up to ``largest``."""
    if clip is not None:
        return replace(c, c_l=clip[0], c_u=clip[1])
    row = scalings.resolve(scaling)
    if not isinstance(row, scalings.BuiltIn):
        raise TypeError(f"scaling={scaling!r}: its bounds are not in Table 2. Pass clip=(c_l, c_u).")
    if isinstance(row, (scalings.SHB, scalings.AdaBound)):
        return c.scaled(row, 1.0)  # these bounds do not depend on the gradients
    ok = largest < math.inf
    require(ok, "scaling", scaling, "its c_l needs bounded gradients, but these are not", "pass clip=(c_l, c_u)")
    return c.scaled(row, largest * (math.sqrt(d) if isinstance(row, scalings.AdamPlus) else 1))
