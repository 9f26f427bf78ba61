"""Networks for rows of numbers; images are flattened."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor, nn

from semaopt.experiments.data.errors import DataError
from semaopt.experiments.data.task import Task
from semaopt.experiments.models.errors import wrong_inputs


class Scores(nn.Module):
    """A network that returns one number per row, without a last dimension, if ``outputs`` is 1."""

    def __init__(self, body: nn.Module, outputs: int) -> None:
        super().__init__()
        self.body, self.outputs = body, outputs

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, ...) to (n,) or (n, outputs)."""
        scores: Tensor = self.body(x)
        return scores.squeeze(-1) if self.outputs == 1 else scores


def _columns(task: Task, model: str) -> int:
    if task.kind in ("molecules", "text"):
        raise wrong_inputs(model, "rows of numbers or images", task)
    return math.prod(task.shape)


def mlp(task: Task, *, hidden: int | Sequence[int] = 64) -> nn.Module:
    """Return linear layers with ReLU between them, initialized as torch does; ``hidden`` is one width or a list."""
    widths = [hidden] if isinstance(hidden, int) else list(hidden)
    if not widths or not all(isinstance(width, int) and width > 0 for width in widths):
        raise DataError(
            f"hidden={hidden!r} is invalid: it must be a positive number of units, or a list of them. Try 64."
        )
    layers: list[nn.Module] = [nn.Flatten()]
    before = _columns(task, "mlp")
    for width in widths:
        layers += [nn.Linear(before, width), nn.ReLU()]
        before = width
    return Scores(nn.Sequential(*layers, nn.Linear(before, task.outputs)), task.outputs)


def logistic(task: Task) -> nn.Module:
    """Return one linear layer, initialized at 0: its losses are convex, so the start does not matter."""
    linear = nn.Linear(_columns(task, "logistic"), task.outputs)
    nn.init.zeros_(linear.weight)
    nn.init.zeros_(linear.bias)
    return Scores(nn.Sequential(nn.Flatten(), linear), task.outputs)
