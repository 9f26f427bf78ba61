"""The digits of scikit-learn and a small network: what one run is, and how it is trained."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from semaopt import ASA, scalings, schedules
from semaopt._check import require

STAGES = 3  # the paper: 60 epochs, a decay every 20
PIXELS, CLASSES = 64, 10


class Examples(NamedTuple):
    """Inputs in [0, 1] and the classes they belong to."""

    x: Tensor
    y: Tensor


class Split(NamedTuple):
    """60% to train on, 20% to choose hyper-parameters on, 20% that only the final runs see."""

    train: Examples
    valid: Examples
    test: Examples


@dataclass(frozen=True, order=True)
class Point:
    """The tuned hyper-parameters; beta is the first one where it increases."""

    lr: float
    g0: float
    beta: float


@dataclass(frozen=True)
class Run:
    """Some points of one method from some seeds: all that the numbers depend on besides code and data."""

    purpose: Literal["tune", "final"]
    """A tuning run is judged on the validation set, a final one on the test set; neither sees the other."""
    method: str
    decays: tuple[str, ...]
    """What is multiplied by ``factor`` after each third of the epochs: "lr", "gamma", both or nothing."""
    points: tuple[Point, ...]
    seeds: tuple[int, ...]
    epochs: int
    noise: float = 0.0
    """The probability that a label, each time it is drawn, is replaced by a class drawn at random."""
    batch: int = 32
    hidden: int = 64
    factor: float = 0.2

    def __post_init__(self) -> None:
        ok = self.epochs > 0 and self.epochs % STAGES == 0
        require(ok, "epochs", self.epochs, f"must be a positive multiple of {STAGES}", "rates decay at each third")
        require(0 <= self.noise < 1, "noise", self.noise, "must lie in [0, 1)", "0.0 leaves the labels as they are")
        for name in ("points", "seeds"):
            value = getattr(self, name)
            require(len(value) > 0, name, value, "must not be empty", "each point and seed is one network")


@dataclass(frozen=True)
class Outcome:
    """What became of one point: per seed, a number after each epoch (when tuning, the last); NaN where it diverged.

    The losses are those expected under the label noise, less its entropy, below which no network can get.
    """

    train_loss: list[list[float]]
    held_out_loss: list[list[float]]
    held_out_accuracy: list[list[float]]

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Outcome:
        """Read what a run file holds; JSON has no NaN, so a null stands for it."""
        return cls(
            **{
                key: [[math.nan if value is None else float(value) for value in curve] for curve in stored[key]]
                for key in ("train_loss", "held_out_loss", "held_out_accuracy")
            }
        )


@lru_cache(maxsize=1)
def load() -> Split:
    """The same stratified split in every run: a seed changes the network and the order, never who is tested."""
    x, y = load_digits(return_X_y=True)
    x_train, x_rest, y_train, y_rest = train_test_split(x / 16, y, test_size=0.4, stratify=y, random_state=0)
    x_valid, x_test, y_valid, y_test = train_test_split(x_rest, y_rest, test_size=0.5, stratify=y_rest, random_state=0)
    pairs = ((x_train, y_train), (x_valid, y_valid), (x_test, y_test))
    return Split(*(Examples(torch.tensor(a, dtype=torch.float32), torch.tensor(b)) for a, b in pairs))


class Ensemble(nn.Module):
    """Networks 64-hidden-10, one for each point and seed, in batches of matrices; the members never mix.

    ``weights[k]`` holds the members of point k, one row each, so that each point is one param group of one optimizer.
    A scaling that works coordinate by coordinate (Adam's does) moves a member as it would move it alone. On one core
    this trains nine points with three seeds about three times as fast as one point after the other.
    """

    def __init__(self, points: int, hidden: int, generators: Sequence[torch.Generator]) -> None:
        super().__init__()
        self.shapes = ((PIXELS, hidden), (1, hidden), (hidden, CLASSES), (1, CLASSES))
        bounds = (PIXELS**-0.5, PIXELS**-0.5, hidden**-0.5, hidden**-0.5)  # of torch.nn.Linear's uniform start
        start = torch.stack(
            [
                torch.cat([b * (2 * torch.rand(m * n, generator=g) - 1) for (m, n), b in self._sized(bounds)])
                for g in generators
            ]
        )
        self.weights = nn.ParameterList(start.clone() for _ in range(points))

    def _sized(self, bounds: Sequence[float]) -> list[tuple[tuple[int, int], float]]:
        return list(zip(self.shapes, bounds, strict=True))

    def forward(self, x: Tensor) -> Tensor:
        """(members, n, 64) to (members, n, 10); the members of a point stand together."""
        rows = torch.cat(list(self.weights))
        flat = torch.split(rows, [m * n for m, n in self.shapes], dim=1)
        w1, b1, w2, b2 = (part.view(-1, *shape) for part, shape in zip(flat, self.shapes, strict=True))
        return torch.baddbmm(b2, torch.relu(torch.baddbmm(b1, x, w1)), w2)


def entropy(noise: float) -> float:
    """Of a label under the noise, in nats: the smallest cross-entropy there is.

    >>> round(entropy(0.2), 4)
    0.8669
    """
    others = noise / CLASSES
    right = 1 - noise + others
    return sum(count * p * -math.log(p) for count, p in ((1, right), (CLASSES - 1, others)) if p > 0)


@torch.no_grad()
def judge(net: Ensemble, examples: Examples, noise: float, members: int) -> tuple[Tensor, Tensor]:
    """Loss and accuracy of each member on a whole set. Label smoothing is the mean over the noise, exactly."""
    x, y = examples.x.expand(members, -1, -1), examples.y.expand(members, -1)
    logits = net(x)
    loss = cross_entropy(logits.transpose(1, 2), y, reduction="none", label_smoothing=noise).mean(1)
    return loss - entropy(noise), (logits.argmax(-1) == y).float().mean(1)


def rates(run: Run, net: Ensemble) -> tuple[ASA, schedules.Stagewise | None]:
    """The optimizer, a param group for each point, and the schedule to be stepped once an epoch.

    All methods correct the bias of their averages, as the Adam of Keras and torch does: the paper leaves it open, and
    without it the methods would also differ in how they start.
    """
    groups = [
        {"params": [weight], "lr": point.lr, "beta": point.beta, "scaling": scalings.Adam(beta2=0.999, g0=point.g0)}
        for weight, point in zip(net.weights, run.points, strict=True)
    ]
    optimizer = ASA(groups, bias_correction=True)
    if not run.decays:
        return optimizer, None
    return optimizer, schedules.Stagewise(optimizer, run.epochs // STAGES, run.factor, on=run.decays)


def draw(y: Tensor, noise: float, generators: Sequence[torch.Generator]) -> tuple[Tensor, Tensor]:
    """For each seed an order of the examples, and their labels in that order, some of them replaced."""
    order = torch.stack([torch.randperm(len(y), generator=g) for g in generators])
    if noise == 0:
        return order, y[order]
    replaced = torch.stack([torch.rand(len(y), generator=g) < noise for g in generators])
    classes = torch.stack([torch.randint(CLASSES, (len(y),), generator=g) for g in generators])
    return order, torch.where(replaced, classes, y[order])


def train(run: Run) -> list[Outcome]:
    """Train all points from all seeds at once. Equal seeds start equally and see the same data in the same order."""
    split = load()
    held_out = split.valid if run.purpose == "tune" else split.test
    points, members = len(run.points), len(run.points) * len(run.seeds)
    generators = [torch.Generator().manual_seed(seed) for seed in run.seeds]
    net = Ensemble(points, run.hidden, generators)
    optimizer, schedule = rates(run, net)
    history = []
    for epoch in range(1, run.epochs + 1):
        order, labels = draw(split.train.y, run.noise, generators)
        for index, y in zip(torch.split(order, run.batch, 1), torch.split(labels, run.batch, 1), strict=True):
            optimizer.zero_grad()
            logits = net(split.train.x[index].repeat(points, 1, 1))
            # The mean over the batch and the sum over the members, each of which has its own weights.
            loss = cross_entropy(logits.flatten(0, 1), y.repeat(points, 1).flatten(), reduction="sum") / y.shape[1]
            torch.autograd.backward(loss)
            optimizer.step()
        if schedule is not None:
            schedule.step()
        if run.purpose == "final" or epoch == run.epochs:
            train_loss, _ = judge(net, split.train, run.noise, members)
            history.append(torch.stack([train_loss, *judge(net, held_out, run.noise, members)]))
    curves = torch.stack(history, dim=-1).view(3, points, len(run.seeds), len(history))
    return [Outcome(*curves[:, k].tolist()) for k in range(points)]


def perform(run: Run) -> dict[str, Any]:
    """Do one run, as plain values: this is what a worker process is handed."""
    started = time.perf_counter()
    outcomes = train(run)
    return {"outcomes": [asdict(outcome) for outcome in outcomes], "seconds": time.perf_counter() - started}
