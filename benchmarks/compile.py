"""Time torch.compile of our steps against torch.compile of torch's Adam: python benchmarks/compile.py

All compiled steps take turns in one process, on one thread, in CPU time. Ratios are medians over the rounds.
Compiling takes about a minute per row and needs a C++ compiler.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

import semaopt
from semaopt.experiments.bench.step import SIZES, parameters

BASE = "torch Adam"
STEPS: dict[str, Callable[[list[Any]], torch.optim.Optimizer]] = {
    BASE: lambda xs: torch.optim.Adam(xs, lr=1e-3),
    "torch Adam, capturable": lambda xs: torch.optim.Adam(xs, lr=1e-3, capturable=True),
    "ASA, Adam": lambda xs: semaopt.ASA(xs, lr=1e-3, scaling="adam"),
    "ASA, Adam, device_counters": lambda xs: semaopt.ASA(xs, lr=1e-3, scaling="adam", device_counters=True),
    "PDAda": lambda xs: semaopt.PDAda(primal=xs[:-1], dual=xs[-1:], lr=1e-3, dual_lr=1e-3),
}


def compiled(build: Callable[[list[Any]], torch.optim.Optimizer], size: str) -> Callable[[], Any]:
    """Return the compiled step after three calls, which compile it; torch's own step has a graph break."""
    optimizer = build(parameters(SIZES[size][1]))
    ours = type(optimizer).__module__.startswith("semaopt")
    step: Callable[[], Any] = torch.compile(optimizer.step, fullgraph=ours)
    for _ in range(3):
        step()
    return step


def seconds(step: Callable[[], Any], repeats: int) -> float:
    start = time.process_time()
    for _ in range(repeats):
        step()
    return (time.process_time() - start) / repeats


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", default=["net"], choices=[size for size in SIZES if size != "large"])
    parser.add_argument("--rounds", type=int, default=31)
    given = parser.parse_args()
    torch.set_num_threads(1)
    for size in given.sizes:
        steps = {name: compiled(build, size) for name, build in STEPS.items()}
        repeats = max(1, int(0.01 / seconds(steps[BASE], 3)))
        times = [{name: seconds(step, repeats) for name, step in steps.items()} for _ in range(given.rounds)]
        print(f"{SIZES[size][0]}: {statistics.median(t[BASE] for t in times) * 1e6:.0f} us for {BASE}")
        for name in steps:
            print(f"  {name:30} {statistics.median(t[name] / t[BASE] for t in times):.2f}")


if __name__ == "__main__":
    main()
