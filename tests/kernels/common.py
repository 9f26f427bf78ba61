"""Shared helpers for the tests of the fast paths."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import semaopt
from semaopt.kernels.loader import library

needs_c = pytest.mark.skipif(not semaopt.kernels.available(), reason=str(semaopt.kernels.available()))

#: Hyper-parameters that change the arithmetic of a step, alone and in combination.
OPTIONS: list[dict[str, Any]] = [
    {},
    {"beta": 0.0},
    {"beta": 0.3},
    {"bias_correction": True},
    {"bias_correction": True, "beta": 0.4, "maximize": True},
    {"weight_decay": 0.1},
    {"weight_decay": 0.1, "decoupled_weight_decay": True},
    {"weight_decay": 0.1, "maximize": True, "clip_scaling": (0.5, 2.0), "bias_correction": True},
    {"clip_scaling": (0.5, 2.0)},
    {"lr": torch.tensor(0.05)},
]
SHAPES = ((3, 2), (), (0, 3), (70_001,), (5, 4, 3))
SCALINGS = list(semaopt.scalings.BY_NAME)
#: Tolerances for rounding errors after a few steps; bf16 has 8 bits.
CLOSE = {
    torch.float32: {"rtol": 2e-5, "atol": 2e-6},
    torch.float64: {"rtol": 1e-12, "atol": 1e-13},
    torch.bfloat16: {"rtol": 1.6e-2, "atol": 1e-2},
    torch.float16: {"rtol": 2e-3, "atol": 1e-3},
}


def normal(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def parameters(dtype: torch.dtype, shapes: Any = SHAPES) -> list[Tensor]:
    """Return parameters of these shapes, one transposed and one starting in the middle of a vector."""
    xs = [normal(shape, dtype, i) for i, shape in enumerate(shapes)]
    return [torch.nn.Parameter(x) for x in (*xs, normal((8, 5), dtype, 98).t(), normal((67,), dtype, 99)[3:])]


def trained(
    implementation: str,
    dtype: torch.dtype,
    scaling: Any = "adam",
    *,
    steps: int = 5,
    xs: list[Tensor] | None = None,
    **hyper: Any,
) -> tuple[list[Tensor], semaopt.ASA]:
    """Train on seeded gradients; the second parameter has no gradient in the first step."""
    xs = parameters(dtype) if xs is None else xs
    optimizer = semaopt.ASA(xs, scaling=scaling, implementation=implementation, **{"lr": 0.05, **hyper})
    for k in range(steps):
        for i, x in enumerate(xs):
            x.grad = None if (i, k) == (1, 0) else normal(tuple(x.shape), x.dtype, 1000 * k + i)
        optimizer.step()
    return xs, optimizer


def assert_agree(left: Any, right: Any, **tolerance: float) -> None:
    """Compare parameters and states within a tolerance, or bitwise if none is given."""
    exact = {"rtol": 0.0, "atol": 0.0}
    for x, y in zip(left[0], right[0], strict=True):
        torch.testing.assert_close(x, y, **(tolerance or exact))
        mine, its = left[1].state[x], right[1].state[y]
        assert mine.keys() == its.keys()
        for name in mine:
            torch.testing.assert_close(mine[name], its[name], **(tolerance or exact), msg=lambda m, n=name: f"{n}: {m}")


def isas() -> list[Any]:
    """Return the instruction sets of the library; the ones this machine lacks are marked as skipped."""
    found = library()
    names = ("portable", "avx2", "avx512")
    if found is None:
        return [pytest.param(name, marks=needs_c) for name in names]
    before = found.isa
    has = {name: found.use_isa(name) for name in names}
    found.use_isa(before)
    return [
        pytest.param(name, marks=pytest.mark.skipif(not has[name], reason=f"this machine has no {name}"))
        for name in names
    ]
