"""Every optimizer of the library, one line each: it inherits the whole suite of test_suite.py.

A method acts on a :class:`Problem`, elementwise so that it runs in every dtype. ``lacks`` names the suite's features
that a method does not offer, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

import semaopt

SHAPES = ((3, 2), (4,), ())


@dataclass
class Problem:
    """Parameters ``xs`` (and the dual or lower variables ``others``) with seeded random losses, one per step k."""

    xs: list[Tensor]
    others: list[Tensor] = field(default_factory=list)
    sign: float = 1.0
    decay: float = 0.0

    def sample(self, x: Tensor, i: int, k: int) -> tuple[Tensor, Tensor]:
        """A random curvature in [0.5, 1.5] and a random centre for tensor i in step k."""
        generator = torch.Generator().manual_seed(1000 * k + i)
        real = torch.rand((*x.shape, 3), generator=generator, dtype=torch.float64)
        centre = torch.complex(real[..., 1], real[..., 2]) if x.is_complex() else real[..., 1]
        return (real[..., 0] + 0.5).to(x.real.dtype), centre.to(x.dtype)

    def minimize(self, k: int) -> Tensor:
        """sum of w|x - c|^2 / 2 with random w, c; ``decay`` adds decay |x|^2 / 2; ``sign`` turns it over."""
        terms = []
        for i, x in enumerate(self.xs):
            if x.requires_grad:
                weight, centre = self.sample(x, i, k)
                terms.append(((x - centre).abs().square() * weight).sum() + self.decay * x.abs().square().sum())
        return self.sign * 0.5 * sum(terms, torch.zeros(()))


def parameters(dtype: torch.dtype = torch.float32, shapes: tuple[tuple[int, ...], ...] = SHAPES) -> list[Tensor]:
    generator = torch.Generator().manual_seed(7)
    real = torch.complex128 if dtype.is_complex else torch.float64
    return [torch.nn.Parameter(torch.randn(shape, generator=generator, dtype=real).to(dtype)) for shape in shapes]


def descend(optimizer: Optimizer, problem: Problem, k: int) -> None:
    """How a minimizer is driven: zero_grad, backward, step."""
    optimizer.zero_grad()
    problem.minimize(k).backward()
    optimizer.step()


def no_others(dtype: torch.dtype) -> list[Tensor]:
    return []


@dataclass(frozen=True)
class Method:
    """``build(xs, others, **hyper)`` makes the optimizer, ``advance(optimizer, problem, k)`` drives step k."""

    name: str
    build: Callable[..., Optimizer]
    advance: Callable[[Optimizer, Problem, int], None] = descend
    others: Callable[[torch.dtype], list[Tensor]] = no_others
    lacks: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.name

    def start(self, dtype: torch.dtype = torch.float32, **hyper: Any) -> tuple[Optimizer, Problem]:
        problem = Problem(parameters(dtype), self.others(dtype))
        return self.build(problem.xs, problem.others, **hyper), problem


def asa(scaling: str) -> Callable[..., Optimizer]:
    def build(xs: Any, others: list[Tensor], **hyper: Any) -> Optimizer:
        return semaopt.ASA(xs, scaling=scaling, **{"lr": 0.05, **hyper})

    return build


METHODS = [Method(f"ASA[{name}]", asa(name)) for name in semaopt.scalings.BY_NAME]
