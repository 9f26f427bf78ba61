"""What is wrong with data, said so that it can be put right."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class DataError(ValueError):
    """A set, a file or an option that cannot be used; the text says which, why and what to do."""


def unknown(kind: str, value: str, known: Iterable[str]) -> str:
    """The text for a name that does not exist, with the nearest that does.

    >>> unknown("data set", "cifar11", ["cifar10", "mnist"])
    "data set 'cifar11' is unknown; did you mean 'cifar10'? There is: cifar10, mnist"
    """
    names = list(known)
    near = get_close_matches(value, names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"{kind} {value!r} is unknown; {hint}{'T' if near else 't'}here is: {', '.join(names)}"
