"""The AUC in its min-max form, the objective of Figure 2."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import Parameter

from semaopt.experiments.data import Task
from semaopt.experiments.training import algorithms
from semaopt.experiments.training.algorithms import AlgorithmInfo
from semaopt.experiments.training.libauc import MarginLoss
from semaopt.experiments.training.objectives.base import MinMax
from semaopt.experiments.training.run import Run
from semaopt.losses import AUCMinMax


class AUC(MinMax):
    """The square surrogate of the AUC (:class:`semaopt.losses.AUCMinMax`), or the algorithm's own AUC loss."""

    title: ClassVar[str] = "AUC (min-max)"
    metrics: ClassVar[tuple[str, ...]] = ("loss", "auc")
    loss_title: ClassVar[str] = "objective"
    loss_is_positive: ClassVar[bool] = False
    two_classes: ClassVar[bool] = True

    def __init__(self, task: Task, run: Run) -> None:
        super().__init__(task, run)
        kind: dict[str, Any] = {"device": run.machine.device, "dtype": getattr(torch, run.machine.dtype)}
        own = algorithms.find(run.algorithm.name).loss
        # A task has labels 0 and 1, so batches need no validation.
        self.auc: AUCMinMax | MarginLoss = (
            AUCMinMax.from_labels(task.train.labels, score="linear", validate=False, **kind)
            if own is None
            else own().to(**kind)
        )

    @classmethod
    def admits(cls, algorithm: AlgorithmInfo) -> bool:
        """Whether an algorithm solves min-max problems, with this loss or with its own AUC loss."""
        return algorithm.problem == cls.problem

    def forward(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Return the mean over the batch."""
        value: Tensor = self.auc(scores, labels)
        return value

    def dual_parameters(self) -> list[Parameter]:
        """Return y, or alpha if the loss is LibAUC's."""
        return self.auc.dual_parameters()
