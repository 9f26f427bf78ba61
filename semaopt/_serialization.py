"""Hyper-parameters that are objects, stored as plain values so that checkpoints load with ``weights_only=True``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from numbers import Integral, Real
from typing import Any


def describe(value: Any, known: Mapping[str, type[Any]]) -> dict[str, Any]:
    """Return the name and the fields of a dataclass in ``known``, or only the name of any other object."""
    name = next((name for name, kind in known.items() if type(value) is kind), None)
    if name is not None:
        return {"name": name, **plain(asdict(value))}
    named = value if hasattr(value, "__qualname__") else type(value)
    return {"name": f"{named.__module__}.{named.__qualname__}"}


def plain(value: Any) -> Any:
    """Replace NumPy's numbers, which ``weights_only=True`` does not load, with Python's, even inside containers."""
    if type(value) is dict:
        return {key: plain(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(plain(item) for item in value)
    if isinstance(value, bool) or not isinstance(value, Real):
        return value
    return int(value) if isinstance(value, Integral) else float(value)


def restore(what: str, description: Mapping[str, Any], live: Any, known: Mapping[str, type[Any]]) -> Any:
    """Rebuild an object from the result of :func:`describe`; for a custom class, ``live`` must be such an object."""
    name, values = description["name"], {k: v for k, v in description.items() if k != "name"}
    if name in known:
        return known[name](**values)
    here = None if live is None else describe(live, known)["name"]
    if name != here:
        raise ValueError(
            f"{what}={here!r} does not match the checkpoint, which was written with {what}={name!r}. A checkpoint "
            f"stores only its name: construct the optimizer with that {what}, then load."
        )
    return live
