"""What every theorem's plan can be asked: its conditions, who breaks them, and the bound it promises."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from semaopt._validation import is_real, require, to_float, validate_integer, validate_integer_field
from semaopt.theory.constants import Constants

#: Roundings of a value that sits on its limit are no violation.
_SLACK = 1 + 1e-9
_STEPS = "the run takes the steps t = 0..T"


class Bound(float):
    """A bound as a number, which also knows the terms it is the sum of.

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
        raise AttributeError(f"Bound has no term {name!r}; it has {', '.join(terms)}")

    def __repr__(self) -> str:
        terms = " + ".join(f"{value:.3g} {name}" for name, value in self.terms.items())
        assumed = f"; assumes {', '.join(self.assumes)}" if self.assumes else ""
        return f"Bound({float(self):.4g} = {terms}{assumed})"

    def __getnewargs__(self) -> tuple[Any, ...]:
        return self.terms, self.assumes


@dataclass(frozen=True)
class Condition:
    """``name <= limit`` (or ``<``), the formula behind the limit, and what fails without it."""

    name: str
    limit: float
    formula: str
    why: str
    strict: bool = False

    def holds(self, value: float) -> bool:
        return value < self.limit if self.strict else value <= self.limit * _SLACK


@dataclass(frozen=True)
class Violation:
    """A condition that a value breaks, and values for all rates that break none."""

    condition: Condition
    value: float
    nearest: Mapping[str, float]

    @property
    def name(self) -> str:
        return self.condition.name

    @property
    def limit(self) -> float:
        return self.condition.limit

    @property
    def factor(self) -> float:
        """How many times too large the value is."""
        return self.value / self.limit if self.limit > 0 else math.inf

    def __str__(self) -> str:
        c = self.condition
        nearest = ", ".join(f"{name}={value:.6g}" for name, value in self.nearest.items())
        relation = "<" if c.strict else "<="
        return (
            f"{c.name}={self.value:.6g} is {self.factor:.3g} times too large: {c.name} {relation} {c.formula} = "
            f"{c.limit:.6g} ({c.why}); nearest that hold: {nearest}"
        )


@dataclass(frozen=True)
class Plan(ABC):
    """Rates that a theorem prescribes for the steps 0..T, and what it promises for them."""

    constants: Constants
    T: int
    #: The rates, each limited by those before it.
    rates: Mapping[str, float] = field(repr=False)
    label: ClassVar[str]

    def __post_init__(self) -> None:
        validate_integer_field(self, "T", _STEPS)

    @abstractmethod
    def conditions(self, values: Mapping[str, float]) -> list[Condition]:
        """The limits of every rate, given the rates that come before it in :attr:`rates`."""

    @abstractmethod
    def terms(self, T: int, values: Mapping[str, float]) -> dict[str, float]:
        """The terms of the bound after steps 0..T."""

    def assumes(self) -> tuple[str, ...]:
        """What the bound takes for granted because a constant was not given."""
        return ()

    def violations(self, **values: float) -> list[Violation]:
        """The conditions that your own rates break; the plan's own stand in for those you leave out.

        >>> c = semaopt.theory.Constants(L=1.0, sigma2=1.0, delta_f=1.0)
        >>> [bad] = semaopt.theory.constant(c, T=10_000).violations(eta=0.1, gamma=0.1)
        >>> bad.factor, bad.nearest
        (2.0, {'gamma': 0.1, 'eta': 0.05})
        """
        return broken(self._merged(values), self.conditions)

    def bound(self, T: int | None = None, **values: float) -> Bound:
        """The bound after steps 0..T, for the plan's rates or for your own, which must meet the conditions."""
        T = last_step(self.T if T is None else T)
        merged = self._merged(values)
        refuse(self.label, broken(merged, self.conditions))
        return Bound(self.terms(T, merged), self.assumes())

    def _merged(self, values: Mapping[str, float]) -> dict[str, float]:
        unknown = set(values) - set(self.rates)
        if unknown:
            raise TypeError(f"{self.label} has no rate {sorted(unknown)}; it has {', '.join(self.rates)}")
        for name, value in values.items():
            ok = is_real(value) and 0 < float(value) < math.inf
            require(ok, name, value, "must be a finite number > 0", "gamma = 1 - beta; eta is the step size lr")
        return {**self.rates, **{name: float(value) for name, value in values.items()}}


def last_step(T: Any) -> int:
    """T counts steps from 0, as the boxes do."""
    return validate_integer("T", T, _STEPS)


Conditions = Callable[[Mapping[str, float]], list[Condition]]


def nearest(values: Mapping[str, float], conditions: Conditions) -> dict[str, float]:
    """``values`` with every rate lowered to its limits, first those that limit others."""
    out = dict(values)
    for name in values:
        limits = [math.nextafter(c.limit, 0) if c.strict else c.limit for c in conditions(out) if c.name == name]
        out[name] = min([out[name], *limits])
    return out


def broken(values: Mapping[str, float], conditions: Conditions) -> list[Violation]:
    """The violations of ``conditions`` by ``values``."""
    close = nearest(values, conditions)
    return [Violation(c, values[c.name], close) for c in conditions(values) if not c.holds(values[c.name])]


def refuse(label: str, violations: list[Violation]) -> None:
    """Raise if there are any: a bound whose conditions do not hold bounds nothing."""
    if violations:
        raise ValueError(f"the bound of {label} does not hold: " + "; ".join(map(str, violations)))


def steps_for(epsilon: float, bound_at: Callable[[int], float]) -> int:
    """The smallest T with ``bound_at(T) <= epsilon^2``, for a bound that falls with T."""
    ok = is_real(epsilon) and 0 < to_float(epsilon) < math.inf
    require(ok, "epsilon", epsilon, "must be a finite number > 0", "it is the accuracy to reach")
    square = to_float(epsilon) * to_float(epsilon)  # inf, where ** raises
    high = 1
    while bound_at(high) > square:
        high *= 2
        limit = 2**62
        require(high < limit, "epsilon", epsilon, "needs more than 2^62 steps", "ask for less, or check the constants")
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if bound_at(middle) <= square else (middle, high)
    return high
