"""One run: model, loss, optimizer, schedule and random numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from semaopt.experiments.data import Part, Task
from semaopt.experiments.training import algorithms, distributed, metrics, networks
from semaopt.experiments.training.objectives.base import epoch_order, orders
from semaopt.experiments.training.run import Run
from semaopt.optimizers._nonfinite import all_finite


class SingleRun:
    """One model trained alone, by one or several processes; see :class:`semaopt.experiments.training.loop.Trainee`."""

    def __init__(self, run: Run, task: Task) -> None:
        self.run, self.task, self.group = run, task, distributed.current()
        self.device, self.dtype = run.machine.device, getattr(torch, run.machine.dtype)
        self.network = networks.with_loss(run, task)
        self.wrapped = self.group.wrap(self.network)
        self.steps = math.ceil(len(task.train) / run.batch)
        self.generator = orders(run.seed)
        variables = self.network.variables([list(self.network.parameters())])
        algorithm = run.algorithm
        self.optimizer, self.schedule = algorithms.build(
            algorithm.name, algorithm.decays, [run.values], variables, self.steps, epochs=run.epochs
        )
        self.iterates = algorithms.averaged_iterates(self.optimizer, run.values)
        networks.require_averageable(self.network, self.iterates)
        self.closes = algorithms.find(algorithm.name).needs_closure or algorithms.takes_closure(self.optimizer)

    def draw(self) -> None:
        """Draw the order of the next epoch, and its labels."""
        self.before = self.generator.get_state()
        order = epoch_order(self.task.train, self.run.batch, self.run.positives, self.generator)
        labels = self.task.train.draw(order, self.generator)
        self.batches = list(zip(torch.split(order, self.run.batch), torch.split(labels, self.run.batch), strict=True))

    def step(self, k: int) -> None:
        """Take one step on batch k."""
        rows, labels = self.batches[k]
        weight = 1.0
        if self.group.world > 1:
            mine, weight = self.group.part(torch.arange(len(rows)))
            rows, labels = rows[mine], labels[mine]
        inputs, labels = self.task.train.inputs(rows, self.device, self.dtype), labels.to(self.device)

        def closure() -> Tensor:
            self.optimizer.zero_grad()
            loss: Tensor = self.wrapped(inputs, labels)
            (loss if weight == 1 else loss * weight).backward()  # type: ignore[no-untyped-call]
            return loss.detach()

        if self.closes:
            self.optimizer.step(closure)  # type: ignore[arg-type]  # torch wants a float, and takes a tensor
        else:
            closure()
            self.optimizer.step()
        self.schedule.after_step()

    def end_epoch(self) -> list[bool]:
        """Decay the rates; return whether all parameters are finite."""
        self.schedule.after_epoch()
        return [all_finite(self.network.parameters())]

    @torch.no_grad()
    def measure(self) -> list[dict[str, float]]:
        """Return the metrics of the run, at the average of the iterates if there is one."""
        with nullcontext() if self.iterates is None else self.iterates.use("average"):
            return self._measured()

    def _measured(self) -> list[dict[str, float]]:
        self.group.agree(self.network)
        self.network.eval()
        found: dict[str, float] = {}
        for name in metrics.PARTS:
            wanted = metrics.of_part(self.run.metrics, name)
            if wanted:
                part = getattr(self.task, name)
                scores, labels = self._scores(part), part.labels.to(self.device)
                found |= {f"{name}_{what}": networks.value(self.network.loss, what, scores, labels) for what in wanted}
        if metrics.wants_bounds(self.run.metrics):
            found |= metrics.bounds(self.optimizer)[0]
        self.network.train()
        return [found]

    def _scores(self, part: Part) -> Tensor:
        rows = torch.arange(len(part))[self.group.rank :: self.group.world]
        return self.group.gather(networks.scores(self.network, part, self.device, self.dtype, rows), len(part))

    def state_dict(self) -> dict[str, Any]:
        """Return model, optimizer, schedule, and the random state from before the current epoch."""
        return {
            "network": self.network.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "iterates": None if self.iterates is None else self.iterates.state_dict(),
            "before": self.before,
            "torch": torch.get_rng_state(),
            "cuda": torch.cuda.get_rng_state(self.device) if self.device.startswith("cuda") else None,
        }

    def load_state_dict(self, state: Mapping[str, Any], branch: int | None = None) -> None:
        """Resume from a state; the current epoch is drawn again as it was."""
        self.network.load_state_dict(state["network"])
        algorithms.restore(self.optimizer, self.schedule, state, branch)
        if self.iterates is not None:
            self.iterates.load_state_dict(state["iterates"])
        self.generator.set_state(state["before"])
        self.draw()
        torch.set_rng_state(state["torch"])
        if state["cuda"] is not None:
            torch.cuda.set_rng_state(state["cuda"], self.device)
