"""Measure the overhead of semaopt.diagnostics.Monitor: python benchmarks/monitor.py

Blocks of steps with and without the monitor alternate, on one thread, in CPU time. Ratios are medians over the pairs.
"iteration" is forward, backward and step. "step" is the optimizer's step alone, the worst case.
"shadows" is an iteration with four shadow averages (--shadows), which are updated in every step.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import nn

import semaopt


def mlp(width: int, depth: int) -> nn.Module:
    layers: list[nn.Module] = []
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, 1))


MODELS = {"MLP 16-1, 17": (16, 0), "MLP 64-64-64-1, 8k": (64, 2), "MLP 1024-1024-1024-1, 2M": (1024, 2)}


def advancer(width: int, depth: int, whole: bool) -> tuple[torch.optim.Optimizer, Callable[[], None]]:
    model = mlp(width, depth)
    optimizer = semaopt.ASA(model.parameters())
    a, b = torch.randn(32, width), torch.randn(32, 1)
    nn.functional.mse_loss(model(a), b).backward()

    def iterate() -> None:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(a), b).backward()
        optimizer.step()

    return optimizer, iterate if whole else optimizer.step


def block(advance: Callable[[], None], steps: int) -> float:
    start = time.process_time()
    for _ in range(steps):
        advance()
    return time.process_time() - start


def measure(
    width: int, depth: int, whole: bool, every: int, *, pairs: int, gammas: tuple[float, ...] = ()
) -> tuple[float, float]:
    """Return (median ratio of monitored to plain, median seconds of a plain step)."""
    (watched, with_monitor), (_, plain) = (advancer(width, depth, whole) for _ in range(2))
    with semaopt.diagnostics.Monitor(watched, every=every, shadow_gammas=gammas):
        block(with_monitor, every)
        block(plain, every)
        seen = []
        for k in range(pairs):
            first, second = (with_monitor, plain) if k % 2 else (plain, with_monitor)
            times = {advance: block(advance, every) for advance in (first, second)}
            seen.append((times[with_monitor] / times[plain], times[plain] / every))
    return statistics.median(r for r, _ in seen), statistics.median(s for _, s in seen)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=int, default=100)
    parser.add_argument("--pairs", type=int, default=31)
    parser.add_argument("--shadows", action="store_true", help="measure shadow averages too")
    given = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{'model':26} {'what':10} {'plain':>10} {'monitor':>9}")
    for name, (width, depth) in MODELS.items():
        for what in ("iteration", "step", *(["shadows"] if given.shadows else [])):
            pairs = given.pairs if width < 1000 else max(3, given.pairs // 6)
            gammas = (0.3, 0.1, 0.03, 0.01) if what == "shadows" else ()
            ratio, seconds = measure(width, depth, what != "step", given.every, pairs=pairs, gammas=gammas)
            print(f"{name:26} {what:10} {seconds * 1e6:7.0f} us {(ratio - 1) * 100:+8.1f}%")


if __name__ == "__main__":
    main()
