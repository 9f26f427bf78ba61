"""A model and its loss as one module, and the random numbers of a run."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from semaopt.experiments import data, models
from semaopt.experiments.training import libauc, methods, metrics
from semaopt.experiments.training.run import Run
from semaopt.losses import AUCMinMax

_ORDERS = 2**62  # added to a seed for the order of the data, so that it is not also the seed of the model


class Joint(nn.Module):
    """The loss of the model's scores, or without labels the scores.

    Args:
        model: gives linear scores.
        auc: the min-max loss, ours or LibAUC's; None for cross-entropy.
    """

    def __init__(self, model: nn.Module, auc: AUCMinMax | libauc.MarginLoss | None) -> None:
        super().__init__()
        self.model, self.auc = model, auc

    def forward(self, inputs: Any, labels: Tensor | None = None) -> Tensor:
        """The mean over the batch, or (n,) or (n, classes)."""
        scores: Tensor = self.model(inputs)
        if labels is None:
            return scores
        if self.auc is not None:
            value: Tensor = self.auc(scores, labels)
            return value
        if scores.dim() == 1:
            return binary_cross_entropy_with_logits(scores, labels.to(scores.dtype))
        return cross_entropy(scores, labels)

    def is_dual(self) -> list[bool]:
        """Of each parameter, whether it is maximized over."""
        dual = set() if self.auc is None else set(map(id, self.auc.dual_parameters()))
        return [id(x) in dual for x in self.parameters()]


def build(run: Run, task: data.Task) -> Joint:
    """The model of a run with its loss."""
    kind: dict[str, Any] = {"device": run.machine.device, "dtype": getattr(torch, run.machine.dtype)}
    chosen = run.model
    model = models.build(chosen.name, task, seed=run.seed, **chosen.options).to(**kind)
    if run.loss == "cross_entropy":
        return Joint(model, None)
    if run.algorithm.name == libauc.PESG:
        return Joint(model, libauc.MarginLoss().to(**kind))
    # The labels are those of a task, 0 and 1: nothing to check in each batch.
    return Joint(model, AUCMinMax.from_labels(task.train.labels, score="linear", validate=False, **kind))


def sides(parameters: list[list[Parameter]], dual: list[bool]) -> methods.Sides:
    """What is minimized and what is maximized over, of each list of the parameters of a model."""
    split = [[[x for i, x in enumerate(own) if dual[i] is wanted] for own in parameters] for wanted in (False, True)]
    return methods.Sides(split[0], split[1])


def orders(seed: int) -> torch.Generator:
    """The random numbers of the order of the data and of the label noise; equal seeds see equal data."""
    return torch.Generator().manual_seed(_ORDERS + seed)


def value(what: str, task: data.Task, labels: Tensor, scores: Tensor) -> float:
    """A metric of scores; the loss is the cross-entropy."""
    if what == "auc":
        return metrics.area_under_curve(scores, labels)
    if what == "ap":
        return metrics.average_precision(scores, labels)
    if what == "accuracy":
        return metrics.accuracy(scores, labels)
    return float(metrics.class_loss(scores, labels, task.train.noise, task.classes))


def measured(run: Run, part: str) -> list[str]:
    """The names of what is measured on a part, without the part's."""
    return [name.partition("_")[2] for name in run.metrics if name.startswith(f"{part}_")]


def wants_bounds(run: Run) -> bool:
    """Whether the bounds of s are measured."""
    return bool(set(run.metrics) & set(metrics.BOUNDS))
