"""The AUC in its min-max form, the objective of Figure 2."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import Parameter

from semaopt.experiments.data import Task
from semaopt.experiments.training import algorithms, libauc
from semaopt.experiments.training.algorithms import AlgorithmInfo
from semaopt.experiments.training.objectives.base import MinMax
from semaopt.experiments.training.run import Run
from semaopt.losses import AUCMinMax
from semaopt.projections import Box, Projection

_OURS, _THEIRS = "semaopt", "libauc"


class AUC(MinMax):
    """The square surrogate of the AUC (:class:`semaopt.losses.AUCMinMax`), or LibAUC's AUC-margin loss.

    Options of a method (``objective = { ... }``):
        loss: "semaopt" or "libauc"; by default the loss of the algorithm.
        score: "linear" or "sigmoid"; by default linear for the loss of this package, sigmoid for LibAUC's.
        version: "v1" or "v2" of LibAUC's loss.
    """

    title: ClassVar[str] = "AUC (min-max)"
    metrics: ClassVar[tuple[str, ...]] = ("loss", "auc")
    loss_title: ClassVar[str] = "objective"
    loss_is_positive: ClassVar[bool] = False
    two_classes: ClassVar[bool] = True
    options: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "loss": (_OURS, _THEIRS),
        "score": ("linear", "sigmoid"),
        "version": libauc.VERSIONS,
    }

    def __init__(self, task: Task, run: Run) -> None:
        super().__init__(task, run)
        kind: dict[str, Any] = {"device": run.machine.device, "dtype": getattr(torch, run.machine.dtype)}
        info, chosen = algorithms.find(run.algorithm.name), run.objective
        self.ours = chosen.get("loss", _THEIRS if info.own_loss else _OURS) == _OURS
        score = str(chosen.get("score", "linear" if self.ours else "sigmoid"))
        self.auc: AUCMinMax | libauc.MarginLoss
        if self.ours:
            prior = run.positives or float((task.train.labels == 1).double().mean())
            # A task has labels 0 and 1, so batches need no validation.
            self.auc = AUCMinMax(prior, score=score, validate=False, **kind)
            self.alpha_offset = self.auc.margin
        else:
            self.auc = libauc.MarginLoss(score, str(chosen.get("version", libauc.VERSIONS[0]))).to(**kind)

    @classmethod
    def admits(cls, algorithm: AlgorithmInfo) -> bool:
        """Whether an algorithm solves min-max problems."""
        return algorithm.problem == cls.problem

    @classmethod
    def vectorizes_with(cls, options: Mapping[str, Any]) -> bool:
        """Whether the loss is from this package; LibAUC's loss changes its own attributes."""
        return bool(options.get("loss", _OURS) == _OURS)

    @classmethod
    def missing(cls, options: Mapping[str, Any]) -> str | None:
        """Return the command that installs LibAUC if its loss is asked for and it is not installed."""
        return libauc.missing() if options.get("loss") == _THEIRS else None

    def dual_projection(self) -> Projection | None:
        """Return the set alpha >= 0 for LibAUC's loss, and None for ours."""
        return None if self.ours else Box(0.0, math.inf)

    def forward(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Return the mean over the batch."""
        value: Tensor = self.auc(scores, labels)
        return value

    def dual_parameters(self) -> list[Parameter]:
        """Return y, or alpha if the loss is LibAUC's."""
        return self.auc.dual_parameters()
