"""The four kinds of training problems, as base classes of the objectives.

An objective is a class. Its class attributes say what is measured, which data and algorithms fit, and how the report
names things; an instance is created for each run and computes the loss. Your own objective is a subclass of
:class:`Minimization`, :class:`MinMax`, :class:`Bilevel` or :class:`Compositional`, named ``"package.module:name"`` in a
spec:

>>> class Focal(Minimization):
...     title = "focal loss"
...     metrics = ("loss", "accuracy")
...
...     def forward(self, scores, labels):
...         losses = torch.nn.functional.cross_entropy(scores, labels, reduction="none")
...         return ((1 - torch.exp(-losses)) ** 2 * losses).mean()
>>> Focal.problem, Focal.metric_names()[:3]
('minimization', ['train_loss', 'train_accuracy', 'valid_loss'])
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.optim import Optimizer

from semaopt.experiments.data import DataError, Part, Task
from semaopt.experiments.training import metrics
from semaopt.experiments.training.algorithms import AlgorithmInfo, Problem, Variables
from semaopt.experiments.training.run import Run
from semaopt.projections import Projection
from semaopt.samplers import ClassBalanced

if TYPE_CHECKING:
    from semaopt.experiments.training.sampled import Draw

_PART_TITLES = {"train": "training", "valid": "validation", "test": "test"}


class Objective(ABC):
    """A training problem; the class attributes are what specs and reports need to know about it."""

    problem: ClassVar[Problem]
    title: ClassVar[str]
    """The name of the loss in a report."""
    metrics: ClassVar[tuple[str, ...]]
    """The metrics of each part of the data: ``"loss"`` and names of :data:`metrics.OF_SCORES`."""
    loss_title: ClassVar[str] = "loss"
    """The name of the metric ``loss`` in a report."""
    loss_is_positive: ClassVar[bool] = True
    """Whether losses are compared by their ratio; otherwise by their difference."""
    noise_title: ClassVar[str] = "label noise"
    """The name of ``data.noise`` in a report."""
    training_title: ClassVar[str] = "training {what}"
    """The name of a metric of the training part in a report."""
    own_metrics: ClassVar[Mapping[str, str]] = {}
    """Further metrics, which the objective measures itself, and their names in a report."""
    has_bounds: ClassVar[bool] = False
    """Whether the bounds of the scaling s can be recorded (``s_min``, ``s_median``, ``s_max``)."""
    two_classes: ClassVar[bool] = False
    """Whether the data must have two classes."""
    vectorizes: ClassVar[bool] = False
    """Whether several runs can be trained as one vectorized model."""
    options: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """The options of the objective, which methods may set (``objective = { name = value }``), with their values."""
    tuning_parts: ClassVar[tuple[str, ...]] = ("valid", "train")
    """The parts whose metrics hyper-parameters may be tuned by."""

    @classmethod
    def metric_names(cls) -> list[str]:
        """Return all metrics that can be recorded."""
        names = [f"{part}_{what}" for part in metrics.PARTS for what in cls.metrics] + [*cls.own_metrics]
        return [*names, *metrics.BOUNDS] if cls.has_bounds else names

    @classmethod
    def metric_title(cls, metric: str, noise: float = 0.0) -> str:
        """Return the name of a metric in a report."""
        if metric in metrics.BOUNDS or metric in cls.own_metrics:
            return {**metrics.BOUNDS, **cls.own_metrics}[metric]
        part, _, what = metric.partition("_")
        words = cls.loss_title if what == "loss" else metrics.OF_SCORES[what].title
        if noise and what == "loss":
            words = cls.noisy_loss_title(words)
        return cls.training_title.format(what=words) if part == "train" else f"{_PART_TITLES[part]} {words}"

    @classmethod
    def noisy_loss_title(cls, words: str) -> str:
        """Return the name of the metric ``loss`` with label noise."""
        return words

    @classmethod
    def compares_by_ratio(cls, metric: str) -> bool:
        """Whether methods are compared by the ratio of this metric, otherwise by the difference."""
        return metric in metrics.BOUNDS or (metric.endswith("_loss") and cls.loss_is_positive)

    @classmethod
    def admits(cls, algorithm: AlgorithmInfo) -> bool:
        """Whether an algorithm solves this problem."""
        return algorithm.problem == cls.problem and not algorithm.own_loss

    @classmethod
    def vectorizes_with(cls, options: Mapping[str, Any]) -> bool:
        """Whether these options allow vectorized runs, if the objective itself allows them."""
        return True

    @classmethod
    def missing(cls, options: Mapping[str, Any]) -> str | None:
        """Return the command that installs a package that these options need, or None if nothing is missing."""
        return None

    @classmethod
    def projection(cls) -> Projection | None:
        """Return the set of the dual variables, or None if they are free."""
        return None

    @classmethod
    def validate_data(cls, task: Task, measured: Iterable[str], name: str) -> None:
        """Raise a DataError if the loss or one of the metrics is not defined on these data."""
        if cls.two_classes and task.classes != 2:
            text = f"loss = {name!r} needs two classes, and {task.name} has {task.classes}"
            raise DataError(f"{text}. Set data.binary = true.")
        for metric in measured:
            part_name, _, what = metric.partition("_")
            if what not in metrics.OF_SCORES or not metrics.OF_SCORES[what].binary:
                continue
            if task.classes != 2:
                text = f"{metric} is defined for two classes, and {task.name} has {task.classes}"
                raise DataError(f"{text}. Set data.binary = true, or record another metric.")
            part: Part = getattr(task, part_name)
            if len(set(part.labels.tolist())) < 2:
                text = f"{metric} is undefined: the {_PART_TITLES[part_name]} part of {task.name} has only one class"
                raise DataError(f"{text}. Use another split or seed, or record another metric.")

    @classmethod
    def validate_scores(cls, scores: Any, count: int, task: Task, name: str) -> None:
        """Raise a DataError unless a model returned scores of the right shape for ``count`` examples."""
        shape = tuple(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
        expected = (count,) if task.classes == 2 else (count, task.classes)
        if shape == expected:
            return
        if task.classes == 2:
            rule = "one score per example"
            remedy = "logits[:, 1] - logits[:, 0]" if shape == (count, 2) else "scores.squeeze(-1)"
        else:
            rule = f"one score per example and class ({task.classes} classes)"
            remedy = f"the output of a linear layer with {task.classes} units"
        got = f"shape {shape}" if isinstance(shape, tuple) else f"a {shape}"
        raise DataError(
            f"the model returned {got} for {count} examples; loss = {name!r} needs {rule}, shape {expected}. "
            f"Return, for example, {remedy}."
        )


class OfScores(Objective, nn.Module):
    """A loss of scores and labels, minimized in epochs over shuffled batches.

    A subclass implements ``forward(scores, labels)``, the mean loss of a batch. Its parameters, if it has any, are
    trained with the model.

    Args:
        task: the data, for constants such as class frequencies. Do not keep it: the objective is copied.
        run: the run, for device, dtype and algorithm.
    """

    vectorizes = True
    has_bounds = True

    def __init__(self, task: Task, run: Run) -> None:
        super().__init__()
        self.classes, self.noise = task.classes, task.train.noise

    @abstractmethod
    def forward(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Return the mean loss of a batch."""

    def dual_parameters(self) -> list[Parameter]:
        """Return the parameters that are maximized over."""
        return []

    def dual_projection(self) -> Projection | None:
        """Return the set of the dual variables of this run, by default the one of the class."""
        return self.projection()

    alpha_offset: float = 0.0
    """See :class:`semaopt.experiments.training.algorithms.Variables`."""

    def measured_loss(self, scores: Tensor, labels: Tensor) -> float:
        """Return the metric ``loss`` of a whole part of the data."""
        return float(self(scores, labels))

    stacks: ClassVar[bool] = False
    """Whether :meth:`stacked` is implemented, which can be faster than vmap."""

    def stacked(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Return one mean loss per run from scores (runs, n, ...) and labels (runs, n)."""
        raise NotImplementedError(f"{type(self).__name__} sets stacks = True but does not define stacked()")


class Minimization(OfScores):
    """A loss that is minimized over the model; see :class:`OfScores`. Algorithms get one list of tensors."""

    problem = "minimization"


class MinMax(OfScores):
    """A loss that is minimized over the model and maximized over :meth:`dual_parameters`; see :class:`OfScores`.

    Algorithms get ``primal`` and ``dual``.
    """

    problem = "min-max"

    @abstractmethod
    def dual_parameters(self) -> list[Parameter]:
        """Return the parameters that are maximized over."""


class Sampled(Objective):
    """A problem that draws its own samples; an epoch has as many batches as the training part.

    Args:
        model: the network, already on the device of the run.
        task: the data.
        draw: draws random rows and returns inputs on the device of the run.
        run: the run, for batch size and label noise.
    """

    def __init__(self, model: nn.Module, task: Task, draw: Draw, run: Run) -> None:
        self.model, self.task, self.draw, self.run = model, task, draw, run
        self.batch_count = 0
        """Batches drawn so far."""
        self.seconds = 0.0
        """CPU seconds of the steps so far."""
        self.setup()

    def setup(self) -> None:
        """Create the variables and split the data; called once at the end of the constructor."""

    @abstractmethod
    def variables(self) -> Variables:
        """Return the trained tensors."""

    @abstractmethod
    def step(self, optimizer: Optimizer) -> None:
        """Take one optimizer step and add the batches it draws to :attr:`batch_count`."""

    def epoch_length(self) -> int:
        """Return the value that :attr:`batch_count` grows by in an epoch."""
        return math.ceil(len(self.task.train) / self.run.batch)

    def measure(self, wanted: Iterable[str]) -> dict[str, float]:
        """Return the requested ones of the :attr:`own_metrics`."""
        return {}

    def parts(self) -> Mapping[str, Part]:
        """Return the parts of the data that metrics are measured on."""
        return {"train": self.task.train, "valid": self.task.valid, "test": self.task.test}

    def measured_loss(self, scores: Tensor, labels: Tensor) -> float:
        """Return the metric ``loss`` of a whole part of the data: by default the cross-entropy."""
        return float(metrics.class_loss(scores, labels, classes=self.task.classes))


class Bilevel(Sampled):
    r"""A bilevel problem: minimize the upper loss over :attr:`upper`, where the model solves the lower problem.

    .. math:: \min_x f(x, y^*(x)), \qquad y^*(x) = \arg\min_y g(x, y)

    A subclass sets :attr:`upper` in :meth:`setup` and implements :meth:`upper_loss` and :meth:`lower_loss`, each on a
    fresh batch. Algorithms get ``upper`` and ``lower``; their ``step(upper_loss, lower_loss)`` takes both functions.
    Methods that draw more batches in a step take fewer steps in an epoch, so that all curves end after equal work.
    """

    problem = "bilevel"
    upper: Sequence[Parameter]
    """The variables x of the upper level."""

    @property
    def lower(self) -> list[Parameter]:
        """The variables y of the lower level: by default the parameters of the model."""
        return list(self.model.parameters())

    @abstractmethod
    def upper_loss(self) -> Tensor:
        """Return the upper loss f on a new batch."""

    @abstractmethod
    def lower_loss(self) -> Tensor:
        """Return the lower loss g on a new batch."""

    samples: tuple[int, int] | None = None
    """The numbers of samples of both losses, if each is a finite sum. Then the losses take the number of a sample."""
    finite_sum: ClassVar[bool] = False
    """Whether :attr:`samples` is set, as SABA needs it."""

    @classmethod
    def admits(cls, algorithm: AlgorithmInfo) -> bool:
        """Whether an algorithm solves this problem."""
        return super().admits(algorithm) and (cls.finite_sum or not algorithm.finite_sum)

    def variables(self) -> Variables:
        """Return both levels."""
        return Variables([list(self.upper)], [self.lower], samples=self.samples)

    def step(self, optimizer: Optimizer) -> None:
        """Take one step; each evaluation of a loss draws one batch."""

        def counted(loss: Callable[..., Tensor]) -> Callable[..., Tensor]:
            def evaluate(number: int | None = None) -> Tensor:
                self.batch_count += 1
                return self.sample(loss, number)

            return evaluate

        optimizer.step(counted(self.upper_loss), counted(self.lower_loss))  # type: ignore[call-overload]

    def sample(self, loss: Callable[..., Tensor], number: int | None) -> Tensor:
        """Return a loss on a fresh sample or, given a number, on the rows drawn with that number as seed."""
        if number is None:
            return loss()
        if self.samples is not None:
            return loss(number)
        with self.draw.numbered(number):
            return loss()


class Compositional(Sampled):
    r"""A function of expectations, :math:`\sum_i f(E[g_i(x)])`: the inner values are tracked by moving averages.

    A subclass sets :attr:`blocks`, the number of inner functions, in :meth:`setup`, and implements :meth:`sample`.
    """

    problem = "compositional"
    blocks: int

    @abstractmethod
    def sample(self) -> tuple[Callable[[], Tensor], Callable[[Tensor], Tensor], Tensor]:
        """Draw a batch; return ``inner()``, ``outer(values)`` and the indices of the inner functions in the batch."""

    def variables(self) -> Variables:
        """Return the parameters of the model."""
        return Variables([list(self.model.parameters())], blocks=self.blocks)

    def step(self, optimizer: Optimizer) -> None:
        """Take one step on one batch."""
        self.batch_count += 1
        inner, outer, index = self.sample()
        optimizer.step(inner, outer, index=index)  # type: ignore[call-overload]


def epoch_order(part: Part, batch: int, positives: float | None, generator: torch.Generator) -> Tensor:
    """Return the rows of an epoch in order: a permutation or, with a share of positives, class-balanced batches."""
    if positives is None:
        return torch.randperm(len(part), generator=generator)
    seed = int(torch.randint(2**31, (1,), generator=generator))
    return torch.tensor(list(ClassBalanced(part.labels, batch, positives, seed, num_replicas=1, rank=0))).flatten()


def orders(seed: int) -> torch.Generator:
    """Return the generator of the data order and of the label noise; equal seeds see equal data."""
    return torch.Generator().manual_seed(_ORDERS + seed)


_ORDERS = 2**62  # added to the seed of a run, so that the order of the data and the model have different seeds
