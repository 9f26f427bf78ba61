"""What is wrong with a spec that needs more than one key to see."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from semaopt.experiments import data, models
from semaopt.experiments.data.load import find
from semaopt.experiments.spec import search
from semaopt.experiments.spec.errors import SHOWN, SpecError, near
from semaopt.experiments.training import methods, metrics

if TYPE_CHECKING:
    from semaopt.experiments.spec.schema import Claim, Method, Spec

_MOST_TRIALS = 100_000
#: Models that are faster as one vectorised model; convolutions and molecules are faster in processes of their own.
VECTORISED = ("mlp", "logistic")


def check(spec: Spec, where: str) -> None:
    """What needs more than one key to see."""
    problems = [
        *_names(spec),
        *_seeds(spec),
        *_axes(spec),
        *search.problems(spec),
        *(text for k, method in enumerate(spec.methods) for text in _method(spec, method, f"methods[{k}]")),
    ]
    if not problems:
        problems = [*_metrics(spec), *_classes(spec), *_direction(spec), *_budget(spec), *_halving(spec)]
    if problems:
        raise SpecError("\n".join(f"{where}: {text}" for text in problems[:SHOWN]))


def _names(spec: Spec) -> Iterator[str]:
    if spec.data.name not in data.NAMES:
        yield f"data.name={spec.data.name!r}: unknown data set; {near(spec.data.name, data.NAMES)}"
    if spec.model.name not in models.NAMES:
        yield f"model.name={spec.model.name!r}: unknown model; {near(spec.model.name, models.NAMES)}"
    if spec.together > 1 and spec.model.name not in VECTORISED:
        known = " and ".join(VECTORISED)
        yield f"together={spec.together}: only {known} are trained as one; leave it out for {spec.model.name}"
    if spec.together > 1 and spec.loss not in ("cross_entropy", "auc"):
        yield f"together={spec.together}: runs with loss = {spec.loss!r} are not trained as one; leave it out"
    names = [method.name for method in spec.methods]
    for name in {name for name in names if names.count(name) > 1}:
        yield f"methods: {name!r} is there twice; every method needs a name of its own"
    yield from _claim(spec.claim, names)


def _claim(claim: Claim, names: list[str]) -> Iterator[str]:
    if claim.order and claim.beats:
        yield "claim: has both an order and beats; the claim is one of them"
    for name, others in claim.beats.items():
        for one in (name, *others):
            if one not in names:
                yield f"claim.beats: {one!r} is no method; {near(one, names)}"
        if name in others:
            yield f"claim.beats: {name!r} cannot beat itself; leave it out"
    for name in claim.order:
        if name not in names:
            yield f"claim.order: {name!r} is no method; {near(name, names)}"


def _seeds(spec: Spec) -> Iterator[str]:
    seeds = spec.seeds
    for name in ("tuning", "final"):
        listed = getattr(seeds, name)
        if len(set(listed)) < len(listed):
            yield f"seeds.{name}={listed}: has a seed twice; every run needs its own"
    both = sorted(set(seeds.tuning) & set(seeds.final))
    if both:
        yield f"seeds: {both} are tuning and final seeds; what a seed chose it must not judge: take others"
    if spec.tuning is not None and not seeds.tuning:
        yield "seeds.tuning: is empty, but there is a [tuning]; give at least one seed"


def _axes(spec: Spec) -> Iterator[str]:
    """Shared axes that no method has, and those that are to grow and are none."""
    if spec.tuning is None:
        return
    taken = frozenset[str]().union(*(methods.KINDS[method.algorithm].takes for method in spec.methods))
    for name in spec.tuning.grid:
        if name not in taken:
            yield f"tuning.grid.{name}: no method here has such a hyper-parameter; {near(name, taken)}"
    for name in spec.tuning.extend:
        values = spec.tuning.grid.get(name, [])
        numbers = [float(value) for value in values if isinstance(value, (int, float)) and value > 0]
        if name not in spec.tuning.grid:
            hint = near(name, spec.tuning.grid) if spec.tuning.grid else "add it there"
            yield f"tuning.extend: {name!r} is no axis of tuning.grid; {hint}"
        elif len(values) < 2 or len(numbers) < len(values) or numbers != sorted(set(numbers)):
            yield f"tuning.extend: {name!r} must be a shared axis of at least two rising positive numbers to grow"


def _method(spec: Spec, method: Method, place: str) -> Iterator[str]:
    kind = methods.KINDS[method.algorithm]
    if kind.loss != spec.loss:
        fitting = [name for name, kind in methods.KINDS.items() if kind.loss == spec.loss]
        yield f"{place}.algorithm={method.algorithm!r}: is not for loss = {spec.loss!r}; take {', '.join(fitting)}"
        return
    if method.decays and kind.staged:
        yield f"{place}.decays={method.decays}: {method.algorithm} has stages of its own; leave it out"
    given: list[tuple[str, Mapping[str, Any]]] = [
        ("options", method.options),
        ("grid", method.grid),
        ("finer", method.finer),
    ]
    unknown = [
        (f"{place}.{table}.{name}", name) for table, values in given for name in values if name not in kind.takes
    ]
    for where, name in unknown:
        yield f"{where}: {method.algorithm} has no such hyper-parameter; {near(name, kind.takes)}"
    idle = [] if method.decays or kind.staged else list(_idle(spec, method, given, place))
    yield from idle
    if not unknown and not idle:
        yield from _values(spec, method, place)


def _idle(spec: Spec, method: Method, given: list[tuple[str, Mapping[str, Any]]], place: str) -> Iterator[str]:
    """Values that say how a method decays which decays nothing: most likely ``decays`` was forgotten."""
    takes = methods.KINDS[method.algorithm].takes
    add = "add decays = ['lr']" + (", ['gamma'] or ['lr', 'gamma']" if "beta" in takes else "")
    own = [(table, name) for table, values in given for name in values if name in methods.DECAY]
    for table, name in own:
        yield f"{place}.{table}.{name}: says how to decay, and {method.name} decays nothing; {add}, or leave it out"
    shared = {} if spec.tuning is None else spec.tuning.grid
    for name in sorted((methods.DECAY & takes & shared.keys()) - {name for _, name in own}):
        text = f"{place}: tuning.grid.{name} says how to decay, and {method.name} decays nothing"
        yield f"{text}; {add}, or move the axis to the grids of the methods that decay"


def _values(spec: Spec, method: Method, place: str) -> Iterator[str]:
    """Every value of every axis, on a model of one number."""
    axes = {**search.axes_of(spec, method), **search.ranges_of(spec, method)}
    empty = [name for name, values in axes.items() if not values]
    for name in empty:
        yield f"{place}: the axis {name!r} is empty; give it a value"
    if empty:
        return
    first = {name: values[0] for name, values in axes.items()}
    needed = methods.needed(method.algorithm, bool(method.decays)) - {*method.options, *axes}
    if needed:
        yield f"{place}: has no {', '.join(sorted(needed))}; fix it in options, or tune it in a grid"
        return
    for name, values in {"": [None], **axes}.items():
        for value in values:
            point = {**first, **({name: value} if name else {})}
            try:
                methods.try_out(method.algorithm, method.decays, {**method.options, **point})
            except (ValueError, TypeError, OverflowError) as error:
                yield f"{place}: {str(error)[:300]}"
                return


def _metrics(spec: Spec) -> Iterator[str]:
    known = metrics.names(spec.loss)
    for k, name in enumerate(spec.metrics):
        if name not in known or name.startswith("valid_"):
            usable = [one for one in known if not one.startswith("valid_")]
            hint = near(name, usable)
            yield f"metrics[{k}]={name!r}: is not measured in final runs with loss = {spec.loss!r}; {hint}"
    if spec.claim.metric not in spec.metrics:
        yield f"claim.metric={spec.claim.metric!r}: is not recorded; {near(spec.claim.metric, spec.metrics)}"
    if spec.tuning is not None:
        # The training part of "cleaning" is measured with its true labels, which are what is looked for.
        parts = {"valid_": "validation"} | ({} if spec.loss == "cleaning" else {"train_": "training"})
        seen = [name for name in known if name.startswith(tuple(parts))]
        if spec.tuning.metric not in seen:
            where = " or the ".join(parts.values())
            hint = near(spec.tuning.metric, seen)
            yield f"tuning.metric={spec.tuning.metric!r}: must be measured on the {where} part; {hint}"


def _classes(spec: Spec) -> Iterator[str]:
    """The AUC of more than two classes. (The losses that need two have their own check, of the data.)"""
    classes = find(spec.data.name).classes
    if spec.loss != "cross_entropy" or spec.data.binary or classes == 2:
        return
    asked = {f"metrics[{k}]": name for k, name in enumerate(spec.metrics)}
    if spec.tuning is not None:
        asked["tuning.metric"] = spec.tuning.metric
    for place, name in asked.items():
        part, _, what = name.partition("_")
        if what == "auc":
            yield (
                f"{place}={name!r}: is of two classes, and {spec.data.name} has {classes}; set data.binary = true, or "
                f"take {part}_accuracy or {part}_loss"
            )


def _direction(spec: Spec) -> Iterator[str]:
    if spec.tuning is None or spec.tuning.metric not in metrics.names(spec.loss):
        return
    metric, given = spec.tuning.metric, spec.tuning.direction
    best, better = ("maximize", "higher") if metrics.is_share(metric) else ("minimize", "lower")
    if given != best:
        yield f"tuning.direction={given!r}: a {better} {metric} is better; write direction = {best!r}"


def _halving(spec: Spec) -> Iterator[str]:
    first = None if spec.tuning is None else spec.tuning.first_look
    if spec.tuning is None or first is None:
        return
    if spec.tuning.pruner != "halving":
        yield f"tuning.first_look={first}: only successive halving looks; add pruner = 'halving', or leave it out"
    elif first >= spec.epochs:
        remedy = max(1, spec.epochs // 4)
        yield f"tuning.first_look={first}: must come before the last epoch, {spec.epochs}; try {remedy}"


def _budget(spec: Spec) -> Iterator[str]:
    if spec.tuning is None:
        tuned = [method.name for method in spec.methods if method.grid or method.finer]
        if tuned:
            yield f"methods: {', '.join(tuned)} have a grid, but there is no [tuning]; add one, or fix the values"
        return
    sizes = {
        method.name: math.prod(len(values) for values in search.axes_of(spec, method).values())
        for method in spec.methods
    }
    if max(sizes.values()) > _MOST_TRIALS and spec.tuning.sampler == "grid":
        yield f"tuning.grid: has {max(sizes.values())} points; take fewer, or sampler = 'tpe' with a budget"
    elif spec.tuning.sampler != "grid":
        if spec.tuning.budget is None:
            yield f"tuning.budget: is missing; sampler = {spec.tuning.sampler!r} needs the number of trials per method"
    elif spec.tuning.budget is not None:
        yield f"tuning.budget={spec.tuning.budget}: a grid is tried whole; leave it out, or take sampler = 'tpe'"
    elif len(set(sizes.values())) > 1:
        listed = ", ".join(f"{name} {size}" for name, size in sizes.items())
        yield (
            f"tuning: the grids have unequal numbers of trials ({listed}); every method must be tried as often: refine "
            "an axis with 'finer', or take sampler = 'tpe' with a budget"
        )
