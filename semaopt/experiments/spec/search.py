"""Search spaces of a spec, and the rules for them: ranges, families, nested spaces, studies."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from semaopt.experiments.spec.errors import near
from semaopt.experiments.training import algorithms

if TYPE_CHECKING:
    from semaopt.experiments.spec.schema import Method, Spec

STUDY_STRIDE = 1000
"""Study k uses the seeds of the spec plus k times this."""


def axes_of(spec: Spec, method: Method) -> dict[str, list[Any]]:
    """Return the values to try for a method, from its own axes and from shared axes that it takes and does not fix."""
    if spec.tuning is None:
        return dict(method.grid)
    takes = algorithms.find(method.algorithm).takes
    axes: dict[str, list[Any]] = {
        name: values for name, values in spec.tuning.grid.items() if name in takes and name not in method.options
    }
    for name, multiples in method.multipliers.items():
        if all(algorithms.is_number(value) for value in axes.get(name, [])):
            axes[name] = [algorithms.rounded(value * by) for value in axes.get(name, []) for by in multiples]
    return {**axes, **method.grid}


def ranges_of(spec: Spec, method: Method) -> dict[str, list[float]]:
    """Return the axes that are searched between two numbers; the family's ranges replace the shared ones."""
    if spec.tuning is None:
        return {}
    family = spec.tuning.families.get(method.family or "")
    takes = algorithms.find(method.algorithm).takes
    found = {**spec.tuning.ranges, **({} if family is None else family.ranges)}
    own = {*method.options, *method.grid}
    return {name: ends for name, ends in found.items() if name in takes and name not in own}


def problems(spec: Spec) -> Iterator[str]:
    """Yield what is wrong with the search spaces, the seeds and the studies of a spec."""
    yield from _seeds(spec)
    yield from _ranges(spec)
    names = [method.name for method in spec.methods]
    families = {} if spec.tuning is None else spec.tuning.families
    for name in sorted(families.keys() - {method.family for method in spec.methods}):
        yield f"tuning.families.{name}: no method has this family. Set it in a method, or remove it."
    for k, method in enumerate(spec.methods):
        if method.family is not None and method.family not in families:
            hint = near(method.family, families) if families else "Add it"
            yield f"methods[{k}].family={method.family!r} is not one of tuning.families. {hint}."
        for name in method.multipliers.keys() & ranges_of(spec, method).keys():
            text = f"methods[{k}].multipliers.{name}: {name} is searched in a range, which multipliers do not change"
            yield f"{text}. Remove it, or list the values in tuning.grid."
        for name in method.contains:
            if name not in names or name == method.name:
                yield f"methods[{k}].contains: {name!r} is not another method. {near(name, names)}."


def _seeds(spec: Spec) -> Iterator[str]:
    seeds = spec.seeds
    used = sorted(set(seeds.rerank) & {*seeds.tuning, *seeds.final})
    if used:
        yield f"seeds.rerank: {used} are also tuning or final seeds. Use seeds that appear nowhere else."
    if seeds.rerank and spec.tuning is None:
        yield f"seeds.rerank={seeds.rerank} ranks trials again, but there is no [tuning]. Remove it, or add a [tuning]."
    large = [seed for seed in (*seeds.tuning, *seeds.rerank, *seeds.final) if seed >= STUDY_STRIDE]
    if spec.studies > 1 and large:
        yield f"seeds: {large} are invalid: with several studies, seeds must be below {STUDY_STRIDE}."


def _ranges(spec: Spec) -> Iterator[str]:
    tuning = spec.tuning
    if tuning is None:
        return
    listed = {"tuning.ranges": tuning.ranges}
    listed |= {f"tuning.families.{name}.ranges": family.ranges for name, family in tuning.families.items()}
    if tuning.sampler != "sobol":
        for place in (place for place, ranges in listed.items() if ranges):
            yield f"{place} needs sampler = 'sobol', not {tuning.sampler!r}. Use a grid, or change the sampler."
        return
    if tuning.extend:
        yield f"tuning.extend={tuning.extend}: Sobol points do not extend axes. Remove it, and use wide ranges."
    takes = frozenset[str]().union(*(algorithms.find(method.algorithm).takes for method in spec.methods))
    for place, ranges in listed.items():
        for name, ends in ranges.items():
            yield from _range(f"{place}.{name}", ends, name in tuning.grid)
            if name not in takes:
                yield f"{place}.{name}: no method here has such a hyper-parameter. {near(name, takes)}."


def _range(place: str, ends: list[float], in_grid: bool) -> Iterator[str]:
    if ends[0] >= ends[1]:
        yield f"{place}={ends} is invalid: the first number must be smaller than the second."
    if in_grid:
        yield f"{place} is also an axis of tuning.grid. Keep one of them."
