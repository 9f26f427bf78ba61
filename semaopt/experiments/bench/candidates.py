"""The optimizers that ``semaopt bench step`` measures, and the memory limit of a step."""

from __future__ import annotations

import importlib
import importlib.util
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor

import semaopt
from semaopt.kernels.loader import library

#: Times are reported as ratios to this candidate.
BASE = "torch Adam fused"


@dataclass(frozen=True)
class Candidate:
    """A named optimizer to measure."""

    name: str
    build: Callable[[list[Tensor]], Any]
    needs: str = ""
    """A package that may not be installed."""
    slow: bool = False
    """Whether it is skipped for the 100M tensor, where several passes take seconds and gigabytes."""

    def missing(self) -> str:
        """Return the command that installs the package it needs, or "" if it can be measured."""
        if self.needs and importlib.util.find_spec(self.needs) is None:
            return f"pip install --no-deps {self.needs.replace('_', '-')}"
        return ""


def _asa(scaling: str, **options: Any) -> Callable[[list[Tensor]], Any]:
    return lambda xs: semaopt.ASA(xs, scaling=scaling, **options)


def _torch(kind: str, **options: Any) -> Callable[[list[Tensor]], Any]:
    return lambda xs: getattr(torch.optim, kind)(xs, lr=1e-3, **options)


def _peer(module: str, kind: str, **options: Any) -> Callable[[list[Tensor]], Any]:
    def build(xs: list[Tensor]) -> Any:
        return getattr(importlib.import_module(module), kind)(xs, lr=1e-3, **options)

    return build


CANDIDATES = (
    Candidate(BASE, _torch("Adam", fused=True)),
    Candidate("torch Adam foreach", _torch("Adam", foreach=True)),
    Candidate("torch Adam loop", _torch("Adam", foreach=False), slow=True),
    Candidate("torch AMSGrad fused", _torch("Adam", fused=True, amsgrad=True)),
    Candidate("torch Adagrad fused", _torch("Adagrad", fused=True)),
    Candidate("torch SGD momentum fused", _torch("SGD", fused=True, momentum=0.9)),
    Candidate("pytorch_optimizer AdaBound", _peer("pytorch_optimizer", "AdaBound"), "pytorch_optimizer"),
    Candidate("torch-optimizer AdaBound", _peer("torch_optimizer", "AdaBound"), "torch_optimizer"),
    Candidate(
        "torch-optimizer AMSBound", _peer("torch_optimizer", "AdaBound", amsbound=True), "torch_optimizer", slow=True
    ),
    *(Candidate(f"semaopt {name}", _asa(name)) for name in semaopt.scalings.BY_NAME),
    Candidate("semaopt adam, bf16 state", _asa("adam", state_dtype=torch.bfloat16)),
    Candidate("semaopt adam foreach", _asa("adam", implementation="foreach")),
    Candidate("semaopt adam loop", _asa("adam", implementation="loop"), slow=True),
)

#: The arrays that a step passes over once: bytes per element, and whether the array is written too.
_X, _G, _M, _HALF = (4, True), (4, False), (4, True), (2, True)
LIMITS: dict[str, tuple[tuple[int, bool], ...]] = {
    "limit of shb": (_X, _G, _M),
    "limit of adam, adafom, adabound": (_X, _G, _M, _M),
    "limit of amsgrad": (_X, _G, _M, _M, _M),
    "limit of adam, bf16 state": (_X, _G, _HALF, _HALF),
}

#: Names of averages in optimizer states: of the gradient (0), of its square (1), the maximum of the latter (2).
_AVERAGES = {
    **dict.fromkeys(("v", "exp_avg", "momentum_buffer"), 0),
    **dict.fromkeys(("u", "u_mean", "exp_avg_sq", "sum"), 1),
    **dict.fromkeys(("u_max", "max_exp_avg_sq"), 2),
}


class Pool:
    """Memory in which all candidates keep the averages of one parameter.

    The speed of a step depends on where its tensors lie in physical memory: two runs of the same program differ by up
    to a third. In shared memory the candidates differ only in what they compute.
    """

    def __init__(self, x: Tensor) -> None:
        self.x = x
        self.buffers = [torch.zeros_like(x) for _ in range(3)]

    def lend(self, optimizer: Any) -> None:
        """Move the optimizer's averages into this memory."""
        state = optimizer.state[self.x]
        for name, value in list(state.items()):
            if name not in _AVERAGES or value.shape != self.x.shape:
                continue
            buffer = self.buffers[_AVERAGES[name]]
            state[name] = buffer.view(-1).view(value.dtype)[: value.numel()].view(value.shape)

    def clear(self) -> None:
        """Set the averages to zero; the bytes of one candidate may be NaN for the next."""
        for buffer in self.buffers:
            buffer.zero_()

    def arrays(self) -> list[Tensor]:
        """Return the parameter, its gradient and its averages, in the order of :data:`LIMITS`."""
        assert self.x.grad is not None
        return [self.x.detach(), self.x.grad, *self.buffers]


_CHUNK = 16384  # as in step.h


def stream(arrays: tuple[tuple[int, bool], ...], pools: Sequence[Pool]) -> Callable[[], None]:
    """Return a function that reads and writes the memory of all parameters once and computes nothing."""
    found = library()
    assert found is not None, "the limit needs the C library"
    sizes = [pool.x.numel() for pool in pools]
    cuts = [(k, start, min(_CHUNK, n - start)) for k, n in enumerate(sizes) for start in range(0, n, _CHUNK)]
    at, widths, writes, chunks = (
        array("Q", [tensor.data_ptr() for pool in pools for tensor in pool.arrays()[: len(arrays)]]),
        array("q", [width for width, _ in arrays]),
        array("q", [written for _, written in arrays]),
        array("q", chain.from_iterable(cuts)),
    )

    def step() -> None:
        where, width, write, chunk = (a.buffer_info()[0] for a in (at, widths, writes, chunks))
        found.stream(where, width, write, len(arrays), chunk, len(cuts), sum(sizes), torch.get_num_threads())

    return step
