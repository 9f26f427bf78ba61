"""A task: a data set split into training, validation and test parts."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

Kind = Literal["table", "images", "text", "molecules"]
Device = str | torch.device


class Inputs(Protocol):
    """The inputs of all rows of a data set."""

    @property
    def kind(self) -> Kind:
        """Which models fit."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input; empty if inputs differ."""

    def take(self, rows: Tensor, device: Device, dtype: torch.dtype) -> Any:
        """Return the input of a model for these rows: a tensor, or a batch object with ``.to(device)``."""

    def fitted(self, rows: Tensor) -> Inputs:
        """Return the inputs scaled by statistics of ``rows`` only, the training part."""


@dataclass(frozen=True)
class Part:
    """Some rows of a data set.

    Attributes:
        labels: the label of each row, 0 to classes - 1.
        rows: the indices of the rows in the data set.
        source: the inputs of the whole data set.
        classes: the number of classes.
        noise: the probability that a drawn label is replaced by a random class.
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
        """Return the input of a model for the rows ``index`` of this part, by default all."""
        rows = self.rows if index is None else self.rows[index]
        return self.source.take(rows, device, dtype)

    def draw(self, index: Tensor, generator: torch.Generator) -> Tensor:
        """Return the labels of the rows ``index`` with fresh noise; the attribute ``labels`` is not changed."""
        labels = self.labels[index]
        if self.noise == 0:
            return labels
        replaced = torch.rand(len(index), generator=generator) < self.noise
        return torch.where(replaced, torch.randint(self.classes, (len(index),), generator=generator), labels)


@dataclass(frozen=True)
class Task:
    """A data set that is ready for training, with its three parts.

    A model returns one linear score per row if ``classes`` is 2 (label 1 is positive), otherwise one per class.
    """

    name: str
    classes: int
    train: Part
    valid: Part
    test: Part
    facts: Mapping[str, Any]

    @property
    def kind(self) -> Kind:
        """Which models fit."""
        return self.train.source.kind

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input; empty for molecules, whose sizes differ."""
        return self.train.source.shape

    @property
    def outputs(self) -> int:
        """The number of scores per row."""
        return 1 if self.classes == 2 else self.classes

    def describe(self) -> dict[str, Any]:
        """Return plain facts for a report: sizes, classes, split, skipped rows, files and checksums."""
        return copy.deepcopy(dict(self.facts))


@dataclass(frozen=True)
class Raw:
    """A data set before it is split.

    Attributes:
        inputs: the inputs of all rows.
        labels: the labels of all rows, 0 to classes - 1.
        classes: the number of classes.
        facts: facts about the files for the report.
        test: the rows of the official test set, if there is one.
        held_out: the share of the rows that goes to validation and test together.
        scaffolds: for molecules, the name of each row's scaffold.
    """

    inputs: Inputs
    labels: Tensor
    classes: int
    facts: Mapping[str, Any]
    test: Tensor | None = None
    held_out: float = 0.2
    scaffolds: tuple[str, ...] | None = None
