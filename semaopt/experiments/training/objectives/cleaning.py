"""Hyper-cleaning of labels, a bilevel problem."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from semaopt.experiments.data import Part
from semaopt.experiments.training.objectives.base import Bilevel

_CLEAN = 3  # one row in three of the training part has a known label: the data of the upper level


class Cleaning(Bilevel):
    """Learn weights of training rows with wrong labels, such that the model is right on rows with known labels.

    A third of the training part is clean and belongs to the upper level. In the rest, a share ``data.noise`` of the
    labels is wrong (the next class); the upper variables weigh these rows in the lower loss. The metrics of the
    training part are measured on the clean rows. See :class:`semaopt.problems.cleaning.HyperCleaning` for the
    mathematics.
    """

    title: ClassVar[str] = "hyper-cleaning (bilevel)"
    metrics: ClassVar[tuple[str, ...]] = ("loss", "accuracy")
    noise_title: ClassVar[str] = "share of wrong labels"
    training_title: ClassVar[str] = "{what} on clean data"
    tuning_parts: ClassVar[tuple[str, ...]] = ("valid",)  # not the training part: its true labels are unknown

    def setup(self) -> None:
        """Split the training part, make some labels wrong and create the weights."""
        train, order = self.task.train, self.draw.rows(len(self.task.train), len(self.task.train))
        clean, noisy = order[: len(order) // _CLEAN], order[len(order) // _CLEAN :]
        wrong = self.draw.rows(len(noisy), round(self.run.data.noise * len(noisy)))
        labels = train.labels[noisy].clone()
        labels[wrong] = (labels[wrong] + 1) % self.task.classes
        self.clean = replace(train, labels=train.labels[clean], rows=train.rows[clean], noise=0.0)
        self.noisy = replace(train, labels=labels, rows=train.rows[noisy], noise=0.0)
        some = next(self.model.parameters())
        self.weights = nn.Parameter(torch.zeros(len(noisy), device=some.device, dtype=some.dtype))
        self.upper = [self.weights]

    def upper_loss(self) -> Tensor:
        """Return the mean loss of clean rows."""
        return self._losses(self.clean, self.draw.rows(len(self.clean))).mean()

    def lower_loss(self) -> Tensor:
        """Return the weighted mean loss of rows with wrong labels among them."""
        rows = self.draw.rows(len(self.noisy))
        return (self.weights[rows].sigmoid() * self._losses(self.noisy, rows)).mean()

    def _losses(self, part: Part, rows: Tensor) -> Tensor:
        inputs, labels = self.draw.batch(part, rows)
        scores = self.model(inputs)
        if scores.dim() == 1:
            return binary_cross_entropy_with_logits(scores, labels.to(scores.dtype), reduction="none")
        return cross_entropy(scores, labels, reduction="none")

    def parts(self) -> dict[str, Part]:
        """Return the clean rows as the training part."""
        return {**super().parts(), "train": self.clean}
