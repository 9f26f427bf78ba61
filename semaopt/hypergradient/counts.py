"""Counts of the oracle calls of bilevel methods."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass
class Calls:
    """Counts of oracle calls: gradients, products with g_yy and products with g_xy, each of one sample.

    A dense g_yy or g_xy counts one product per lower parameter.
    """

    gradients: int = 0
    hessian_products: int = 0
    mixed_products: int = 0


_counting: list[Calls] = []


@contextmanager
def count_calls() -> Iterator[Calls]:
    """Count the oracle calls of all bilevel optimizers inside this context.

    >>> x, y = torch.nn.Parameter(torch.ones(1)), torch.nn.Parameter(torch.ones(1))
    >>> optimizer = semaopt.SMB([x], [y])
    >>> with semaopt.hypergradient.count_calls() as calls:
    ...     loss = optimizer.step(lambda: y.sum(), lambda: (y - x).square().sum())
    >>> calls
    Calls(gradients=2, hessian_products=1, mixed_products=1)
    """
    calls = Calls()
    _counting.append(calls)
    try:
        yield calls
    finally:
        _counting.remove(calls)


def count(gradients: int = 0, hessian_products: int = 0, mixed_products: int = 0) -> None:
    """Add oracle calls to every open :func:`count_calls`."""
    for calls in _counting:
        calls.gradients += gradients
        calls.hessian_products += hessian_products
        calls.mixed_products += mixed_products
