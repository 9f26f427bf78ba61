"""Train 24 models at once: a grid of learning rates and seeds, in about 5 seconds.

    python examples/ensemble.py

The task is to classify handwritten digits, with eight learning rates and three seeds each. Every model has its own
parameters, learning rate and averages, and ends where it would have ended alone, up to rounding. Together they save
the overhead of many small operations. Needs scikit-learn (pip install 'semaopt[experiments]').
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
    torch.set_num_threads(1)  # the models are small
    digits = load_digits()
    a, b = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
    settings = [(lr, seed) for lr in RATES for seed in range(SEEDS)]
    ensemble = semaopt.ensemble.Ensemble([network(seed) for _, seed in settings])
    groups = [{"params": ensemble.parameters_of(m), "lr": lr} for m, (lr, _) in enumerate(settings)]
    optimizer = semaopt.ASA(groups, beta=0.9, scaling="adam")
    start = time.perf_counter()
    torch.manual_seed(0)
    for epoch in range(4):
        for batch in torch.randperm(1500).split(32):
            optimizer.zero_grad()
            scores = ensemble(a[batch], shared=True)  # (models, examples, classes)
            losses = cross_entropy(scores.flatten(0, 1), b[batch].repeat(len(settings)), reduction="none")
            ensemble.backward(losses.view(len(settings), -1).mean(1))
            optimizer.step()
        print(f"epoch {epoch + 1} of 4", flush=True)
    seconds = time.perf_counter() - start
    with torch.no_grad():
        correct = (ensemble(a[1500:], shared=True).argmax(2) == b[1500:]).float().mean(1).view(len(RATES), SEEDS)
    for lr, accuracy in zip(RATES, correct, strict=True):
        print(f"lr {lr:<6g} test accuracy {accuracy.mean():.4f} ({accuracy.min():.4f} to {accuracy.max():.4f})")
    print(f"{len(settings)} models in {seconds:.1f} s")


if __name__ == "__main__":
    main()
