"""A task: a data set cut into a training, a validation and a test part."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

Kind = Literal["table", "images", "molecules"]
Device = str | torch.device


class Inputs(Protocol):
    """The inputs of all rows of a set, in whatever form they are kept."""

    @property
    def kind(self) -> Kind:
        """What a model must be made for."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one row; empty where rows differ."""

    def take(self, rows: Tensor, device: Device, dtype: torch.dtype) -> Any:
        """What a model takes for these rows: a tensor, or a batch object that has ``.to(device)``."""

    def fitted(self, rows: Tensor) -> Inputs:
        """The inputs scaled by what is known of ``rows``, the training part, alone."""


@dataclass(frozen=True)
class Part:
    """Some rows of a set.

    Attributes:
        labels: of each row, 0 to classes - 1.
        rows: where they are in the set.
        source: the inputs of the whole set.
        classes: how many there are.
        noise: with this probability a label is replaced, each time it is drawn, by a class drawn at random.
    """

    labels: Tensor
    rows: Tensor
    source: Inputs
    classes: int
    noise: float = 0.0

    def __len__(self) -> int:
        return len(self.labels)

    def inputs(
        self, index: Tensor | None = None, device: Device = "cpu", dtype: torch.dtype = torch.float32
    ) -> Any:  # a Tensor or a batch of molecules
        """The inputs of the rows ``index`` of this part (of all by default), as a model takes them."""
        rows = self.rows if index is None else self.rows[index]
        return self.source.take(rows, device, dtype)

    def draw(self, index: Tensor, generator: torch.Generator) -> Tensor:
        """The labels of the rows ``index``, anew with noise if there is any; ``labels`` stay as they are."""
        labels = self.labels[index]
        if self.noise == 0:
            return labels
        replaced = torch.rand(len(index), generator=generator) < self.noise
        return torch.where(replaced, torch.randint(self.classes, (len(index),), generator=generator), labels)


@dataclass(frozen=True)
class Task:
    """A set made ready: what it is, and its three parts.

    A model gives one linear score for each row if ``classes`` is 2 (label 1 is positive), else one for each class.
    """

    name: str
    classes: int
    train: Part
    valid: Part
    test: Part
    facts: Mapping[str, Any]

    @property
    def kind(self) -> Kind:
        """What a model must be made for."""
        return self.train.source.kind

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one input; empty for molecules, which differ."""
        return self.train.source.shape

    @property
    def outputs(self) -> int:
        """How many scores a model gives for a row."""
        return 1 if self.classes == 2 else self.classes

    def describe(self) -> dict[str, Any]:
        """Plain facts for a report: sizes, classes, how it was split, what was left out, the files and their sums."""
        return copy.deepcopy(dict(self.facts))


@dataclass(frozen=True)
class Raw:
    """A set as it was read, before it is split.

    Attributes:
        inputs: of all rows.
        labels: of all rows.
        classes: how many there are.
        facts: what the report says of the files.
        test: the rows of the official test set, if there is one.
        held_out: how much of the rows that are split goes to validation and test together.
        scaffolds: for molecules, a name for each row's scaffold.
    """

    inputs: Inputs
    labels: Tensor
    classes: int
    facts: Mapping[str, Any]
    test: Tensor | None = None
    held_out: float = 0.2
    scaffolds: tuple[str, ...] | None = None
