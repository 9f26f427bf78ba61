"""A small convolutional network without batch norm, for short studies on images."""

from __future__ import annotations

from itertools import pairwise

from torch import nn

from semaopt.experiments.data.errors import DataError
from semaopt.experiments.data.task import Task
from semaopt.experiments.models.errors import wrong_inputs
from semaopt.experiments.models.mlp import Scores


def convnet(task: Task, *, width: int = 16) -> nn.Module:
    """Return three 3x3 convolutions with stride 2 and ReLU, the mean over the pixels, and a linear layer.

    They have ``width``, 2 ``width`` and 4 ``width`` channels.
    """
    if task.kind != "images":
        raise wrong_inputs("convnet", "images", task)
    if type(width) is not int or width < 1:
        raise DataError(f"width={width!r} is invalid: it must be a whole number >= 1. Try 16.")
    channels = [task.shape[0], width, 2 * width, 4 * width]
    layers: list[nn.Module] = []
    for before, after in pairwise(channels):
        layers += [nn.Conv2d(before, after, 3, stride=2, padding=1), nn.ReLU()]
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels[-1], task.outputs))
    return Scores(nn.Sequential(*layers, *head), task.outputs)
