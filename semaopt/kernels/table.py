"""Tells the library where the tensors of a step lie.

Gradients are new tensors in every step, and a user may move a parameter or replace a state at any time, so all of it
is read and checked in every step; table.c says how that stays cheap.
"""

from __future__ import annotations

import weakref
from array import array
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from semaopt.kernels.layout import PLAIN, is_dense, same_layout
from semaopt.kernels.loader import Library

#: Storage of x and v, as step.h numbers the pairs.
KINDS = {
    (torch.float32, torch.float32): 0,
    (torch.float64, torch.float64): 1,
    (torch.bfloat16, torch.float32): 2,
    (torch.float32, torch.bfloat16): 3,
    (torch.bfloat16, torch.bfloat16): 4,
}
#: Of step, v_weight, u_weight, rounding.
COUNTER_DTYPES = (torch.float32, torch.float64, torch.float64, torch.int64)
#: The keys of a state in the order of step.h's roles from V on, None for what is not needed, and None at the end.
Keys = list[str | None]
NO_KEYS: Keys = [None] * 8


class Table:
    """Memory of the library in which addresses are gathered. It holds no tensor, so it keeps none alive."""

    def __init__(self, library: Library) -> None:
        self.library = library
        self.at: int = library.new_table()
        if not self.at:
            raise MemoryError("no memory for the table of the C step")
        weakref.finalize(self, library.free_table, self.at).atexit = False

    def step(
        self, xs: list[Tensor], gs: list[Tensor], states: list[dict[str, Any]], keys: Keys, options: bytes
    ) -> bool:
        """Take a step; False, and nothing has changed, if a tensor is not as the library needs it."""
        n = len(xs)
        if any(map(Tensor.is_neg, gs)):  # then it holds minus its value
            return False
        if not self.library.reads_tensors:
            if not PLAIN.issuperset(map(type, chain(xs, gs))) or not self._gather(xs, gs, states or [{}] * n, keys):
                return False
            n = -1
        failed: int = self.library.step(self.at, n, xs, gs, states, keys, options, torch.get_num_threads())
        if failed < 0:
            raise MemoryError("no memory for the table of the C step")
        if failed == 0:
            increment_version(xs)  # so that autograd notices, as it would for torch's own operations
        return failed == 0

    def _gather(self, xs: list[Tensor], gs: list[Tensor], states: list[dict[str, Any]], keys: Keys) -> bool:
        """What table.c does with DLPack, in Python: for versions of torch that do not offer that."""
        addresses, sizes, kinds = array("Q"), array("q"), array("q")
        for x, g, state in zip(xs, gs, states, strict=True):
            tensors = [None if key is None else state.get(key) for key in keys[:-1]]
            kind = _kind(x, g, tensors)
            missing = any(key is not None and m is None for key, m in zip(keys[:-1], tensors, strict=True))
            if kind is None or missing:
                return False
            addresses.extend(0 if m is None else m.data_ptr() for m in (x, g, *tensors))
            sizes.append(x.numel())
            kinds.append(kind)
        failed: int = self.library.fill(self.at, len(xs), *(a.buffer_info()[0] for a in (addresses, sizes, kinds)))
        if failed:
            raise MemoryError("no memory for the table of the C step")
        return True


def _kind(x: Tensor, g: Tensor, tensors: list[Tensor | None]) -> int | None:
    """How step.h numbers the storage of a parameter and its averages, or None if something does not fit."""
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
