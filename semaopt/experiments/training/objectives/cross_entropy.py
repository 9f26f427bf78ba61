"""Cross-entropy, the loss of Figure 1."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from semaopt.experiments.training import metrics
from semaopt.experiments.training.objectives.base import Minimization


class CrossEntropy(Minimization):
    """The mean cross-entropy of linear scores.

    With label noise the labels of the training part are drawn in every epoch. The metric ``loss`` is then the exact
    mean over the noise, minus the entropy of the noise.
    """

    title: ClassVar[str] = "cross-entropy"
    metrics: ClassVar[tuple[str, ...]] = ("loss", "accuracy", "auc")
    stacks: ClassVar[bool] = True

    @classmethod
    def noisy_loss_title(cls, words: str) -> str:
        """Return the name of the loss minus the entropy of the label noise."""
        return f"excess {words}"

    def forward(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Return the mean over the batch."""
        if scores.dim() == 1:
            return binary_cross_entropy_with_logits(scores, labels.to(scores.dtype))
        return cross_entropy(scores, labels)

    def stacked(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Return one mean loss per run; vmap would decompose cross-entropy in Python."""
        if scores.dim() == 2:
            each = binary_cross_entropy_with_logits(scores, labels.to(scores.dtype), reduction="none")
        else:
            each = cross_entropy(scores.flatten(0, 1), labels.flatten(), reduction="none").view_as(labels)
        return each.mean(1)

    @torch.no_grad()
    def measured_loss(self, scores: Tensor, labels: Tensor) -> float:
        """Return the mean over the label noise."""
        return float(metrics.class_loss(scores, labels, self.noise, self.classes))
