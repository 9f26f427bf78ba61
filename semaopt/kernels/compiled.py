"""The compiled step of one param group: all tensors in one pass over memory, without the GIL.

Its slow twin is :func:`semaopt.optimizers.asa.loop_group`. Which of them runs is decided in
:mod:`semaopt.kernels.dispatch`.
"""

from __future__ import annotations

import math
import struct
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor

from semaopt import scalings
from semaopt.kernels.loader import Library, library
from semaopt.kernels.table import NO_KEYS, Keys, Table

_OPTIONS = struct.Struct("11d2q")  # struct Options of step.h
_ASCEND = 5  # beside the numbers of the rows
_INF = math.inf
#: A table is scratch memory; beyond this many the oldest goes.
MOST_TABLES = 256


class _Row(NamedTuple):
    """How step.h names a row of Table 2."""

    number: int
    u: str | None = None
    u_max: str | None = None
    weighs_u: bool = False
    numbers: Callable[[Any], tuple[float, ...]] = lambda row: (0.0, row.g0, -_INF, _INF)
    """gamma_u, g0, and the bounds of u."""


#: The scalings that are compiled. A subclass is not: it may have its own formula.
SCALINGS: dict[type, _Row] = {
    scalings.SHB: _Row(0),
    scalings.Adam: _Row(1, "u", None, True, lambda row: (1 - row.beta2, row.g0, -_INF, _INF)),
    scalings.AdaBound: _Row(1, "u", None, True, lambda row: (1 - row.beta2, 0.0, row.c_u**-2, row.c_l**-2)),
    scalings.AMSGrad: _Row(2, "u", "u_max", True, lambda row: (1 - row.beta2, row.g0, -_INF, _INF)),
    scalings.AdaFom: _Row(3, "u_mean"),
    scalings.AdamPlus: _Row(4),
}

_tables: OrderedDict[int, Table] = OrderedDict()
_keys: dict[tuple[type, bool, bool], Keys] = {}


def _run(
    lib: Library, xs: list[Tensor], gs: list[Tensor], states: list[dict[str, Any]], *, keys: Keys, options: bytes
) -> bool:
    """A step with the table used for parameters that begin with this one before, or a new one.

    Nobody else can find the table meanwhile: the library lets other threads run, and one of them may step a group that
    begins with the same parameter.
    """
    owner = id(xs[0]) if xs else 0
    table = _tables.pop(owner, None) or Table(lib)
    done = table.step(xs, gs, states, keys, options)
    _tables[owner] = table
    if len(_tables) > MOST_TABLES:
        _tables.popitem(last=False)
    return done


def _keys_of(scaling: type, corrected: bool, rounds: bool) -> Keys:
    wanted = (scaling, corrected, rounds)
    keys = _keys.get(wanted)
    if keys is None:
        row = SCALINGS[scaling]
        weights = ("v_weight", "u_weight" if row.weighs_u else None) if corrected else (None, None)
        keys = _keys[wanted] = ["v", row.u, row.u_max, "step", *weights, "rounding" if rounds else None, None]
    return keys


def step(group: dict[str, Any], xs: list[Tensor], gs: list[Tensor], states: list[dict[str, Any]]) -> bool:
    """One step of a group with a scaling in ``SCALINGS``; False, and nothing has moved, if any tensor does not fit."""
    lib = library()
    if lib is None:
        return False
    scaling, corrected, clip = group["scaling"], group["bias_correction"], group["clip_scaling"]
    eta, decay, decoupled = float(group["lr"]), float(group["weight_decay"]), group["decoupled_weight_decay"]
    row = SCALINGS[type(scaling)]
    options = _OPTIONS.pack(
        eta, 1 - float(group["beta"]), *row.numbers(scaling),
        -_INF if clip is None else 1 / clip[1], _INF if clip is None else 1 / clip[0],
        0.0 if decoupled else decay, 1 - eta * decay if decoupled else 1.0, -1.0 if group["maximize"] else 1.0,
        row.number, corrected,
    )  # fmt: skip
    keys = _keys_of(type(scaling), corrected, group.get("state_dtype") is not None)
    return _run(lib, xs, gs, states, keys=keys, options=options)


def ascend_box_(ys: list[Tensor], gs: list[Tensor], eta: float, lo: float, hi: float) -> bool:
    """``y <- clip(y + eta g, lo, hi)``; False, and nothing has moved, if any tensor does not fit."""
    lib = library()
    options = _OPTIONS.pack(eta, 1.0, 0.0, 0.0, lo, hi, -_INF, _INF, 0.0, 1.0, 1.0, _ASCEND, 0)
    return lib is not None and _run(lib, ys, gs, [], keys=NO_KEYS, options=options)
