"""Retrieve the images of one digit: train for average precision instead of cross-entropy, in about 30 seconds.

    python examples/average_precision.py

One digit is relevant and the nine others are not (10% positive). A linear model ranks the images; the test average
precision measures the ranking. Average precision is a mean of ratios of expectations, so the loss keeps a moving
average of both for each relevant image. Both methods get the same number of steps and examples per step, and choose
their learning rate from a grid on the validation set. On this easy task they reach the same average precision within
the noise; examples/fraud.py shows a gain. Needs scikit-learn (pip install 'semaopt[experiments]').
"""

import argparse
import statistics

import torch
from sklearn.metrics import average_precision_score
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

import semaopt
from semaopt.problems.cleaning import load_digits

BATCH = 64
GRIDS = {"cross-entropy": (0.01, 0.03, 0.1, 0.3), "average precision": (0.0003, 0.001, 0.003, 0.01)}


def split(digit, seed):
    a, b = load_digits()
    order = torch.randperm(len(b), generator=torch.Generator().manual_seed(seed)).split([800, 400, 597])
    return {name: (a[i], (b[i] == digit).float()) for name, i in zip(("train", "valid", "test"), order, strict=True)}


def cross_entropy(model, data, lr, steps, seed):
    a, b = data
    generator = torch.Generator().manual_seed(seed)
    optimizer = semaopt.ASA(model.parameters(), lr=lr, beta=0.9, scaling="adam")
    for _ in range(steps):
        i = torch.randint(len(b), (BATCH,), generator=generator)
        optimizer.zero_grad()
        binary_cross_entropy_with_logits(model(a[i]).squeeze(1), b[i]).backward()
        optimizer.step()


def average_precision(model, data, lr, steps, seed):
    a, b = data
    loss = semaopt.losses.AveragePrecision(size=len(b), prior=b.mean().item(), score="linear")
    optimizer = semaopt.ASA(model.parameters(), lr=lr, beta=0.9, scaling="adam")  # any optimizer works
    sampler = semaopt.samplers.ClassBalanced(b, BATCH, positives=0.25, seed=seed)
    batches = (torch.tensor(batch) for _ in range(steps) for batch in sampler)
    for _, i in zip(range(steps), batches, strict=False):
        optimizer.zero_grad()
        loss(model(a[i]), b[i], i).backward()
        optimizer.step()


METHODS = {"cross-entropy": cross_entropy, "average precision": average_precision}


def run(name, lr, options, seed):
    """Train one model and return its average precision on the validation and the test data."""
    data = split(options.digit, seed)
    torch.manual_seed(seed)
    model = nn.Linear(64, 1)
    METHODS[name](model, data["train"], lr, options.steps, seed)
    with torch.no_grad():
        return [average_precision_score(b, model(a).squeeze(1)) for a, b in (data["valid"], data["test"])]


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--digit", type=int, default=8)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)  # the model is small
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
