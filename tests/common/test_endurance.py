"""Many steps hold no more memory than few; benchmarks/endurance.py does the same with a million, and looks at time."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import pytest
import torch

from tests.common.registry import METHODS, descend

STATM = Path("/proc/self/statm")


@pytest.mark.slow
@pytest.mark.skipif(not STATM.exists(), reason="reads the memory of the process where Linux tells it")
@pytest.mark.parametrize("method", METHODS, ids=str)
def test_memory_does_not_grow(method):
    """Neither a tensor nor a Python object for each step, nor what the C step might forget."""
    optimizer, problem = method.start(lr=1e-3)
    method.advance(optimizer, problem, 0)
    steps = 2_500 if method.advance is descend else 150

    def take(count):
        for k in range(count):
            if method.advance is descend:
                optimizer.step()
            else:
                method.advance(optimizer, problem, k % 16)
        gc.collect()
        return int(STATM.read_text().split()[1]) * 4096, sys.getallocatedblocks(), tensors()

    before = take(steps // 10)
    after = take(steps)
    assert after[0] - before[0] < 8 << 20
    assert after[1] - before[1] < steps, "Python objects"
    assert after[2] <= before[2], "tensors"


def tensors():
    return sum(issubclass(type(found), torch.Tensor) for found in gc.get_objects())
