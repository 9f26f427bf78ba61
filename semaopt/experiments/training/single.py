"""One run as it trains: model, loss, optimizer, schedule and its own random numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from semaopt.experiments import data
from semaopt.experiments.training import distributed, methods, metrics, problem
from semaopt.experiments.training.run import Run
from semaopt.optimizers._nonfinite import all_finite

_ROWS = 128  # scored at once when a part is measured; of larger batches the memory is new each time, and costs more


class Member:
    """One model, trained alone; see :class:`semaopt.experiments.training.loop.Trainee`."""

    def __init__(self, run: Run, task: data.Task) -> None:
        self.run, self.task, self.group = run, task, distributed.current()
        self.device, self.dtype = run.machine.device, getattr(torch, run.machine.dtype)
        self.joint = problem.build(run, task)
        self.wrapped = self.group.wrap(self.joint)
        self.steps = math.ceil(len(task.train) / run.batch)
        self.generator = problem.orders(run.seed)
        sides = problem.sides([list(self.joint.parameters())], self.joint.is_dual())
        algorithm = run.algorithm
        self.optimizer, self.schedule = methods.build(algorithm.name, algorithm.decays, [run.values], sides, self.steps)

    def draw(self) -> None:
        """The order of the next epoch, and its labels."""
        self.before = self.generator.get_state()
        order = torch.randperm(len(self.task.train), generator=self.generator)
        labels = self.task.train.draw(order, self.generator)
        batch = self.run.batch
        self.batches = list(zip(torch.split(order, batch), torch.split(labels, batch), strict=True))

    def step(self, k: int) -> None:
        """One step on batch k."""
        rows, labels = self.batches[k]
        weight = 1.0
        if self.group.world > 1:
            mine, weight = self.group.part(torch.arange(len(rows)))
            rows, labels = rows[mine], labels[mine]
        self.optimizer.zero_grad()
        loss: Tensor = self.wrapped(self.task.train.inputs(rows, self.device, self.dtype), labels.to(self.device))
        (loss if weight == 1 else loss * weight).backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()

    def end_epoch(self) -> list[bool]:
        """Move the rates; say whether all parameters are finite."""
        if self.schedule is not None:
            self.schedule.step()
        return [all_finite(self.joint.parameters())]

    def measure(self) -> list[dict[str, float]]:
        """All metrics of the run."""
        self.group.agree(self.joint)
        self.joint.eval()
        found: dict[str, float] = {}
        for name in metrics.PARTS:
            wanted = problem.measured(self.run, name)
            if wanted:
                part = getattr(self.task, name)
                scores, labels = self._scores(part), part.labels.to(self.device)
                found |= {f"{name}_{what}": self._value(what, labels, scores) for what in wanted}
        if problem.wants_bounds(self.run):
            found |= metrics.bounds(self.optimizer)[0]
        self.joint.train()
        return [found]

    @torch.no_grad()
    def _scores(self, part: data.Part) -> Tensor:
        rows = torch.arange(len(part))[self.group.rank :: self.group.world]
        parts = [self.joint(part.inputs(index, self.device, self.dtype)) for index in torch.split(rows, _ROWS)]
        return self.group.gather(torch.cat(parts), len(part))

    @torch.no_grad()
    def _value(self, what: str, labels: Tensor, scores: Tensor) -> float:
        if what == "loss" and self.joint.auc is not None:
            return float(self.joint.auc(scores, labels))
        return problem.value(what, self.task, labels, scores)

    def state_dict(self) -> dict[str, Any]:
        """Model, optimizer, schedule, and the random numbers as they were before the epoch that is under way."""
        return {
            "joint": self.joint.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": None if self.schedule is None else self.schedule.state_dict(),
            "before": self.before,
            "torch": torch.get_rng_state(),
            "cuda": torch.cuda.get_rng_state(self.device) if self.device.startswith("cuda") else None,
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
            torch.cuda.set_rng_state(state["cuda"], self.device)
