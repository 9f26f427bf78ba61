"""Test that a step takes no more time or memory after a million steps than at the start, for every optimizer.

    python benchmarks/endurance.py                          # 20,000 steps of each
    python benchmarks/endurance.py --steps 1000000 --only ASA PDAda
    python benchmarks/endurance.py --fixed                  # constant gradients: times the step alone
    python benchmarks/endurance.py --smallest               # one number per side: the least work outside of the step
    python benchmarks/endurance.py --smallest --terms 1 --only SBMA TTSA    # with one term of the Neumann series

Each method runs in this process after a warm-up of a tenth of the steps. The output shows the growth of the resident
memory since then, and the time of a step in the last tenth, divided by the time of a step in the tenth after the
warm-up. Times are CPU times, the lower quartile of a hundred blocks, because other programs disturb them. The exit
status is 1 if memory grew by more than --megabytes or the time by more than --factor.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch

sys.path.insert(0, str(Path(__file__).parent.parent))
from semaopt.hypergradient import Neumann
from tests.common.registry import METHODS, Method, Problem, bilevel, compose, descend

BLOCKS = 100  # timed blocks per tenth
SERIES = ("SBMA", "BSA", "TTSA", "StocBiO")  # by default with a Neumann series of ten terms


class Endured(NamedTuple):
    """Result of one run."""

    name: str
    steps: int
    megabytes: float
    ratio: float
    microseconds: float


def resident() -> float:
    """Return the resident memory of this process in megabytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def stepper(method: Method, fixed: bool) -> Callable[[int], object]:
    """Return a function that takes step k, with samples that repeat every 64 steps or with constant gradients."""
    optimizer, problem = method.start(lr=1e-3)
    if fixed and method.advance is descend:
        method.advance(optimizer, problem, 0)
        step = optimizer.step
        return lambda k: step()
    if not fixed:
        _remember(problem)
    return lambda k: method.advance(optimizer, problem, k % 64)


def smallest(method: Method, terms: int | None) -> Callable[[int], object]:
    """Return a function that takes a step on a tiny problem, for methods that evaluate closures.

    ``terms`` shortens the Neumann series of bilevel methods, which takes most of their time.
    """
    x = torch.nn.Parameter(torch.tensor(1.0))
    y = torch.nn.Parameter(torch.tensor(0.5))
    options = {"inverse": Neumann(terms=terms)} if terms is not None and str(method) in SERIES else {}
    optimizer = method.build([x], [] if method.advance is compose else [y], lr=1e-3, **options)
    step: Callable[..., object] = optimizer.step  # its arguments depend on the method
    if method.advance is bilevel:
        return lambda k: step(lambda: (y - 1).square() + x.square(), lambda: (y - x).square())  # noqa: PLW0108  # a new graph
    if method.advance is compose:
        return lambda k: step(lambda: x.square().reshape(1), torch.Tensor.sum)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = x.square() + x * y - y.square()
        loss.backward()
        return loss

    return lambda k: step(closure)


def _remember(problem: Problem) -> None:
    """Draw each sample once, since drawing takes longer than most steps and is not measured."""
    cached: dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor]] = {}
    sample = problem.sample

    def remembered(x: torch.Tensor, i: int, k: int) -> tuple[torch.Tensor, torch.Tensor]:
        key = (i, k % 4096)  # the calls within one step have consecutive numbers
        if key not in cached:
            cached[key] = sample(x, i, key[1])
        return cached[key]

    problem.sample = remembered  # type: ignore[method-assign]


def endure(method: Method, take: Callable[[int], object], steps: int) -> Endured:
    """Take ``steps`` steps and measure the growth of memory and time after the first tenth."""
    tenth = max(steps // 10, BLOCKS)
    block = max(tenth // BLOCKS, 1)
    k = 0

    def some(count: int) -> list[float]:
        """Return seconds per step, block by block."""
        nonlocal k
        times = []
        for _ in range(count // block):
            before = time.process_time()
            for _ in range(block):
                take(k)
                k += 1
            times.append((time.process_time() - before) / block)
        return times

    some(tenth)
    gc.collect()
    start = resident()
    first = statistics.quantiles(some(tenth))[0]
    some(steps - 3 * tenth)
    last = statistics.quantiles(some(tenth))[0]
    gc.collect()
    return Endured(str(method), k, resident() - start, last / first, 1e6 * last)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--only", nargs="*", default=[], help="only methods whose names begin with one of these")
    parser.add_argument("--fixed", action="store_true", help="constant gradients, for methods that read gradients")
    parser.add_argument("--smallest", action="store_true", help="one number per side, without random samples")
    parser.add_argument(
        "--terms", type=int, help=f"with --smallest: terms of the Neumann series of {', '.join(SERIES)}"
    )
    parser.add_argument("--megabytes", type=float, default=8.0)
    parser.add_argument("--factor", type=float, default=1.5)
    given = parser.parse_args()
    if given.terms is not None and not given.smallest:
        parser.error("--terms needs --smallest")
    methods = [m for m in METHODS if not given.only or any(str(m).startswith(name) for name in given.only)]
    if not methods:
        parser.error(f"--only {' '.join(given.only)}: unknown method; available: {', '.join(map(str, METHODS))}")
    torch.set_num_threads(1)
    print(f"{'method':24} {'steps':>9} {'us/step':>10} {'last/first':>11} {'MB grown':>9}")
    failed = 0
    for method in methods:
        take = smallest(method, given.terms) if given.smallest else stepper(method, given.fixed)
        end = endure(method, take, given.steps)
        bad = end.megabytes > given.megabytes or end.ratio > given.factor
        failed += bad
        text = f"{end.name:24} {end.steps:9} {end.microseconds:10.1f} {end.ratio:11.3f} {end.megabytes:9.2f}"
        print(text + ("  GREW" if bad else ""), flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
