"""One run of a problem that draws its own samples: bilevel and compositional problems."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from semaopt._validation import DivergenceError, NonFiniteError
from semaopt.experiments.data import Part, Task
from semaopt.experiments.training import algorithms, metrics, networks
from semaopt.experiments.training.objectives.base import Sampled, orders
from semaopt.experiments.training.run import Run
from semaopt.kernels.rounding import splitmix64
from semaopt.optimizers._nonfinite import all_finite


class Draw:
    """Draws random rows with a generator of its own, and returns inputs and labels on the device of the run."""

    def __init__(self, generator: torch.Generator, size: int, device: str, dtype: torch.dtype) -> None:
        self.generator, self.size, self.device, self.dtype = generator, size, device, dtype

    def rows(self, count: int, size: int | None = None) -> Tensor:
        """Return ``size`` distinct rows (by default a batch) of ``count``, at random."""
        return torch.randperm(count, generator=self.generator)[: self.size if size is None else size]

    @contextmanager
    def numbered(self, number: int) -> Iterator[None]:
        """Draw the rows of sample ``number`` inside this context; equal numbers draw equal rows."""
        own = self.generator
        seed = int(splitmix64(own.initial_seed() + number * 2**32)) % 2**32  # torch uses the lower 32 bits only
        self.generator = torch.Generator().manual_seed(seed)
        try:
            yield
        finally:
            self.generator = own

    def batch(self, part: Part, rows: Tensor) -> tuple[Any, Tensor]:
        """Return the inputs and labels of these rows of a part."""
        return part.inputs(rows, self.device, self.dtype), part.labels[rows].to(self.device)


class SampledRun:
    """See :class:`semaopt.experiments.training.loop.Trainee`.

    An epoch has the same number of batches for every algorithm: more batches per step mean fewer steps.
    """

    def __init__(self, run: Run, task: Task, objective: type[Sampled]) -> None:
        self.run, self.device, self.dtype = run, run.machine.device, getattr(torch, run.machine.dtype)
        self.model = networks.build(run, task)
        self.draws = Draw(orders(run.seed), run.batch, self.device, self.dtype)
        self.objective = objective(self.model, task, self.draws, run)
        self.steps = self.objective.epoch_length()
        variables = self.objective.variables()
        self.variables = [x for lists in (variables.primal, variables.dual) for own in lists for x in own]
        algorithm = run.algorithm
        self.optimizer, self.schedule = algorithms.build(
            algorithm.name, algorithm.decays, [run.values], variables, self.steps
        )
        self.due, self.finite = 0, True

    def draw(self) -> None:
        """Do nothing: samples are drawn in each step."""

    def step(self, k: int) -> None:
        """Advance by one batch: take a step once the batches of the last step are used up."""
        self.due += 1
        start = time.process_time()
        while self.objective.batch_count < self.due and self.finite:
            try:
                self.objective.step(self.optimizer)
            except (NonFiniteError, DivergenceError):  # it diverged, which is a result
                self.finite = False
        self.objective.seconds += time.process_time() - start

    def end_epoch(self) -> list[bool]:
        """Decay the rates; return whether all variables are finite."""
        self.schedule.after_epoch()
        return [self.finite and all_finite(self.variables)]

    @torch.no_grad()
    def measure(self) -> list[dict[str, float]]:
        """Return the metrics of the run."""
        self.model.eval()
        found: dict[str, float] = {}
        of_scores = [name for name in self.run.metrics if name not in self.objective.own_metrics]
        for name, part in self.objective.parts().items():
            wanted = metrics.of_part(of_scores, name)
            if wanted:
                scores = networks.scores(self.model, part, self.device, self.dtype)
                labels = part.labels.to(self.device)
                found |= {f"{name}_{what}": networks.value(self.objective, what, scores, labels) for what in wanted}
        self.model.train()
        return [found | self.objective.measure(self.run.metrics)]

    def state_dict(self) -> dict[str, Any]:
        """Return everything the next step depends on."""
        return {
            "model": self.model.state_dict(),
            "variables": [x.detach().clone() for x in self.variables],
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "generator": self.draws.generator.get_state(),
            "torch": torch.get_rng_state(),
            "batch_count": self.objective.batch_count,
            "seconds": self.objective.seconds,
            "due": self.due,
            "finite": self.finite,
        }

    def load_state_dict(self, state: Mapping[str, Any], branch: int | None = None) -> None:
        """Resume from a state, to the bit."""
        self.model.load_state_dict(state["model"])
        with torch.no_grad():
            for x, value in zip(self.variables, state["variables"], strict=True):
                x.copy_(value)
        algorithms.restore(self.optimizer, self.schedule, state, branch)
        self.draws.generator.set_state(state["generator"])
        torch.set_rng_state(state["torch"])
        self.objective.batch_count, self.objective.seconds = state["batch_count"], state["seconds"]
        self.due, self.finite = state["due"], state["finite"]
