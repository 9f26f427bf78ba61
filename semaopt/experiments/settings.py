"""The base class and the value types of all tables of a spec."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Seed = Annotated[int, Field(ge=0, lt=2**62)]
_Integer = Annotated[int, Field(ge=-(2**62), lt=2**62)]
Value = bool | _Integer | float | str | list[float]
"""A hyper-parameter."""


class Settings(BaseModel):
    """Immutable, strictly typed values without unknown keys, NaN or infinity."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)
