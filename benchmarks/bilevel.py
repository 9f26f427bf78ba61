"""Bilevel hyper-cleaning side by side with betty, TorchOpt and plain torch, in one run on one thread.

    python benchmarks/bilevel.py [--only speed error accuracy] [--quick] [--out bilevel.json]

speed      CPU time of an upper step, each with one lower step (TorchOpt's CG with ten)
error      the hypergradient on all data against the exact implicit gradient, after 200 steps of training
accuracy   validation and test accuracy after 1,000 steps, and at the CPU time that the fastest needs for them; 5 seeds

The problem is :class:`semaopt.problems.cleaning.HyperCleaning`: 1,000 digits with 40% wrong labels, 400 clean ones,
softmax regression with L2 1e-3, batches of 64. Times are CPU times of the process: medians over interleaved repeats;
ratios are medians of the ratios within a repeat. "plain" is what one writes without a library: torch.autograd.grad and
a loop. Peers are optional, and what is absent is left out with the reason:
``pip install --no-deps --ignore-requires-python betty-ml``, ``pip install --no-deps torchopt`` (with optree, graphviz).
"""

from __future__ import annotations

import argparse
import json
import logging
import platform
import random
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import Tensor, nn
from torch.autograd import grad
from torch.nn import functional

import semaopt
from semaopt.hypergradient import CG, Exact, Neumann, NeumannSeries, TrackedSystem, check
from semaopt.problems.cleaning import HyperCleaning

WHY_NOT: dict[str, str] = {}
try:
    from betty.configs import Config, EngineConfig
    from betty.engine import Engine
    from betty.hypergradient.cg import cg as betty_cg
    from betty.hypergradient.neumann import neumann as betty_neumann
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
    """``start(problem)`` gives a function that takes one upper step."""

    name: str
    start: Callable[[HyperCleaning], Callable[[], object]]


def penalized(problem: HyperCleaning) -> Tensor:
    """The lower loss with its L2 term written out, as everyone but semaopt needs it."""
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


class Loader:
    """Endless batches for betty, which asks for an iterable."""

    def __init__(self, batches: Iterator) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator:
        return self.batches


def betty(**config) -> Callable:
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
            torch.optim.SGD(problem.model.parameters(), lr=LOWER_LR),
        )
        upper = Upper("upper", Config(retain_graph=True), module, adam, None, Loader(problem._clean))
        lower = Lower("lower", Config(unroll_steps=1, **config), problem.model, sgd, None, Loader(problem._noisy))
        order = {"u2l": {upper: [lower]}, "l2u": {lower: [upper]}}
        engine = Engine([upper, lower], EngineConfig(valid_step=10**9), order)
        engine.train()
        return engine.train_step

    return start


def torch_opt(solver: Callable, lower_steps: int = 1) -> Callable:
    def start(problem):
        class Lower(torchopt.nn.ImplicitMetaGradientModule, linear_solve=solver):
            def __init__(self, x):  # tensors among the arguments are its upper parameters
                super().__init__()
                self.x, self.model = x, nn.Linear(64, 10)
                self.model.load_state_dict(problem.model.state_dict())

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
                                y.sub_(g, alpha=LOWER_LR)
                return self

        net = Lower(problem.weights)
        problem.model = net.model  # what accuracy() looks at
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


def speed(quick: bool) -> dict:
    """CPU milliseconds of an upper step, and the ratio to the plain SMB of the same repeat."""
    repeats, steps = (3, 20) if quick else (25, 40)
    steppers = {c.name: c.start(HyperCleaning()) for c in contestants()}
    times: dict[str, list[float]] = {name: [] for name in steppers}
    for step in steppers.values():  # first calls set things up
        for _ in range(5):
            step()
    for _ in range(repeats):
        for name, step in steppers.items():
            start = time.process_time()
            for _ in range(steps):
                step()
            times[name].append(1e3 * (time.process_time() - start) / steps)
    base = times["plain SMB, k=10"]
    return {
        name: {
            "ms": statistics.median(found),
            "fastest_ms": min(found),
            "ratio": statistics.median(a / b for a, b in zip(found, base, strict=True)),
        }
        for name, found in times.items()
    }


def settled() -> HyperCleaning:
    """The problem after 200 steps, with closures on all data."""
    problem = HyperCleaning()
    step = ours(inverse=TrackedSystem(), lr=0.1, scaling="adam")(problem)
    for _ in range(200):
        step()
    return problem


