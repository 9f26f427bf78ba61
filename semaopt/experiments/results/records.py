"""What a store keeps of a finished study beside its runs: enough to show it again, also by another version."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from semaopt.checks.result import CheckResult as Check
from semaopt.checks.result import Curve, Figure, Line
from semaopt.experiments.files import canonical
from semaopt.experiments.results.model import Final, Finding, Origin
from semaopt.experiments.spec.schema import Spec
from semaopt.experiments.sweep.store import Store
from semaopt.experiments.sweep.trials import Extension, Trial, Tuning

STUDY, CHECK = "study", "check"


class UnreadableError(ValueError):
    """A record that this version does not understand, or whose runs are gone."""


def keep(store: Store, finding: Finding, keys: Sequence[Sequence[str]]) -> None:
    """Keep a finished study; ``keys`` are those of the final runs of each method.

    A study of some of the methods does not replace one of all of them.
    """
    finals = [
        {"method": final.method.name, "runs": own, "chosen": None if final.chosen is None else asdict(final.chosen)}
        for final, own in zip(finding.finals, keys, strict=True)
    ]
    content = {
        "spec": finding.spec.model_dump(),
        "facts": dict(finding.facts),
        "finals": finals,
        "tuning": None if finding.tuning is None else _tuning(finding.tuning),
        "origin": asdict(finding.origin),
    }
    key = f"{STUDY}:{finding.name}@{finding.spec.scale}"
    if len(finding.finals) < len(finding.spec.methods):
        key += f":{','.join(final.method.name for final in finding.finals)}"
    store.keep(STUDY, finding.name, key, content)


def _tuning(tuning: Tuning) -> dict[str, Any]:
    return {
        "grid": tuning.grid,
        "trials": {name: [asdict(trial) for trial in trials.values()] for name, trials in tuning.trials.items()},
        "extensions": [asdict(extension) for extension in tuning.extensions],
        "on_edge": [[axis, end, list(names)] for (axis, end), names in tuning.on_edge.items()],
    }


def finding(store: Store, content: Mapping[str, Any]) -> Finding:
    """The study of a record, its final runs read from the store."""
    try:
        spec = Spec.model_validate(content["spec"])
        finals = tuple(_final(store, spec, one) for one in content["finals"])
        kept = content["tuning"]
        tuning = None if kept is None else _read_tuning(kept)
        return Finding(spec, content["facts"], finals, tuning, Origin(**content["origin"]))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UnreadableError(f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}") from error


def _final(store: Store, spec: Spec, one: Mapping[str, Any]) -> Final:
    runs = []
    for key in one["runs"]:
        result = store.get(key)
        if result is None:
            raise UnreadableError(f"run {key[:12]} is missing or damaged")
        runs.append(result)
    if len(runs) != len(spec.seeds.final):
        raise UnreadableError(f"{len(runs)} runs for {len(spec.seeds.final)} seeds")
    return Final(spec.method(one["method"]), None if one["chosen"] is None else _trial(one["chosen"]), tuple(runs))


def _read_tuning(kept: Mapping[str, Any]) -> Tuning:
    trials = {name: [_trial(one) for one in listed] for name, listed in kept["trials"].items()}
    return Tuning(
        dict(kept["grid"]),
        {name: {canonical(trial.values): trial for trial in listed} for name, listed in trials.items()},
        [Extension(one["axis"], one["value"], tuple(one["because"])) for one in kept["extensions"]],
        {(axis, end): tuple(names) for axis, end, names in kept["on_edge"]},
    )


def _trial(one: Mapping[str, Any]) -> Trial:
    measured = tuple(math.nan if value is None else float(value) for value in one["measured"])
    passed = {int(rung): tuple(map(float, values)) for rung, values in one.get("passed", {}).items()}
    return Trial(one["method"], one["values"], measured, one["sign"], one["pruned"], passed, one.get("round"))


def check(content: Mapping[str, Any]) -> Check:
    """A theorem check from what ``Result.plain`` gave."""
    try:
        lines = [Line(**{**one, **_numbers(one, "measured", "promised")}) for one in content["lines"]]
        drawn = content["figure"]
        figure = Figure(**{**drawn, "curves": [_curve(one) for one in drawn["curves"]]})
        named = (content["name"], content["theorem"])
        return Check(*named, lines, figure, content["settings"], float(content["seconds"]))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UnreadableError(f"{type(error).__name__}: {error}") from error


def _numbers(one: Mapping[str, Any], *names: str) -> dict[str, float]:
    """JSON has null for what is not finite."""
    return {name: math.nan if one[name] is None else float(one[name]) for name in names}


def _curve(one: Mapping[str, Any]) -> Curve:
    def floats(values: Sequence[Any] | None) -> list[float] | None:
        return None if values is None else [math.nan if value is None else float(value) for value in values]

    x, y = floats(one["x"]), floats(one["y"])
    return Curve(one["label"], x or [], y or [], floats(one["low"]), floats(one["high"]))
