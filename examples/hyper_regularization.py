"""Learn one L2 weight for each feature of a logistic regression from a validation set.

    python examples/hyper_regularization.py --figure weights.png
    SEMAOPT_DATA=/where/the/data/is python examples/hyper_regularization.py --data ijcnn1

x holds the logarithm of each feature's weight, y the regression that is trained with these weights, and x descends the
validation loss of y. For comparison: the best single weight for all features, of a grid, on the same validation set.
On ijcnn1, with 2,000 validation examples, the learned weights win on the test data too. On breast_cancer they win on
the 250 validation examples alone: 31 weights overfit them.
Data: scikit-learn's breast_cancer, or ijcnn1 (LIBSVM format, in libsvm/ of the folder that SEMAOPT_DATA names).
Needs scikit-learn and matplotlib (pip install 'semaopt[experiments]').
"""

import argparse
import os
from pathlib import Path

import torch
from torch.nn.functional import softplus

import semaopt
from semaopt.problems.bilevel import LogisticBilevel

SIZES = {"breast_cancer": (150, 250), "ijcnn1": (400, 2000)}  # training, validation; the rest is for the test
DECAY = {"breast_cancer": 3e-4, "ijcnn1": 0.0}  # pulls the logarithms to 0: separable data would send them to -inf


def load(name):
    """Features, labels in {-1, 1} and the names of the features."""
    from sklearn import datasets

    if name == "breast_cancer":
        found = datasets.load_breast_cancer()
        return found.data, 2.0 * found.target - 1, list(found.feature_names)
    path = Path(os.environ.get("SEMAOPT_DATA", ".")) / "libsvm" / name
    if not path.exists():
        raise SystemExit(f"{path} does not exist; put the LIBSVM file {name} there, or set SEMAOPT_DATA to its folder")
    a, b = datasets.load_svmlight_file(str(path))
    return a.toarray(), b, [f"feature {j + 1}" for j in range(a.shape[1])]


def split(name, seed):
    """Training, validation and test data, scaled by the training data, with a constant feature."""
    a, b, names = load(name)
    order = torch.randperm(len(b), generator=torch.Generator().manual_seed(seed))
    a, b = torch.tensor(a, dtype=torch.float64)[order], torch.tensor(b, dtype=torch.float64)[order]
    train, valid = SIZES[name]
    a = (a - a[:train].mean(0)) / a[:train].std(0).clamp_min(1e-6)
    a = torch.cat([a, torch.ones(len(a), 1, dtype=a.dtype)], 1)
    cuts = (slice(train), slice(train, train + valid), slice(train + valid, None))
    return [(a[cut], b[cut]) for cut in cuts], [*names, "constant"]


def quality(y, data):
    """Mean loss and share of right answers."""
    a, b = data
    margins = b * (a @ y)
    return softplus(-margins).mean().item(), (margins > 0).double().mean().item()


def best_common_weight(problem, valid, features):
    """The solution for the best of a grid of single weights."""
    grid = torch.linspace(-9, 2, 23, dtype=torch.float64)
    solutions = [problem.solution(torch.full((features,), float(x), dtype=torch.float64)) for x in grid]
    return min(solutions, key=lambda y: quality(y, valid)[0])


def learn(problem, valid, decay, steps, report):
    """Adaptive SMB with a tracked linear system; the validation loss of the exact lower solution along the way."""
    x, y = problem.start(log_weight=-2.0)
    y.data = problem.solution(x)  # an untrained y would ask for less regularization, whatever it is
    optimizer = semaopt.SMB(upper=[x], lower=[y], lr=0.01, lower_lr=0.5, scaling="adam", weight_decay=decay)
    outer, inner = problem.outer(x, y), problem.inner(x, y)
    curve = []
    for t in range(steps + 1):
        if t % max(1, steps // 20) == 0:
            curve.append((t, quality(problem.solution(x), valid)[0]))
            report(*curve[-1])
        optimizer.step(outer, inner)
    return x.detach(), curve


def draw(path, curve, common, weights, names):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 0.17 * len(names) + 2), layout="constrained")
    left.plot(*zip(*curve, strict=True), marker=".", label="one weight a feature, learned")
    left.axhline(common, color="tab:red", linestyle="--", label="best common weight")
    left.set(xlabel="step", ylabel="validation loss of y*(x)", title="Learning the regularization")
    left.legend()
    order = weights.argsort()
    right.barh([names[j] for j in order], weights.exp()[order].tolist(), color="tab:blue")
    right.set(xscale="log", xlabel="learned L2 weight", title="Large: the feature is switched off")
    right.tick_params(axis="y", labelsize=7)
    figure.savefig(path, dpi=150)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", choices=SIZES, default="breast_cancer")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--figure", help="write a picture to this path")
    options = parser.parse_args(arguments)

    (train, valid, test), names = split(options.data, options.seed)
    problem = LogisticBilevel(train, valid, batch=options.batch, seed=options.seed)

    def report(t, loss):
        print(f"step {t:5d}   validation loss {loss:.4f}", flush=True)

    weights, curve = learn(problem, valid, DECAY[options.data], options.steps, report)
    common = best_common_weight(problem, valid, len(names))
    for name, y in (("best common weight", common), ("one weight a feature", problem.solution(weights))):
        (v, _), (loss, right) = quality(y, valid), quality(y, test)
        print(f"{name:22s} validation loss {v:.4f}   test loss {loss:.4f}   test accuracy {right:.4f}")
    if options.figure:
        draw(options.figure, curve, quality(common, valid)[0], weights, names)
        print(f"wrote {options.figure}")


if __name__ == "__main__":
    main()
