"""Closures on numbered samples, for methods that evaluate one sample twice or remember what it returned."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from torch import Tensor

from semaopt._validation import require
from semaopt.hypergradient.inverses import uniform

#: The number of samples if the method need not know it: the closure may use the number as a seed.
ENDLESS = 2**31
_CALLS = 2**20  # the largest number of calls in one step


class Numbered:
    """A closure ``loss(i)`` that is called as ``loss()``: it draws the number i of a sample itself.

    The number of call k in step t depends on (seed, t, k) only: it is the same on every rank and after a resume.

    Args:
        name: ``"outer"`` or ``"inner"``, for error messages.
        closure: returns the loss of sample i, a whole number in 0..count-1. Equal numbers must be equal samples.
        count: the number of samples.
        seed: the seed of the draws.
        t: the number of the step.

    >>> from semaopt.hypergradient.numbered import Numbered
    >>> closure = Numbered("inner", lambda i: torch.tensor(float(i)), count=10, seed=0, t=0)
    >>> first, second = closure(), closure()
    >>> closure.back(2)
    >>> closure() == first, closure() == second
    (tensor(True), tensor(True))
    """

    def __init__(self, name: str, closure: Callable[[int], Tensor], count: int, seed: int, t: int) -> None:
        if not callable(closure):
            raise TypeError(f"{name}={closure!r}: step(outer, inner) takes two functions that return a loss")
        try:
            inspect.signature(closure).bind(0)
        except TypeError as error:
            raise TypeError(
                f"{name} takes no sample number ({error}). This method evaluates one sample several times: write "
                f"def {name}(i), which returns the loss of sample i in 0..{count - 1}, the same for equal numbers."
            ) from None
        except ValueError:  # a function without a signature
            pass
        self._closure, self._count, self._seed, self._t, self._call = closure, count, seed, t, 0
        self.last = 0
        """The number of the last sample."""

    def __call__(self) -> Tensor:
        self.last = uniform(self._count, self._seed, self._t * _CALLS + self._call)
        self._call += 1
        return self._closure(self.last)

    def back(self, calls: int) -> None:
        """Draw the numbers of the last ``calls`` calls again."""
        self._call -= calls

    @property
    def calls(self) -> int:
        """The number of calls so far."""
        return self._call


def numbered(
    outer: Callable[[int], Tensor],
    inner: Callable[[int], Tensor],
    samples: tuple[int, int] | None,
    seed: int,
    t: int,
) -> tuple[Numbered, Numbered]:
    """Return both closures with their own draws; ``samples`` holds the numbers of samples of f and of g."""
    f, g = (ENDLESS, ENDLESS) if samples is None else samples
    return Numbered("outer", outer, f, 2 * seed, t), Numbered("inner", inner, g, 2 * seed + 1, t)


def validate_samples(samples: Any) -> tuple[int, int]:
    """Return ``samples`` as a tuple; raise unless it is two whole numbers > 0."""
    pair = isinstance(samples, (tuple, list)) and len(samples) == 2
    ok = pair and all(isinstance(n, int) and not isinstance(n, bool) and n > 0 for n in samples)
    require(ok, "samples", samples, "must be two whole numbers > 0", "pass the numbers of samples of f and of g")
    return samples[0], samples[1]
