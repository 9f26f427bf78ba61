"""The C step of a param group: all tensors in one pass over memory, without the GIL.

Its slow twin is :func:`semaopt.kernels.loop.loop_group`. Gradients are new tensors in every step, and a user may move a
parameter or replace a state at any time, so the addresses are read and validated in every step; ``table.c`` explains
how that stays cheap.
"""

from __future__ import annotations

import functools
import math
import struct
import weakref
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from semaopt.kernels.averaging import Average
from semaopt.kernels.layout import PLAIN, is_dense, same_layout
from semaopt.kernels.loader import Library, library
from semaopt.kernels.rows import row_of
from semaopt.kernels.rule import StepRule

_OPTIONS = struct.Struct("12d2q")  # struct Options of step.h
_ASCEND = 5  # the code of the ascent in step.h, after those of the rows of Table 2
_INF = math.inf
#: Largest number of tables to keep; a table is scratch memory, and the oldest is dropped.
MOST_TABLES = 256

#: Storage dtypes of x and v, numbered as in step.h.
KINDS = {
    (torch.float32, torch.float32): 0,
    (torch.float64, torch.float64): 1,
    (torch.bfloat16, torch.float32): 2,
    (torch.float32, torch.bfloat16): 3,
    (torch.bfloat16, torch.bfloat16): 4,
}
#: Dtypes of step, v_weight, u_weight, rounding.
COUNTER_DTYPES = (torch.float64, torch.float64, torch.float64, torch.int64)
#: State keys in the order of step.h's roles from V on; None for an unused role, and None at the end.
Keys = list[str | None]
NO_KEYS: Keys = [None] * 8


def step(
    rule: StepRule,
    xs: list[Tensor],
    gs: list[Tensor],
    states: list[dict[str, Any]],
    average: Average | None = None,
) -> bool:
    """Take one step under a rule whose scaling is in ``rows.SCALINGS``, and update an average of iterates with it.

    Returns False, and changes nothing, if a tensor does not fit the C step.
    """
    lib = library()
    if lib is None:
        return False
    if average is not None:  # its weight changes in every step
        options, keys = _pack(rule, average.weight)
        return _run(lib, xs, gs, states, keys=keys, options=options, means=average.means)
    if type(rule.eta) is type(rule.gamma) is type(rule.weight_decay) is float:
        options, keys = _packed(rule)
    else:  # a tensor may have another value in every step
        options, keys = _pack(rule)
    return _run(lib, xs, gs, states, keys=keys, options=options)


def ascend_box_(ys: list[Tensor], gs: list[Tensor], eta: float, lo: float, hi: float) -> bool:
    """Compute ``y <- clip(y + eta g, lo, hi)``; return False, and change nothing, if a tensor does not fit."""
    lib = library()
    options = _OPTIONS.pack(eta, 1.0, 0.0, 0.0, lo, hi, -_INF, _INF, 0.0, 1.0, 1.0, 0.0, _ASCEND, 0)
    return lib is not None and _run(lib, ys, gs, [], keys=NO_KEYS, options=options)


def _pack(rule: StepRule, mean_weight: float = 0.0) -> tuple[bytes, Keys]:
    """Return the rule as struct Options of step.h, and the state keys that it needs."""
    eta, decay, clip, corrected = float(rule.eta), float(rule.weight_decay), rule.clip_scaling, rule.bias_correction
    decoupled, row = rule.decoupled_weight_decay, row_of(rule)
    options = _OPTIONS.pack(
        eta, float(rule.gamma), *row.numbers(rule.scaling),
        -_INF if clip is None else 1 / clip[1], _INF if clip is None else 1 / clip[0],
        0.0 if decoupled else decay, 1 - eta * decay if decoupled else 1.0, -1.0 if rule.maximize else 1.0,
        mean_weight, row.number, corrected,
    )  # fmt: skip
    weights = ("v_weight", "u_weight" if row.weighs_u else None) if corrected else (None, None)
    rounding = None if rule.state_dtype is None else "rounding"
    return options, ["v", row.u, row.u_max, "step", *weights, rounding, None]


_packed = functools.lru_cache(maxsize=256)(_pack)


# ---- where the tensors are ------------------------------------------------------------------------------------------

_tables: OrderedDict[int, Table] = OrderedDict()


