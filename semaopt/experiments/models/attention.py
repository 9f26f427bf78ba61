"""A small causal transformer that predicts the character after a window of text."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import relu

from semaopt.experiments.data.errors import DataError
from semaopt.experiments.data.task import Task
from semaopt.experiments.models.errors import wrong_inputs


class Block(nn.Module):
    """Attention and two linear layers, each after a layer norm and around a shortcut (Xiong et al., 2020)."""

    def __init__(self, width: int, heads: int, *, last: bool) -> None:
        super().__init__()
        self.heads, self.last = heads, last
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.memory = nn.Linear(width, width), nn.Linear(width, 2 * width)
        self.merge = nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, length, width) to itself; the last block returns its last position only, (n, 1, width)."""
        normed = self.norm1(x)
        if self.last:
            x = x[:, -1:]
        keys, values = self._split(self.memory(normed), 2)
        (queries,) = self._split(self.query(normed[:, -1:] if self.last else normed), 1)
        scores = queries @ keys.transpose(-1, -2) / queries.shape[-1] ** 0.5
        if not self.last:
            ahead = torch.ones(scores.shape[-2:], dtype=torch.bool, device=x.device).triu(1)
            scores = scores.masked_fill(ahead, -torch.inf)
        mixed = scores.softmax(-1) @ values  # (n, heads, positions, width / heads)
        x = x + self.merge(mixed.transpose(1, 2).flatten(2))
        found: Tensor = x + self.narrow(relu(self.wide(self.norm2(x))))
        return found

    def _split(self, x: Tensor, parts: int) -> tuple[Tensor, ...]:
        """Return ``parts`` tensors (n, heads, length, width / heads)."""
        n, length, width = x.shape
        split = x.reshape(n, length, parts, self.heads, width // parts // self.heads)
        return split.permute(2, 0, 3, 1, 4).unbind(0)


class Transformer(nn.Module):
    """Embeddings of ``characters`` characters and of positions, blocks, and scores of the next character.

    Only the last position is predicted, so the last block computes only that position.
    """

    def __init__(self, characters: int, length: int, *, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.characters, self.positions = nn.Embedding(characters, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads, last=k == layers - 1) for k in range(layers)))
        self.norm, self.scores = nn.LayerNorm(width), nn.Linear(width, characters)

    def forward(self, x: Tensor) -> Tensor:
        """Map the numbers of characters (n, length) to scores (n, characters)."""
        embedded = self.characters(x.long()) + self.positions.weight
        scores: Tensor = self.scores(self.norm(self.blocks(embedded))[:, 0])
        return scores


def transformer(task: Task, *, width: int = 32, heads: int = 4, layers: int = 1) -> nn.Module:
    """Return a causal transformer (Vaswani et al., 2017) with ``layers`` blocks and embeddings of size ``width``."""
    if task.kind != "text":
        raise wrong_inputs("transformer", "text", task)
    for name, value in (("width", width), ("heads", heads), ("layers", layers)):
        if type(value) is not int or value < 1:
            raise DataError(f"{name}={value!r} is invalid: it must be a whole number >= 1. Try the default.")
    if width % heads:
        raise DataError(f"width={width} is invalid: it must be a multiple of heads={heads}. Try width={8 * heads}.")
    return Transformer(task.classes, task.shape[0], width=width, heads=heads, layers=layers)
