"""Runs of the bilevel and of the compositional problem as they train; what they share is that they draw samples."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from semaopt._validation import NonFiniteError
from semaopt.experiments import data, models
from semaopt.experiments.training import methods, metrics, problem
from semaopt.experiments.training.run import Run
from semaopt.losses import AveragePrecision
from semaopt.optimizers._nonfinite import all_finite

_CLEAN = 3  # one row of so many of the training part is known to be right: the data of the upper level
_POSITIVE = 4  # one row of so many of a batch is positive


class _Sampled:
    """A model whose batches are drawn with random numbers of its own; see :class:`training.Trainee`."""

    def __init__(self, run: Run, task: data.Task) -> None:
        self.run, self.task, self.batch = run, task, int(run.batch)
        self.generator = problem.orders(run.seed)
        self.kind: dict[str, Any] = {"device": run.machine.device, "dtype": getattr(torch, run.machine.dtype)}
        chosen = run.model
        self.model = models.build(chosen.name, task, seed=run.seed, **chosen.options).to(**self.kind)
        self.variables: list[nn.Parameter] = list(self.model.parameters())
        self.parts = {name: self._whole(getattr(task, name)) for name in metrics.PARTS if problem.measured(run, name)}
        self.finite = True

    def _whole(self, part: data.Part) -> tuple[Tensor, Tensor]:
        return part.inputs(None, **self.kind), part.labels.to(self.kind["device"])

    def _build(self, sides: methods.Sides, more: Mapping[str, Any]) -> None:
        algorithm, values = self.run.algorithm, {**self.run.values, **more}
        self.optimizer, self.schedule = methods.build(algorithm.name, algorithm.decays, [values], sides, self.steps)

    @property
    def steps(self) -> int:
        """Of one epoch: its rows in batches."""
        return math.ceil(len(self.task.train) / self.batch)

    def draw(self) -> None:
        """Nothing: every sample is drawn when it is asked for."""

    def _rows(self, count: int, size: int) -> Tensor:
        """So many different ones of ``count`` rows."""
        return torch.randperm(count, generator=self.generator)[:size]

    def end_epoch(self) -> list[bool]:
        """Move the rates; say whether all variables are finite."""
        if self.schedule is not None:
            self.schedule.step()
        return [self.finite and all_finite(self.variables)]

    @torch.no_grad()
    def measure(self) -> list[dict[str, float]]:
        """All metrics of the run."""
        found: dict[str, float] = {}
        for name, (inputs, labels) in self.parts.items():
            scores = self.model(inputs)
            for what in problem.measured(self.run, name):
                found[f"{name}_{what}"] = self._value(what, labels, scores)
        return [found]

    def _value(self, what: str, labels: Tensor, scores: Tensor) -> float:
        return problem.value(what, self.task, labels, scores)

    def state_dict(self) -> dict[str, Any]:
        """Variables, optimizer, schedule and random numbers."""
        return {
            "variables": [x.detach().clone() for x in self.variables],
            "optimizer": self.optimizer.state_dict(),
            "schedule": None if self.schedule is None else self.schedule.state_dict(),
            "generator": self.generator.get_state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there, to the bit."""
        with torch.no_grad():
            for x, value in zip(self.variables, state["variables"], strict=True):
                x.copy_(value)
        self.optimizer.load_state_dict(state["optimizer"])
        if self.schedule is not None:
            self.schedule.load_state_dict(state["schedule"])
        self.generator.set_state(state["generator"])


class Cleaner(_Sampled):
    r"""Hyper-cleaning, :class:`semaopt.problems.cleaning.HyperCleaning` on the training part of any task.

    A third of the rows is known to be right: the upper level's. Of the others' labels a share ``data.noise`` is wrong
    (the next class), and x weighs them. What is called training in metrics is the upper level's part.

    Methods draw different numbers of batches in a step. An epoch is as many batches for each of them, so that all
    curves end after the same work: a method takes its next step when the batches of the last one are used up.
    """

    def __init__(self, run: Run, task: data.Task) -> None:
        super().__init__(run, task)
        order = torch.randperm(len(task.train), generator=self.generator)
        clean, noisy = order[: len(order) // _CLEAN], order[len(order) // _CLEAN :]
        inputs, labels = self._whole(task.train)
        wrong = self._rows(len(noisy), round(run.data.noise * len(noisy)))
        self.noisy = inputs[noisy], labels[noisy].clone()
        self.noisy[1][wrong] = (self.noisy[1][wrong] + 1) % task.classes
        self.clean = inputs[clean], labels[clean]
        if "train" in self.parts:
            self.parts["train"] = self.clean
        self.weights = nn.Parameter(torch.zeros(len(noisy), **self.kind))
        self.variables.append(self.weights)
        self._build(methods.Sides([[self.weights]], [list(self.model.parameters())]), {})
        self.drawn = self.due = 0

    def step(self, k: int) -> None:
        """One batch further: a step of the optimizer whenever the batches of the one before are used up."""
        self.due += 1
        while self.drawn < self.due and self.finite:
            try:
                self.optimizer.step(self._outer, self._inner)  # type: ignore[call-overload]
            except NonFiniteError:  # it diverged, which is a result
                self.finite = False

    def _outer(self) -> Tensor:
        self.drawn += 1
        rows = self._rows(len(self.clean[1]), self.batch)
        return self._loss(self.clean, rows).mean()

    def _inner(self) -> Tensor:
        self.drawn += 1
        rows = self._rows(len(self.weights), self.batch)
        return (self.weights[rows].sigmoid() * self._loss(self.noisy, rows)).mean()

    def _loss(self, part: Sequence[Tensor], rows: Tensor) -> Tensor:
        return cross_entropy(self.model(part[0][rows]), part[1][rows], reduction="none")

    def _value(self, what: str, labels: Tensor, scores: Tensor) -> float:
        # The labels that are measured have no noise.
        return float(cross_entropy(scores, labels)) if what == "loss" else super()._value(what, labels, scores)

    def state_dict(self) -> dict[str, Any]:
        """Also how many batches were drawn, and whether it has diverged."""
        return {**super().state_dict(), "drawn": self.drawn, "due": self.due, "finite": self.finite}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there, to the bit."""
        super().load_state_dict(state)
        self.drawn, self.due, self.finite = state["drawn"], state["due"], state["finite"]


class Ranker(_Sampled):
    """Average precision by SCMA: one inner average for each positive row; a quarter of a batch is positive."""

    def __init__(self, run: Run, task: data.Task) -> None:
        super().__init__(run, task)
        self.inputs, self.labels = self._whole(task.train)
        self.positive, self.negative = ((self.labels == label).nonzero().squeeze(1) for label in (1, 0))
        self.loss = AveragePrecision(prior=float((self.labels == 1).double().mean()))
        self._build(methods.Sides([list(self.model.parameters())]), {"blocks": len(self.labels)})

    def step(self, k: int) -> None:
        """One step on a batch of its own."""
        positives = max(1, self.batch // _POSITIVE)
        i = self.positive[self._rows(len(self.positive), positives)]
        j = torch.cat([i, self.negative[self._rows(len(self.negative), self.batch - len(i))]])

        def inner() -> Tensor:
            return self.loss.inner(self.model(self.inputs[j]), self.labels[j])

        self.optimizer.step(inner, self.loss.outer, index=i)  # type: ignore[call-overload]
