"""Command lines as text, as reports show them."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence


def without(command: str, *options: str) -> str:
    """Return a command without these options and their values; any other text is returned as it is.

    >>> without("semaopt run mine.toml --study 2 --study=3 --out 'my results'", "--study")
    "semaopt run mine.toml --out 'my results'"
    >>> without("Anna's notebook", "--study")
    "Anna's notebook"
    """
    try:
        words = shlex.split(command)
    except ValueError:  # not a command line
        return command
    kept = list(_kept(words, options))
    return command if kept == words else shlex.join(kept)


def _kept(words: Sequence[str], options: Sequence[str]) -> Iterator[str]:
    rest = iter(words)
    for word in rest:
        if word in options:
            next(rest, None)  # its value
        elif word.partition("=")[0] not in options:
            yield word
