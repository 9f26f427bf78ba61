"""Compare the loss of bf16 averages with that of float32 averages, on digits and, if available, CIFAR-10.

    python benchmarks/state_dtype.py [--sets digits cifar10] [--seeds 5] [--out state_dtype.json]

The same network with the same seeds and batches is trained with v and u in float32 and in bf16 (stochastic rounding).
A third arm trains in float32 with other seeds, as a yardstick for the spread between seeds. CIFAR-10 is reduced to
10,000 images; `semaopt data list` shows where it is read from.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import semaopt
from semaopt.experiments import data


def digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    found = load_digits()
    x, y = torch.tensor(found.data, dtype=torch.float32) / 16, torch.tensor(found.target)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    train, test = order[:1200], order[1200:]
    return x[train], y[train], x[test], y[test]


def cifar10() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    task = data.load("cifar10", subset=10_000)
    parts = ((part.inputs(torch.arange(len(part))), part.labels) for part in (task.train, task.test))
    return tuple(tensor for pair in parts for tensor in pair)


def network(name: str) -> nn.Module:
    if name == "digits":
        return nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10))

    def block(inputs: int, outputs: int) -> list[nn.Module]:
        return [nn.Conv2d(inputs, outputs, 3, 2, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]

    widths = ((3, 32), (32, 64), (64, 128))
    blocks = [layer for pair in widths for layer in block(*pair)]
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))


def train(
    name: str, examples: tuple[Tensor, ...], seed: int, state_dtype: torch.dtype | None, epochs: int
) -> list[float]:
    """Train and return the final training loss and test accuracy."""
    torch.manual_seed(seed)
    model = network(name)
    optimizer = semaopt.ASA(model.parameters(), lr=1e-3, beta=0.9, state_dtype=state_dtype, rounding_seed=seed)
    x, y, x_test, y_test = examples
    every = max(1, epochs // 3) * (len(x) // 64)
    schedule = semaopt.schedules.Stagewise(optimizer, every=every, factor=0.2)
    for _ in range(epochs):
        for batch in torch.randperm(len(x)).split(64)[: len(x) // 64]:
            optimizer.zero_grad()
            cross_entropy(model(x[batch]), y[batch]).backward()
            optimizer.step()
            schedule.step()
    model.eval()
    with torch.no_grad():
        loss = sum(
            cross_entropy(model(a), b, reduction="sum").item()
            for a, b in zip(x.split(1000), y.split(1000), strict=True)
        )
        right = sum(
            (model(a).argmax(1) == b).sum().item() for a, b in zip(x_test.split(1000), y_test.split(1000), strict=True)
        )
    return [loss / len(x), right / len(x_test)]


SETS = {"digits": (digits, 30), "cifar10": (cifar10, 9)}


def compare(name: str, seeds: int) -> dict[str, object]:
    load, epochs = SETS[name]
    examples = load()
    arms = {
        "float32": [train(name, examples, seed, None, epochs) for seed in range(seeds)],
        "bf16": [train(name, examples, seed, torch.bfloat16, epochs) for seed in range(seeds)],
        "float32, other seeds": [train(name, examples, 100 + seed, None, epochs) for seed in range(seeds)],
    }
    report: dict[str, object] = {"epochs": epochs, "seeds": seeds, "arms": arms}
    print(f"{name}, {epochs} epochs, {seeds} seeds (mean and standard deviation)")
    for arm, runs in arms.items():
        losses, accuracies = zip(*runs, strict=True)
        print(
            f"  {arm:22} training loss {statistics.mean(losses):.5f} +- {statistics.stdev(losses):.5f}, "
            f"test accuracy {statistics.mean(accuracies):.4f} +- {statistics.stdev(accuracies):.4f}"
        )
    for other in ("bf16", "float32, other seeds"):
        gaps = [math.log(b[0] / a[0]) for a, b in zip(arms["float32"], arms[other], strict=True)]
        error = statistics.stdev(gaps) / math.sqrt(len(gaps))
        print(f"  log loss, {other} minus float32: {statistics.mean(gaps):+.4f} +- {error:.4f} (standard error)")
        report[f"log loss gap, {other}"] = [statistics.mean(gaps), error]
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    results = {}
    for name in given.sets:
        try:
            results[name] = compare(name, given.seeds)
        except data.DataError as error:
            print(f"skipped {name}: {error}")
    if given.out is not None:
        given.out.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
