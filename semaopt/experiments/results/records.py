"""Records of findings and checks: plain values in the store that later versions can show again."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from semaopt.checks.result import CheckResult as Check
from semaopt.checks.result import Curve, Figure, Line
from semaopt.experiments.files import canonical
from semaopt.experiments.results.model import Final, Finding, Origin, StudyResult
from semaopt.experiments.results.trials import Extension, Trial, Tuning
from semaopt.experiments.spec.schema import Spec
from semaopt.experiments.training.run import Result

STUDY, CHECK = "study", "check"


class UnreadableError(ValueError):
    """A record that this version cannot read, or whose runs are missing."""


def key(spec: Spec, methods: Iterable[str]) -> str:
    """Return the key of the record of a spec with these methods; all of them and some of them have different keys."""
    names = list(methods)
    found = f"{STUDY}:{spec.name}@{spec.scale}"
    return found if len(names) == len(spec.methods) else f"{found}:{','.join(names)}"


def to_record(finding: Finding) -> dict[str, Any]:
    """Convert a finding to plain values; its final runs are stored under their keys."""
    studies = [
        {
            "number": study.number,
            "finals": [{**_selected(final), "runs": final.keys} for final in study.finals],
            "tuning": None if study.tuning is None else _tuning(study.tuning),
            "origin": asdict(study.origin),
        }
        for study in finding.studies
    ]
    return {"spec": finding.spec.model_dump(), "facts": dict(finding.facts), "studies": studies}


def same_numbers(one: StudyResult, other: StudyResult) -> bool:
    """Return whether two studies have the same trials, selections and curves; times do not count."""

    def numbers(study: StudyResult) -> str:
        runs = [[[run.status, run.curves] for run in final.runs] for final in study.finals]
        tuning = None if study.tuning is None else _tuning(study.tuning)
        return canonical([[_selected(final) for final in study.finals], runs, tuning])

    return numbers(one) == numbers(other)


def _selected(final: Final) -> dict[str, Any]:
    return {"method": final.method.name, "chosen": None if final.chosen is None else asdict(final.chosen)}


def _tuning(tuning: Tuning) -> dict[str, Any]:
    return {
        "grid": tuning.grid,
        "trials": {name: [asdict(trial) for trial in trials.values()] for name, trials in tuning.trials.items()},
        "extensions": [asdict(extension) for extension in tuning.extensions],
        "spaces": tuning.spaces,
        "on_edge": [[axis, end, list(names)] for (axis, end), names in tuning.on_edge.items()],
    }


def read_finding(content: Mapping[str, Any], result: Callable[[str], Result | None], folder: Path) -> Finding:
    """Return the finding of a record in an output folder; ``result`` looks up a run by its key."""
    try:
        spec = Spec.model_validate(content["spec"])
        studies = tuple(_study(spec, one, result, folder) for one in content["studies"])
        return Finding(spec, content["facts"], studies)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UnreadableError(f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}") from error


def _study(spec: Spec, one: Mapping[str, Any], result: Callable[[str], Result | None], folder: Path) -> StudyResult:
    finals = tuple(_final(spec, final, result) for final in one["finals"])
    tuning = None if one["tuning"] is None else _read_tuning(one["tuning"])
    return StudyResult(finals, tuning, one["number"], Origin(**one["origin"]), str(folder))


def _final(spec: Spec, one: Mapping[str, Any], result: Callable[[str], Result | None]) -> Final:
    runs = []
    for run_key in one["runs"]:
        found = result(run_key)
        if found is None:
            raise UnreadableError(f"run {run_key[:12]} is missing or damaged")
        runs.append(found)
    if len(runs) != len(spec.seeds.final):
        raise UnreadableError(f"{len(runs)} runs for {len(spec.seeds.final)} seeds")
    chosen = None if one["chosen"] is None else _trial(one["chosen"])
    return Final(spec.method(one["method"]), chosen, tuple(runs), tuple(one["runs"]))


def _read_tuning(content: Mapping[str, Any]) -> Tuning:
    trials = {name: [_trial(one) for one in listed] for name, listed in content["trials"].items()}
    return Tuning(
        dict(content["grid"]),
        {name: {canonical(trial.values): trial for trial in listed} for name, listed in trials.items()},
        [Extension(one["axis"], one["value"], tuple(one["because"])) for one in content["extensions"]],
        dict(content["spaces"]),
        {(axis, end): tuple(names) for axis, end, names in content["on_edge"]},
    )


def _trial(one: Mapping[str, Any]) -> Trial:
    passed = {int(rung): tuple(map(float, values)) for rung, values in one["passed"].items()}
    return Trial(**{**one, "measured": tuple(_floats(one["measured"])), "passed": passed})


def read_check(content: Mapping[str, Any]) -> Check:
    """Rebuild a theorem check from the values that ``Result.plain`` returned for it."""
    try:
        lines = [Line(**{**one, **_numbers(one, "measured", "promised")}) for one in content["lines"]]
        figure = Figure(**{**content["figure"], "curves": [_curve(one) for one in content["figure"]["curves"]]})
        named = (content["name"], content["theorem"])
        return Check(*named, lines, figure, content["settings"], float(content["seconds"]))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UnreadableError(f"{type(error).__name__}: {error}") from error


def _numbers(one: Mapping[str, Any], *names: str) -> dict[str, float]:
    return dict(zip(names, _floats([one[name] for name in names]), strict=True))


def _curve(one: Mapping[str, Any]) -> Curve:
    low, high = (None if one[name] is None else _floats(one[name]) for name in ("low", "high"))
    return Curve(one["label"], _floats(one["x"]), _floats(one["y"]), low, high)


def _floats(values: Sequence[Any]) -> list[float]:
    """Convert numbers; JSON has null for those that are not finite."""
    return [math.nan if value is None else float(value) for value in values]
