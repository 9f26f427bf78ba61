"""Several runs of one method as they train together, as one vectorised model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from semaopt.ensemble import Ensemble
from semaopt.experiments import data
from semaopt.experiments.training import methods, metrics, problem
from semaopt.experiments.training.run import Run
from semaopt.optimizers._nonfinite import all_finite


class Members:
    """Runs that differ in their seeds and rates; see :class:`semaopt.experiments.training.loop.Trainee`.

    Each ends where it would have ended alone, to rounding. Runs of equal seed see the same batches, so these are
    gathered once for each seed.
    """

    def __init__(self, runs: Sequence[Run], task: data.Task) -> None:
        self.runs, self.task, first = runs, task, runs[0]
        self.device, self.dtype = first.machine.device, getattr(torch, first.machine.dtype)
        models = [problem.build(run, task) for run in runs]
        values, alike = _settings(runs)
        self.ensemble = Ensemble(models, alike)
        self.steps = math.ceil(len(task.train) / first.batch)
        seeds = list(dict.fromkeys(run.seed for run in runs))
        self.generators = [problem.orders(seed) for seed in seeds]
        self.stream = torch.tensor([seeds.index(run.seed) for run in runs])
        sides = problem.sides([self.ensemble.parameters_of(k) for k in range(len(alike))], models[0].is_dual())
        self.is_auc = models[0].auc is not None
        algorithm = first.algorithm
        self.optimizer, self.schedule = methods.build(algorithm.name, algorithm.decays, values, sides, self.steps)

    def draw(self) -> None:
        """The order of the next epoch, and its labels, for each seed."""
        part, batch = self.task.train, self.runs[0].batch
        self.before = [generator.get_state() for generator in self.generators]
        orders, labels = [], []
        for generator in self.generators:
            orders.append(torch.randperm(len(part), generator=generator))
            labels.append(part.draw(orders[-1], generator))
        pairs = (torch.split(torch.stack(each), batch, 1) for each in (orders, labels))
        self.batches = list(zip(*pairs, strict=True))

    def step(self, k: int) -> None:
        """One step of all members, each on batch k of its seed."""
        rows, labels = self.batches[k]
        inputs: Tensor = self.task.train.inputs(rows.flatten(), self.device, self.dtype)
        inputs = inputs.reshape(*rows.shape, *inputs.shape[1:])[self.stream]
        self.ensemble.zero_grad()
        self.ensemble.backward(self._losses(inputs, labels[self.stream].to(self.device)))
        self.optimizer.step()

    def _losses(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """One for each member. The cross-entropy stands outside of vmap, which would take it apart in Python."""
        if self.is_auc:
            losses: Tensor = self.ensemble(inputs, labels)
            return losses
        scores = self.ensemble(inputs)
        if scores.dim() == 2:
            each = binary_cross_entropy_with_logits(scores, labels.to(scores.dtype), reduction="none")
        else:
            each = cross_entropy(scores.flatten(0, 1), labels.flatten(), reduction="none").view_as(labels)
        return each.mean(1)

    def end_epoch(self) -> list[bool]:
        """Move the rates; say of each member whether its parameters are finite."""
        if self.schedule is not None:
            self.schedule.step()
        states = (self.ensemble.state_dict_of(m) for m in range(len(self.runs)))
        return [all_finite(state.values()) for state in states]

    @torch.no_grad()
    def measure(self) -> list[dict[str, float]]:
        """All metrics of each run."""
        self.ensemble.eval()
        found: list[dict[str, float]] = [{} for _ in self.runs]
        for name in metrics.PARTS:
            wanted = problem.measured(self.runs[0], name)
            if wanted:
                part = getattr(self.task, name)
                inputs, labels = part.inputs(None, self.device, self.dtype), part.labels.to(self.device)
                for what, values in self._values(wanted, inputs, labels).items():
                    for m, mine in enumerate(found):
                        mine[f"{name}_{what}"] = values[m]
        if problem.wants_bounds(self.runs[0]):
            for mine, ends in zip(found, metrics.bounds(self.optimizer), strict=True):
                mine.update(ends)
        self.ensemble.train()
        return found

    def _values(self, wanted: Sequence[str], inputs: Tensor, labels: Tensor) -> dict[str, list[float]]:
        """Metrics on one part, of each run."""
        scores = self.ensemble(inputs, shared=True)
        values = {what: [problem.value(what, self.task, labels, mine) for mine in scores] for what in wanted}
        if self.is_auc and "loss" in wanted:
            values["loss"] = self.ensemble(inputs, labels, shared=True).tolist()
        return values

    def state_dict(self) -> dict[str, Any]:
        """Models, optimizer, schedule, and the random numbers as they were before the epoch that is under way."""
        return {
            "members": [self.ensemble.state_dict_of(m) for m in range(len(self.runs))],
            "optimizer": self.optimizer.state_dict(),
            "schedule": None if self.schedule is None else self.schedule.state_dict(),
            "before": self.before,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there; the epoch under way is drawn again as it was."""
        for m, own in enumerate(state["members"]):
            self.ensemble.load_state_dict_of(m, own)
        self.optimizer.load_state_dict(state["optimizer"])
        if self.schedule is not None:
            self.schedule.load_state_dict(state["schedule"])
        for generator, before in zip(self.generators, state["before"], strict=True):
            generator.set_state(before)
        self.draw()


def _settings(runs: Sequence[Run]) -> tuple[list[dict[str, Any]], list[int]]:
    """The settings, and how many consecutive runs have each: these are one param group, which saves starting steps.

    Not where coordinates meet: Adam+ scales by the norm of its group, and the bounds of s are those of one run.
    """
    alone = problem.wants_bounds(runs[0]) or runs[0].values.get("scaling") == "adam+"
    values: list[dict[str, Any]] = []
    alike: list[int] = []
    for run in runs:
        if values and not alone and run.values == values[-1]:
            alike[-1] += 1
        else:
            values.append(run.values)
            alike.append(1)
    return values, alike