def error(quick: bool) -> dict:
    """Relative error and cosine of each way to apply the inverse Hessian, all on the same full-data closures."""
    problem = settled()
    (a, b), (a_valid, b_valid) = problem.data["train"], problem.data["valid"]
    x, ys = problem.weights, list(problem.model.parameters())

    def outer():
        return functional.cross_entropy(problem.model(a_valid), b_valid)

    def inner():
        losses = functional.cross_entropy(problem.model(a), b, reduction="none")
        return (x.sigmoid() * losses).mean() + DECAY / 2 * sum(y.square().sum() for y in ys)

    rows = {}
    for inverse in (Neumann(10, 2.0), NeumannSeries(10, 2.0), NeumannSeries(10), TrackedSystem(), CG(10), Exact()):
        found = check(outer, inner, [x], ys, inverse, estimates=50 if quick and inverse == Neumann(10, 2.0) else None)
        rows[f"semaopt {inverse}"] = {"relative_error": found.relative_error, "cosine": found.cosine}
    truth, f_y = found.exact[0], grad(outer(), ys)

    def record(name, implicit):
        estimate, norm = -implicit, torch.linalg.vector_norm
        rows[name] = {
            "relative_error": (norm(estimate - truth) / norm(truth)).item(),
            "cosine": functional.cosine_similarity(estimate, truth, dim=0).item(),
        }

    if "betty" not in WHY_NOT:
        for name, rule in (("Neumann(10)", betty_neumann), ("CG(10)", betty_cg)):
            config = Config(neumann_iterations=10, neumann_alpha=0.5, cg_iterations=10)
            lower = SimpleNamespace(
                paths=[], config=config, cur_batch=None, training_step_exec=lambda _: inner(),
                trainable_parameters=lambda: ys, parameters=lambda: ys,
            )  # fmt: skip
            (found,) = rule(f_y, lower, SimpleNamespace(trainable_parameters=lambda: [x]), False)
            record(f"betty {name}", -found)
    if "TorchOpt" not in WHY_NOT:
        g_y = grad(inner(), ys, create_graph=True)
        solvers = {
            "Neumann(10)": torchopt.linear_solve.solve_inv(ns=True, maxiter=10, alpha=0.5),
            "CG(10)": torchopt.linear_solve.solve_cg(maxiter=10),
            "exact": torchopt.linear_solve.solve_inv(),
        }
        for name, solver in solvers.items():
            w = solver(lambda v: grad(g_y, ys, v, retain_graph=True), f_y)
            record(f"TorchOpt {name}", grad(g_y, [x], w, retain_graph=True)[0])
    return rows


def accuracy(quick: bool) -> dict:
    """Accuracies at equal steps and at equal CPU time, medians over seeds."""
    seeds, steps, every = (1, 100, 20) if quick else (5, 1000, 20)
    curves: dict[str, list[list[tuple[float, float]]]] = {}
    tests: dict[str, list[float]] = {}
    for seed in range(seeds):
        for contestant in contestants():
            problem = HyperCleaning(seed=seed)
            step, spent, curve = contestant.start(problem), 0.0, []
            for _ in range(steps // every):
                start = time.process_time()
                for _ in range(every):
                    step()
                spent += time.process_time() - start
                curve.append((spent, problem.accuracy()))
            curves.setdefault(contestant.name, []).append(curve)
            tests.setdefault(contestant.name, []).append(problem.accuracy("test"))
            print(f"seed {seed}  {contestant.name:44s} {curve[-1][1]:.4f} in {spent:.2f} s", flush=True)
    budget = min(statistics.median(curve[-1][0] for curve in found) for found in curves.values())
    return {
        name: {
            "seconds": statistics.median(curve[-1][0] for curve in found),
            "valid_at_equal_steps": statistics.median(curve[-1][1] for curve in found),
            "test_at_equal_steps": statistics.median(tests[name]),
            "valid_at_equal_time": statistics.median(
                max([(t, value) for t, value in curve if t <= budget] or [(0.0, 0.1)])[1] for curve in found
            ),
            "budget_seconds": budget,
        }
        for name, found in curves.items()
    }


PARTS = {"speed": speed, "error": error, "accuracy": accuracy}


def table(title: str, rows: dict) -> str:
    columns = list(next(iter(rows.values())))
    lines = [f"## {title}", "", f"| | {' | '.join(columns)} |", f"|---|{'---|' * len(columns)}"]
    lines += [f"| {name} | {' | '.join(f'{row[c]:.4g}' for c in columns)} |" for name, row in rows.items()]
    return "\n".join([*lines, ""])


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--quick", action="store_true", help="few repeats, steps and seeds: does it run?")
    parser.add_argument("--out", type=Path, help="write the numbers as JSON to this path")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    logging.disable(logging.INFO)  # betty describes every problem
    warnings.filterwarnings("ignore", category=FutureWarning)  # TorchOpt calls functorch by its old name
    for name, reason in WHY_NOT.items():
        print(f"{name} is left out: {reason}")
    found = {part: PARTS[part](options.quick) for part in options.only}
    for part, rows in found.items():
        print(table(part, rows))
    if options.out:
        machine = {"torch": torch.__version__, "python": platform.python_version(), "machine": platform.machine()}
        options.out.write_text(json.dumps({"machine": machine, "left_out": WHY_NOT, **found}, indent=2))


if __name__ == "__main__":
    main()
