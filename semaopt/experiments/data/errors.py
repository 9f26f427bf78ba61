"""Errors about data."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class DataError(ValueError):
    """A data set, file or option that cannot be used; the message says why and what to do."""


def unknown(kind: str, value: str, known: Iterable[str]) -> str:
    """Return the message for an unknown name, with the nearest known one.

    >>> unknown("data set", "cifar11", ["cifar10", "mnist"])
    "data set 'cifar11' is unknown. Did you mean 'cifar10'? Known: cifar10, mnist."
    """
    names = list(known)
    near = get_close_matches(value, names, n=1, cutoff=0.5)
    hint = f"Did you mean {near[0]!r}? " if near else ""
    return f"{kind} {value!r} is unknown. {hint}Known: {', '.join(names)}."
