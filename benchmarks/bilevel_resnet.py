"""Measure one bilevel method with a ResNet-8 as its lower problem, in a process of its own (Linux).

``python benchmarks/bilevel.py --only first-order`` starts this file once per method and repeat. It prints milliseconds
per step and the growth of the peak resident memory, as JSON. The images are random and have the shape of CIFAR-10.
"""

from __future__ import annotations

import json
import logging
import re
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import torch
from bilevel_contestants import DECAY, WHY_NOT, betty, torch_opt
from torch import Tensor, nn
from torch.autograd import grad
from torch.nn import functional

import semaopt
from semaopt.experiments import models
from semaopt.hypergradient import FirstOrder, Neumann, TrackedSystem

BATCH, EXAMPLES, LOWER_LR = 64, 512, 0.01


class Cleaning:
    """One weight per example, a ResNet-8 on weighted random images, and random images for the upper loss."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.images, self.labels = torch.randn(EXAMPLES, 3, 32, 32), torch.randint(10, (EXAMPLES,))
        self.weights = nn.Parameter(torch.zeros(EXAMPLES))
        self.model = models.build("resnet8", SimpleNamespace(kind="images", shape=(3, 32, 32), outputs=10))
        for module in self.model.modules():
            if isinstance(module, nn.BatchNorm2d):  # TorchOpt refuses modules that change buffers
                module.track_running_stats = False
                module.running_mean = module.running_var = module.num_batches_tracked = None
        self._noisy, self._clean = self._batches(True), self._batches(False)
        self.draw()

    def _batches(self, numbered: bool) -> Iterator[tuple[Tensor, ...]]:
        while True:
            i = torch.randint(EXAMPLES, (BATCH,))
            yield (self.images[i], self.labels[i], i) if numbered else (self.images[i], self.labels[i])

    def draw(self) -> None:
        """Draw the batches of one step: all calls in a step use the same ones."""
        self.noisy, self.clean = next(self._noisy), next(self._clean)

    def inner(self) -> Tensor:
        a, b, i = self.noisy
        return (self.weights[i].sigmoid() * functional.cross_entropy(self.model(a), b, reduction="none")).mean()

    def outer(self) -> Tensor:
        return functional.cross_entropy(self.model(self.clean[0]), self.clean[1])


def gradients(problem: Cleaning) -> Callable:
    """Compute only the gradients of both losses, as ordinary training does."""
    ys = list(problem.model.parameters())

    def step():
        problem.draw()
        grad(problem.outer(), ys)
        grad(problem.inner(), [*ys, problem.weights])

    return step


def ours(inverse) -> Callable:
    def start(problem):
        rates = {"lr": 0.1, "lower_lr": LOWER_LR, "lower_weight_decay": DECAY}
        ys = problem.model.parameters()
        optimizer = semaopt.SMB([problem.weights], ys, inverse=inverse, scaling="adam", **rates)

        def step():
            problem.draw()
            optimizer.step(problem.outer, problem.inner)

        return step

    return start


def methods() -> dict[str, Callable]:
    found = {
        "gradients of both losses only": gradients,
        "semaopt SMB, FirstOrder": ours(FirstOrder()),
        "semaopt SMB, tracked": ours(TrackedSystem()),
        "semaopt SMB, Neumann(10)": ours(Neumann(10, bound=1 / LOWER_LR)),
    }
    for k in (1, 10):
        if "betty" not in WHY_NOT:
            config = {"type": "neumann", "neumann_iterations": k, "neumann_alpha": LOWER_LR}
            found[f"betty Neumann({k})"] = betty(LOWER_LR, **config)
        if "TorchOpt" not in WHY_NOT:
            import torchopt

            solver = torchopt.linear_solve.solve_inv(ns=True, maxiter=k, alpha=LOWER_LR)
            found[f"TorchOpt Neumann({k})"] = torch_opt(solver, lower_lr=LOWER_LR)
    return found


def peak() -> float:
    """Return the peak resident memory of this process in MB. (getrusage would include that of the parent.)"""
    return int(re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) / 1024


def first_order(quick: bool) -> dict:
    """Measure every method in processes of its own; medians over interleaved repeats, and ratios of medians."""
    repeats, steps = (1, 1) if quick else (3, 2)
    rows: dict[str, list[dict]] = {}
    for _ in range(repeats):
        for name in methods():
            command = [sys.executable, __file__, name, str(steps)]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            rows.setdefault(name, []).append(json.loads(done.stdout.splitlines()[-1]))
    medians = {
        name: {key: statistics.median(one[key] for one in found) for key in found[0]} for name, found in rows.items()
    }
    return {name: {**row, "ratio": row["ms"] / medians["semaopt SMB, tracked"]["ms"]} for name, row in medians.items()}


def main(name: str, steps: int) -> None:
    torch.set_num_threads(1)
    logging.disable(logging.INFO)  # betty logs a description of every problem
    warnings.filterwarnings("ignore")  # on the lower problem: it is not convex
    problem = Cleaning()
    torch.optim.SGD(problem.model.parameters())  # loads modules of torch, which no method should be charged for
    before = peak()
    step = methods()[name](problem)
    step()  # warm-up
    times = []
    for _ in range(steps):
        start = time.process_time()
        step()
        times.append(1e3 * (time.process_time() - start))
    print(json.dumps({"ms": statistics.mean(times), "peak_mb": peak() - before}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
