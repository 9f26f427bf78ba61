"""Warnings about mistakes that the first batches of a training run reveal."""

from __future__ import annotations

import math
import sys
import warnings
from typing import NamedTuple

import torch
from torch import Tensor

_EARLY = (4, 8, 16, 32)  # compare the prior after these calls, with a wider bound ...
_BATCHES = 64  # ... and after this many different batches
_CALLS = 1024  # stop waiting for different batches after this many calls
_DEVIATIONS = 6.0
_EARLY_DEVIATIONS = 10.0
_MOVES = 16  # look at the variables after this many different batches ...
_MOVES_OF_Y = 8  # ... and moves of y, which come later if gradients are accumulated
_WRONG_WAY = 0.9  # share of moves of y against its gradient
_INTERNAL = ("semaopt.losses", "torch.nn")


class Batch(NamedTuple):
    """Raw scores, scores h, w (1 for a positive example, else 0) and which labels are present (None: all)."""

    raw: Tensor
    h: Tensor
    w: Tensor
    present: Tensor | None


class FirstBatches:
    """Accumulates statistics of the first batches on their device; results are read a few times, last after 64 batches.

    Args:
        s, r, y: the variables of the loss at the start.
    """

    def __init__(self, s: Tensor, r: Tensor, y: Tensor) -> None:
        self._start = [z.detach().clone() for z in (s, r)]
        self._last: tuple[Tensor, Tensor] | None = None  # raw scores and y
        self._gradient: Tensor | float = 0.0  # sum of the gradients in y since y last moved
        self._shares: Tensor | float = 0.0
        self._moves: Tensor | float = 0.0
        self._calls = 0
        self._variables_done = self._prior_done = False

    @property
    def done(self) -> bool:
        """Whether all checks are done. Without moves of y they end after 1024 calls."""
        return self._prior_done and (self._variables_done or self._calls >= _CALLS)

    @torch.no_grad()
    def see(  # noqa: PLR0917  # the symbols of the loss
        self, batch: Batch, p: Tensor, expected: Tensor | None, s: Tensor, r: Tensor, y: Tensor
    ) -> list[str]:
        """Count one batch and return the warnings it leads to, usually none.

        Args:
            batch: the batch.
            p: the prior.
            expected: share of positives in the batches of this process if the prior is right; None if it is not known.
            s, r, y: the variables of the loss.

        A batch whose raw scores equal those of the last call, as in the inner ascents of SGDMax, is not counted again.
        """
        w, present = batch.w, batch.present
        count = torch.full_like(p, len(w)) if present is None else present.sum(0).to(p)
        new = self._observe_moves(batch, count, p, y) * (count > 0)
        share = w.sum(0) / count.clamp_min(1)
        self._shares = self._shares + new * torch.stack(
            [torch.ones_like(share), count, w.sum(0), share, share.square()]
        )
        self._calls += 1
        texts: list[str] = []
        if not self._variables_done and self._calls % _MOVES == 0:
            texts += self._variables_text(s, r, y)
        if not self._prior_done and (self._calls in _EARLY or self._calls % _BATCHES == 0):
            texts += self._prior_text(p, expected)
        return texts

    def _observe_moves(self, batch: Batch, count: Tensor, p: Tensor, y: Tensor) -> Tensor:
        """Compare a move of y with the gradients since its last move; return 1 for a new batch, else 0.

        Args:
            batch: the new batch.
            count: number of labels in each column.
            p, y: prior and dual variable.
        """
        b = p - batch.w if batch.present is None else (p - batch.w) * batch.present
        by_y = ((b * batch.h).sum(0) / count.clamp_min(1) - p * (1 - p) * y) * (count > 0)
        new = torch.ones((), device=batch.raw.device)
        if self._last is not None:
            before, old_y = self._last
            if before.shape == batch.raw.shape:
                new = torch.ne(batch.raw, before).any().float()
            product = ((y - old_y) * self._gradient).sum()
            self._moves = self._moves + torch.stack([new, (product > 0).float(), (product < 0).float()])
            by_y = by_y + torch.where(torch.ne(y, old_y).any(), 0.0, self._gradient)
        self._last, self._gradient = (batch.raw.clone(), y.clone()), by_y
        return new

    def _variables_text(self, s: Tensor, r: Tensor, y: Tensor) -> list[str]:
        different, up, down = self._moves.tolist() if isinstance(self._moves, Tensor) else (0.0, 0.0, 0.0)
        if different + 1 < _MOVES or up + down < _MOVES_OF_Y:
            return []
        self._variables_done = True
        if down > _WRONG_WAY * (up + down):
            return [
                "the dual variable y moves against its gradient: it is minimized but must be maximized. Use a min-max "
                "optimizer with y as the dual variable, semaopt.PDAda(primal=..., dual=auc.dual_parameters())"
            ]
        kept = all(torch.equal(z, start) for z, start in zip((s.detach(), r.detach()), self._start, strict=True))
        if up > 0 and kept and s.requires_grad and r.requires_grad:
            return [
                "the variables s and r have not moved while y has: the optimizer does not have them. Pass "
                "primal=[*model.parameters(), *auc.primal_parameters()]"
            ]
        return []

    def _prior_text(self, p: Tensor, expected: Tensor | None) -> list[str]:
        rows = self._shares.T.tolist() if isinstance(self._shares, Tensor) else []
        early = self._calls in _EARLY
        if not early and max(row[0] for row in rows) < _BATCHES and self._calls < _CALLS:
            return []
        self._prior_done = not early
        least = _EARLY[0] if early else _BATCHES
        shares = () if expected is None else expected.tolist()
        for k, (row, prior, share) in enumerate(zip(rows, p.tolist(), shares, strict=False)):
            if row[0] >= least and not _plausible(row, share, early):
                self._prior_done = True
                where = f" in column {k}" if len(rows) > 1 else ""
                return [
                    f"of the first {row[1]:.0f} examples {row[2] / row[1]:.3g} were positive{where}, but prior="
                    f"{prior:.3g}. With a wrong prior the loss is smallest where all scores are equal, and the ranking "
                    "is lost. Pass the share of positives in the batches (AUCMinMax.from_sampler(sampler), or 0.5 if "
                    "the sampler balances the classes), and shuffle sorted examples"
                ]
        return []


def _plausible(row: list[float], p: float, early: bool) -> bool:
    """Return whether p is a plausible share of positives.

    Args:
        row: sums over the batches of 1, the labels, the positives, their share and its square.
        p: the expected share.
        early: whether there are few batches.

    The standard deviation of the mean is estimated twice: for independent examples, and from the differences between
    batches, since examples may come in groups. The larger one counts. A few batches may agree by chance, so early each
    of them counts as two independent examples at most.
    """
    batches, n, positives, shares, squares = row
    independent = math.sqrt(p * (1 - p) / (min(n, 2 * batches) if early else n))
    between = math.sqrt(max(squares - shares**2 / batches, 0.0) / (batches - 1) / batches)
    bound = (_EARLY_DEVIATIONS if early else _DEVIATIONS) * max(independent, between)
    return abs(positives / n - p) <= bound


def warn(text: str) -> None:
    """Warn at the line that called the loss, through any number of enclosing modules."""
    depth, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(_INTERNAL):
        depth, frame = depth + 1, frame.f_back
    warnings.warn(text, stacklevel=depth)
