"""Error messages for specs: the place, the value, the rule and the remedy."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

SHOWN = 10  # problems in one message
#: Keys that had another name in version 0.1.
RENAMED = {"together": "vectorize", "finer": "multipliers", "first_look": "first_rung"}


class SpecError(ValueError):
    """A spec that cannot be run; the message names the file, the place, the value, the rule and the remedy."""


def near(name: str, known: Iterable[str]) -> str:
    """Return a hint with the nearest known name.

    >>> near("epoch", ["epochs", "batch"])
    "Did you mean 'epochs'? Known: batch, epochs"
    """
    known = sorted(known)
    close = get_close_matches(name, known, n=1, cutoff=0.5)
    return (f"Did you mean {close[0]!r}? " if close else "") + f"Known: {', '.join(known)}"


def explain(error: ValidationError, root: type[BaseModel], where: str) -> str:
    """Return all problems that pydantic found, one per line."""
    problems = list(dict.fromkeys(_problem(one, root) for one in error.errors(include_url=False)))
    more = [f"and {len(problems) - SHOWN} more"] if len(problems) > SHOWN else []
    return "\n".join(f"{where}: {text}" for text in (*problems[:SHOWN], *more))


def _problem(error: Any, root: type[BaseModel]) -> str:
    place, owner = _place(error["loc"], root)
    kind, value = error["type"], error["input"]
    if kind == "extra_forbidden":
        name = str(error["loc"][-1])
        if RENAMED.get(name) in owner.model_fields:
            return f"{place} is now called {RENAMED[name]}. Rename the key."
        return f"{place} is an unknown key. {near(name, owner.model_fields)}."
    if kind == "missing":
        return f"{place} is missing. Add it."
    shown = repr(value) if len(repr(value)) <= 80 else f"{repr(value)[:77]}..."
    rule = error["msg"].removeprefix("Input ").removeprefix("String ").removeprefix("Value ")
    return f"{place}={shown} is invalid: it {rule[0].lower()}{rule[1:]}. {_remedy(kind, value, error.get('ctx', {}))}."


def _remedy(kind: str, value: Any, context: Any) -> str:
    if kind == "literal_error":
        close = get_close_matches(str(value), re.findall(r"'(\w+)'", context["expected"]), n=1, cutoff=0.5)
        return f"Try {close[0]!r}" if close else "Use one of these"
    if kind == "string_pattern_mismatch":
        return "It is used in file names: use letters, digits, '-', '_' and '.'"
    if kind.endswith("_type"):
        return "Write a value of this type"
    return "Use a value in this range" if context else "Correct the value"


def _place(location: tuple[int | str, ...], root: type[BaseModel]) -> tuple[str, type[BaseModel]]:
    """Return ``methods[0].label`` and the model with the last key; the branches of unions are left out."""
    text, owner = "", root
    at: type[BaseModel] | None = root
    for k, step in enumerate(location):
        if isinstance(step, int):
            text += f"[{step}]"
            continue
        last = k == len(location) - 1
        if at is not None:
            owner = at
            known = step in at.model_fields
            if not known and not last:
                break
            at = _inside(at.model_fields[step].annotation) if known else None
        elif _is_branch(step):
            continue
        text += f".{step}" if text else step
    return text, owner


_BRANCHES = frozenset(
    {"bool", "int", "float", "str", "list[float]", "list[int]", "constrained-int", "constrained-float"}
)


def _is_branch(step: str) -> bool:
    return step in _BRANCHES or step.startswith(("list[", "function-", "nullable", "constrained"))


def _inside(annotation: Any) -> type[BaseModel] | None:
    """Return the pydantic model in ``X``, ``X | None`` or ``list[X]``."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in get_args(annotation) if (found := _inside(part)) is not None), None)
