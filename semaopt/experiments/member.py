"""One run as it trains: model, loss, optimizer, schedule and its own random numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from semaopt.experiments import data, methods, metrics, models, ranks
from semaopt.experiments.runs import Run
from semaopt.losses import AUCMinMax, WithLoss

_ROWS = 1000  # scored at once when a part is measured
_ORDERS = 2**62  # added to a seed for the order of the data, so that it is not also the seed of the model


class Classified(nn.Module):
    """A model and its cross-entropy as one module, as :class:`semaopt.losses.WithLoss` is for a min-max loss."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Any, labels: Tensor) -> Tensor:
        """The mean over the batch."""
        scores = self.model(inputs)
        if scores.dim() == 1:
            return binary_cross_entropy_with_logits(scores, labels.to(scores.dtype))
        return cross_entropy(scores, labels)


def joint(run: Run, task: data.Task) -> Classified | WithLoss:
    """The model of a run with its loss."""
    kind: dict[str, Any] = {"device": run.machine.device, "dtype": getattr(torch, run.machine.dtype)}
    chosen = run.training["model"]
    model = models.build(chosen["name"], task, seed=run.seed, **chosen["options"]).to(**kind)
    if run.training["loss"] == "cross_entropy":
        return Classified(model)
    if task.classes != 2:
        raise data.DataError(f"loss = 'auc': {task.name} has {task.classes} classes; set data.binary = true")
    return WithLoss(model, AUCMinMax.from_labels(task.train.labels, **kind))


def orders(seed: int) -> torch.Generator:
    """The random numbers of the order of the data and of the label noise; equal seeds see equal data."""
    return torch.Generator().manual_seed(_ORDERS + seed)


class Member:
    """One model, trained alone; see :class:`semaopt.experiments.training.Trainee`."""

    def __init__(self, run: Run, task: data.Task) -> None:
        self.run, self.task, self.group = run, task, ranks.current()
        self.joint = joint(run, task)
        self.wrapped = self.group.wrap(self.joint)
        self.steps = math.ceil(len(task.train) / run.training["batch"])
        self.generator = orders(run.seed)
        primal = self.joint.primal_parameters() if isinstance(self.joint, WithLoss) else [*self.joint.parameters()]
        dual = self.joint.dual_parameters() if isinstance(self.joint, WithLoss) else []
        self.optimizer, self.schedule = methods.build(
            run.algorithm["name"], run.algorithm["decays"], [run.values], methods.Sides([primal], [dual]), self.steps
        )

    def draw(self) -> None:
        """The order of the next epoch, and its labels."""
        self.before = self.generator.get_state()
        self.order = torch.randperm(len(self.task.train), generator=self.generator)
        self.labels = self.task.train.draw(self.order, self.generator)

    def step(self, k: int) -> None:
        """One step on batch k."""
        batch, device = self.run.training["batch"], self.run.machine.device
        mine, weight = self.group.part(torch.arange(k * batch, min((k + 1) * batch, len(self.order))))
        inputs = self.task.train.inputs(self.order[mine], device, getattr(torch, self.run.machine.dtype))
        self.optimizer.zero_grad()
        loss: Tensor = self.wrapped(inputs, self.labels[mine].to(device))
        (loss if weight == 1 else loss * weight).backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()

    def end_epoch(self) -> list[bool]:
        """Move the rates; say whether all parameters are finite."""
        if self.schedule is not None:
            self.schedule.step()
        return [all_finite(list(self.joint.parameters()))]

    def measure(self) -> list[dict[str, float]]:
        """All metrics of the run."""
        self.group.agree(self.joint)
        self.joint.eval()
        found: dict[str, float] = {}
        wanted = self.run.training["metrics"]
        for name in metrics.PARTS:
            mine = [metric for metric in wanted if metric.startswith(f"{name}_")]
            if mine:
                part = getattr(self.task, name)
                scores = self._scores(part)
                found |= {metric: self._value(metric.partition("_")[2], part, scores) for metric in mine}
        if set(wanted) & set(metrics.BOUNDS):
            found |= metrics.bounds(torch.cat(metrics.scaling_values(self.optimizer)))
        self.joint.train()
        return [found]

    @torch.no_grad()
    def _scores(self, part: data.Part) -> Tensor:
        group, machine = self.group, self.run.machine
        rows = torch.arange(len(part))[group.rank :: group.world]
        parts = [
            self.joint.model(part.inputs(index, machine.device, getattr(torch, machine.dtype)))
            for index in torch.split(rows, _ROWS)
        ]
        return group.gather(torch.cat(parts), len(part))

    @torch.no_grad()
    def _value(self, what: str, part: data.Part, scores: Tensor) -> float:
        labels = part.labels.to(scores.device)
        if what == "auc":
            return metrics.area_under_curve(scores, labels)
        if what == "accuracy":
            return metrics.accuracy(scores, labels)
        if isinstance(self.joint, WithLoss):
            return float(self.joint.loss(scores, labels))
        return float(metrics.class_loss(scores, labels, self.task.train.noise, self.task.classes))

    def state_dict(self) -> dict[str, Any]:
        """Model, optimizer, schedule, and the random numbers as they were before the epoch that is under way."""
        return {
            "joint": self.joint.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": None if self.schedule is None else self.schedule.state_dict(),
            "before": self.before,
            "torch": torch.get_rng_state(),
            "cuda": _cuda_state(self.run),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there; the epoch under way is drawn again as it was."""
        self.joint.load_state_dict(state["joint"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.schedule is not None:
            self.schedule.load_state_dict(state["schedule"])
        self.generator.set_state(state["before"])
        self.draw()
        torch.set_rng_state(state["torch"])
        if state["cuda"] is not None:
            torch.cuda.set_rng_state(state["cuda"], self.run.machine.device)


def _cuda_state(run: Run) -> Tensor | None:
    return torch.cuda.get_rng_state(run.machine.device) if run.machine.device.startswith("cuda") else None


def all_finite(tensors: Sequence[Tensor]) -> bool:
    """Whether there is no NaN and no infinity."""
    return all(bool(torch.isfinite(x).all()) for x in tensors)
