"""Find wrong labels among handwritten digits by bilevel training, in about 5 seconds.

    python examples/hyper_cleaning.py --figure cleaning.png

400 of 1,000 training labels are wrong. The upper variables are one weight per example. The lower problem is a softmax
regression on the weighted examples. The weights minimize its loss on 400 clean examples.
Needs scikit-learn and matplotlib (pip install 'semaopt[experiments]').
"""

import argparse

import torch

import semaopt
from semaopt.hypergradient import Neumann, TrackedSystem
from semaopt.problems.cleaning import HyperCleaning

#: The recommended inverse and the paper's, each with step sizes that suit it.
SETTINGS = {
    "tracked": {"inverse": TrackedSystem(), "lr": 0.1, "lower_lr": 1.0, "scaling": "adam"},
    "neumann": {"inverse": Neumann(terms=10, bound=2.0), "lr": 100.0, "lower_lr": 0.5, "scaling": "shb"},
}


def clean(problem, steps, settings, report):
    """Run SMB and return the validation accuracy every 20 steps."""
    optimizer = semaopt.SMB(
        upper=[problem.weights],
        lower=problem.model.parameters(),
        beta=0.9,
        lower_weight_decay=1e-3,
        **settings,
    )
    curve = []
    for t in range(steps):
        loss = optimizer.step(problem.outer, problem.inner)
        if t % 20 == 0 or t == steps - 1:
            curve.append((t, problem.accuracy()))
        if t % max(1, steps // 10) == 0 or t == steps - 1:
            report(t, loss.item(), problem.accuracy())
    return curve


def reference(problem, steps, examples):
    """Train the same model on the given examples with equal weights."""
    with torch.no_grad():
        problem.weights.copy_(torch.where(examples, 50.0, -50.0))
    optimizer = torch.optim.SGD(problem.model.parameters(), lr=0.5, weight_decay=1e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        problem.inner().backward()
        optimizer.step()
    return problem.accuracy()


BLUE, ORANGE, GREEN = "#0072b2", "#d55e00", "#009e73"  # distinguishable for colour-blind readers


def draw(path, problem, curve, lines):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
    left.plot(*zip(*curve, strict=True), color=BLUE, linewidth=2)
    left.annotate("SMB: learned weights", (curve[-1][0], curve[-1][1] + 0.015), ha="right", color=BLUE)
    for (name, value), color in zip(lines.items(), (ORANGE, GREEN), strict=True):
        left.axhline(value, color=color, linestyle="--")
        left.annotate(name, (curve[-1][0], value - 0.04), ha="right", color=color)
    left.set(xlabel="step", ylabel="validation accuracy", title="Train with 40% wrong labels", ylim=(0.4, 1.03))
    weights = problem.weights.detach().sigmoid()
    bins = torch.linspace(0, 1, 41).tolist()
    right.hist(weights[~problem.wrong].tolist(), bins, color=BLUE, label="right label")
    right.hist(weights[problem.wrong].tolist(), bins, color=ORANGE, alpha=0.8, hatch="//", label="wrong label")
    right.set(xlabel="learned weight of a training example", ylabel="examples", title="Which labels are wrong?")
    right.legend(loc="upper center")
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150, metadata={"Date": None} if str(path).endswith(".svg") else None)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--inverse", choices=SETTINGS, default="tracked")
    parser.add_argument("--figure", help="write a figure to this path")
    options = parser.parse_args(arguments)

    def report(t, loss, accuracy):
        print(f"step {t:5d}   upper loss {loss:.4f}   validation accuracy {accuracy:.4f}", flush=True)

    torch.set_num_threads(1)  # the model is small

    def fresh():
        return HyperCleaning(seed=options.seed)

    lines = {
        "all labels, equal weights": reference(problem := fresh(), options.steps, torch.ones_like(problem.wrong)),
        "right labels only": reference(problem := fresh(), options.steps, ~problem.wrong),
    }
    problem = fresh()
    curve = clean(problem, options.steps, SETTINGS[options.inverse], report)
    found = problem.weights.detach() < 0
    correct = (found == problem.wrong).float().mean().item()
    for name, value in lines.items():
        print(f"{name:26s}   validation accuracy {value:.4f}")
    print(f"{'SMB':26s}   validation accuracy {curve[-1][1]:.4f}   test accuracy {problem.accuracy('test'):.4f}")
    print(f"a weight below 1/2 means 'wrong label': correct for {correct:.1%} of the examples")
    if options.figure:
        draw(options.figure, problem, curve, lines)
        print(f"wrote {options.figure}")


if __name__ == "__main__":
    main()
