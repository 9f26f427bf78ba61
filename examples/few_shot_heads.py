"""Learn features that few-shot regression tasks share, with a ridge head per task (as iMAML), in about 15 seconds.

    python examples/few_shot_heads.py --figure heads.png

A task has 10 examples with 30 inputs, and its output depends on 4 directions that all tasks share. The upper variables
are a linear map to 8 features. The lower variables are the heads of 100 tasks, each a ridge regression on its own
examples. The map minimizes the error of all heads on further examples. The result is measured on new tasks.
The reference is a ridge regression on the 30 inputs, with the best penalty of a grid for the new tasks.
Needs matplotlib for the figure (pip install 'semaopt[experiments]').
"""

import argparse

import torch
from torch import nn

import semaopt

INPUTS, DIRECTIONS, FEATURES = 30, 4, 8
SHOTS, QUERIES, NOISE, RIDGE = 10, 20, 0.3, 0.1
GRID = (0.01, 0.03, 0.1, 0.3, 1.0)
BLUE, ORANGE, GREEN = "#0072b2", "#d55e00", "#009e73"  # distinguishable for colour-blind readers


def tasks(count, directions):
    """Return inputs and outputs of random tasks: the examples of each head, then further ones."""
    heads = torch.randn(count, DIRECTIONS, 1)
    inputs = torch.randn(count, SHOTS, INPUTS), torch.randn(count, QUERIES, INPUTS)
    return [(a, a @ directions @ heads + NOISE * torch.randn(*a.shape[:2], 1)) for a in inputs]


def new_heads(content, features, ridge=RIDGE):
    """Solve for the heads of new tasks and return their mean squared error on further examples."""
    (a, b), (a_query, b_query) = content
    a, a_query = a @ features, a_query @ features
    matrix = a.mT @ a / SHOTS + ridge * torch.eye(a.shape[2])
    return (a_query @ torch.linalg.solve(matrix, a.mT @ b / SHOTS) - b_query).square().mean().item()


def draw(path, curve, lines):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    axes.plot(*zip(*curve, strict=True), color=BLUE, linewidth=2, label="SMB: learned features")
    for (name, value), color in zip(lines.items(), (ORANGE, GREEN), strict=True):
        axes.axhline(value, color=color, linestyle="--", label=name)
    axes.set(xlabel="step", ylabel="mean squared error on new tasks", yscale="log")
    axes.set_title(f"Heads trained on {SHOTS} examples each")
    axes.legend(loc="center right")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150, metadata={"Date": None} if str(path).endswith(".svg") else None)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--figure", help="write a figure to this path")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)  # the model is small
    torch.manual_seed(options.seed)
    directions = torch.linalg.qr(torch.randn(INPUTS, DIRECTIONS))[0]
    (a, b), (a_query, b_query) = tasks(100, directions)
    new = tasks(400, directions)
    features = nn.Parameter(torch.randn(INPUTS, FEATURES) / INPUTS**0.5)
    heads = nn.Parameter(torch.zeros(len(a), FEATURES, 1))

    def error(inputs, outputs):  # a sum over tasks: each head has a loss of its own
        return (inputs @ features @ heads - outputs).square().mean(1).sum() / 2

    optimizer = semaopt.SMB(
        upper=[features], lower=[heads], lr=0.003, lower_lr=0.05, scaling="adam", lower_weight_decay=RIDGE
    )
    lines = {
        "ridge regression on the inputs": min(new_heads(new, torch.eye(INPUTS), ridge) for ridge in GRID),
        "heads on the true directions": min(new_heads(new, directions, ridge) for ridge in GRID),
    }
    curve = []
    for t in range(options.steps):
        optimizer.step(lambda: error(a_query, b_query), lambda: error(a, b))
        if t % max(1, options.steps // 50) == 0 or t == options.steps - 1:
            curve.append((t, new_heads(new, features.detach())))
        if t % max(1, options.steps // 10) == 0 or t == options.steps - 1:
            print(f"step {t:5d}   error on new tasks {curve[-1][1]:.4f}", flush=True)
    for name, value in lines.items():
        print(f"{name:30s}   error on new tasks {value:.4f}")
    print(f"{'SMB: learned features':30s}   error on new tasks {curve[-1][1]:.4f}")
    if options.figure:
        draw(options.figure, curve, lines)
        print(f"wrote {options.figure}")


if __name__ == "__main__":
    main()
