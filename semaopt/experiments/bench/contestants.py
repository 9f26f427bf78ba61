"""Who is measured by ``semaopt bench step``."""

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

#: Ratios are to this one.
BASE = "torch Adam fused"


@dataclass(frozen=True)
class Contestant:
    """A name and how to build the optimizer; ``needs`` is a package that may be absent."""

    name: str
    build: Callable[[list[Tensor]], Any]
    needs: str = ""
    slow: bool = False
    """Left out on the 100M tensor, where chains of passes take seconds and gigabytes."""

    def absent(self) -> str:
        """Why it cannot be measured here, or ""."""
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


CONTESTANTS = (
    Contestant(BASE, _torch("Adam", fused=True)),
    Contestant("torch Adam foreach", _torch("Adam", foreach=True), slow=True),
    Contestant("torch Adam loop", _torch("Adam", foreach=False), slow=True),
    Contestant("torch AMSGrad fused", _torch("Adam", fused=True, amsgrad=True)),
    Contestant("torch Adagrad fused", _torch("Adagrad", fused=True)),
    Contestant("torch SGD momentum fused", _torch("SGD", fused=True, momentum=0.9)),
    Contestant("pytorch_optimizer AdaBound", _peer("pytorch_optimizer", "AdaBound"), "pytorch_optimizer"),
    Contestant("torch-optimizer AdaBound", _peer("torch_optimizer", "AdaBound"), "torch_optimizer"),
    Contestant(
        "torch-optimizer AMSBound", _peer("torch_optimizer", "AdaBound", amsbound=True), "torch_optimizer", slow=True
    ),
    *(Contestant(f"semaopt {name}", _asa(name)) for name in semaopt.scalings.BY_NAME),
    Contestant("semaopt adam, bf16 state", _asa("adam", state_dtype=torch.bfloat16)),
    Contestant("semaopt adam foreach", _asa("adam", implementation="foreach"), slow=True),
    Contestant("semaopt adam loop", _asa("adam", implementation="loop"), slow=True),
)

#: The arrays that a step passes over once: bytes of an element, and whether it is written too.
_X, _G, _M, _HALF = (4, True), (4, False), (4, True), (2, True)
LIMITS: dict[str, tuple[tuple[int, bool], ...]] = {
    "limit of shb": (_X, _G, _M),
    "limit of adam, adafom, adabound": (_X, _G, _M, _M),
    "limit of amsgrad": (_X, _G, _M, _M, _M),
    "limit of adam, bf16 state": (_X, _G, _HALF, _HALF),
}


#: What optimizers call their averages: of the gradient, of its square, and the peak of the latter.
_AVERAGES = {
    **dict.fromkeys(("v", "exp_avg", "momentum_buffer"), 0),
    **dict.fromkeys(("u", "u_mean", "exp_avg_sq", "sum"), 1),
    **dict.fromkeys(("u_max", "max_exp_avg_sq"), 2),
}


class Pool:
    """Memory in which everybody keeps the averages of one parameter.

    How fast a step is depends on where its tensors happen to lie in physical memory, by a third between two runs of one
    program; in the same memory the contestants differ only in what they do.
    """

    def __init__(self, x: Tensor) -> None:
        self.x = x
        self.held = [torch.zeros_like(x) for _ in range(3)]

    def lend(self, optimizer: Any) -> None:
        """Put the optimizer's averages here."""
        state = optimizer.state[self.x]
        for name, value in list(state.items()):
            if name not in _AVERAGES or value.shape != self.x.shape:
                continue
            state[name] = self.held[_AVERAGES[name]].view(-1).view(value.dtype)[: value.numel()].view(value.shape)

    def clear(self) -> None:
        """What one contestant leaves need not be a number for the next."""
        for held in self.held:
            held.zero_()

    def arrays(self) -> list[Tensor]:
        """In the order of LIMITS: the parameter, its gradient, its averages."""
        assert self.x.grad is not None
        return [self.x.detach(), self.x.grad, *self.held]


_CHUNK = 16384  # of step.h


def stream(arrays: tuple[tuple[int, bool], ...], pools: Sequence[Pool]) -> Callable[[], None]:
    """A function that reads, and where said writes, the memory of all parameters, and computes nothing."""
    found = library()
    assert found is not None, "there is no limit without the C library"
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
