"""Train 24 models as one: a grid of step sizes and seeds in the time of a few.

    python examples/ensemble.py

Handwritten digits, eight step sizes with three seeds each. Every member has its own parameters, rates and averages, and
ends where it would have ended alone, to rounding; they share the cost of starting operations.
Needs scikit-learn (pip install 'semaopt[experiments]').
"""

import time

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

import semaopt

RATES, SEEDS = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1), 3


def network(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))


def main():
    digits = load_digits()
    a, b = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
    members = [(lr, seed) for lr in RATES for seed in range(SEEDS)]
    ensemble = semaopt.ensemble.Ensemble([network(seed) for _, seed in members])
    groups = [{"params": ensemble.parameters_of(m), "lr": lr} for m, (lr, _) in enumerate(members)]
    optimizer = semaopt.ASA(groups, beta=0.9, scaling="adam")
    start = time.perf_counter()
    torch.manual_seed(0)
    for _ in range(4):
        for part in torch.randperm(1500).split(32):
            optimizer.zero_grad()
            scores = ensemble(a[part], shared=True)  # one stack of answers for each member
            each = cross_entropy(scores.flatten(0, 1), b[part].repeat(len(members)), reduction="none")
            ensemble.backward(each.view(len(members), -1).mean(1))
            optimizer.step()
    seconds = time.perf_counter() - start
    with torch.no_grad():
        right = (ensemble(a[1500:], shared=True).argmax(2) == b[1500:]).float().mean(1).view(len(RATES), SEEDS)
    for lr, accuracy in zip(RATES, right, strict=True):
        print(f"lr {lr:<6g} test accuracy {accuracy.mean():.4f} ({accuracy.min():.4f} to {accuracy.max():.4f})")
    print(f"{len(members)} models in {seconds:.1f} s")


if __name__ == "__main__":
    main()
