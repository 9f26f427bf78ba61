"""Learn one weight decay per layer of a small network, in about 20 seconds.

    python examples/weight_decay.py --figure weight_decay.png

The network is trained on 150 digits: one layer reads the pixels, another reads 100 columns of noise. A third layer
reads their sum. The upper variables are the logarithms of the three decays, which minimize the loss on 500 other
digits. At the end a new network is trained with the learned decays. The reference is the best common decay of a grid
of nine, chosen by the same loss and trained in the same way. Needs scikit-learn and matplotlib (pip install
'semaopt[experiments]').
"""

import argparse

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import semaopt
from semaopt.problems.cleaning import load_digits

GRID = [10 ** (-k / 4) for k in range(4, 13)]
START = 1e-2
NAMES, NOISE, HIDDEN = ("pixel layer", "noise layer", "output layer"), 100, 32
STYLES = (("#0072b2", "-"), ("#d55e00", "--"), ("#009e73", ":"))  # distinguishable for colour-blind readers


class Network(nn.Module):
    """A hidden layer for the pixels, one for the noise, and an output layer."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(64, HIDDEN), nn.Linear(NOISE, HIDDEN), nn.Linear(HIDDEN, 10)])

    def forward(self, inputs):
        pixels, noise, output = self.layers
        return output((pixels(inputs[:, :64]) + noise(inputs[:, 64:])).tanh())


class Problem:
    """Training, validation and test digits, a network and one log-decay per layer."""

    def __init__(self, seed, decays):
        torch.manual_seed(seed)
        images, digits = load_digits()
        images = torch.cat([images, 0.5 * torch.randn(len(images), NOISE)], 1)
        order = torch.randperm(len(images)).split([150, 500, len(images) - 650])
        self.train, self.valid, self.test = ((images[i], digits[i]) for i in order)
        self.model = Network()
        self.log_decay = nn.Parameter(torch.tensor(decays).log())

    def inner(self):
        squares = [sum(y.square().sum() for y in layer.parameters()) for layer in self.model.layers]
        penalty = (self.log_decay.exp() * torch.stack(squares)).sum() / 2
        return cross_entropy(self.model(self.train[0]), self.train[1]) + penalty

    def outer(self):
        return cross_entropy(self.model(self.valid[0]), self.valid[1])

    @torch.no_grad()
    def report(self):
        a, b = self.test
        return self.outer().item(), (self.model(a).argmax(1) == b).double().mean().item()


def trained(seed, decays, steps):
    """Return the problem with a new network that is trained with the given decays."""
    problem = Problem(seed, decays)
    optimizer = torch.optim.SGD(problem.model.parameters(), lr=0.2, momentum=0.9)
    for _ in range(steps):
        optimizer.zero_grad()
        problem.inner().backward()
        optimizer.step()
    return problem


def draw(path, decays, losses, reference):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
    for name, values, (color, style) in zip(NAMES, zip(*decays, strict=True), STYLES, strict=True):
        left.plot([t for t, _ in losses], values, style, color=color, linewidth=2, label=name)
    left.set(xlabel="step", ylabel="weight decay", yscale="log", title="Learned decays")
    left.legend()
    right.plot(*zip(*losses, strict=True), color=STYLES[0][0], linewidth=2, label="SMB: one decay per layer")
    right.axhline(reference, color=STYLES[1][0], linestyle="--", label="best common decay of the grid")
    right.set(xlabel="step", ylabel="validation loss", title="Training with the learned decays")
    right.legend()
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150, metadata={"Date": None} if str(path).endswith(".svg") else None)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--figure", help="write a figure to this path")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)  # the model is small
    grid = {decay: trained(options.seed, (decay,) * 3, options.steps // 3).report() for decay in GRID}
    best = min(grid, key=lambda decay: grid[decay][0])
    # The Hessian of a new network is not positive definite: start with a trained one.
    problem = trained(options.seed, (START,) * 3, options.steps // 3)
    optimizer = semaopt.SMB(
        upper=[problem.log_decay], lower=problem.model.parameters(), lr=0.003, lower_lr=0.1, scaling="adam"
    )
    decays, losses = [], []
    for t in range(options.steps):
        optimizer.step(problem.outer, problem.inner)
        if t % max(1, options.steps // 50) == 0 or t == options.steps - 1:
            decays.append(problem.log_decay.detach().exp().tolist())
            losses.append((t, problem.report()[0]))
        if t % max(1, options.steps // 10) == 0 or t == options.steps - 1:
            text = "  ".join(f"{value:.2e}" for value in decays[-1])
            print(f"step {t:5d}   validation loss {losses[-1][1]:.4f}   decays {text}", flush=True)
    for name, (loss, accuracy) in {
        f"best common decay, {best:.2g}": grid[best],
        "SMB, one decay per layer": trained(options.seed, decays[-1], options.steps // 3).report(),
    }.items():
        print(f"{name:26s}   validation loss {loss:.4f}   test accuracy {accuracy:.4f}   (a new network)")
    if options.figure:
        draw(options.figure, decays, losses, grid[best][0])
        print(f"wrote {options.figure}")


if __name__ == "__main__":
    main()
