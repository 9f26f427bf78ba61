"""Time the simulator of many seeds: python benchmarks/simulate.py

256 runs of 100,000 steps of a 10-dimensional problem (25.6 million steps of ASA) run as one tensor. The exact gradient
and the tracking error are measured at every step. The goal is 60 s for one scaling on two cores. For comparison, the
optimizer itself takes a few steps of one run, and their time is extrapolated.
"""

from __future__ import annotations

import argparse
import time

import torch

import semaopt
from semaopt import problems


def together(scaling: str, seeds: int, steps: int) -> tuple[float, float]:
    """Return wall seconds and CPU seconds."""
    bed, oracle = problems.Bounded(d=10), problems.Additive(1.0)
    start, used = time.perf_counter(), time.process_time()
    run = problems.simulate.minimize(bed, oracle, scaling, (0.01, 0.1), T=steps - 1, seeds=seeds)
    seconds = time.perf_counter() - start, time.process_time() - used
    assert run.gradient.isfinite().all()
    return seconds


def one_by_one(scaling: str, steps: int) -> float:
    """Return CPU seconds of one step of one run."""
    bed = problems.Bounded(d=10)
    x = torch.nn.Parameter(bed.start()[0])
    optimizer = semaopt.ASA([x], lr=0.01, beta=0.9, scaling=scaling)
    noise = torch.randn(steps, 10, dtype=x.dtype)
    start = time.process_time()
    for e in noise:
        x.grad = bed.grad(x.detach()) + e
        optimizer.step()
    return (time.process_time() - start) / steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=256)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--scalings", nargs="+", default=["shb", "adam"])
    given = parser.parse_args()
    torch.set_num_threads(1)  # the tensors are small; a second thread costs more than it gains
    print(f"{given.seeds} seeds x {given.steps} steps, d = 10")
    print(f"{'scaling':10} {'together':>10} {'processor':>11} {'one by one':>12}")
    for scaling in given.scalings:
        alone = one_by_one(scaling, 3000) * given.seeds * given.steps
        seconds, used = together(scaling, given.seeds, given.steps)
        print(f"{scaling:10} {seconds:8.1f} s {used:9.1f} s {alone:10.0f} s")


if __name__ == "__main__":
    main()
