"""Averages of the same gradients with other gammas: which gamma would have tracked the gradient best?"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from semaopt._validation import is_real, require, to_float
from semaopt.estimator import real

#: Number of coordinates that shadow averages follow, and of tensors that they are taken from.
COORDINATES, TENSORS = 4096, 8


class Shadows:
    r"""Moving averages with several gammas of a sample of the coordinates, with the error of each.

    The error is measured against the full gradient if there is one. Otherwise it is the error of a prediction:
    :math:`E|g_t - v_t|^2 = |\nabla F - v_t|^2 + \sigma^2`, where the last term is the same for every gamma.

    An average starts as the mean of its samples, until it has 1/gamma of them. After a NaN or Inf it starts again.

    Args:
        gammas: in (0, 1], decreasing.
        xs: the parameters; coordinates are taken from the largest of them, at equal distances.
    """

    def __init__(self, gammas: Sequence[float], xs: Sequence[Tensor]) -> None:
        self.gammas = tuple(gammas)
        self._xs = sorted(xs, key=lambda x: x.numel(), reverse=True)[:TENSORS]
        self._stride = -(-sum(x.numel() for x in self._xs) // COORDINATES) or 1
        self._weights = torch.tensor(self.gammas)[:, None]
        self._values = torch.empty(0)
        self._errors: list[Tensor] = []
        self._count = 0

    def add(self, *, predict: bool) -> None:
        """Average the gradients of this step; with ``predict``, first record the error of predicting them."""
        sample = self._coordinates(lambda x: x.grad)
        if sample is None:
            return
        if self._count == 0:
            self._values = sample.repeat(len(self.gammas), 1)
            self._weights = self._weights.to(sample.device)
        elif predict:
            self._errors.append(self._distances(sample))
        self._count += 1
        first = self._count * self.gammas[-1] < 1
        self._values.lerp_(sample, self._weights.clamp_min(1 / self._count) if first else self._weights)

    def compare(self, gradient: Callable[[Tensor], Tensor | None]) -> None:
        """Record the error against the full gradient."""
        sample = self._coordinates(gradient)
        if sample is not None and self._count > 0:
            self._errors.append(self._distances(sample))

    def _distances(self, sample: Tensor) -> Tensor:
        return (self._values - sample).square().sum(1)

    def take_errors(self) -> tuple[float, ...] | None:
        """Return the mean error of each gamma since the last call, or None if there is none or one is not finite."""
        kept, self._errors = self._errors, []
        if not kept:
            return None
        found = torch.stack(kept).double().mean(0).tolist()
        if all(map(math.isfinite, found)):
            return tuple(found)
        self._count = 0
        return None

    def _coordinates(self, of: Callable[[Tensor], Tensor | None]) -> Tensor | None:
        """Return the sampled coordinates of a tensor for each parameter; None if one is missing."""
        found = [of(x) for x in self._xs]
        parts = [_flat(g)[:: self._stride] for g in found if g is not None]
        return torch.cat(parts).float() if parts and len(parts) == len(found) else None


def _flat(g: Tensor) -> Tensor:
    g = g.to_local() if hasattr(g, "to_local") else g
    return (real(g) if g.is_complex() else g).reshape(-1)


def validated(gammas: Sequence[float]) -> tuple[float, ...]:
    """Return the gammas in decreasing order; raise an error unless they are distinct and lie in (0, 1]."""
    ok = all(is_real(gamma) and 0 < to_float(gamma) <= 1 for gamma in gammas)
    require(ok, "shadow_gammas", gammas, "must be numbers in (0, 1]", "Try (0.3, 0.1, 0.03, 0.01).")
    found = tuple(sorted(map(to_float, gammas), reverse=True))
    distinct = all(a > b for a, b in pairwise(found))
    require(distinct, "shadow_gammas", gammas, "must be distinct", "Try (0.3, 0.1, 0.03, 0.01).")
    return found
