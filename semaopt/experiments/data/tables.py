"""Tables of numbers, and the two data sets of scikit-learn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from semaopt.experiments.data.task import Device, Kind, Raw


@dataclass(frozen=True)
class Table:
    """One row of numbers per example.

    Attributes:
        x: all rows.
        standardise: whether to scale the columns to mean 0 and standard deviation 1 on the training part.
        kind: which models fit; a table of images is (n, channels, height, width).
    """

    x: Tensor
    standardise: bool = False
    kind: Kind = "table"

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one row."""
        return tuple(self.x.shape[1:])

    def take(self, rows: Tensor, device: Device, dtype: torch.dtype) -> Tensor:
        """Return these rows."""
        return self.x[rows].to(device, dtype)

    def fitted(self, rows: Tensor) -> Table:
        """Return the table standardised on these rows, if requested; constant columns become 0."""
        if not self.standardise:
            return self
        known = self.x[rows].double()
        std, mean = torch.std_mean(known, dim=0, correction=0)
        x = (self.x.double() - mean) / torch.where(std > 0, std, 1.0)
        return replace(self, x=x.float(), standardise=False)


def digits(_: Path, sums: Mapping[str, str]) -> Raw:
    """Read 1,797 images of 8x8 grey values, as 64 numbers in [0, 1]; 10 classes."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    facts = {"source": "scikit-learn's load_digits"}
    return Raw(Table(torch.tensor(x / 16, dtype=torch.float32)), torch.tensor(y), 10, facts, held_out=0.4)


def breast_cancer(_: Path, sums: Mapping[str, str]) -> Raw:
    """Read 569 tumours with 30 measurements each, standardised; label 1 is benign, as in scikit-learn."""
    from sklearn.datasets import load_breast_cancer

    x, y = load_breast_cancer(return_X_y=True)
    facts = {"source": "scikit-learn's load_breast_cancer", "columns": "standardised on the training part"}
    table = Table(torch.tensor(x, dtype=torch.float32), standardise=True)
    return Raw(table, torch.tensor(y), 2, facts, held_out=0.4)
