"""Averages of iterates that a step updates while it passes over the parameters.

:class:`semaopt.Iterates` leaves an average here before a step; the step takes it. The C and the Triton step update it
in their one pass over memory, the other paths before the step. :func:`complete` updates the averages that no step has
taken.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from semaopt.estimator import real, track_


class Average(NamedTuple):
    """An average of iterates to update in the same pass: ``mean <- mean + weight (x - mean)``, x before the step."""

    means: list[Tensor]
    """One tensor per parameter, in the dtype of the arithmetic."""
    weight: float


class Pending(NamedTuple):
    """The average of one parameter, to be updated before it moves; both tensors are kept alive."""

    x: Tensor
    mean: Tensor
    weight: float


#: Averages that the next steps have to update, by the id of the parameter.
pending: dict[int, Pending] = {}


def leave(xs: list[Tensor], means: list[Tensor], weight: float) -> None:
    """Let the next step of these parameters update their averages."""
    complete(xs)  # another object may average the same parameters
    for x, mean in zip(xs, means, strict=True):
        pending[id(x)] = Pending(x, mean, weight)


def take(xs: list[Tensor]) -> Average | None:
    """Return the averages that a step of these parameters has to update, or None if it need not.

    If they differ in their weight, or only some parameters have one, they are updated at once.
    """
    found = [pending.pop(id(x), None) for x in xs]
    present = [each for each in found if each is not None]
    if not present:
        return None
    if len(present) == len(xs) and len({each.weight for each in present}) == 1:
        return Average([each.mean for each in present], present[0].weight)
    for each in present:
        update_([each.x], Average([each.mean], each.weight))
    return None


def complete(xs: list[Tensor]) -> None:
    """Update the averages that no step has taken."""
    for x in xs if pending else ():
        each = pending.pop(id(x), None)
        if each is not None:
            update_([x], Average([each.mean], each.weight))


def update_(xs: list[Tensor], average: Average) -> None:
    """Update averages outside of a step: the slow twin of a fused step."""
    for x, mean in zip(xs, average.means, strict=True):
        track_(real(mean), real(x.detach().to(mean.dtype)), average.weight)
