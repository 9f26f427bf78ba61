"""Registry of all optimizers, one line each; every line runs the whole suite of test_suite.py.

A method runs on a :class:`Problem`, which is elementwise and works in every dtype. ``lacks`` names the features of the
suite that a method does not support, with the reason.
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
    """Parameters ``xs``, dual or lower variables ``others``, and a seeded random loss for each step k."""

    xs: list[Tensor]
    others: list[Tensor] = field(default_factory=list)
    saddle: bool = False
    sign: float = 1.0
    decay: float = 0.0
    scale: float = 1.0
    kink: bool = False

    def sample(self, x: Tensor, i: int, k: int) -> tuple[Tensor, Tensor]:
        """Return a random curvature in [0.5, 1.5] and a random centre for tensor i in step k."""
        generator = torch.Generator().manual_seed(1000 * k + i)
        real = torch.rand((*x.shape, 3), generator=generator, dtype=torch.float64)
        centre = torch.complex(real[..., 1], real[..., 2]) if x.is_complex() else real[..., 1]
        return (real[..., 0] + 0.5).to(x.real.dtype), centre.to(x.dtype)

    def minimize(self, k: int) -> Tensor:
        """Return the sum of w|x - c|^2 / 2 with random w, c, plus decay |x|^2 / 2, times ``sign``.

        ``saddle`` adds the concave sum of y mean(x) - y^2 / 2 over the dual variables y; ``scale`` multiplies
        the total; ``kink`` adds 0 to the value and Inf to the gradient.
        """
        terms = []
        for i, x in enumerate(self.xs):
            if x.requires_grad:
                weight, centre = self.sample(x, i, k)
                terms.append(((x - centre).abs().square() * weight).sum() + self.decay * x.abs().square().sum())
        total = self.sign * 0.5 * sum(terms, torch.zeros(()))
        if self.saddle:
            means = sum(x.mean() for x in self.xs if x.requires_grad and x.numel())
            total = total + sum((y * means - y.square() / 2).sum() for y in self.others)
        if self.kink:
            total = total + sum((x - x.detach()).abs().sqrt().sum() for x in self.xs if x.requires_grad)
        return total if self.scale == 1.0 else total * self.scale


def parameters(dtype: torch.dtype = torch.float32, shapes: tuple[tuple[int, ...], ...] = SHAPES) -> list[Tensor]:
    generator = torch.Generator().manual_seed(7)
    real = torch.complex128 if dtype.is_complex else torch.float64
    return [torch.nn.Parameter(torch.randn(shape, generator=generator, dtype=real).to(dtype)) for shape in shapes]


def descend(optimizer: Optimizer, problem: Problem, k: int) -> None:
    """Run one step of a minimizer: zero_grad, backward, step."""
    optimizer.zero_grad()
    problem.minimize(k).backward()
    optimizer.step()


def no_others(dtype: torch.dtype) -> list[Tensor]:
    return []


@dataclass(frozen=True)
class Method:
    """``build(xs, others, **hyper)`` returns the optimizer; ``advance(optimizer, problem, k)`` runs step k."""

    name: str
    build: Callable[..., Optimizer]
    advance: Callable[[Optimizer, Problem, int], None] = descend
    others: Callable[[torch.dtype], list[Tensor]] = no_others
    lacks: Mapping[str, str] = field(default_factory=dict)
    saddle: bool = False
    group: Mapping[str, Any] = field(default_factory=dict)  # keys that an added group must have

    def __str__(self) -> str:
        return self.name

    def start(self, dtype: torch.dtype = torch.float32, **hyper: Any) -> tuple[Optimizer, Problem]:
        problem = Problem(parameters(dtype), self.others(dtype), self.saddle)
        return self.build(problem.xs, problem.others, **hyper), problem


def asa(scaling: str) -> Callable[..., Optimizer]:
    def build(xs: Any, others: list[Tensor], **hyper: Any) -> Optimizer:
        return semaopt.ASA(xs, scaling=scaling, **{"lr": 0.05, **hyper})

    return build


def duals(dtype: torch.dtype) -> list[Tensor]:
    return [torch.nn.Parameter(torch.tensor(start, dtype=dtype)) for start in ([0.5, -0.25], [0.0])]


def ascend(optimizer: Optimizer, problem: Problem, k: int) -> None:
    """Run one step of a min-max method that takes a closure on one sample."""

    def closure() -> Tensor:
        loss = problem.minimize(k)
        loss.backward()
        return loss

    optimizer.step(closure)


def minmax(kind: Callable[..., Optimizer], lacks: tuple[str, ...] = (), **options: Any) -> Method:
    def build(xs: Any, others: list[Tensor], **hyper: Any) -> Optimizer:
        box = semaopt.projections.Box(-0.75, 0.75)
        return kind(primal=xs, dual=others, project=box, **{"lr": 0.05, "dual_lr": 0.1, **options, **hyper})

    closed = "gradients" in lacks
    reasons = dict.fromkeys(lacks, "not an option of this method")
    reasons |= dict.fromkeys(("separable", "complex", "differentiable"), "needs a dual variable, has its own test")
    return Method(kind.__name__, build, ascend if closed else descend, duals, reasons, True, {"role": "primal"})


def bilevel(optimizer: Optimizer, problem: Problem, k: int) -> None:
    """Run one step of a bilevel method with two closures; each call draws a new sample of step k, or sample i."""
    calls = iter(range(1000 * k, 1000 * (k + 1)))

    def outer(i: int = k) -> Tensor:
        return problem.minimize(i) + 0.1 * sum(y.square().sum() for y in problem.others)

    def inner(i: int | None = None) -> Tensor:
        call = next(calls) if i is None else i
        means = sum(x.mean() for x in problem.xs if x.requires_grad and x.numel())
        terms = []
        for i, y in enumerate(problem.others):
            weight, centre = problem.sample(y, 10 + i, call)
            terms.append(((y - centre - means).square() * weight).sum())
        return 0.5 * sum(terms, torch.zeros(()))

    optimizer.step(outer, inner)


def two_levels(kind: Callable[..., Optimizer], label: str = "", lacks: tuple[str, ...] = (), **options: Any) -> Method:
    def build(xs: Any, others: list[Tensor], **hyper: Any) -> Optimizer:
        box = semaopt.projections.Box(-1.5, 1.5)
        return kind(upper=xs, lower=others, **{"project": box, "lr": 0.05, "lower_lr": 0.2, **options, **hyper})

    reasons = dict.fromkeys(lacks, "not an option of this method")
    reasons |= dict.fromkeys(CLOSURES, "takes two closures, has its own tests")
    reasons |= {"complex": "refuses complex parameters", "maximize": "the sign of outer() says it"}
    return Method(kind.__name__ + label, build, bilevel, duals, reasons, group={"role": "upper"})


def compose(optimizer: Optimizer, problem: Problem, k: int) -> None:
    """Run one step of a compositional method: g(x) = (loss, mean of x), and f(z) is smooth and increasing."""
    calls = iter(range(1000 * k, 1000 * (k + 1)))

    def inner() -> Tensor:
        means = sum(x.real.mean() for x in problem.xs if x.requires_grad and x.numel())
        return torch.stack([problem.minimize(next(calls)), means])

    optimizer.step(inner, lambda z: z[0] + 0.05 * problem.sign * z[1].square())


def scma(xs: Any, others: list[Tensor], **hyper: Any) -> Optimizer:
    return semaopt.SCMA(xs, **{"lr": 0.05, "inner_beta": 0.5, **hyper})


CLOSURES = ("gradients", "closure", "compile", "decoupled_weight_decay", "separable", "complex", "differentiable")
PLAIN = ("beta", "bias_correction", "clip_scaling", "maximize", "decoupled_weight_decay")
CLOSED = (*PLAIN, "gradients", "closure", "compile")
STAGES = {"stage_length": 3, "proximal": 0.1}

METHODS = [
    *(Method(f"ASA[{name}]", asa(name)) for name in semaopt.scalings.BY_NAME),
    minmax(semaopt.PDAda, ("maximize",)),
    minmax(semaopt.PDSM, ("maximize", "clip_scaling")),
    minmax(semaopt.baselines.SGDA, PLAIN),
    minmax(semaopt.baselines.SGDMax, CLOSED, max_ascents=3),
    minmax(semaopt.baselines.EpochSGDA, PLAIN, **STAGES),
    minmax(semaopt.baselines.PESSGDA, PLAIN, factor=0.9, **STAGES),
    minmax(semaopt.baselines.PESAdaGrad, PLAIN, factor=0.9, **STAGES),
    minmax(semaopt.baselines.AccMDA, (*CLOSED, "weight_decay"), k=1.0, m=2.0),
    two_levels(semaopt.SMB, "[tracked]"),
    two_levels(semaopt.SMB, "[neumann, adam]", inverse=semaopt.hypergradient.Neumann(terms=4), scaling="adam"),
    two_levels(semaopt.SMB, "[series, adam+]", inverse=semaopt.hypergradient.NeumannSeries(3, 2.0), scaling="adam+"),
    two_levels(semaopt.SMB, "[cg, amsgrad]", inverse=semaopt.hypergradient.CG(2), scaling="amsgrad"),
    two_levels(semaopt.SMB, "[exact, adafom]", inverse=semaopt.hypergradient.Exact(), scaling="adafom"),
    two_levels(semaopt.SMB, "[first order, adabound]", inverse=semaopt.hypergradient.FirstOrder(), scaling="adabound"),
    two_levels(semaopt.SBMA, lacks=(*PLAIN, "weight_decay", "freezing"), lam=0.5, c_fy=5.0, c_gxy=2.0),
    two_levels(semaopt.baselines.BSA, lacks=(*PLAIN, "weight_decay"), lower_steps=2),
    two_levels(semaopt.baselines.TTSA, lacks=(*PLAIN, "weight_decay")),
    two_levels(semaopt.baselines.StocBiO, lacks=(*PLAIN, "weight_decay"), lower_steps=2),
    two_levels(semaopt.baselines.SOBA, lacks=(*PLAIN, "weight_decay")),
    two_levels(semaopt.baselines.AmIGO, lacks=(*PLAIN, "weight_decay"), lower_steps=2, system_steps=3),
    two_levels(semaopt.baselines.SABA, lacks=(*PLAIN, "weight_decay"), samples=(4, 3)),
    two_levels(semaopt.baselines.SUSTAIN, lacks=(*PLAIN, "weight_decay"), samples=(20, 30)),
    two_levels(semaopt.baselines.MRBO, lacks=(*PLAIN, "weight_decay"), samples=(20, 30)),
    two_levels(semaopt.baselines.FSLA, lacks=(*PLAIN, "weight_decay"), samples=(20, 30)),
    two_levels(semaopt.baselines.F2SA, lacks=(*PLAIN, "weight_decay"), penalty=5.0, penalty_growth=0.1),
    two_levels(semaopt.baselines.BOME, lacks=(*PLAIN, "weight_decay"), lower_steps=3),
    Method("SCMA", scma, compose, lacks=dict.fromkeys(CLOSURES, "takes two closures, has its own tests")),
]
