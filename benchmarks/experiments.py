"""How fast experiments are, beside the plain ways; ratios of medians of turns in one process.

    python benchmarks/experiments.py [mpnn ...] [--threads 1] [--turns 11] [--root DIR]

mpnn: an epoch of training on BBBP, batch 32 (forward, backward, Adam), against a kernel for each edge made in each step
(PyTorch Geometric's NNConv; the Keras example does so too), against such kernels made once a batch, and against sums
per atom and feature. The plain ways pad a batch to its largest molecule. A turn is some batches, the same for all.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from semaopt.experiments import data, models
from semaopt.experiments.data.batches import MoleculeBatch
from semaopt.experiments.models import mpnn
from semaopt.experiments.models.messages import Step

BATCH, BATCHES = 32, 2


def kernels_once(batch: MoleculeBatch, edge: torch.nn.Linear) -> Step:
    units = round(edge.out_features**0.5)
    source, target, features = batch.edges()
    kernels = edge(features).view(-1, units, units)

    def step(h: torch.Tensor) -> torch.Tensor:
        sent = torch.matmul(h[source][:, None, :], kernels).squeeze(1)
        return torch.zeros_like(h).index_add(0, target, sent)

    return step


def mpnn_epoch(options: argparse.Namespace) -> None:
    task = data.load("bbbp", root=options.root)
    contestants = {
        "semaopt": models.build("mpnn", task),
        "sums per feature": models.build("mpnn", task, implementation="general"),
        "kernels once a batch": models.build("mpnn", task, implementation="plain"),
        "kernels in each step": models.build("mpnn", task, implementation="plain"),
    }
    mpnn.IMPLEMENTATIONS["once"] = kernels_once
    contestants["kernels once a batch"].implementation = "once"
    optimizers = {name: torch.optim.Adam(model.parameters(), fused=True) for name, model in contestants.items()}
    part = task.train

    def turn(name: str, rows: list[torch.Tensor]) -> float:
        started = time.perf_counter()
        for index in rows:
            optimizers[name].zero_grad()
            scores = contestants[name](part.inputs(index))
            binary_cross_entropy_with_logits(scores, part.labels[index].float()).backward()
            optimizers[name].step()
        return (time.perf_counter() - started) / len(rows)

    times: dict[str, list[float]] = {name: [] for name in contestants}
    for k in range(options.turns + 1):
        rows = list(torch.randperm(len(part))[: BATCH * BATCHES].split(BATCH))
        for name in contestants:
            seconds = turn(name, rows)
            if k > 0:  # the first warms
                times[name].append(seconds)
    batches = len(part) / BATCH
    print(f"mpnn, BBBP, {len(part)} molecules, batch {BATCH}, {torch.get_num_threads()} threads, {options.turns} turns")
    for name, seconds in times.items():
        ratio = statistics.median(a / b for a, b in zip(seconds, times["semaopt"], strict=True))
        print(f"  {name:22} {statistics.median(seconds) * batches:6.2f} s an epoch   {ratio:5.2f} x semaopt's time")


BENCHMARKS: dict[str, Callable[[argparse.Namespace], None]] = {"mpnn": mpnn_epoch}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)}; all by default")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--turns", type=int, default=11)
    parser.add_argument("--root", type=Path, help="where the data are; else SEMAOPT_DATA, else your cache")
    options = parser.parse_args()
    for name in options.names:
        if name not in BENCHMARKS:
            parser.error(f"{name!r} is unknown; there is: {', '.join(BENCHMARKS)}")
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    for name in options.names or BENCHMARKS:
        BENCHMARKS[name](options)


if __name__ == "__main__":
    main()
