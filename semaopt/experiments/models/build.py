"""From a name and options to a network."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from semaopt.experiments.data.errors import DataError, unknown
from semaopt.experiments.data.task import Task
from semaopt.experiments.models import mlp, mpnn, resnet

#: A builder takes the task; its keyword arguments are the model's options.
BUILDERS: dict[str, Callable[..., nn.Module]] = {
    "mpnn": mpnn.MPNN,
    "resnet8": resnet.resnet8,
    "resnet20": resnet.resnet20,
    "resnet50": resnet.resnet50,
    "mlp": mlp.mlp,
    "logistic": mlp.logistic,
}
#: The names that :func:`build` knows.
NAMES = tuple(BUILDERS)


def build(name: str, task: Task, seed: int = 0, **options: Any) -> nn.Module:
    """A network for a task, its parameters drawn from ``seed``; torch's own random state is left as it was.

    Args:
        name: logistic, mlp, mpnn, resnet8, resnet20 or resnet50.
        task: gives the shape of the inputs and the number of scores.
        seed: equal seeds give equal parameters.
        options: the model's own; an unknown one is refused with the nearest known one.
    """
    if name not in BUILDERS:
        raise DataError(unknown("model", name, BUILDERS))
    known = [p.name for p in inspect.signature(BUILDERS[name]).parameters.values() if p.kind is p.KEYWORD_ONLY]
    for option in options:
        if option not in known:
            raise DataError(
                unknown(f"option of {name}", option, known) if known else f"{name} has no option {option!r}"
            )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return BUILDERS[name](task, **options)
