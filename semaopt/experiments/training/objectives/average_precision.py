"""Average precision, a compositional problem."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor

from semaopt import losses
from semaopt.experiments.training.objectives.base import Compositional

_POSITIVE = 4  # one row in four of a batch is positive


class AveragePrecision(Compositional):
    """The surrogate of average precision (:class:`semaopt.losses.AveragePrecision`), one inner average per row."""

    title: ClassVar[str] = "average precision (compositional)"
    metrics: ClassVar[tuple[str, ...]] = ("ap", "auc")
    two_classes: ClassVar[bool] = True

    def setup(self) -> None:
        """List the positive and the negative rows."""
        labels = self.task.train.labels
        self.positive, self.negative = ((labels == label).nonzero().squeeze(1) for label in (1, 0))
        self.loss = losses.AveragePrecision(prior=float((labels == 1).double().mean()))
        self.blocks = len(labels)

    def sample(self) -> tuple[Callable[[], Tensor], Callable[[Tensor], Tensor], Tensor]:
        """Draw a quarter of the batch from the positive rows and the rest from the negative ones."""
        i = self.positive[self.draw.rows(len(self.positive), max(1, self.run.batch // _POSITIVE))]
        j = torch.cat([i, self.negative[self.draw.rows(len(self.negative), self.run.batch - len(i))]])
        inputs, labels = self.draw.batch(self.task.train, j)
        return lambda: self.loss.inner(self.model(inputs), labels), self.loss.outer, i.to(labels.device)
