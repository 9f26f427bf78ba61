"""Build any optimizer of the library by its name."""

from __future__ import annotations

from typing import Any

from torch.optim import Optimizer

from semaopt import baselines, optimizers
from semaopt._validation import invalid

_KINDS: dict[str, type[Optimizer]] = {
    name: kind
    for module in (optimizers, baselines)
    for name, kind in vars(module).items()
    if isinstance(kind, type) and issubclass(kind, Optimizer)
}


def optimizer_names() -> list[str]:
    """Return the names that :func:`create` accepts.

    >>> "PDAda" in semaopt.optimizer_names()
    True
    """
    return sorted(_KINDS)


def optimizer_class(name: str) -> type[Optimizer]:
    """Return the class of this name; case does not matter."""
    kinds = {known.lower(): kind for known, kind in _KINDS.items()}
    if not isinstance(name, str) or name.lower() not in kinds:
        raise ValueError(invalid("name", name, "no optimizer has this name", f"use one of {', '.join(_KINDS)}"))
    return kinds[name.lower()]


def create(name: str, params: Any, **options: Any) -> Optimizer:
    """Construct an optimizer by its name.

    Args:
        name: one of :func:`optimizer_names`; case does not matter.
        params: parameters, or param groups. For a min-max or bilevel method, one list of groups with a ``role`` each,
            or the first argument of its constructor, with the second one among the options.
        **options: arguments of the constructor.

    >>> x = torch.nn.Parameter(torch.ones(2))
    >>> type(semaopt.create("asa", [x], lr=0.1)).__name__
    'ASA'
    """
    build: Any = optimizer_class(name)
    created: Optimizer = build(params, **options)
    return created
