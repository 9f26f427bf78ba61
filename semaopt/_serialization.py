"""Hyper-parameters that are objects, as plain values in a checkpoint that loads with ``weights_only=True``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from numbers import Integral, Real
from typing import Any


def describe(value: Any, known: Mapping[str, type[Any]]) -> dict[str, Any]:
    """The name and fields of a dataclass in ``known``; of anything else the name alone."""
    name = next((name for name, kind in known.items() if type(value) is kind), None)
    if name is not None:
        return {"name": name, **plain(asdict(value))}
    named = value if hasattr(value, "__qualname__") else type(value)
    return {"name": f"{named.__module__}.{named.__qualname__}"}


def plain(value: Any) -> Any:
    """The same with Python's numbers for those of NumPy, which ``weights_only=True`` does not load."""
    if type(value) is dict:
        return {key: plain(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(plain(item) for item in value)
    if isinstance(value, bool) or not isinstance(value, Real):
        return value
    return int(value) if isinstance(value, Integral) else float(value)


def restore(what: str, description: Mapping[str, Any], live: Any, known: Mapping[str, type[Any]]) -> Any:
    """The object that :func:`describe` described; one of the user's own must be ``live`` already."""
    name, values = description["name"], {k: v for k, v in description.items() if k != "name"}
    if name in known:
        return known[name](**values)
    here = None if live is None else describe(live, known)["name"]
    if name != here:
        raise ValueError(
            f"{what}={here!r}: the checkpoint was written with the {what} {name!r}, which a checkpoint cannot "
            f"carry; construct the optimizer with that {what}, then load"
        )
    return live
