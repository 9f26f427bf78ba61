"""The common part of all plans: conditions on the rates, their violations, and bounds."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from semaopt._validation import is_real, require, to_float, validate_integer, validate_integer_field
from semaopt.theory.constants import Constants

#: Tolerance for the rounding of a value that equals its limit.
_SLACK = 1 + 1e-9
_STEPS = "the run takes the steps t = 0..T"


class Bound(float):
    """A bound: a float that also holds the terms of which it is the sum.

    >>> bound = semaopt.theory.Bound({"objective": 0.5, "noise": 0.25})
    >>> bound.total, bound.noise, bound < 1
    (0.75, 0.25, True)
    """

    terms: Mapping[str, float]
    assumes: tuple[str, ...]

    def __new__(cls, terms: Mapping[str, float], assumes: tuple[str, ...] = ()) -> Bound:
        bound = super().__new__(cls, math.fsum(terms.values()))
        bound.terms, bound.assumes = dict(terms), assumes
        return bound

    @property
    def total(self) -> float:
        """The sum of the terms."""
        return float(self)

    def __getattr__(self, name: str) -> float:
        terms = self.__dict__.get("terms", {})
        if name in terms:
            return float(terms[name])
        raise AttributeError(f"Bound has no term {name!r}. It has: {', '.join(terms)}.")

    def __repr__(self) -> str:
        terms = " + ".join(f"{value:.3g} {name}" for name, value in self.terms.items())
        assumed = f"; assumes {', '.join(self.assumes)}" if self.assumes else ""
        return f"Bound({float(self):.4g} = {terms}{assumed})"

    def __getnewargs__(self) -> tuple[Any, ...]:
        return self.terms, self.assumes


@dataclass(frozen=True)
class Condition:
    """A condition ``name <= limit`` (or ``<``) with the formula of the limit and the reason for it."""

    name: str
    limit: float
    formula: str
    why: str
    strict: bool = False

    def holds(self, value: float) -> bool:
        """Return whether the value satisfies the condition, up to rounding."""
        return value < self.limit if self.strict else value <= self.limit * _SLACK


@dataclass(frozen=True)
class Violation:
    """A condition that a value violates, and the nearest values of all rates that satisfy all conditions."""

    condition: Condition
    value: float
    nearest: Mapping[str, float]

    @property
    def name(self) -> str:
        """The rate that is too large."""
        return self.condition.name

    @property
    def limit(self) -> float:
        """The largest allowed value."""
        return self.condition.limit

    @property
    def factor(self) -> float:
        """The factor by which the value is too large."""
        return self.value / self.limit if self.limit > 0 else math.inf

    def __str__(self) -> str:
        c = self.condition
        nearest = ", ".join(f"{name}={value:.6g}" for name, value in self.nearest.items())
        relation = "<" if c.strict else "<="
        return (
            f"{c.name}={self.value:.6g} is {self.factor:.3g} times too large: {c.name} {relation} {c.formula} = "
            f"{c.limit:.6g} ({c.why}). Nearest allowed: {nearest}"
        )


@dataclass(frozen=True)
class Plan(ABC):
    """The rates that a theorem prescribes for the steps 0..T, and the bounds that it proves for them."""

    constants: Constants
    T: int
    #: The rates in an order in which each is limited only by earlier ones.
    rates: Mapping[str, float] = field(repr=False)
    label: ClassVar[str]

    def __post_init__(self) -> None:
        validate_integer_field(self, "T", _STEPS)

    @abstractmethod
    def conditions(self, values: Mapping[str, float]) -> list[Condition]:
        """Return the limits of every rate, given the earlier ones in :attr:`rates`."""

    @abstractmethod
    def terms(self, T: int, values: Mapping[str, float]) -> dict[str, float]:
        """Return the terms of the bound after the steps 0..T."""

    def assumes(self) -> tuple[str, ...]:
        """Return the assumptions that the bound makes about constants that were not given."""
        return ()

    def violations(self, **values: float) -> list[Violation]:
        """Return the conditions that these rates violate. Omitted rates are taken from the plan.

        >>> c = semaopt.theory.Constants(L=1.0, sigma2=1.0, delta_f=1.0)
        >>> [bad] = semaopt.theory.constant(c, T=10_000).violations(eta=0.1, gamma=0.1)
        >>> bad.factor, bad.nearest
        (2.0, {'gamma': 0.1, 'eta': 0.05})
        """
        return broken(self._merged(values), self.conditions)

    def bound(self, T: int | None = None, **values: float) -> Bound:
        """Return the bound after the steps 0..T for these rates; raise if they violate a condition.

        T and rates that are omitted are taken from the plan.
        """
        T = last_step(self.T if T is None else T)
        merged = self._merged(values)
        refuse(self.label, broken(merged, self.conditions))
        return Bound(self.terms(T, merged), self.assumes())

    def _merged(self, values: Mapping[str, float]) -> dict[str, float]:
        unknown = set(values) - set(self.rates)
        if unknown:
            raise TypeError(f"{self.label} has no rate {sorted(unknown)}. It has: {', '.join(self.rates)}.")
        for name, value in values.items():
            ok = is_real(value) and 0 < float(value) < math.inf
            require(ok, name, value, "must be a finite number > 0", "gamma is 1 - beta, and eta is the step size lr")
        return {**self.rates, **{name: float(value) for name, value in values.items()}}


def last_step(T: Any) -> int:
    """Return the validated T, the last step. Steps are counted from 0, as in the paper's algorithms."""
    return validate_integer("T", T, _STEPS)


Conditions = Callable[[Mapping[str, float]], list[Condition]]


def nearest(values: Mapping[str, float], conditions: Conditions) -> dict[str, float]:
    """Return ``values`` with every rate lowered to its limits, in order."""
    out = dict(values)
    for name in values:
        limits = [math.nextafter(c.limit, 0) if c.strict else c.limit for c in conditions(out) if c.name == name]
        out[name] = min([out[name], *limits])
    return out


def broken(values: Mapping[str, float], conditions: Conditions) -> list[Violation]:
    """Return the violations of ``conditions`` by ``values``."""
    close = nearest(values, conditions)
    return [Violation(c, values[c.name], close) for c in conditions(values) if not c.holds(values[c.name])]


def refuse(label: str, violations: list[Violation]) -> None:
    """Raise if there are violations, because the bound is then not proved."""
    if violations:
        raise ValueError(f"the bound of {label} does not hold: " + "; ".join(map(str, violations)))


def steps_for(epsilon: float, bound_at: Callable[[int], float], turn: int = 1) -> int:
    """Return the smallest T with ``bound_at(T) <= epsilon^2``.

    Args:
        epsilon: the accuracy.
        bound_at: a bound that falls with T up to ``turn``. After that it may rise once before it falls again.
        turn: the end of the first fall.
    """
    ok = is_real(epsilon) and 0 < to_float(epsilon) < math.inf
    require(ok, "epsilon", epsilon, "must be a finite number > 0", "it is the accuracy to reach, in units of |grad F|")
    goal = to_float(epsilon) * to_float(epsilon)  # inf where ** would raise
    low, high = 0, turn
    while bound_at(high) > goal:
        low, high = high, 2 * high
        require(high < 2**62, "epsilon", epsilon, "it needs more than 2^62 steps", "use a larger epsilon")
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if bound_at(middle) <= goal else (middle, high)
    return high
