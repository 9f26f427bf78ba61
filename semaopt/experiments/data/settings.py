"""The ``[data]`` table of a spec."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from semaopt.experiments.settings import Seed, Settings


class Data(Settings):
    """Arguments of :func:`semaopt.experiments.data.load`."""

    name: str
    """A name of the catalogue, or ``"package.module:name"``."""
    split: Literal["random", "scaffold"] = "random"
    seed: Seed = 0
    binary: bool = False
    imbalance: float | None = Field(default=None, gt=0, lt=1)
    subset: int | None = Field(default=None, ge=1)
    noise: float = Field(default=0.0, ge=0, lt=1)
    """The probability of a wrong label; each objective says whether labels are drawn once or in every epoch."""
