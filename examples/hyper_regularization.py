"""Learn one L2 weight per feature of a logistic regression from a validation set, in about 10 seconds.

    python examples/hyper_regularization.py --figure weights.png
    SEMAOPT_DATA=/where/the/data/is python examples/hyper_regularization.py --data ijcnn1

The upper variable x holds the logarithm of each feature's weight. The lower variable y is the regression trained with
these weights, and x minimizes its validation loss. The baseline is the best single weight of a grid, chosen on the same
validation set. On ijcnn1, with 2,000 validation examples, the learned weights also win on the test data. On
breast_cancer they win only on the 250 validation examples, because 31 weights overfit them.
Data: scikit-learn's breast_cancer, or ijcnn1 (LIBSVM format, in the folder libsvm/ of SEMAOPT_DATA).
Needs scikit-learn and matplotlib (pip install 'semaopt[experiments]').
"""

import argparse
import os
from pathlib import Path

import torch
from torch.nn.functional import softplus

import semaopt

SIZES = {"breast_cancer": (150, 250), "ijcnn1": (400, 2000)}  # training, validation; the rest is test data
DECAY = {"breast_cancer": 3e-4, "ijcnn1": 0.0}  # pulls the logarithms to 0; separable data would send them to -inf


def load(name):
    """Return features, labels in {-1, 1} and the names of the features."""
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
    """Return training, validation and test data, standardized by the training data, with a constant feature."""
    a, b, names = load(name)
    order = torch.randperm(len(b), generator=torch.Generator().manual_seed(seed))
    a, b = torch.tensor(a, dtype=torch.float64)[order], torch.tensor(b, dtype=torch.float64)[order]
    train, valid = SIZES[name]
    a = (a - a[:train].mean(0)) / a[:train].std(0).clamp_min(1e-6)
    a = torch.cat([a, torch.ones(len(a), 1, dtype=a.dtype)], 1)
    cuts = (slice(train), slice(train, train + valid), slice(train + valid, None))
    return [(a[cut], b[cut]) for cut in cuts], [*names, "constant"]


class Regularization:
    """f: validation loss of y. g: training loss plus sum_j exp(x_j) y_j^2 / 2. y*(x) is found by Newton's method."""

    def __init__(self, train, valid, batch, seed):
        self.train, self.valid, self.batch = train, valid, batch
        self.generator = torch.Generator().manual_seed(seed)

    def sample(self, data):
        a, b = data
        i = torch.randint(len(b), (self.batch,), generator=self.generator)
        return a[i], b[i]

    def outer(self, x, y):
        return loss(y, *self.sample(self.valid))

    def inner(self, x, y):
        return loss(y, *self.sample(self.train)) + (x.exp() * y.square()).sum() / 2

    def solution(self, x, steps=50):
        (a, b), weight = self.train, x.detach().exp()
        y = torch.zeros_like(weight)

        def g(y):
            return loss(y, a, b) + (weight * y.square()).sum() / 2

        for _ in range(steps):
            s = torch.sigmoid(b * (a @ y))
            gradient = a.T @ (-b * (1 - s)) / len(b) + weight * y
            hessian = (a * (s * (1 - s) / len(b))[:, None]).T @ a + torch.diag(weight)
            step = torch.linalg.solve(hessian, gradient)
            while g(y - step) > g(y) and step.norm() > 1e-12:
                step = step / 2
            y = y - step
        return y


def loss(y, a, b):
    return softplus(-b * (a @ y)).mean()


def quality(y, data):
    """Return the mean loss and the accuracy."""
    a, b = data
    return loss(y, a, b).item(), (b * (a @ y) > 0).double().mean().item()


def best_common_weight(problem, valid, features):
    """Return the solution for the best single weight of a grid."""
    grid = torch.linspace(-9, 2, 23, dtype=torch.float64)
    solutions = [problem.solution(torch.full((features,), float(x), dtype=torch.float64)) for x in grid]
    return min(solutions, key=lambda y: quality(y, valid)[0])


def learn(problem, valid, decay, steps, report):
    """Run adaptive SMB with a tracked linear system; also return the validation loss of y*(x) along the way."""
    x = torch.nn.Parameter(torch.full_like(problem.train[0][0], -2.0))
    y = torch.nn.Parameter(problem.solution(x))  # an untrained y would always ask for less regularization
    optimizer = semaopt.SMB(upper=[x], lower=[y], lr=0.01, lower_lr=0.5, scaling="adam", weight_decay=decay)
    curve = []
    for t in range(steps + 1):
        if t % max(1, steps // 20) == 0:
            curve.append((t, quality(problem.solution(x), valid)[0]))
            report(*curve[-1])
        optimizer.step(lambda: problem.outer(x, y), lambda: problem.inner(x, y))
    return x.detach(), curve


def draw(path, curve, common, weights, names):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 0.17 * len(names) + 2), layout="constrained")
    left.plot(*zip(*curve, strict=True), marker=".", label="one weight per feature, learned")
    left.axhline(common, color="tab:red", linestyle="--", label="best common weight")
    left.set(xlabel="step", ylabel="validation loss of y*(x)", title="Learning the regularization")
    left.legend()
    order = weights.argsort()
    right.barh([names[j] for j in order], weights.exp()[order].tolist(), color="tab:blue")
    right.set(xscale="log", xlabel="learned L2 weight", title="A large weight switches the feature off")
    right.tick_params(axis="y", labelsize=7)
    figure.savefig(path, dpi=150)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", choices=SIZES, default="breast_cancer")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--figure", help="write a figure to this path")
    options = parser.parse_args(arguments)

    torch.set_num_threads(1)  # the model is small
    (train, valid, test), names = split(options.data, options.seed)
    problem = Regularization(train, valid, options.batch, options.seed)

    def report(t, reached):
        print(f"step {t:5d}   validation loss {reached:.4f}", flush=True)

    weights, curve = learn(problem, valid, DECAY[options.data], options.steps, report)
    common = best_common_weight(problem, valid, len(names))
    for name, y in (("best common weight", common), ("one weight per feature", problem.solution(weights))):
        (v, _), (tested, accuracy) = quality(y, valid), quality(y, test)
        print(f"{name:24s} validation loss {v:.4f}   test loss {tested:.4f}   test accuracy {accuracy:.4f}")
    if options.figure:
        draw(options.figure, curve, quality(common, valid)[0], weights, names)
        print(f"wrote {options.figure}")


if __name__ == "__main__":
    main()
