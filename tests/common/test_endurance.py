"""Constant memory over many steps; benchmarks/endurance.py takes a million steps and also measures time."""

from __future__ import annotations

import gc
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from tests.common.registry import METHODS, descend

STATM = Path("/proc/self/statm")


@pytest.mark.slow
@pytest.mark.skipif(not STATM.exists(), reason="reads the memory of the process where Linux tells it")
@pytest.mark.parametrize("method", METHODS, ids=str)
def test_memory_does_not_grow(method):
    """Steps leak no tensors, no Python objects and no memory of the C step."""
    optimizer, problem = method.start(lr=1e-3)
    method.advance(optimizer, problem, 0)
    steps = 500 if method.advance is descend else 50

    def take(count):
        for k in range(count):
            if method.advance is descend:
                optimizer.step()
            else:
                method.advance(optimizer, problem, k % 16)
        gc.collect()
        return int(STATM.read_text().split()[1]) * 4096, sys.getallocatedblocks(), tensors()

    # A leak grows in every measured interval; a one-time allocation grows in only one of them. A method whose rule
    # changes at every step (SBMA, BSA) fills the cache of packed rules, 256 entries, before the last intervals.
    seen = [take(steps // 10), *(take(steps) for _ in range(3 if method.advance is descend else 7))]
    memory, blocks, alive = zip(*([b - a for a, b in zip(*pair, strict=True)] for pair in pairwise(seen)), strict=True)
    assert min(memory) < 8 << 20
    assert min(blocks) < steps, "Python objects"
    assert min(alive) <= 0, "tensors"


def tensors():
    return sum(issubclass(type(found), torch.Tensor) for found in gc.get_objects())
