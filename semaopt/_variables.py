"""Roles and feasible sets that a loss declares for its own variables, so that an optimizer can read them.

A min-max loss knows which of its variables are maximized over and which constraint they have. It declares both on the
parameters that ``primal_parameters()`` and ``dual_parameters()`` return. ``PDAda(primal=..., dual=...)`` then projects
them without a ``project=`` argument and raises an error if the two arguments are swapped. The declaration is a plain
attribute of the tensor: copies and shards do not inherit it, so a loss declares again whenever it is asked.
"""

from __future__ import annotations

from typing import TypeVar

from torch import Tensor

from semaopt.projections import Projection

_ROLE, _PROJECTION = "semaopt_role", "semaopt_projection"
T = TypeVar("T", bound=Tensor)


def declare(x: T, role: str, projection: Projection | None = None) -> T:
    """Declare that ``x`` is "primal" or "dual" and, for a constrained dual variable, its projection; return ``x``."""
    setattr(x, _ROLE, role)
    setattr(x, _PROJECTION, projection)
    return x


def declared_role(x: Tensor) -> str | None:
    """Return "primal" or "dual", or None if nothing was declared for the tensor."""
    role: str | None = getattr(x, _ROLE, None)
    return role


def declared_projection(x: Tensor) -> Projection | None:
    """Return the projection that was declared for ``x``, or None."""
    projection: Projection | None = getattr(x, _PROJECTION, None)
    return projection
