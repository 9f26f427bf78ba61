"""Whether batches hold the share of positives that the prior says."""

from __future__ import annotations

import math
import sys
import warnings

import torch
from torch import Tensor

_BATCHES = 64
_CALLS = 1024
_DEVIATIONS = 6.0
_OURS = ("semaopt.losses", "torch.nn")


class Drawn:
    """Counts the positives in the first batches of a training. Nothing is read from a device until it looks."""

    def __init__(self) -> None:
        self._calls = 0
        self._last: Tensor | None = None
        self._sums: Tensor | float = 0.0

    def see(self, scores: Tensor, w: Tensor, prior: Tensor) -> str | None:
        """Count a batch whose examples have the weights w, 1 if positive, in each class.

        None while there is more to see, then what there is to say, which may be nothing. Scores that come again as
        they were, as in the ascents of SGDMax, belong to a batch that was counted.
        """
        h, last = scores.detach(), self._last
        new = torch.ones((), device=h.device)
        if last is not None and last.shape == h.shape:
            new = torch.ne(h, last).any().float()
        self._last = h.clone()
        share = w.mean(0)
        size = torch.full_like(share, len(w))
        self._sums = self._sums + new * torch.stack([torch.ones_like(share), size, w.sum(0), share, share.square()])
        self._calls += 1
        if self._calls % _BATCHES:
            return None
        rows = self._sums.T.tolist()
        if rows[0][0] < _BATCHES:
            return None if self._calls < _CALLS else ""
        for k, (row, p) in enumerate(zip(rows, prior.tolist(), strict=True)):
            if not _may_be(row, p):
                where = f" in class {k}" if len(rows) > 1 else ""
                return (
                    f"of the first {row[1]:.0f} examples {row[2] / row[1]:.3g} were positive{where}, but "
                    f"prior={p:.3g}: the loss is then smallest where all scores are one number, and the ranking is "
                    "lost; pass the share among the examples that are drawn (0.5 where a sampler balances the "
                    "classes), and shuffle examples that are sorted"
                )
        return ""


def _may_be(row: list[float], p: float) -> bool:
    """Whether p may be the share, given the sums over batches of 1, n, positives, their share and its square.

    The deviation of the mean is that of independent examples, or, if they come in groups, that seen between batches.
    """
    batches, n, positives, shares, squares = row
    even = math.sqrt(p * (1 - p) / n)
    between = math.sqrt(max(squares - shares**2 / batches, 0.0) / (batches - 1) / batches)
    return abs(positives / n - p) <= _DEVIATIONS * max(even, between)


def warn(text: str) -> None:
    """Warn where the loss is called, however deep in modules that may be."""
    depth, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(_OURS):
        depth, frame = depth + 1, frame.f_back
    warnings.warn(text, stacklevel=depth)
