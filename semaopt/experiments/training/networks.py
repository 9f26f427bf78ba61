"""The network of a run: built, joined with its loss, scored and measured."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import Parameter

from semaopt._validation import require
from semaopt.experiments import models
from semaopt.experiments.data import Part, Task
from semaopt.experiments.training import metrics, objectives
from semaopt.experiments.training.algorithms import Variables
from semaopt.experiments.training.objectives.base import OfScores, Sampled
from semaopt.experiments.training.run import Run
from semaopt.iterates import Iterates

_ROWS = 128  # scored at once; larger batches allocate new memory each time, which costs more than it saves
_TRIED = 8  # examples that a new model is tried on


def build(run: Run, task: Task) -> nn.Module:
    """Return the model of a run; its scores on a few examples must have the shape that the loss needs."""
    model = models.build(run.model.name, task, seed=run.seed, **run.model.options)
    model = model.to(device=run.machine.device, dtype=getattr(torch, run.machine.dtype))
    few = torch.arange(min(_TRIED, len(task.train)))
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        model.eval()
        found = model(task.train.inputs(few, run.machine.device, getattr(torch, run.machine.dtype)))
        model.train()
    objectives.find(run.loss).validate_scores(found, len(few), task, run.loss)
    return model


class ModelWithLoss(nn.Module):
    """A model and the loss of its scores as one module."""

    def __init__(self, model: nn.Module, loss: OfScores) -> None:
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, inputs: Any, labels: Tensor | None = None) -> Tensor:
        """Return the mean loss of a batch, or, without labels, the scores."""
        scores: Tensor = self.model(inputs)
        if labels is None:
            return scores
        value: Tensor = self.loss(scores, labels)
        return value

    def variables(self, lists: list[list[Parameter]]) -> Variables:
        """Split lists of this module's parameters into those to minimize over and those to maximize over."""
        dual = set(map(id, self.loss.dual_parameters()))
        is_dual = [id(x) in dual for x in self.parameters()]
        primal, dual_lists = (
            [[x for x, mine in zip(own, is_dual, strict=True) if mine is wanted] for own in lists]
            for wanted in (False, True)
        )
        return Variables(primal, dual_lists, self.loss.dual_projection(), offset=self.loss.alpha_offset)


def with_loss(run: Run, task: Task) -> ModelWithLoss:
    """Return the model of a run with its loss."""
    objective = objectives.find(run.loss)
    assert issubclass(objective, OfScores)  # the others are trained by SampledRun
    loss = objective(task, run).to(device=run.machine.device)
    return ModelWithLoss(build(run, task), loss)


def require_averageable(model: nn.Module, iterates: Iterates | None) -> None:
    """Refuse to average the iterates of a model with running statistics, which belong to the last iterate."""
    if iterates is not None:
        for module in model.modules():
            if getattr(module, "running_mean", None) is not None:
                rule = f"the running statistics of {type(module).__name__} belong to the last iterate"
                require(False, "iterates", iterates.kind, rule, "use a model without batch norm")


def scores(model: nn.Module, part: Part, device: str, dtype: torch.dtype, rows: Tensor | None = None) -> Tensor:
    """Return the scores of a part of the data, or of some of its rows."""
    wanted = torch.arange(len(part)) if rows is None else rows
    return torch.cat([model(part.inputs(index, device, dtype)) for index in torch.split(wanted, _ROWS)])


def value(objective: OfScores | Sampled, what: str, found: Tensor, labels: Tensor) -> float:
    """Return a metric of scores."""
    return objective.measured_loss(found, labels) if what == "loss" else metrics.OF_SCORES[what].value(found, labels)
