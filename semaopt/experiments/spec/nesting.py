"""Nested search spaces: the space of a method must contain the spaces of the methods it ``contains``.

A hyper-parameter that a spec does not state has its default. One that an algorithm does not have counts as switched
off: an algorithm without ``beta`` behaves like one with ``beta = 0``.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import torch

from semaopt import scalings
from semaopt.experiments import plugins
from semaopt.experiments.spec.search import axes_of, ranges_of
from semaopt.experiments.training import algorithms
from semaopt.experiments.training.algorithms import DECAY
from semaopt.registry import optimizer_class, optimizer_names

if TYPE_CHECKING:
    from semaopt.experiments.spec.schema import Method, Spec

#: Values that switch a hyper-parameter off. For the others, a default of 0, False or None does.
_NEUTRAL = {"beta": 0.0, "factor": 1.0, "scaling": "shb", "inverse": "tracked", "weight_decay": 0.0}
#: Defaults that a spec has, but no constructor.
_DEFAULTS = {
    "dual_bound": None,
    "growth": "constant",
    "schedule": "constant",
    "warm_up": 0.0,
    "gamma_schedule": "constant",
    "iterates": "last",
}
_OF_SCALING = frozenset({"g0", "beta2", "c_l", "c_u"})


def problems(spec: Spec, outer: Method, inner: Method, place: str) -> Iterator[str]:
    """Yield what differs between two methods so that ``outer`` does not try everything that ``inner`` tries."""
    text = f"{place}: the space of {outer.name} does not contain that of {inner.name}"
    remedy = f"or remove {inner.name!r} from contains."
    for name in sorted({*outer.objective, *inner.objective}):
        own, other = (one.objective.get(name, "the default") for one in (outer, inner))
        if own != other:
            both = f"{own!r} for {outer.name}, {other!r} for {inner.name}"
            yield f"{text}: objective.{name} is {both}. Use one value, {remedy}"
    if outer.positives != inner.positives:
        both = f"{outer.positives} for {outer.name}, {inner.positives} for {inner.name}"
        yield f"{text}: positives is {both}. Use one value, {remedy}"
    a, b = _Space(spec, outer), _Space(spec, inner)
    ignored = _ignored(a, b)
    if b.decays and set(b.decays) != set(a.decays):
        both = f"{a.decays} for {outer.name}, {b.decays} for {inner.name}"
        yield f"{text}: decays is {both}, and one factor applies to all decays. Use the same decays, {remedy}"
        ignored |= DECAY
    for name in sorted((a.takes | b.takes) - ignored):
        tried, needed = a.values(name), b.values(name)
        if tried is None or needed is None:
            side, without = (b, outer) if tried is None else (a, inner)
            if side.is_unknown(name):
                continue
            if (neutral := side.neutral(name)) is None:
                shown = f"{_shown(side.values(name))} for {side.method.name}"
                yield f"{text}: {name} is {shown}, and {without.name} has no {name}. Remove {inner.name!r} there."
                continue
            tried, needed = (neutral if values is None else values for values in (tried, needed))
        if not _within(needed, tried):
            both = f"{name} is {_shown(tried)} for {outer.name}, {_shown(needed)} for {inner.name}"
            yield f"{text}: {both}. Widen it, {remedy}"


class _Space:
    """The search space of a method, completed by the defaults of its algorithm."""

    def __init__(self, spec: Spec, method: Method) -> None:
        info = algorithms.find(method.algorithm)
        self.method, self.staged = method, info.staged
        fixed = {name: [value] for name, value in method.options.items()}
        ranges = {name: tuple(ends) for name, ends in ranges_of(spec, method).items()}
        self.given: dict[str, Any] = {**fixed, **axes_of(spec, method), **ranges}
        decaying = bool(method.decays) and self.given.get("factor") != [1.0]
        self.decays = method.decays if decaying else []
        if not decaying and not info.staged:
            self.given["factor"] = [1.0]
            self.given.pop("every", None)
        self.takes = info.takes | self.given.keys()
        self.defaults = {name: value for name, value in _defaults(method.algorithm).items() if name in info.takes}
        for scaling in self.values("scaling") or ():
            row = fields(type(scalings.resolve(scaling)))  # type: ignore[arg-type]  # the rows are dataclasses
            self.defaults.update({field.name: field.default for field in row})

    def values(self, name: str) -> Any:
        """Return the values of a hyper-parameter: a list, the two ends of a range, or None if there is no such one."""
        if name in self.given:
            return self.given[name]
        if name not in self.takes or name == "every":  # nothing decays
            return None
        return [self.defaults.get(name, f"the default of {self.method.algorithm}")]

    def is_unknown(self, name: str) -> bool:
        """Whether the only value is a default that is not known here."""
        return name not in self.given and name not in self.defaults

    def neutral(self, name: str) -> list[Any] | None:
        """Return the value that switches a hyper-parameter off, or None if there is none."""
        if name in _NEUTRAL:
            return [_NEUTRAL[name]]
        default = self.defaults.get(name, True)
        return None if default else [default]


def _defaults(algorithm: str) -> dict[str, Any]:
    """Return the defaults of the constructor of an algorithm, and those of the experiments."""
    if algorithm in optimizer_names():
        kind: Any = optimizer_class(algorithm)
    elif algorithm in algorithms.ALGORITHMS:  # of another package, which may be missing
        return dict(_DEFAULTS)
    else:
        kind = getattr(torch.optim, algorithm) if algorithm in algorithms.TORCH else plugins.resolve(algorithm)
    found = {p.name: p.default for p in inspect.signature(kind).parameters.values() if p.default is not p.empty}
    found.pop("inverse", None)  # None stands for another one in each algorithm
    found = {name: list(value) if isinstance(value, tuple) else value for name, value in found.items()}
    return {**found, **_DEFAULTS}


def _ignored(outer: _Space, inner: _Space) -> frozenset[str]:
    """Return the hyper-parameters that change nothing for the values of the inner method."""
    found: frozenset[str] = frozenset()
    if "every" not in inner.given and not outer.staged:
        found |= {"every"}
    if "scaling" in outer.takes | inner.takes:
        found |= _OF_SCALING - inner.defaults.keys() if "scaling" in inner.takes else _OF_SCALING
    if inner.values("beta") in (None, [0.0]) and inner.values("scaling") in (None, ["shb"]):
        found |= {"bias_correction"}
    if inner.values("weight_decay") in (None, [0.0]):
        found |= {"decoupled_weight_decay"}
    return found


def _within(values: Any, outer: Any) -> bool:
    if isinstance(outer, tuple):
        return all(algorithms.is_number(value) and outer[0] <= value <= outer[1] for value in values)
    return not isinstance(values, tuple) and all(value in outer for value in values)


def _shown(values: Any) -> str:
    return f"{values[0]:g} to {values[1]:g}" if isinstance(values, tuple) else str(values)
