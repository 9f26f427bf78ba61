"""What is said where a model is not for the data: which models are."""

from __future__ import annotations

from semaopt.experiments.data.errors import DataError
from semaopt.experiments.data.task import Kind, Task

_FITTING: dict[Kind, str] = {
    "table": "mlp or logistic",
    "images": "a resnet, mlp or logistic",
    "molecules": "mpnn",
}


def misfit(model: str, takes: str, task: Task) -> DataError:
    """The error of a model that takes something else than the task holds."""
    return DataError(f"{model} takes {takes}, and {task.name} holds {task.kind}; take {_FITTING[task.kind]}")
