"""Whether batches hold as many positives as the prior says."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

from torch import Tensor

_BATCHES = 64
_DEVIATIONS = 6.0


@dataclass(frozen=True)
class Drawn:
    """What the first batches held; afterwards nothing is counted any more."""

    batches: int = 0
    examples: int = 0
    positives: tuple[float, ...] = ()

    def after(self, w: Tensor, prior: Tensor) -> Drawn | None:
        """With one more batch, of weights w (1 positive, 0 negative) for each example and class; None at the end.

        Drawn evenly, the share of positives would be off by six standard deviations once in 5e8 trainings.
        """
        before = self.positives or (0.0,) * len(prior)
        positives = tuple(a + b for a, b in zip(before, w.sum(0).tolist(), strict=True))
        found = Drawn(self.batches + 1, self.examples + len(w), positives)
        if found.batches < _BATCHES:
            return found
        for k, (positive, p) in enumerate(zip(found.positives, prior.tolist(), strict=True)):
            share = positive / found.examples
            if abs(share - p) > _DEVIATIONS * math.sqrt(p * (1 - p) / found.examples):
                where = f" in class {k}" if len(prior) > 1 else ""
                warnings.warn(
                    f"of the first {found.examples} examples {share:.3g} were positive{where}, but prior={p:.3g}: the "
                    "loss then falls by moving all scores alike, and they run away; pass the share among the examples "
                    "that are drawn (0.5 where a sampler balances the classes), and shuffle examples that are sorted",
                    stacklevel=5,  # where the loss is called
                )
                break
        return None
