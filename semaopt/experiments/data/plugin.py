"""Data sets of the user: a function that returns inputs and labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from semaopt.experiments import plugins
from semaopt.experiments.data.catalogue import DataSet
from semaopt.experiments.data.errors import DataError
from semaopt.experiments.data.tables import Table
from semaopt.experiments.data.task import Raw

_EXAMPLE = "Return (inputs, labels): one row of numbers or one image per example, and whole numbers from 0"


def data_set(name: str) -> DataSet:
    """Return the data set of the plug-in ``"package.module:name"``, a function without arguments.

    The function returns ``(inputs, labels)`` as tensors or NumPy arrays, or a :class:`Raw` for full control (an
    official test set, standardized columns). Inputs (n, channels, height, width) are images, others rows of numbers.
    """
    function = plugins.resolve(name)
    if not callable(function):
        raise plugins.PluginError(
            f"{name} has type {type(function).__name__}. A data set is a function that returns (inputs, labels)."
        )
    about = (getattr(function, "__doc__", None) or f"the data set of {name}").strip().splitlines()[0]
    return DataSet(name, about, _reader(name, function), classes=None)


def _reader(name: str, function: Callable[[], Any]) -> Callable[[Path, Mapping[str, str]], Raw]:
    def read(_: Path, sums: Mapping[str, str]) -> Raw:
        found = function()
        if isinstance(found, Raw):
            return found
        if not (isinstance(found, tuple) and len(found) == 2):
            raise DataError(f"{name} returned an object of type {type(found).__name__}. {_EXAMPLE}.")
        try:
            inputs, labels = (torch.as_tensor(each) for each in found)
        except (TypeError, ValueError, RuntimeError) as error:
            raise DataError(f"{name} returned values that are not arrays of numbers ({error}). {_EXAMPLE}.") from error
        _validate(name, inputs, labels)
        table = Table(inputs.float(), kind="images" if inputs.dim() == 4 else "table")
        return Raw(table, labels.long(), int(labels.max()) + 1, {"source": f"plug-in {name}"})

    return read


def _validate(name: str, inputs: Tensor, labels: Tensor) -> None:
    if labels.dim() != 1 or inputs.dim() < 2 or len(inputs) != len(labels) or len(labels) == 0:
        shapes = f"inputs of shape {tuple(inputs.shape)} and labels of shape {tuple(labels.shape)}"
        raise DataError(f"{name} returned {shapes}. {_EXAMPLE}.")
    if labels.is_complex() or not bool((labels == labels.long()).all()) or int(labels.min()) < 0:
        few = sorted(set(labels.tolist()))[:5]
        raise DataError(f"{name} returned the labels {few}, but labels are whole numbers from 0. Renumber the classes.")
    bad = ~torch.isfinite(inputs.float()).flatten(1).all(1)
    if bool(bad.any()):
        first = int(bad.nonzero()[0])
        raise DataError(
            f"{name}: {int(bad.sum())} of {len(inputs)} examples have NaN or infinite inputs, the first is example "
            f"{first}. Remove or impute them."
        )
