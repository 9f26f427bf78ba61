"""Compare bilevel label cleaning with betty, TorchOpt and plain torch, in one process on one thread.

    python benchmarks/bilevel.py [--only speed error accuracy first-order] [--quick] [--out bilevel.json]

speed        CPU time of an upper step, with one lower step each (ten for TorchOpt's CG)
error        error of the hypergradient on all data, against the exact implicit gradient, after 200 steps of training
accuracy     validation and test accuracy after 1,000 steps, and after the CPU time of the fastest method; 5 seeds
first-order  CPU time and peak memory of a step with a ResNet-8 as the lower problem, in separate processes (Linux)

The problem of the first three is :class:`semaopt.problems.cleaning.HyperCleaning`: 1,000 digits with 40% wrong labels,
400 clean ones, softmax regression with L2 1e-3, batches of 64. Times are CPU times of the process: medians over
interleaved repeats. Ratios are medians of the ratios within a repeat.
"plain" means torch.autograd.grad and a loop, without a library.
"bare" means the same products by torch.autograd.grad and nothing else: no step, no scaling, no check.
Peers are optional; missing ones are skipped with the reason:
``pip install --no-deps --ignore-requires-python betty-ml``, ``pip install --no-deps torchopt`` (with optree, graphviz).
"""

from __future__ import annotations

import argparse
import json
import logging
import platform
import statistics
import time
import warnings
from pathlib import Path
from types import SimpleNamespace

import torch
from bilevel_contestants import DECAY, WHY_NOT, contestants, ours
from bilevel_resnet import first_order
from torch.autograd import grad
from torch.nn import functional

from semaopt.hypergradient import CG, Exact, Neumann, NeumannSeries, TrackedSystem, compare
from semaopt.problems.cleaning import HyperCleaning


def speed(quick: bool) -> dict:
    """Measure CPU milliseconds per upper step, and the ratio to the plain SMB in the same repeat."""
    repeats, steps = (3, 20) if quick else (25, 40)
    steppers = {c.name: c.start(HyperCleaning()) for c in contestants()}
    times: dict[str, list[float]] = {name: [] for name in steppers}
    for step in steppers.values():  # warm-up
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
    """Return the problem after 200 steps of training."""
    problem = HyperCleaning()
    step = ours(inverse=TrackedSystem(), lr=0.1, scaling="adam")(problem)
    for _ in range(200):
        step()
    return problem


def error(quick: bool) -> dict:
    """Measure relative error and cosine of each inverse, all on the same full-data closures."""
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
        found = compare(outer, inner, [x], ys, inverse, estimates=50 if quick and inverse == Neumann(10, 2.0) else None)
        rows[f"semaopt {inverse}"] = {"relative_error": found.relative_error, "cosine": found.cosine}
    truth, f_y = found.exact[0], grad(outer(), ys)

    def record(name, implicit):
        estimate, norm = -implicit, torch.linalg.vector_norm
        rows[name] = {
            "relative_error": (norm(estimate - truth) / norm(truth)).item(),
            "cosine": functional.cosine_similarity(estimate, truth, dim=0).item(),
        }

    if "betty" not in WHY_NOT:
        from betty.configs import Config
        from betty.hypergradient.cg import cg as betty_cg
        from betty.hypergradient.neumann import neumann as betty_neumann

        for name, rule in (("Neumann(10)", betty_neumann), ("CG(10)", betty_cg)):
            config = Config(neumann_iterations=10, neumann_alpha=0.5, cg_iterations=10)
            lower = SimpleNamespace(
                paths=[], config=config, cur_batch=None, training_step_exec=lambda _: inner(),
                trainable_parameters=lambda: ys, parameters=lambda: ys,
            )  # fmt: skip
            (found,) = rule(f_y, lower, SimpleNamespace(trainable_parameters=lambda: [x]), False)
            record(f"betty {name}", -found)
    if "TorchOpt" not in WHY_NOT:
        import torchopt

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
    """Measure accuracies at equal steps and at equal CPU time, as medians over seeds."""
    seeds, steps, every = (1, 100, 20) if quick else (5, 1000, 20)
    curves: dict[str, list[list[tuple[float, float]]]] = {}
    tests: dict[str, list[float]] = {}
    for seed in range(seeds):
        for contestant in filter(lambda one: one.trains, contestants()):
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


PARTS = {"speed": speed, "error": error, "accuracy": accuracy, "first-order": first_order}


def table(title: str, rows: dict) -> str:
    columns = list(next(iter(rows.values())))
    lines = [f"## {title}", "", f"| | {' | '.join(columns)} |", f"|---|{'---|' * len(columns)}"]
    lines += [f"| {name} | {' | '.join(f'{row[c]:.4g}' for c in columns)} |" for name, row in rows.items()]
    return "\n".join([*lines, ""])


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--quick", action="store_true", help="a smoke test: few repeats, steps and seeds")
    parser.add_argument("--out", type=Path, help="write the numbers as JSON to this path")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    logging.disable(logging.INFO)  # betty logs a description of every problem
    warnings.filterwarnings("ignore", category=FutureWarning)  # TorchOpt uses the old name of functorch
    for name, reason in WHY_NOT.items():
        print(f"skipped {name}: {reason}")
    found = {part: PARTS[part](options.quick) for part in options.only}
    for part, rows in found.items():
        print(table(part, rows))
    if options.out:
        machine = {"torch": torch.__version__, "python": platform.python_version(), "machine": platform.machine()}
        options.out.write_text(json.dumps({"machine": machine, "skipped": WHY_NOT, **found}, indent=2))


if __name__ == "__main__":
    main()
