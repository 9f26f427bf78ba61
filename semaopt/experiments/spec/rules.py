"""Rules of a spec that involve more than one key."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from semaopt.experiments import data, models, plugins
from semaopt.experiments.data.load import find as find_data
from semaopt.experiments.models.build import VECTORIZED
from semaopt.experiments.models.build import find as find_model
from semaopt.experiments.spec import nesting, search
from semaopt.experiments.spec.errors import SHOWN, SpecError, near
from semaopt.experiments.training import algorithms, metrics, objectives
from semaopt.experiments.training.algorithms import DECAY
from semaopt.experiments.training.objectives import Objective

if TYPE_CHECKING:
    from semaopt.experiments.spec.schema import Claim, Method, Spec

_MOST_TRIALS = 100_000


def validate(spec: Spec, where: str) -> None:
    """Raise a SpecError that lists everything wrong with a spec whose single keys are valid."""
    problems = [*_names(spec), *_seeds(spec)]
    if not problems:
        objective = objectives.find(spec.loss)
        problems = [
            *_vectorize(spec, objective),
            *_axes(spec),
            *search.problems(spec),
            *(text for k, method in enumerate(spec.methods) for text in _method(spec, method, f"methods[{k}]")),
        ]
    if not problems:
        objective = objectives.find(spec.loss)
        problems = [
            *_metrics(spec, objective),
            *_classes(spec),
            *_direction(spec, objective),
            *_budget(spec),
            *_halving(spec),
            *_nesting(spec),
        ]
    if problems:
        raise SpecError("\n".join(f"{where}: {text}" for text in problems[:SHOWN]))


def _names(spec: Spec) -> Iterator[str]:
    """Names that are unknown, or plug-ins that cannot be used."""
    given: list[tuple[str, str, str, tuple[str, ...], Callable[[str], Any]]] = [
        ("data.name", spec.data.name, "data set", data.NAMES, find_data),
        ("model.name", spec.model.name, "model", models.NAMES, find_model),
        ("loss", spec.loss, "loss", objectives.NAMES, objectives.find),
    ]
    given += [
        (f"methods[{k}].algorithm", method.algorithm, "algorithm", algorithms.NAMES, algorithms.find)
        for k, method in enumerate(spec.methods)
    ]
    for place, name, kind, known, resolve in given:
        if not plugins.is_plugin(name):
            if name not in known:
                yield f"{place}={name!r} is an unknown {kind}. {near(name, known)}."
            continue
        try:
            resolve(name)
        except plugins.PluginError as error:
            yield f"{place}: {error}"
    names = [method.name for method in spec.methods]
    for name in dict.fromkeys(name for name in names if names.count(name) > 1):
        yield f"methods: the name {name!r} is used twice. Give every method its own name."
    labels = [method.label for method in spec.methods]
    for label in dict.fromkeys(label for label in labels if labels.count(label) > 1):
        yield f"methods: the label {label!r} is used twice. Give every method its own label."
    yield from _claim(spec.claim, names)
    axis = spec.claim.stability
    without = [method.name for method in spec.methods if axis is not None and axis not in method.options]
    if without:
        yield f"claim.stability={axis!r}: {', '.join(without)} have no such option. Set it for every method."


def _claim(claim: Claim, names: list[str]) -> Iterator[str]:
    if claim.order and claim.beats:
        yield "claim has both order and beats. Keep one of them."
    yield from _groups(claim, names)
    comparable = [*names, *claim.groups]
    for key, pairs in (("beats", claim.beats), ("controls", claim.controls)):
        for name, others in pairs.items():
            for one in (name, *others):
                if one not in comparable:
                    yield f"claim.{key}: {one!r} is not a method. {near(one, comparable)}."
            if name in others:
                yield f"claim.{key}: {name!r} cannot beat itself. Remove it from its own list."
    for name in claim.order:
        if name not in names:
            yield f"claim.order: {name!r} is not a method. {near(name, names)}."


def _groups(claim: Claim, names: list[str]) -> Iterator[str]:
    """Unknown methods in groups and as the target."""
    for key, group in claim.groups.items():
        if key in names:
            yield f"claim.groups.{key}: a method has this name. Choose another one."
        for one in group.methods:
            if one not in names:
                yield f"claim.groups.{key}: {one!r} is not a method. {near(one, names)}."
    if claim.target is not None and claim.target not in names:
        yield f"claim.target={claim.target!r} is not a method. {near(claim.target, names)}."


def _seeds(spec: Spec) -> Iterator[str]:
    seeds = spec.seeds
    for name in ("tuning", "rerank", "final"):
        listed = getattr(seeds, name)
        if len(set(listed)) < len(listed):
            yield f"seeds.{name}={listed} has a seed twice. Use every seed once."
    both = sorted(set(seeds.tuning) & set(seeds.final))
    if both:
        yield f"seeds: {both} are both tuning and final seeds, which biases the final results. Use other final seeds."
    if spec.tuning is not None and not seeds.tuning:
        yield "seeds.tuning is empty, but the spec has a [tuning] table. Give at least one tuning seed."
    if spec.data.split == "scaffold" and spec.studies > 1:
        text = f"data.split='scaffold' is invalid with studies = {spec.studies}: each study needs a split of its own"
        yield f"{text}, and there is only one split by scaffold. Use split = 'random', or studies = 1."


def _vectorize(spec: Spec, objective: type[Objective]) -> Iterator[str]:
    if spec.vectorize == 1:
        return
    if spec.model.name not in VECTORIZED:
        known = " and ".join(VECTORIZED)
        yield f"vectorize={spec.vectorize}: only {known} can be vectorized, not {spec.model.name}. Remove it."
    if not objective.vectorizes:
        yield f"vectorize={spec.vectorize}: runs with loss = {spec.loss!r} cannot be vectorized. Remove it."


def _axes(spec: Spec) -> Iterator[str]:
    """Shared axes that no method takes, and axes that cannot be extended."""
    if spec.tuning is None:
        return
    taken = frozenset[str]().union(*(algorithms.find(method.algorithm).takes for method in spec.methods))
    for name in spec.tuning.grid:
        if name not in taken:
            yield f"tuning.grid.{name}: no method of this spec has this hyper-parameter. {near(name, taken)}."
    for name in spec.tuning.extend:
        values = spec.tuning.grid.get(name, [])
        numbers = [float(value) for value in values if isinstance(value, (int, float)) and value > 0]
        if name not in spec.tuning.grid:
            hint = near(name, spec.tuning.grid) if spec.tuning.grid else "Add it there"
            yield f"tuning.extend: {name!r} is not an axis of tuning.grid. {hint}."
        elif len(values) < 2 or len(numbers) < len(values) or numbers != sorted(set(numbers)):
            rule = "only axes with at least two increasing positive numbers can be extended"
            yield f"tuning.extend: {name!r} has the values {values}; {rule}. Change the values, or do not extend it."


def _method(spec: Spec, method: Method, place: str) -> Iterator[str]:
    info, objective = algorithms.find(method.algorithm), objectives.find(spec.loss)
    if not objective.admits(info):
        fitting = [name for name in algorithms.NAMES if objective.admits(algorithms.find(name))]
        kind = f"{info.problem} problems" + (" on finite sums" if info.finite_sum else "")
        text = f"{place}.algorithm={method.algorithm!r} is for {kind}"
        yield f"{text}; loss = {spec.loss!r} is a {objective.problem} problem. Use {', '.join(fitting)}."
        return
    yield from _objective(method, objective, place)
    if method.decays and info.staged:
        yield f"{place}.decays={method.decays}: {method.algorithm} has stages of its own. Remove decays."
    given: list[tuple[str, Mapping[str, Any]]] = [
        ("options", method.options),
        ("grid", method.grid),
        ("multipliers", method.multipliers),
    ]
    unknown = [
        (f"{place}.{table}.{name}", name)
        for table, values in given
        for name in values
        if name not in info.takes and not info.any_name
    ]
    for where, name in unknown:
        yield f"{where}: {method.algorithm} has no such hyper-parameter. {near(name, info.takes)}."
    unused = [] if method.decays or info.staged else list(_unused_decay(spec, method, given, place))
    yield from unused
    if not unknown and not unused:
        yield from _values(spec, method, place)


def _objective(method: Method, objective: type[Objective], place: str) -> Iterator[str]:
    """Options that the objective does not have, and batches that it cannot balance."""
    for name, value in method.objective.items():
        if name not in objective.options:
            known = near(name, objective.options) if objective.options else "It has none; remove it"
            yield f"{place}.objective.{name}: the loss has no such option. {known}."
        elif value not in objective.options[name]:
            yield f"{place}.objective.{name}={value!r} is invalid. Use one of: {', '.join(objective.options[name])}."
    if method.positives is not None and not (objective.two_classes and objective.problem == "min-max"):
        yield f"{place}.positives={method.positives}: only the AUC loss takes balanced batches. Remove it."


def _unused_decay(spec: Spec, method: Method, given: list[tuple[str, Mapping[str, Any]]], place: str) -> Iterator[str]:
    """Decay values of a method without decays: ``decays`` was probably forgotten."""
    takes = algorithms.find(method.algorithm).takes
    add = "Add decays = ['lr']" + (", ['gamma'] or ['lr', 'gamma']" if "beta" in takes else "")
    own = [(table, name) for table, values in given for name in values if name in DECAY]
    for table, name in own:
        yield f"{place}.{table}.{name} describes a decay, but {method.name} decays nothing. {add}, or remove it."
    shared = {} if spec.tuning is None else spec.tuning.grid
    for name in sorted((DECAY & takes & shared.keys()) - {name for _, name in own}):
        text = f"{place}: tuning.grid.{name} describes a decay, but {method.name} decays nothing"
        yield f"{text}. {add}, or move the axis to the grids of the methods that decay."


def _values(spec: Spec, method: Method, place: str) -> Iterator[str]:
    """Errors that the algorithm raises for a value of an axis, found by constructing it on a few numbers."""
    ranges = search.ranges_of(spec, method)
    axes = {**search.axes_of(spec, method), **ranges}
    empty = [name for name, values in axes.items() if not values]
    for name in empty:
        yield f"{place}: the axis {name!r} is empty. Give it at least one value."
    if empty:
        return
    first = {name: values[0] for name, values in axes.items()}
    needed = algorithms.find(method.algorithm).needed(method.decays) - {*method.options, *axes}
    if needed:
        yield f"{place}: {', '.join(sorted(needed))} is missing. Set it in options, or tune it in a grid."
        return
    project = objectives.find(spec.loss).projection()

    def problem(value: Mapping[str, Any]) -> str:
        try:
            algorithms.validate(method.algorithm, method.decays, {**method.options, **first, **value}, project)
        except (ValueError, TypeError, OverflowError) as error:
            return str(error)[:300] or type(error).__name__
        return ""

    tried: list[dict[str, Any]] = [{}, *({name: value} for name, values in axes.items() for value in values)]
    text = next(filter(None, (problem(value) for value in tried)), "")
    if text:
        yield f"{place}: {text}"
        return
    for name, (low, high) in ranges.items():
        text = problem({name: algorithms.rounded(low + (high - low) / math.pi)})  # between two whole numbers
        if text:
            ends = f"{low:g} to {high:g}"
            yield f"{place}: {name} cannot be searched from {ends} ({text.rstrip('.')}). List its values in a grid."
    if method.decays:
        yield from _late_decay(spec, {**{name: [value] for name, value in method.options.items()}, **axes}, place)


def _late_decay(spec: Spec, values: Mapping[str, Any], place: str) -> Iterator[str]:
    """Decays that come after the last epoch."""
    every = max(values["every"])
    if every > spec.epochs and set(values["factor"]) != {1.0}:
        text = f"every={every} is greater than epochs = {spec.epochs}, so no rate decays"
        yield f"{place}: {text}. Use a smaller value, or factor = 1.0."


def _metrics(spec: Spec, objective: type[Objective]) -> Iterator[str]:
    known = objective.metric_names()
    for k, name in enumerate(spec.metrics):
        if name not in known or name.startswith("valid_"):
            usable = [one for one in known if not one.startswith("valid_")]
            text = f"metrics[{k}]={name!r} is not measured in final runs with loss = {spec.loss!r}"
            yield f"{text}. {near(name, usable)}."
    if spec.claim.metric not in spec.metrics:
        text = f"claim.metric={spec.claim.metric!r} is not among the recorded metrics"
        yield f"{text}. {near(spec.claim.metric, spec.metrics)}."
    if spec.tuning is not None:
        parts = objective.tuning_parts
        seen = [name for name in known if name.startswith(tuple(f"{part}_" for part in parts))]
        if spec.tuning.metric not in seen:
            where = " or ".join({"valid": "validation", "train": "training"}[part] for part in parts)
            text = f"tuning.metric={spec.tuning.metric!r} is not a metric of the {where} part"
            yield f"{text}. {near(spec.tuning.metric, seen)}."


def _classes(spec: Spec) -> Iterator[str]:
    """Binary metrics of data with more classes; the data themselves are validated before the first run."""
    classes = find_data(spec.data.name).classes
    if spec.data.binary or classes in (2, None) or objectives.find(spec.loss).two_classes:
        return
    asked = {f"metrics[{k}]": name for k, name in enumerate(spec.metrics)}
    if spec.tuning is not None:
        asked["tuning.metric"] = spec.tuning.metric
    for place, name in asked.items():
        part, _, what = name.partition("_")
        if what in metrics.OF_SCORES and metrics.OF_SCORES[what].binary:
            text = f"{place}={name!r} is defined for two classes, but {spec.data.name} has {classes}"
            yield f"{text}. Set data.binary = true, or use {part}_accuracy or {part}_loss."


def _direction(spec: Spec, objective: type[Objective]) -> Iterator[str]:
    if spec.tuning is None or spec.tuning.metric not in objective.metric_names():
        return
    metric, given = spec.tuning.metric, spec.tuning.direction
    best, better = ("maximize", "higher") if metrics.is_share(metric) else ("minimize", "lower")
    if given != best:
        yield f"tuning.direction={given!r} is wrong: a {better} {metric} is better. Write direction = {best!r}."


def _nesting(spec: Spec) -> Iterator[str]:
    for k, method in enumerate(spec.methods):
        for name in method.contains:
            yield from nesting.problems(spec, method, spec.method(name), f"methods[{k}].contains")


def _halving(spec: Spec) -> Iterator[str]:
    first = None if spec.tuning is None else spec.tuning.first_rung
    if spec.tuning is None or first is None:
        return
    if spec.tuning.pruner != "halving":
        text = f"tuning.first_rung={first} applies to successive halving only"
        yield f"{text}. Add pruner = 'halving', or remove first_rung."
    elif first >= spec.epochs:
        remedy = max(1, spec.epochs // 4)
        yield f"tuning.first_rung={first} must be less than epochs = {spec.epochs}. Try {remedy}."


def _budget(spec: Spec) -> Iterator[str]:
    if spec.tuning is None:
        tuned = [method.name for method in spec.methods if method.grid or method.multipliers]
        if tuned:
            text = f"methods: {', '.join(tuned)} have a grid, but the spec has no [tuning] table"
            yield f"{text}. Add one, or move the values to options."
        return
    sizes = {
        method.name: math.prod(len(values) for values in search.axes_of(spec, method).values())
        for method in spec.methods
    }
    if max(sizes.values()) > _MOST_TRIALS and spec.tuning.sampler == "grid":
        text = f"tuning.grid has {max(sizes.values())} points, more than {_MOST_TRIALS}"
        yield f"{text}. Use fewer values, or sampler = 'tpe' with a budget."
    elif spec.tuning.sampler != "grid":
        if spec.tuning.budget is None:
            text = f"tuning.budget is missing: sampler = {spec.tuning.sampler!r} needs the number of trials per method"
            yield f"{text}. Try budget = 20."
        elif spec.tuning.sampler == "sobol":
            yield from _too_few_points(spec, spec.tuning.budget, sizes)
    elif spec.tuning.budget is not None:
        text = f"tuning.budget={spec.tuning.budget}: a grid is always searched completely"
        yield f"{text}. Remove the budget, or use sampler = 'tpe'."
    elif len(set(sizes.values())) > 1:
        listed = ", ".join(f"{name} {size}" for name, size in sizes.items())
        yield (
            f"tuning: the methods have unequal numbers of trials ({listed}), which is unfair. Add values "
            "to an axis with 'multipliers', or use sampler = 'tpe' with a budget."
        )


def _too_few_points(spec: Spec, budget: int, sizes: Mapping[str, int]) -> Iterator[str]:
    """Methods without a range, which try the same points again instead of as many as the others."""
    for k, method in enumerate(spec.methods):
        if not search.ranges_of(spec, method) and sizes[method.name] < budget:
            text = f"methods[{k}]: the space of {method.name} has {sizes[method.name]} points, fewer than the budget"
            yield f"{text} of {budget} trials, which is unfair. Add values to its grid, or search a range."