def _run(
    lib: Library,
    xs: list[Tensor],
    gs: list[Tensor],
    states: list[dict[str, Any]],
    *,
    keys: Keys,
    options: bytes,
    means: list[Tensor] | None = None,
) -> bool:
    """Call the C step with the table last used for a group that starts with the same parameter, or a new one.

    The table is taken out of the dictionary meanwhile: the library releases the GIL, and another thread may step a
    group that starts with the same parameter.
    """
    owner = id(xs[0]) if xs else 0
    table = _tables.pop(owner, None) or Table(lib)
    done = table.step(xs, gs, states, keys=keys, options=options, means=means)
    _tables[owner] = table
    if len(_tables) > MOST_TABLES:
        _tables.popitem(last=False)
    return done


class Table:
    """Memory of the library in which it gathers addresses. It holds no reference to a tensor."""

    def __init__(self, library: Library) -> None:
        self.library = library
        self.at: int = library.new_table()
        if not self.at:
            raise MemoryError("no memory for the table of the C step")
        weakref.finalize(self, library.free_table, self.at).atexit = False

    def step(
        self,
        xs: list[Tensor],
        gs: list[Tensor],
        states: list[dict[str, Any]],
        *,
        keys: Keys,
        options: bytes,
        means: list[Tensor] | None = None,
    ) -> bool:
        """Take a step; return False, and change nothing, if a tensor does not fit."""
        n = len(xs)
        if any(map(Tensor.is_neg, gs)):  # such a tensor stores minus its value
            return False
        if not self.library.reads_tensors:
            plain = PLAIN.issuperset(map(type, chain(xs, gs)))
            if not plain or not self._gather(xs, gs, states or [{}] * n, means, keys):
                return False
            n = -1
        failed: int = self.library.step(self.at, n, xs, gs, states, means, keys, options, torch.get_num_threads())
        if failed < 0:
            raise MemoryError("no memory for the table of the C step")
        if failed == 0:
            increment_version(xs)  # autograd must notice the change, as with torch's own in-place operations
        return failed == 0

    def _gather(
        self,
        xs: list[Tensor],
        gs: list[Tensor],
        states: list[dict[str, Any]],
        means: list[Tensor] | None,
        keys: Keys,
    ) -> bool:
        """Fill the table from Python, as table.c does with DLPack; for versions of torch without that interface."""
        addresses, sizes, kinds = array("Q"), array("q"), array("q")
        averages: Sequence[Tensor | None] = [None] * len(xs) if means is None else means
        for x, g, state, mean in zip(xs, gs, states, averages, strict=True):
            tensors = [None if key is None else state.get(key) for key in keys[:-1]]
            kind = _kind(x, g, tensors)
            missing = any(key is not None and m is None for key, m in zip(keys[:-1], tensors, strict=True))
            wide = torch.float64 if x.dtype == torch.float64 else torch.float32
            if kind is None or missing or (mean is not None and not (same_layout(mean, x) and mean.dtype == wide)):
                return False
            addresses.extend(0 if m is None else m.data_ptr() for m in (x, g, *tensors, mean))
            sizes.append(x.numel())
            kinds.append(kind)
        failed: int = self.library.fill(self.at, len(xs), *(a.buffer_info()[0] for a in (addresses, sizes, kinds)))
        if failed:
            raise MemoryError("no memory for the table of the C step")
        return True


def _kind(x: Tensor, g: Tensor, tensors: list[Tensor | None]) -> int | None:
    """Return step.h's code for the dtypes of a parameter and its averages, or None if a tensor is unsupported."""
    averages, counters = [m for m in tensors[:3] if m is not None], tensors[3:]
    dtype = averages[0].dtype if averages else torch.float32 if x.dtype == torch.bfloat16 else x.dtype
    kind = KINDS.get((x.dtype, dtype))
    fits = (
        all(same_layout(m, x) and m.dtype == dtype for m in averages)
        and (same_layout(g, x) and g.dtype == x.dtype and is_dense(x))
        and all(
            m is None or (m.dtype == d and m.numel() == 1 and m.is_cpu)
            for m, d in zip(counters, COUNTER_DTYPES, strict=True)
        )
        and (not averages or (counters[-1] is not None) == (dtype == torch.bfloat16))
    )
    return kind if fits else None
