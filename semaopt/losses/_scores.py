"""Functions that turn the raw output of a model into the score h that a loss ranks by."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from semaopt._validation import require

SCORES: dict[str, Callable[[Tensor], Tensor]] = {"sigmoid": torch.sigmoid, "linear": lambda h: h}


def validate_score(score: str) -> str:
    """Return ``score`` if it is a known name."""
    known = ", ".join(map(repr, SCORES))
    require(score in SCORES, "score", score, f"must be one of {known}", "Try score='sigmoid'.")
    return score
