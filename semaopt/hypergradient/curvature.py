"""How large the Hessian of g is, as far as products with it tell."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from semaopt._validation import NonFiniteError, require
from semaopt.hypergradient.vectors import Vector, dot, scaled

if TYPE_CHECKING:
    from semaopt.hypergradient.closures import Oracles


def curvature(v: Vector, hv: Vector) -> float:
    r"""What the product Hv tells of H: :math:`|Hv|^2/(v\cdot Hv)`, and at most :math:`|H|` if :math:`0\preceq H`.

    :math:`|v - \rho Hv| \le |v|` holds exactly if :math:`\rho` times it is at most 2. Negative where
    :math:`v\cdot Hv` is, and 0 where Hv is.

    >>> from semaopt.hypergradient.curvature import curvature
    >>> curvature([torch.tensor([1.0, 1.0])], [torch.tensor([1.0, 3.0])])      # H = diag(1, 3)
    2.5
    """
    along, length = dot(v, hv), dot(hv, hv)
    if not math.isfinite(length):
        raise NonFiniteError(
            "a Hessian-vector product of inner() is not finite; nothing was changed: the lower variable has diverged "
            "(take a smaller lower_lr), or the loss has no second derivative here"
        )
    if length == 0:
        return 0.0
    return length / along if along else math.inf


def power_iteration(oracles: Oracles, v: Vector, steps: int = 10) -> float:
    """The largest ``|O_gyy v|/|v|`` seen, where each v is the product before and each O_gyy a fresh sample."""
    largest = 0.0
    for _ in range(steps):
        length = math.sqrt(dot(v, v))
        if length == 0:
            v = [torch.ones_like(part) for part in v]
            length = math.sqrt(dot(v, v))
        v = oracles.draw().hessian(scaled(1 / length, v))
        curvature(v, v)  # refuses what is not finite
        largest = max(largest, math.sqrt(dot(v, v)))
    refuse_flat(largest)
    return largest


def refuse_flat(bound: float) -> None:
    """Raise where every product with the Hessian was 0: nothing can be divided by such a bound."""
    require(bound > 0, "bound", bound, "inner() is flat in the lower parameters", "add a regularizer to inner()")


def along_growth(oracles: Oracles, v: Vector, C: float, p: int) -> float:
    """``v.O_gyy v/|v|^2`` for what p factors ``I - O_gyy/C`` made of v; where v grows it tends above 2C, or below 0."""
    for _ in range(p):
        longer_v = oracles.contracted(v, C)
        length = math.sqrt(dot(longer_v, longer_v))
        if not 0 < length < math.inf:
            break
        v = scaled(1 / length, longer_v)
    return dot(v, oracles.draw().hessian(v)) / dot(v, v)
