"""Maximize average precision on imbalanced data with SCMA, beside cross-entropy.

    python examples/average_precision.py

One digit against the nine others (10% positive), linear scores, test average precision. Average precision is a mean of
ratios of expectations: SCMA keeps a moving average of both for each positive example. Both methods get the same number
of steps and of examples, and their step size from the same kind of grid on the validation set.
Needs scikit-learn (pip install 'semaopt[experiments]').
"""

import argparse
import statistics

import torch
from sklearn.metrics import average_precision_score
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

import semaopt
from semaopt.problems.cleaning import load_digits

POSITIVES, NEGATIVES = 16, 48  # in a batch
GRIDS = {"cross-entropy": (0.01, 0.03, 0.1, 0.3), "average precision": (0.0003, 0.001, 0.003, 0.01)}


def split(digit, seed):
    a, b = load_digits()
    order = torch.randperm(len(b), generator=torch.Generator().manual_seed(seed)).split([800, 400, 597])
    return {name: (a[i], (b[i] == digit).float()) for name, i in zip(("train", "valid", "test"), order, strict=True)}


def cross_entropy(model, data, lr, steps, generator):
    a, b = data
    optimizer = semaopt.ASA(model.parameters(), lr=lr, beta=0.9, scaling="adam")
    for _ in range(steps):
        i = torch.randint(len(b), (POSITIVES + NEGATIVES,), generator=generator)
        optimizer.zero_grad()
        binary_cross_entropy_with_logits(model(a[i]).squeeze(1), b[i]).backward()
        optimizer.step()


def average_precision(model, data, lr, steps, generator):
    a, b = data
    positive, negative = (b > 0).nonzero().squeeze(1), (b == 0).nonzero().squeeze(1)
    loss = semaopt.losses.AveragePrecision(prior=b.mean().item())
    optimizer = semaopt.SCMA(model.parameters(), lr=lr, beta=0.9, inner_beta=0.9, blocks=len(b), fresh=False)
    for _ in range(steps):
        i = positive[torch.randperm(len(positive), generator=generator)[:POSITIVES]]
        j = torch.cat([i, negative[torch.randperm(len(negative), generator=generator)[:NEGATIVES]]])
        optimizer.step(lambda j=j: loss.inner(model(a[j]), b[j]), loss.outer, index=i)


METHODS = {"cross-entropy": cross_entropy, "average precision": average_precision}


def run(name, lr, options, seed):
    """Average precision on the validation and on the test data."""
    data = split(options.digit, seed)
    torch.manual_seed(seed)
    model = nn.Linear(64, 1)
    METHODS[name](model, data["train"], lr, options.steps, torch.Generator().manual_seed(seed))
    with torch.no_grad():
        return [average_precision_score(b, model(a).squeeze(1)) for a, b in (data["valid"], data["test"])]


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--digit", type=int, default=8)
    options = parser.parse_args(arguments)
    for name, grid in GRIDS.items():
        found = {}
        for lr in grid:
            found[lr] = [run(name, lr, options, seed) for seed in range(options.seeds)]
            valid = statistics.mean(v for v, _ in found[lr])
            print(f"{name:18s} lr {lr:<6g} validation average precision {valid:.4f}", flush=True)
        lr = max(grid, key=lambda lr: statistics.mean(v for v, _ in found[lr]))
        tests = [t for _, t in found[lr]]
        spread = statistics.stdev(tests) if len(tests) > 1 else 0.0
        print(f"{name:18s} lr {lr:<6g} test average precision {statistics.mean(tests):.4f} +- {spread:.4f}", flush=True)


if __name__ == "__main__":
    main()
