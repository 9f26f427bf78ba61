"""Images, kept as bytes and scaled when they are taken."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from semaopt.experiments.data.task import Device, Kind


@dataclass(frozen=True)
class Images:
    """(n, channels, height, width) bytes.

    Attributes:
        x: all images.
        mean: of each channel, of values in [0, 1].
        std: likewise; what a model takes is (x / 255 - mean) / std.
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
        """Itself: mean and deviation are constants, known to everybody, of the official training set."""
        return self

    def take(self, rows: Tensor, device: Device, dtype: torch.dtype) -> Tensor:
        """These images; bytes are what travels to the device."""
        x = self.x[rows].to(device).to(dtype)
        mean = torch.tensor(self.mean, device=device, dtype=dtype).view(-1, 1, 1)
        std = torch.tensor(self.std, device=device, dtype=dtype).view(-1, 1, 1)
        return x.div_(255).sub_(mean).div_(std)
