"""How it is said what is wrong with a spec: where, the value, the rule and the remedy."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

SHOWN = 10  # problems at once


class SpecError(ValueError):
    """A spec that cannot be run; the text names the file, the place, the value, the rule and the remedy."""


def near(name: str, known: Iterable[str]) -> str:
    """A hint with the nearest known name.

    >>> near("epoch", ["epochs", "batch"])
    "did you mean 'epochs'? Known: batch, epochs"
    """
    known = sorted(known)
    close = get_close_matches(name, known, n=1, cutoff=0.5)
    return (f"did you mean {close[0]!r}? Known: " if close else "known: ") + ", ".join(known)


def explain(error: ValidationError, root: type[BaseModel], where: str) -> str:
    """All problems that pydantic found, one a line."""
    problems = list(dict.fromkeys(_problem(one, root) for one in error.errors(include_url=False)))
    more = [f"and {len(problems) - SHOWN} more"] if len(problems) > SHOWN else []
    return "\n".join(f"{where}: {text}" for text in (*problems[:SHOWN], *more))


def _problem(error: Any, root: type[BaseModel]) -> str:
    place, owner = _place(error["loc"], root)
    kind, value = error["type"], error["input"]
    if kind == "extra_forbidden":
        name = str(error["loc"][-1])
        return f"{place}: unknown key; {near(name, owner.model_fields)}"
    if kind == "missing":
        return f"{place}: is missing; every spec must say it"
    shown = repr(value) if len(repr(value)) <= 80 else f"{repr(value)[:77]}..."
    remedy = _remedy(kind, value, error.get("ctx", {}))
    return f"{place}={shown}: {error['msg'][0].lower()}{error['msg'][1:]}; {remedy}"


def _remedy(kind: str, value: Any, context: Any) -> str:
    if kind == "literal_error":
        close = get_close_matches(str(value), re.findall(r"'(\w+)'", context["expected"]), n=1, cutoff=0.5)
        return f"did you mean {close[0]!r}?" if close else "take one of these"
    if kind == "string_pattern_mismatch":
        return "it names files: letters, digits, '-', '_' and '.'"
    if kind.endswith("_type"):
        return "write a value of that type"
    return "give a value within the bounds" if context else "correct the value"


def _place(location: tuple[int | str, ...], root: type[BaseModel]) -> tuple[str, type[BaseModel]]:
    """``methods[0].label`` and the model that holds its last name; the branches of unions are left out."""
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
    """The pydantic model in ``X``, ``X | None``, ``list[X]``."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in get_args(annotation) if (found := _inside(part)) is not None), None)
