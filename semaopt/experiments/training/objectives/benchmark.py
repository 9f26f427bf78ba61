"""The two main problems of benchopt's benchmark_bilevel, with their exact value functions."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from semaopt._validation import DivergenceError, NonFiniteError
from semaopt.experiments.data import Part
from semaopt.experiments.training.objectives.base import Bilevel
from semaopt.hypergradient import count_calls
from semaopt.problems.benchmark import Data, FiniteSumBilevel, RegularizationSelection, SoftmaxCleaning


class Benchmark(Bilevel):
    """A finite-sum bilevel problem; the lower variable is its own, not the model of the run.

    The work of a method is its number of oracle calls: gradients, Hessian-vector products and mixed products, each on
    one batch. An epoch has :attr:`calls_per_batch` calls for each batch of the lower data. The metrics are the value
    function Phi(x) = f(x, y*(x)), the norm of its gradient, the calls and the CPU seconds of the steps so far. Phi
    belongs to the upper level, so methods are tuned by it.
    """

    metrics: ClassVar[tuple[str, ...]] = ()
    own_metrics: ClassVar[Mapping[str, str]] = {
        "train_value": "value function",
        "train_gradient_norm": "norm of the gradient of the value function",
        "train_calls": "oracle calls",
        "train_seconds": "CPU seconds",
    }
    tuning_parts: ClassVar[tuple[str, ...]] = ("train",)
    finite_sum: ClassVar[bool] = True
    calls_per_batch: ClassVar[int] = 1
    """Oracle calls in an epoch for each batch of the lower data."""
    tolerance: ClassVar[float] = 1e-7
    """Accuracy of the exact value function: the largest entry of g_y, and the residual of the linear system."""

    @classmethod
    def compares_by_ratio(cls, metric: str) -> bool:
        """Whether methods are compared by the ratio of this metric: all are positive numbers without an upper bound."""
        return metric.startswith("train_")

    @abstractmethod
    def make(self) -> FiniteSumBilevel:
        """Return the problem of this run."""

    def setup(self) -> None:
        """Create the problem."""
        self.sums = self.make()
        self.upper, self.samples = [self.sums.upper], self.sums.samples

    @property
    def lower(self) -> list[Parameter]:
        """The lower variable of the problem."""
        return [self.sums.lower]

    def upper_loss(self, number: int | None = None) -> Tensor:
        """Return f on a random batch, or on the batch with this number."""
        return self.sums.outer(self._any(0) if number is None else number)

    def lower_loss(self, number: int | None = None) -> Tensor:
        """Return g on a random batch, or on the batch with this number."""
        return self.sums.inner(self._any(1) if number is None else number)

    def _any(self, level: int) -> int:
        return int(torch.randint(self.sums.samples[level], (1,), generator=self.draw.generator))

    def step(self, optimizer: Optimizer) -> None:
        """Take one step and count its oracle calls."""
        with count_calls() as calls:
            optimizer.step(self.upper_loss, self.lower_loss)  # type: ignore[call-overload]
        self.batch_count += calls.gradients + calls.hessian_products + calls.mixed_products

    def epoch_length(self) -> int:
        """Return the calls in an epoch."""
        return self.calls_per_batch * self.sums.samples[1]

    def measure(self, wanted: Iterable[str]) -> dict[str, float]:
        """Return the requested metrics."""
        names = {*wanted}
        found = {"train_calls": float(self.batch_count), "train_seconds": self.seconds}
        if names & {"train_value", "train_gradient_norm"}:
            value, norm = self._value()
            found |= {"train_value": value, "train_gradient_norm": norm}
        return {name: value for name, value in found.items() if name in names}

    def _value(self) -> tuple[float, float]:
        """Return the value function and the norm of its gradient; NaN where they overflow."""
        try:
            value, gradient = self.sums.value(self.tolerance)
        except (NonFiniteError, DivergenceError):
            return math.nan, math.nan
        return value, float(gradient.norm())

    def data_of(self, *parts: Part) -> Data:
        """Return all examples and labels of these parts."""
        inputs = torch.cat([part.inputs(None, self.draw.device, self.draw.dtype).flatten(1) for part in parts])
        return inputs, torch.cat([part.labels for part in parts]).to(self.draw.device)


class BenchmarkRegularization(Benchmark):
    """One ridge penalty per feature of a logistic regression; see :class:`semaopt.problems.RegularizationSelection`.

    As in the benchmark, g is the loss on the official training set (here the training and the validation part) and f is
    the loss on the official test set. It is a pure optimization problem, so no data are left for testing. The data
    need two classes.
    """

    title: ClassVar[str] = "regularization selection (bilevel)"
    two_classes: ClassVar[bool] = True

    def make(self) -> FiniteSumBilevel:
        """Return the problem of this run; labels become -1 and 1."""
        (a, b), (a_test, b_test) = self.data_of(self.task.train, self.task.valid), self.data_of(self.task.test)
        train, test = (a, 2 * b - 1), (a_test, 2 * b_test - 1)
        return RegularizationSelection(train, test, batch=self.run.batch, seed=self.run.seed)


class BenchmarkCleaning(Benchmark):
    """Hyper-cleaning with a softmax regression; see :class:`semaopt.problems.SoftmaxCleaning`.

    g is the loss on the training part, in which a share ``data.noise`` of the labels is random; f is the loss on the
    validation part, at most 5,000 rows. The metric ``test_error`` is the error of the lower variable on the test part.
    """

    title: ClassVar[str] = "hyper-cleaning (bilevel)"
    own_metrics: ClassVar[Mapping[str, str]] = {**Benchmark.own_metrics, "test_error": "test error"}
    noise_title: ClassVar[str] = "share of random labels"
    calls_per_batch: ClassVar[int] = 8  # the value function of this problem is expensive
    tolerance: ClassVar[float] = 1e-5  # errors of 1e-5 in the value function

    def make(self) -> FiniteSumBilevel:
        """Return the problem of this run."""
        train, test = self.data_of(self.task.train), self.data_of(self.task.test)
        a, b = self.data_of(self.task.valid)
        noise = self.run.data.noise
        return SoftmaxCleaning(
            train, (a[:5000], b[:5000]), test, corruption=noise, batch=self.run.batch, seed=self.run.seed
        )

    def measure(self, wanted: Iterable[str]) -> dict[str, float]:
        """Return the requested metrics."""
        found = super().measure(wanted)
        if "test_error" in {*wanted} and isinstance(self.sums, SoftmaxCleaning):
            found["test_error"] = self.sums.error()
        return found
