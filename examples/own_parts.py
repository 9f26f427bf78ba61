"""Your own optimizer, data set, model, loss and bilevel problem in a comparison, in about 20 seconds.

    cd examples && semaopt run own_parts.toml
    cd examples && semaopt run own_bilevel.toml

A spec names each part as "module:name". Modules are found in the current folder and on sys.path, also by workers.
Needs the extra (pip install 'semaopt[experiments]').
"""

import torch
from sklearn.datasets import load_wine
from torch.nn.functional import cross_entropy

from semaopt.experiments.training.objectives import Bilevel, Minimization


class SignDescent(torch.optim.Optimizer):
    """An optimizer: its first argument is the list of parameters, the others are options of the spec."""

    def __init__(self, params, lr=1e-3):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for x in group["params"]:
                x.sub_(group["lr"] * x.grad.sign())


def wine():
    """A data set: a function that returns (inputs, labels), with labels from 0."""
    found = load_wine()
    return (found.data - found.data.mean(0)) / found.data.std(0), found.target


def two_layers(task, *, hidden=16):
    """A model: a function of the task and of options."""
    inputs = task.shape[0]
    return torch.nn.Sequential(torch.nn.Linear(inputs, hidden), torch.nn.Tanh(), torch.nn.Linear(hidden, task.outputs))


class Focal(Minimization):
    """A loss: the mean over a batch of scores and labels."""

    title = "focal loss"
    metrics = ("loss", "accuracy")

    def forward(self, scores, labels):
        losses = cross_entropy(scores, labels, reduction="none")
        return ((1 - torch.exp(-losses)) ** 2 * losses).mean()


class ClassWeights(Bilevel):
    """A bilevel problem: learn one weight per class on half of the training rows, for a model trained on the others."""

    title = "class weights (bilevel)"
    metrics = ("loss", "accuracy")

    def setup(self):
        train = self.task.train
        order = self.draw.rows(len(train), len(train))
        self.upper_rows, self.lower_rows = order[::2], order[1::2]
        self.weights = torch.nn.Parameter(torch.zeros(self.task.classes))
        self.upper = [self.weights]

    def losses(self, rows):
        inputs, labels = self.draw.batch(self.task.train, rows[self.draw.rows(len(rows))])
        return cross_entropy(self.model(inputs), labels, reduction="none"), labels

    def upper_loss(self):
        return self.losses(self.upper_rows)[0].mean()

    def lower_loss(self):
        losses, labels = self.losses(self.lower_rows)
        return (self.weights.sigmoid()[labels] * losses).mean()
