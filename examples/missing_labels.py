"""Train on several labels of which half are missing, in about 20 seconds.

    python examples/missing_labels.py

There are ten labels per image of a handwritten digit ("is it a 0?", "is it a 1?", ...), each known with probability
0.5. NaN marks a missing label. The AUC loss skips it, counts the priors without it, and ignores columns that a batch
does not label. The baseline is cross-entropy on the known labels; both reach a test AUC of about 0.995. Needs
scikit-learn (pip install 'semaopt[experiments]').
"""

import argparse
import statistics

import torch
from sklearn.metrics import roc_auc_score
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, one_hot

import semaopt
from semaopt.problems.cleaning import load_digits


def data(missing, seed):
    """Return training features and labels with NaN, and complete test data."""
    a, b = load_digits()
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(b), generator=generator)
    labels = one_hot(b[order], 10).float()
    a, train = a[order], labels[:1200].clone()
    train[torch.rand(train.shape, generator=generator) < missing] = torch.nan
    return (a[:1200], train), (a[1200:], labels[1200:])


def known_cross_entropy(scores, labels):
    known = ~labels.isnan()
    return binary_cross_entropy_with_logits(scores[known], labels[known])


def run(method, missing, epochs, seed):
    """Train one model and return its test AUC, the mean over the ten labels."""
    (a, b), (a_test, b_test) = data(missing, seed)
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    if method == "AUC (PDAda)":
        loss = semaopt.losses.AUCMinMax.from_labels(b)
        primal = [*model.parameters(), *loss.primal_parameters()]
        optimizer = semaopt.PDAda(primal=primal, dual=loss.dual_parameters(), lr=3e-3, dual_lr=3e-3)
    else:
        loss, optimizer = known_cross_entropy, semaopt.ASA(model.parameters(), lr=3e-3)
    for _ in range(epochs):
        for batch in torch.randperm(len(b)).split(32):
            optimizer.zero_grad()
            loss(model(a[batch]), b[batch]).backward()
            optimizer.step()
    return roc_auc_score(b_test, model(a_test).detach())


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--missing", type=float, default=0.5, help="share of missing labels")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)  # the model is small
    for method in ("cross-entropy", "AUC (PDAda)"):
        found = []
        for seed in range(options.seeds):
            found.append(run(method, options.missing, options.epochs, seed))
            print(f"{method:14s} seed {seed}   test AUC, mean of ten labels: {found[-1]:.4f}", flush=True)
        print(f"{method:14s} mean     test AUC, mean of ten labels: {statistics.mean(found):.4f}", flush=True)


if __name__ == "__main__":
    main()
