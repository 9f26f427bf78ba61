"""Several runs of one method trained together as one vectorized model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from semaopt.ensemble import Ensemble
from semaopt.experiments.data import Task
from semaopt.experiments.training import algorithms, metrics, networks
from semaopt.experiments.training.objectives.base import epoch_order, orders
from semaopt.experiments.training.run import Run
from semaopt.optimizers._nonfinite import all_finite


class VectorizedRuns:
    """Runs that differ in their seeds and rates; see :class:`semaopt.experiments.training.loop.Trainee`.

    Each ends where it would have ended alone, up to rounding. Runs of equal seed see the same batches, so these are
    gathered once per seed.
    """

    def __init__(self, runs: Sequence[Run], task: Task) -> None:
        self.runs, self.task, first = runs, task, runs[0]
        self.device, self.dtype = first.machine.device, getattr(torch, first.machine.dtype)
        all_networks = [networks.with_loss(run, task) for run in runs]
        self.loss = all_networks[0].loss
        values, counts = _settings(runs)
        self.ensemble = Ensemble(all_networks, counts)
        self.steps = math.ceil(len(task.train) / first.batch)
        seeds = list(dict.fromkeys(run.seed for run in runs))
        self.generators = [orders(seed) for seed in seeds]
        self.stream = torch.tensor([seeds.index(run.seed) for run in runs])
        variables = all_networks[0].variables([self.ensemble.parameters_of(k) for k in range(len(counts))])
        algorithm = first.algorithm
        self.optimizer, self.schedule = algorithms.build(
            algorithm.name, algorithm.decays, values, variables, self.steps, epochs=first.epochs
        )
        self.iterates = algorithms.averaged_iterates(self.optimizer, first.values)

    def draw(self) -> None:
        """Draw the order of the next epoch, and its labels, for each seed."""
        part, batch = self.task.train, self.runs[0].batch
        self.before = [generator.get_state() for generator in self.generators]
        all_orders, labels = [], []
        for generator in self.generators:
            all_orders.append(epoch_order(part, batch, self.runs[0].positives, generator))
            labels.append(part.draw(all_orders[-1], generator))
        pairs = (torch.split(torch.stack(each), batch, 1) for each in (all_orders, labels))
        self.batches = list(zip(*pairs, strict=True))

    def step(self, k: int) -> None:
        """Take one step of all runs, each on batch k of its seed."""
        rows, labels = self.batches[k]
        inputs: Tensor = self.task.train.inputs(rows.flatten(), self.device, self.dtype)
        inputs = inputs.reshape(*rows.shape, *inputs.shape[1:])[self.stream]
        self.ensemble.zero_grad()
        self.ensemble.backward(self._losses(inputs, labels[self.stream].to(self.device)))
        self.optimizer.step()
        self.schedule.after_step()

    def _losses(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """Return one loss per run."""
        if self.loss.stacks:
            return self.loss.stacked(self.ensemble(inputs), labels)
        losses: Tensor = self.ensemble(inputs, labels)
        return losses

    def end_epoch(self) -> list[bool]:
        """Decay the rates; return for each run whether its parameters are finite."""
        self.schedule.after_epoch()
        states = (self.ensemble.state_dict_of(m) for m in range(len(self.runs)))
        return [all_finite(state.values()) for state in states]

    @torch.no_grad()
    def measure(self) -> list[dict[str, float]]:
        """Return the metrics of each run, at the average of its iterates if there is one."""
        with nullcontext() if self.iterates is None else self.iterates.use("average"):
            return self._measured()

    def _measured(self) -> list[dict[str, float]]:
        self.ensemble.eval()
        wanted_by_part = {name: metrics.of_part(self.runs[0].metrics, name) for name in metrics.PARTS}
        scores = {}
        for name, wanted in wanted_by_part.items():
            if wanted:
                inputs = getattr(self.task, name).inputs(None, self.device, self.dtype)
                scores[name] = self.ensemble(inputs, shared=True)
        found = []
        for m in range(len(self.runs)):
            network = self.ensemble.member(m)
            assert isinstance(network, networks.ModelWithLoss)  # as it was built
            own: dict[str, float] = {}
            for name, each in scores.items():
                labels = getattr(self.task, name).labels.to(self.device)
                for what in wanted_by_part[name]:
                    own[f"{name}_{what}"] = networks.value(network.loss, what, each[m], labels)
            found.append(own)
        if metrics.wants_bounds(self.runs[0].metrics):
            for own, ends in zip(found, metrics.bounds(self.optimizer), strict=True):
                own.update(ends)
        self.ensemble.train()
        return found

    def state_dict(self) -> dict[str, Any]:
        """Return models, optimizer, schedule, and the random states from before the current epoch."""
        return {
            "runs": [self.ensemble.state_dict_of(m) for m in range(len(self.runs))],
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "iterates": None if self.iterates is None else self.iterates.state_dict(),
            "before": self.before,
        }

    def load_state_dict(self, state: Mapping[str, Any], branch: int | None = None) -> None:
        """Resume from a state; the current epoch is drawn again as it was."""
        for m, own in enumerate(state["runs"]):
            self.ensemble.load_state_dict_of(m, own)
        algorithms.restore(self.optimizer, self.schedule, state, branch)
        if self.iterates is not None:
            self.iterates.load_state_dict(state["iterates"])
        for generator, before in zip(self.generators, state["before"], strict=True):
            generator.set_state(before)
        self.draw()


def _settings(runs: Sequence[Run]) -> tuple[list[dict[str, Any]], list[int]]:
    """Return the distinct settings, and how many consecutive runs have each.

    Runs of equal settings share a param group, which is faster. They have separate groups where coordinates interact:
    Adam+ scales by the norm of its group, and bounds of s are per run.
    """
    alone = metrics.wants_bounds(runs[0].metrics) or runs[0].values.get("scaling") == "adam+"
    values: list[dict[str, Any]] = []
    counts: list[int] = []
    for run in runs:
        if values and not alone and run.values == values[-1]:
            counts[-1] += 1
        else:
            values.append(run.values)
            counts.append(1)
    return values, counts
