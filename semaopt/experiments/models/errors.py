"""Errors for models that do not fit the data."""

from __future__ import annotations

from semaopt.experiments.data.errors import DataError
from semaopt.experiments.data.task import Kind, Task

_FITTING: dict[Kind, str] = {
    "table": "mlp or logistic",
    "images": "a resnet, convnet, mlp or logistic",
    "text": "transformer",
    "molecules": "mpnn",
}


def wrong_inputs(model: str, takes: str, task: Task) -> DataError:
    """Return the error of a model that takes another kind of input than the task has."""
    return DataError(f"{model} takes {takes}, but {task.name} holds {task.kind}. Use {_FITTING[task.kind]}.")
