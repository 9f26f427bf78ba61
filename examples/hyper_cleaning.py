"""Find wrong labels: bilevel hyper-cleaning of handwritten digits.

    python examples/hyper_cleaning.py --figure cleaning.png

Of 1,000 training labels 400 are wrong. x gives each example a weight, y is a softmax regression on the weighted
examples, and x descends the loss of y on 400 clean examples. A run of 1,000 steps takes about a second.
Needs scikit-learn and matplotlib (pip install 'semaopt[experiments]').
"""

import argparse

import torch

import semaopt
from semaopt.hypergradient import Neumann, TrackedSystem
from semaopt.problems.cleaning import HyperCleaning

#: The inverse to start with, one warm-started step a step, and the paper's; each with the step sizes that suit it.
SETTINGS = {
    "tracked": {"inverse": TrackedSystem(), "lr": 0.1, "lower_lr": 1.0, "scaling": "adam"},
    "neumann": {"inverse": Neumann(terms=10, bound=2.0), "lr": 100.0, "lower_lr": 0.5, "scaling": "shb"},
}


def clean(problem, steps, settings, report):
    """Run SMB; the validation accuracy every 20 steps."""
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


def draw(path, problem, curve, lines):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
    left.plot(*zip(*curve, strict=True), color="tab:blue", label="SMB")
    for (name, value), color in zip(lines.items(), ("tab:red", "tab:green"), strict=True):
        left.axhline(value, color=color, linestyle="--", label=name)
    left.set(xlabel="step", ylabel="validation accuracy", title="Cleaning while training")
    left.legend()
    weights = problem.weights.detach().sigmoid()
    bins = torch.linspace(0, 1, 41).tolist()
    right.hist(weights[~problem.wrong].tolist(), bins, alpha=0.7, color="tab:blue", label="right label")
    right.hist(weights[problem.wrong].tolist(), bins, alpha=0.7, color="tab:orange", label="wrong label")
    right.set(xlabel="learned weight of a training example", ylabel="examples", title="What the weights say")
    right.legend()
    figure.savefig(path, dpi=150)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--inverse", choices=SETTINGS, default="tracked")
    parser.add_argument("--figure", help="write a picture to this path")
    options = parser.parse_args(arguments)

    def report(t, loss, accuracy):
        print(f"step {t:5d}   upper loss {loss:.4f}   validation accuracy {accuracy:.4f}", flush=True)

    def fresh():
        return HyperCleaning(seed=options.seed)

    lines = {
        "all examples": reference(problem := fresh(), options.steps, torch.ones_like(problem.wrong)),
        "right labels only": reference(problem := fresh(), options.steps, ~problem.wrong),
    }
    problem = fresh()
    curve = clean(problem, options.steps, SETTINGS[options.inverse], report)
    found = problem.weights.detach() < 0
    right = (found == problem.wrong).float().mean().item()
    for name, value in lines.items():
        print(f"{name:18s}   validation accuracy {value:.4f}")
    print(f"{'SMB':18s}   validation accuracy {curve[-1][1]:.4f}   test accuracy {problem.accuracy('test'):.4f}")
    print(f"a weight below 1/2 says 'wrong label' rightly for {right:.1%} of the examples")
    if options.figure:
        draw(options.figure, problem, curve, lines)
        print(f"wrote {options.figure}")


if __name__ == "__main__":
    main()
