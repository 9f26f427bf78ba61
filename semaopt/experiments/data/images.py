"""Images, stored as bytes and scaled on access."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from semaopt.experiments.data.task import Device, Kind


@dataclass(frozen=True)
class Images:
    """Images of shape (n, channels, height, width).

    Attributes:
        x: all images, as bytes.
        mean: the mean of each channel, of values in [0, 1].
        std: their standard deviation; models get (x / 255 - mean) / std.
    """

    x: Tensor
    mean: tuple[float, ...]
    std: tuple[float, ...]
    kind: Kind = "images"

    @property
    def shape(self) -> tuple[int, ...]:
        """Channels, height and width."""
        return tuple(self.x.shape[1:])

    def fitted(self, _: Tensor) -> Images:
        """Return itself: mean and standard deviation are published constants of the official training set."""
        return self

    def take(self, rows: Tensor, device: Device, dtype: torch.dtype) -> Tensor:
        """Return these images; they are moved to the device as bytes."""
        x = self.x[rows].to(device).to(dtype)
        mean = torch.tensor(self.mean, device=device, dtype=dtype).view(-1, 1, 1)
        std = torch.tensor(self.std, device=device, dtype=dtype).view(-1, 1, 1)
        return x.div_(255).sub_(mean).div_(std)
