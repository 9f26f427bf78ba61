"""From a name and options to a network."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from semaopt.experiments import plugins
from semaopt.experiments.data.errors import DataError, unknown
from semaopt.experiments.data.task import Task
from semaopt.experiments.models import attention, convolutions, mlp, mpnn, resnet

#: A builder is called with the task; its other parameters are the options of the model.
BUILDERS: dict[str, Callable[..., nn.Module]] = {
    "mpnn": mpnn.MPNN,
    "resnet8": resnet.resnet8,
    "resnet20": resnet.resnet20,
    "resnet50": resnet.resnet50,
    "convnet": convolutions.convnet,
    "transformer": attention.transformer,
    "mlp": mlp.mlp,
    "logistic": mlp.logistic,
}
#: The names of the package's models.
NAMES = tuple(BUILDERS)
#: Models that train faster as one vectorized model; convolutions and molecules are faster in separate processes.
VECTORIZED = ("mlp", "logistic")


def find(name: str) -> Callable[..., nn.Module]:
    """Return the builder of a model: one of the package, or the plug-in ``"package.module:name"``."""
    if name in BUILDERS:
        return BUILDERS[name]
    if not plugins.is_plugin(name):
        raise DataError(unknown("model", name, BUILDERS))
    found = plugins.resolve(name)
    if not callable(found):
        raise plugins.PluginError(
            f"{name} has type {type(found).__name__}. A model is a function or class that is called with the task."
        )
    builder: Callable[..., nn.Module] = found
    return builder


def build(name: str, task: Task, seed: int = 0, **options: Any) -> nn.Module:
    """Build a network for a task.

    Args:
        name: convnet, logistic, mlp, mpnn, resnet8, resnet20, resnet50 or transformer, or a plug-in
            ``"package.module:name"``.
        task: determines the shape of the inputs and the number of scores.
        seed: seed of the initial parameters. Torch's global random state is left as it was.
        options: options of the model; an unknown one raises an error that names the nearest known one.
    """
    builder = find(name)
    parameters = list(inspect.signature(builder).parameters.values())[1:]
    known = [p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if not any(p.kind is p.VAR_KEYWORD for p in parameters):
        for option in options:
            if option not in known:
                rule = unknown(f"option of {name}", option, known) if known else f"{name} has no option {option!r}"
                raise DataError(rule)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = builder(task, **options)
    if not isinstance(model, nn.Module):
        raise plugins.PluginError(
            f"{name} returned an object of type {type(model).__name__}. Return a torch.nn.Module."
        )
    return model
