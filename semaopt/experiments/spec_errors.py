"""What is wrong with a spec, where, and what to do about it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, get_args

from pydantic import BaseModel, ValidationError

from semaopt.experiments import data, methods, metrics, models

if TYPE_CHECKING:
    from semaopt.experiments.spec import Claim, Method, Spec

_SHOWN = 10
_MOST_TRIALS = 100_000
#: Models that are faster as one vectorised model; convolutions and molecules are faster in processes of their own.
VECTORISED = ("mlp", "logistic")


class SpecError(ValueError):
    """A spec that cannot be run; the text names the file, the place, the value, the rule and the remedy."""


def near(name: str, known: Iterable[str]) -> str:
    """A hint with the nearest known name.

    >>> near("epoch", ["epochs", "batch"])
    "did you mean 'epochs'? Known: batch, epochs"
    """
    known = sorted(known)
    close = get_close_matches(name, known, n=1, cutoff=0.5)
    return (f"did you mean {close[0]!r}? " if close else "") + f"Known: {', '.join(known)}"


def explain(error: ValidationError, root: type[BaseModel], where: str) -> str:
    """All problems that pydantic found, one a line."""
    problems = list(dict.fromkeys(_problem(one, root) for one in error.errors(include_url=False)))
    more = [f"and {len(problems) - _SHOWN} more"] if len(problems) > _SHOWN else []
    return "\n".join(f"{where}: {text}" for text in (*problems[:_SHOWN], *more))


def _problem(error: Any, root: type[BaseModel]) -> str:
    place, owner = _place(error["loc"], root)
    kind, value = error["type"], error["input"]
    if kind == "extra_forbidden":
        name = str(error["loc"][-1])
        return f"{place}: unknown key; {near(name, owner.model_fields)}"
    if kind == "missing":
        return f"{place}: is missing; every spec must say it"
    shown = repr(value) if len(repr(value)) <= 80 else f"{repr(value)[:77]}..."
    return f"{place}={shown}: {error['msg'][0].lower()}{error['msg'][1:]}; {_remedy(kind, error.get('ctx', {}))}"


def _remedy(kind: str, context: Any) -> str:
    if kind == "literal_error":
        return "take one of these"
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


def check(spec: Spec, where: str) -> None:
    """What needs more than one key to see."""
    problems = [
        *_names(spec),
        *_seeds(spec),
        *(text for k, method in enumerate(spec.methods) for text in _method(spec, method, f"methods[{k}]")),
    ]
    if not problems:
        problems = [*_metrics(spec), *_budget(spec), *_halving(spec)]
    if problems:
        raise SpecError("\n".join(f"{where}: {text}" for text in problems[:_SHOWN]))


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
        yield f"seeds: {both} are tuning and final seeds; what was chosen by a seed must not be judged by it"
    if spec.tuning is not None and not seeds.tuning:
        yield "seeds.tuning: is empty, but there is a [tuning]; give at least one seed"


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
    if not unknown:
        yield from _values(spec, method, place)


def _values(spec: Spec, method: Method, place: str) -> Iterator[str]:
    """Every value of every axis, on a model of one number."""
    axes = axes_of(spec, method)
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


def axes_of(spec: Spec, method: Method) -> dict[str, list[Any]]:
    """What is tuned for a method: the shared axes that it takes and does not fix, and its own."""
    if spec.tuning is None:
        return dict(method.grid)
    takes = methods.KINDS[method.algorithm].takes
    axes: dict[str, list[Any]] = {
        name: values for name, values in spec.tuning.grid.items() if name in takes and name not in method.options
    }
    for name, multiples in method.finer.items():
        if all(methods.is_number(value) for value in axes.get(name, [])):
            axes[name] = [methods.rounded(value * by) for value in axes.get(name, []) for by in multiples]
    return {**axes, **method.grid}


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
        for name in spec.tuning.extend:
            values = spec.tuning.grid.get(name, [])
            numbers = [float(value) for value in values if isinstance(value, (int, float)) and value > 0]
            if len(values) < 2 or len(numbers) < len(values) or numbers != sorted(set(numbers)):
                yield f"tuning.extend: {name!r} must be a shared axis of at least two rising positive numbers to grow"


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
        method.name: math.prod(len(values) for values in axes_of(spec, method).values()) for method in spec.methods
    }
    if max(sizes.values()) > _MOST_TRIALS and spec.tuning.sampler == "grid":
        yield f"tuning.grid: has {max(sizes.values())} points; take fewer, or sampler = 'tpe' with a budget"
    elif spec.tuning.sampler == "tpe":
        if spec.tuning.budget is None:
            yield "tuning.budget: is missing; sampler = 'tpe' needs the number of trials for each method"
    elif spec.tuning.budget is not None:
        yield f"tuning.budget={spec.tuning.budget}: a grid is tried whole; leave it out, or take sampler = 'tpe'"
    elif len(set(sizes.values())) > 1:
        listed = ", ".join(f"{name} {size}" for name, size in sizes.items())
        yield (
            f"tuning: the grids have unequal numbers of trials ({listed}); every method must be tried as often: refine "
            "an axis with 'finer', or take sampler = 'tpe' with a budget"
        )
