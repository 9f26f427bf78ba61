"""Write your own scaling and compare it with those of the library, in about 5 seconds.

    python examples/own_scaling.py

A scaling computes u in x <- x - lr v / (sqrt(u) + g0). This one averages the squared gradients over a whole tensor:
one number per weight matrix instead of one per weight.
Needs scikit-learn (pip install 'semaopt[experiments]').
"""

from dataclasses import dataclass

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

import semaopt


@dataclass(frozen=True)
class PerTensor:
    """u = EMA(mean of g^2 over the tensor; beta2)."""

    beta2: float = 0.999
    g0: float = 1e-7
    buffers = ("u",)  # one tensor per parameter, of its shape, zero before the first step

    def update_(self, m, seen):
        gamma = 1.0 if seen.t == 0 else 1 - self.beta2
        return semaopt.estimator.track_(m["u"], seen.g.square().mean().expand_as(seen.g), gamma)


def train(scaling, lr):
    torch.manual_seed(0)
    digits = load_digits()
    a, b = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10))
    optimizer = semaopt.ASA(model.parameters(), lr=lr, beta=0.9, scaling=scaling)
    schedule = semaopt.schedules.Stagewise(optimizer, every=100, factor=0.2)
    for _ in range(6):
        for batch in torch.randperm(1500).split(32):
            optimizer.zero_grad()
            cross_entropy(model(a[batch]), b[batch]).backward()
            optimizer.step()
            schedule.step()
    return (model(a[1500:]).argmax(1) == b[1500:]).float().mean().item()


def main():
    torch.set_num_threads(1)  # the model is small
    for name, scaling, lr in (("adam", "adam", 3e-3), ("shb", "shb", 0.3), ("one per tensor", PerTensor(), 3e-3)):
        print(f"{name:15s} test accuracy {train(scaling, lr):.4f}", flush=True)


if __name__ == "__main__":
    main()
