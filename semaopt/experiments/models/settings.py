"""The ``[model]`` table of a spec."""

from __future__ import annotations

from pydantic import Field

from semaopt.experiments.settings import Settings


class Model(Settings):
    """Arguments of :func:`semaopt.experiments.models.build`."""

    name: str
    """A name of the package's models, or ``"package.module:name"``."""
    options: dict[str, bool | int | float | str | list[int]] = Field(default_factory=dict)
