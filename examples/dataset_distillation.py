"""Distill 1,000 digits into ten images, one per class, in about 10 seconds.

    python examples/dataset_distillation.py --figure distillation.png

The upper variables are ten synthetic images. The lower problem is a softmax regression on these ten images only, with
an L2 penalty. The images minimize its loss on 1,000 real digits. At the end a new model is trained on them.
The reference is a model trained on the mean image of each class, with the penalty of a grid that is best on test data.
The lower loss has no noise, so conjugate gradients solve its linear system. The upper step size falls to zero, because
the model has to follow the images.
Needs scikit-learn and matplotlib (pip install 'semaopt[experiments]').
"""

import argparse

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import semaopt
from semaopt.hypergradient import CG
from semaopt.problems.cleaning import load_digits

DECAY = 1e-2
GRID = (1e-4, 1e-3, 1e-2, 3e-2, 1e-1)
CLASSES = torch.arange(10)
BLUE, ORANGE = "#0072b2", "#d55e00"  # distinguishable for colour-blind readers


def accuracy(model, a, b):
    with torch.no_grad():
        return (model(a).argmax(1) == b).double().mean().item()


def trained_on(images, labels, decay):
    """Return a softmax regression trained to the minimum, from zero."""
    model = nn.Linear(64, 10)
    for y in model.parameters():
        nn.init.zeros_(y)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=300, line_search_fn="strong_wolfe")

    def closure():
        optimizer.zero_grad()
        penalty = decay / 2 * sum(y.square().sum() for y in model.parameters())
        loss = cross_entropy(model(images), labels) + penalty
        loss.backward()
        return loss

    optimizer.step(closure)
    return model


def draw(path, means, images, curve, reference):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure = plt.figure(figsize=(11, 3), layout="constrained")
    left, right = figure.subfigures(1, 2, width_ratios=(1.7, 1))
    axes = left.subplots(2, 10)
    for row, (name, content) in zip(axes, (("mean", means), ("distilled", images)), strict=True):
        for one, image in zip(row, content, strict=True):
            one.imshow(image.reshape(8, 8).tolist(), cmap="gray_r")
            one.set(xticks=[], yticks=[])
        row[0].set_ylabel(name)
    left.suptitle("The ten images")
    axes = right.subplots()
    axes.plot(*zip(*curve, strict=True), color=BLUE, linewidth=2, label="SMB: distilled images")
    axes.axhline(reference, color=ORANGE, linestyle="--", label="mean images, best penalty")
    axes.set(xlabel="step", ylabel="test accuracy on real digits", title="Models trained on ten images")
    axes.legend(loc="lower right")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150, metadata={"Date": None} if str(path).endswith(".svg") else None)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--figure", help="write a figure to this path")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)  # the model is small
    torch.manual_seed(options.seed)
    a, b = load_digits()
    order = torch.randperm(len(a))
    (a, a_test), (b, b_test) = a[order].split([1000, len(a) - 1000]), b[order].split([1000, len(b) - 1000])
    means = torch.stack([a[b == k].mean(0) for k in range(10)])
    images, model = nn.Parameter(means.clone()), nn.Linear(64, 10)
    optimizer = semaopt.SMB(
        upper=[images],
        lower=model.parameters(),
        lr=0.003,
        lower_lr=1.0,
        scaling="adam",
        inverse=CG(10),
        lower_weight_decay=DECAY,
    )
    curve = []
    for t in range(options.steps):
        optimizer.param_groups[0]["lr"] = 0.003 * (1 - t / options.steps)
        optimizer.step(lambda: cross_entropy(model(a), b), lambda: cross_entropy(model(images), CLASSES))
        if t % max(1, options.steps // 50) == 0 or t == options.steps - 1:
            curve.append((t, accuracy(model, a_test, b_test)))
        if t % max(1, options.steps // 10) == 0 or t == options.steps - 1:
            print(f"step {t:5d}   test accuracy {curve[-1][1]:.4f}", flush=True)
    reference = max(accuracy(trained_on(means, CLASSES, decay), a_test, b_test) for decay in GRID)
    everything = max(accuracy(trained_on(a, b, decay), a_test, b_test) for decay in GRID)
    again = accuracy(trained_on(images.detach(), CLASSES, DECAY), a_test, b_test)
    print(f"ten mean images, best penalty         test accuracy {reference:.4f}")
    print(f"SMB: ten distilled images             test accuracy {again:.4f}   (a new model trained on them)")
    print(f"all 1,000 digits, best penalty        test accuracy {everything:.4f}")
    if options.figure:
        draw(options.figure, means, images.detach(), curve, reference)
        print(f"wrote {options.figure}")


if __name__ == "__main__":
    main()
