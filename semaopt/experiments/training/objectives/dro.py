"""Distributionally robust optimization over the classes."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from semaopt import losses
from semaopt.experiments.data import Task
from semaopt.experiments.training.objectives.base import MinMax
from semaopt.experiments.training.run import Run
from semaopt.projections import Projection, Simplex


class DRO(MinMax):
    """The cross-entropy of the worst mixture of the classes (:class:`semaopt.losses.DRO`, KL divergence, strength 1).

    The metric ``loss`` is the exact maximum over the weights of the classes.
    """

    title: ClassVar[str] = "distributionally robust cross-entropy"
    metrics: ClassVar[tuple[str, ...]] = ("loss", "accuracy", "worst_accuracy")
    loss_title: ClassVar[str] = "worst-case loss"

    def __init__(self, task: Task, run: Run) -> None:
        super().__init__(task, run)
        kind: dict[str, Any] = {"device": run.machine.device, "dtype": getattr(torch, run.machine.dtype)}
        counts = torch.bincount(task.train.labels, minlength=task.classes).double()
        self.dro = losses.DRO(task.classes, frequencies=counts / counts.sum(), **kind)

    @classmethod
    def projection(cls) -> Projection:
        """Return the simplex of the weights."""
        return Simplex()

    def forward(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Return the weighted mean over the batch minus the divergence."""
        return self.dro(self._each(scores, labels), labels)  # type: ignore[no-any-return]

    def _each(self, scores: Tensor, labels: Tensor) -> Tensor:
        if scores.dim() == 1:
            return binary_cross_entropy_with_logits(scores, labels.to(scores.dtype), reduction="none")
        return cross_entropy(scores, labels, reduction="none")

    def dual_parameters(self) -> list[Parameter]:
        """Return the weights of the classes."""
        return self.dro.dual_parameters()

    @torch.no_grad()
    def measured_loss(self, scores: Tensor, labels: Tensor) -> float:
        """Return the maximum over the weights for the mean losses of the classes; absent classes have loss 0."""
        each = self._each(scores, labels)
        counts = torch.bincount(labels, minlength=self.classes).clamp(min=1)
        means = torch.zeros(self.classes, dtype=each.dtype, device=each.device).index_add(0, labels, each) / counts
        return float(self.dro.worst_case(means).value)
