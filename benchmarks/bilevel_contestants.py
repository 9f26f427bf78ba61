"""The methods of benchmarks/bilevel.py: semaopt, plain torch, and betty and TorchOpt if they are installed."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.autograd import grad
from torch.nn import functional

import semaopt
from semaopt.hypergradient import CG, Neumann, NeumannSeries, TrackedSystem
from semaopt.hypergradient.inverses import uniform
from semaopt.problems.cleaning import HyperCleaning

WHY_NOT: dict[str, str] = {}
try:
    from betty.configs import Config, EngineConfig
    from betty.engine import Engine
    from betty.problems import ImplicitProblem
except ImportError as error:
    WHY_NOT["betty"] = str(error)
try:
    import torchopt
except ImportError as error:
    WHY_NOT["TorchOpt"] = str(error)

DECAY, LOWER_LR = 1e-3, 0.5


@dataclass(frozen=True)
class Contestant:
    """A method; ``start(problem)`` returns a function that takes one upper step."""

    name: str
    start: Callable[[HyperCleaning], Callable[[], object]]

    @property
    def trains(self) -> bool:
        """Whether a step moves anything."""
        return not self.name.startswith("bare")


def penalized(problem: HyperCleaning) -> Tensor:
    """Return the lower loss with its L2 term written out, as all libraries but semaopt need it."""
    return problem.inner() + DECAY / 2 * sum(y.square().sum() for y in problem.model.parameters())


def ours(closed: bool = True, **options) -> Callable:
    def start(problem):
        lower = {"lower_lr": LOWER_LR, "lower_weight_decay": DECAY if closed else 0.0}
        optimizer = semaopt.SMB([problem.weights], problem.model.parameters(), **{**lower, **options})
        inner = problem.inner if closed else lambda: penalized(problem)
        return lambda: optimizer.step(problem.outer, inner)

    return start


def plain_smb(problem: HyperCleaning, k: int = 10, C: float = 2.0, lr: float = 100.0, beta: float = 0.9) -> Callable:
    x, ys, z, generator = problem.weights, list(problem.model.parameters()), None, random.Random(0)

    def step():
        nonlocal z
        h = grad(problem.outer(), ys)
        for _ in range(generator.randrange(k)):
            g_y = grad(penalized(problem), ys, create_graph=True)
            h = [a - b / C for a, b in zip(h, grad(g_y, ys, h), strict=True)]
        g_y = grad(penalized(problem), ys, create_graph=True)
        (estimate,) = grad(g_y, [x], [-k / C * a for a in h])
        g_y = grad(penalized(problem), ys)
        with torch.no_grad():
            z = estimate if z is None else beta * z + (1 - beta) * estimate
            x.sub_(lr * z)
            for y, g in zip(ys, g_y, strict=True):
                y.sub_(LOWER_LR * g)

    return step


def plain_soba(problem: HyperCleaning, lr: float = 0.1, beta: float = 0.9) -> Callable:
    x, ys = problem.weights, list(problem.model.parameters())
    w, z, u = [torch.zeros_like(y) for y in ys], torch.zeros_like(x), torch.zeros_like(x)

    def step():
        f_y = grad(problem.outer(), ys)
        g_y = grad(penalized(problem), ys, create_graph=True)
        *hw, g_xw = grad(g_y, [*ys, x], w)
        with torch.no_grad():
            z.lerp_(-g_xw, 1 - beta)
            u.lerp_(g_xw.square(), 1e-3)
            x.sub_(lr * z / (u.sqrt() + 1e-7))
            for y, g, a, h, f in zip(ys, g_y, w, hw, f_y, strict=True):
                y.sub_(LOWER_LR * g)
                a.sub_(LOWER_LR * (h - f))

    return step


def bare_neumann(problem: HyperCleaning, k: int = 10) -> Callable:
    """Run only the products of SMB with Neumann(10), and use none of their results."""
    x, ys, t = problem.weights, list(problem.model.parameters()), 0

    def step():
        nonlocal t
        h = grad(problem.outer(), ys)
        for _ in range(uniform(k, 0, t)):
            x.requires_grad_(False)
            h = grad(grad(problem.inner(), ys, create_graph=True), ys, h)
            x.requires_grad_(True)
        grad(grad(problem.inner(), ys, create_graph=True), [x], h)
        t += 1

    return step


def bare_tracked(problem: HyperCleaning) -> Callable:
    """Run only the products of SMB with the tracked system, and use none of their results."""
    x, ys = problem.weights, list(problem.model.parameters())

    def step():
        f_y = grad(problem.outer(), ys)
        grad(grad(problem.inner(), ys, create_graph=True), [*ys, x], f_y)

    return step


class Loader:
    """Endless batches for betty, which expects an iterable."""

    def __init__(self, batches: Iterator) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator:
        return self.batches


def betty(lower_lr: float = LOWER_LR, **config) -> Callable:
    def start(problem):
        class Weights(nn.Module):
            def __init__(self):
                super().__init__()
                self.x = problem.weights

            def forward(self, i):
                return self.x[i].sigmoid()

        class Upper(ImplicitProblem):
            def training_step(self, batch):
                return functional.cross_entropy(self.lower(batch[0]), batch[1])

        class Lower(ImplicitProblem):
            def training_step(self, batch):
                a, b, i = batch
                losses = functional.cross_entropy(self(a), b, reduction="none")
                penalty = DECAY / 2 * sum(y.square().sum() for y in self.module.parameters())
                return (self.upper(i) * losses).mean() + penalty

        module = Weights()
        adam, sgd = (
            torch.optim.Adam([problem.weights], lr=0.1),
            torch.optim.SGD(problem.model.parameters(), lr=lower_lr),
        )
        upper = Upper("upper", Config(retain_graph=True), module, adam, None, Loader(problem._clean))
        lower = Lower("lower", Config(unroll_steps=1, **config), problem.model, sgd, None, Loader(problem._noisy))
        order = {"u2l": {upper: [lower]}, "l2u": {lower: [upper]}}
        engine = Engine([upper, lower], EngineConfig(valid_step=10**9), order)
        engine.train()
        return engine.train_step

    return start


def torch_opt(solver: Callable, lower_steps: int = 1, lower_lr: float = LOWER_LR) -> Callable:
    def start(problem):
        class Lower(torchopt.nn.ImplicitMetaGradientModule, linear_solve=solver):
            def __init__(self, x):  # tensor arguments become the upper parameters
                super().__init__()
                self.x, self.model = x, copy.deepcopy(problem.model)

            def objective(self, a, b, i):
                losses = functional.cross_entropy(self.model(a), b, reduction="none")
                penalty = DECAY / 2 * sum(y.square().sum() for y in self.parameters())
                return (self.x[i].sigmoid() * losses).mean() + penalty

            def solve(self, a, b, i):
                ys = tuple(self.parameters())
                with torch.enable_grad():
                    for k in range(lower_steps):
                        batch = (a, b, i) if k == 0 else next(problem._noisy)
                        gs = grad(self.objective(*batch), ys)
                        with torch.no_grad():
                            for y, g in zip(ys, gs, strict=True):
                                y.sub_(g, alpha=lower_lr)
                return self

        net = Lower(problem.weights)
        problem.model = net.model  # read by accuracy()
        optimizer = torch.optim.Adam([problem.weights], lr=0.1)

        def step():
            net.solve(*next(problem._noisy))
            a, b = next(problem._clean)
            optimizer.zero_grad()
            functional.cross_entropy(net.model(a), b).backward()
            optimizer.step()

        return step

    return start


def contestants() -> list[Contestant]:
    neumann, tracked = Neumann(10, bound=2.0), TrackedSystem()
    adam = {"lr": 0.1, "scaling": "adam"}
    found = [
        Contestant("semaopt SMB, Neumann(10)", ours(inverse=neumann, lr=100.0)),
        Contestant("semaopt SMB, Neumann(10), L2 in inner()", ours(False, inverse=neumann, lr=100.0)),
        Contestant("semaopt SMB, Neumann(10), Adam", ours(inverse=neumann, lr=0.03, scaling="adam", beta=0.99)),
        Contestant("semaopt SMB, NeumannSeries(5), Adam", ours(inverse=NeumannSeries(5, bound=2.0), **adam)),
        Contestant("semaopt SMB, CG(5), Adam", ours(inverse=CG(5), **adam)),
        Contestant("semaopt SMB, tracked, Adam", ours(inverse=tracked, **adam)),
        Contestant("semaopt SMB, tracked, Adam, L2 in inner()", ours(False, inverse=tracked, **adam)),
        Contestant("plain SMB, k=10", plain_smb),
        Contestant("bare products of Neumann(10)", bare_neumann),
        Contestant("bare products of the tracked system", bare_tracked),
        Contestant("plain SOBA, Adam", plain_soba),
    ]
    if "betty" not in WHY_NOT:
        for k in (1, 10):
            start = betty(type="neumann", neumann_iterations=k, neumann_alpha=0.5)
            found.append(Contestant(f"betty Neumann({k}), Adam", start))
        found.append(Contestant("betty CG(5), Adam", betty(type="cg", cg_iterations=5)))
    if "TorchOpt" not in WHY_NOT:
        for k in (1, 10):
            start = torch_opt(torchopt.linear_solve.solve_inv(ns=True, maxiter=k, alpha=0.5))
            found.append(Contestant(f"TorchOpt Neumann({k}), Adam", start))
        solver = torchopt.linear_solve.solve_cg(maxiter=5)
        found.append(Contestant("TorchOpt CG(5), Adam, 10 lower steps", torch_opt(solver, 10)))
    return found
