"""Result folders read back: their studies and checks from the store alone, without training anything."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from semaopt.checks import select as known_checks
from semaopt.checks.result import Result as Check
from semaopt.experiments.data import DataError
from semaopt.experiments.data.files import root_folder
from semaopt.experiments.data.load import find
from semaopt.experiments.files import OutputError, digest
from semaopt.experiments.fingerprint import environment
from semaopt.experiments.results import records
from semaopt.experiments.results.model import Finding, Origin, Results, Session
from semaopt.experiments.spec.errors import SpecError
from semaopt.experiments.spec.schema import Spec, load, shipped
from semaopt.experiments.sweep import study
from semaopt.experiments.sweep.engines.local import Here
from semaopt.experiments.sweep.reproduction import GROUPS
from semaopt.experiments.sweep.runner import Place, Runner, Silent, spent
from semaopt.experiments.sweep.store import Row, Store
from semaopt.experiments.training import loop
from semaopt.experiments.training.run import Machine, Result, Unit

_SCALES = ("paper", "small", "quick")


def results(folders: Sequence[Path], command: str) -> Results:
    """All that lies in these folders; of two studies of one experiment at one scale that of the later folder.

    Studies of one spec with different methods are all shown, but for those whose methods another has as well.
    """
    findings: dict[tuple[str, str], list[Finding]] = {}
    checks: dict[str, Check] = {}
    notes: list[str] = []
    unfinished: dict[str, str] = {}
    for folder in folders:
        with opened(folder) as store:
            for one in _findings(folder, store, notes, unfinished):
                findings[one.name, one.spec.scale] = _joined(findings.get((one.name, one.spec.scale), []), one)
            for content in store.records(records.CHECK).values():
                try:
                    check = records.check(content)
                except records.UnreadableError as error:
                    notes.append(f"{folder}: a theorem check cannot be read ({error})")
                    continue
                checks[check.name] = check
            if store.damaged:
                notes.append(f"{folder}: {len(store.damaged)} damaged rows of the store were left out")
    there = {name for name, _ in findings}
    notes += [note for name, note in unfinished.items() if name not in there]
    listed = sorted(_distinct([one for same in findings.values() for one in same]), key=_place)
    runs, seconds = sum(one.origin.runs for one in listed), sum(one.origin.seconds for one in listed)
    scales = ", ".join(dict.fromkeys(one.spec.scale for one in listed))
    session = Session(command, 0.0, seconds, 0, runs, ())
    order = {name: k for k, name in enumerate(known_checks(None))}
    ordered = sorted(checks.values(), key=lambda check: order.get(check.name, len(order)))  # stored as they were done
    return Results(scales, tuple(listed), environment(), session, tuple(ordered), tuple(notes))


def opened(folder: Path) -> Store:
    """The store of a result folder, to be read only."""
    path = folder / study.STORE
    if not os.path.isfile(path):  # a name too long is no file
        raise OutputError(
            f"{folder}: is no result folder, it holds no {study.STORE}; give a folder that semaopt reproduce or run "
            "has written (its --out)"
        )
    return Store(path, read_only=True)


def _place(finding: Finding) -> tuple[int, str]:
    group = finding.name.partition("-")[0]
    return GROUPS.index(group) if group in GROUPS else len(GROUPS), finding.name


def _joined(known: Sequence[Finding], new: Finding) -> list[Finding]:
    """Those of the spec of the new one that have a method which no other of them has; of two equal ones the new."""
    same = [one for one in known if one.spec == new.spec and not _methods(one) <= _methods(new)]
    return same if any(_methods(new) < _methods(one) for one in same) else [*same, new]


def _methods(finding: Finding) -> set[str]:
    return {final.method.name for final in finding.finals}


def _distinct(findings: Sequence[Finding]) -> Iterator[Finding]:
    """Names are those of files: one that is there at two scales gets the scale added, else a number."""
    for one in findings:
        same = [other for other in findings if other.name == one.name]
        alike = [other for other in same if other.spec.scale == one.spec.scale]
        name = one.name if len(same) == len(alike) else f"{one.name}-{one.spec.scale}"
        name += f"-part{alike.index(one) + 1}" if len(alike) > 1 else ""
        yield replace(one, spec=one.spec.model_copy(update={"name": name}))


def _findings(folder: Path, store: Store, notes: list[str], unfinished: dict[str, str]) -> Iterator[Finding]:
    known = set()
    for content in store.records(records.STUDY).values():
        try:
            one = records.finding(store, content)
        except records.UnreadableError as error:
            notes.append(f"{folder}: a record of a study cannot be read ({error})")
            continue
        known.add(one.spec.name)
        yield one
    rows = list(store.rows())
    for name in dict.fromkeys(row.experiment for row in rows):
        if name not in known:
            yield from _replayed(folder, store, name, rows, unfinished)


# A store that has no record of a study: it was written by an older version, or the study is not finished. The study is
# then done once more with a runner that only looks up, by configuration, whatever program made the runs.


class _MissingRunError(Exception):
    """A run that a study asks for is not stored; the argument says how many were."""


class _LookUp(Runner):
    """Gives stored results by configuration; whoever asks for another ends the study."""

    def __init__(self, known: dict[str, Result], place: Place) -> None:
        super().__init__(None, Here(), Silent(), place)
        self.known, self.found = known, 0

    def results(self, work: Sequence[Unit]) -> list[Result]:
        """See :class:`Runner`."""
        keys = [_key(run.config) for unit in work for run in unit.runs]
        self.found += sum(key in self.known for key in keys)
        if not all(key in self.known for key in keys):
            raise _MissingRunError(self.found)
        return [self.known[key] for key in keys]


def _key(config: dict[str, Any]) -> str:
    """Of a configuration, without the company of vectorised runs: its digest holds that of the program."""
    return digest({**config, "vectorized_with": None})


def _replayed(
    folder: Path, store: Store, name: str, rows: Sequence[Row], unfinished: dict[str, str]
) -> Iterator[Finding]:
    written = _written(folder, name)
    candidates = [*([written[0]] if written is not None else []), *_shipped(name)]
    programs = list(dict.fromkeys(digest(row.program) for row in reversed(rows) if row.experiment == name))
    most, scale = 0, candidates[0].scale if candidates else ""
    for program in programs:  # the newest first; two programs are not mixed in one figure
        own = [row for row in rows if digest(row.program) == program]
        known = {_key(row.config): row for row in own}
        stored = {key: result for key, row in known.items() if (result := store.get(row.key)) is not None}
        for spec in candidates:
            runner = _LookUp(stored, Place(folder, Machine(**own[-1].config["machine"])))
            one = study.Study(spec, runner)
            try:
                tuning, finals = one.work()
            except _MissingRunError as missing:
                most, scale = max((most, scale), (int(missing.args[0]), spec.scale))
                continue
            used = {_key(run.config) for unit in one.touched.values() for run in unit.runs}
            facts = written[1] if written is not None else _facts(spec)
            again = f"semaopt run {name} --scale {spec.scale}"
            made = {key: value for key, value in own[-1].program.items() if key != "code"}
            origin = Origin(again, again, made, *spent([row for key, row in known.items() if key in used]))
            yield Finding(spec, facts, finals, tuning, origin)
            return
    if not candidates:
        unfinished[name] = f"{name}: is no shipped spec and {folder} holds no record of it; semaopt run it again there"
    else:
        go_on = f"semaopt run {name} --scale {scale} --out {folder}"
        unfinished[name] = (
            f"{name}: is not finished in {folder} by the rules of this version, and left out; to go on: {go_on}"
        )


def _shipped(name: str) -> list[Spec]:
    found = []
    for scale in _SCALES if name in shipped() else ():
        try:
            found.append(load(name, scale))
        except SpecError:  # it has no such scale
            continue
    return found


def _written(folder: Path, name: str) -> tuple[Spec, dict[str, Any]] | None:
    """The spec and the facts of the data in ``results.json``, if the older version had come so far."""
    try:
        content = json.loads((folder / "results.json").read_text())["experiments"][name]
        return Spec.model_validate(content["spec"]), dict(content["data"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _facts(spec: Spec) -> dict[str, Any]:
    """Of the data, if they can be read without a download."""
    try:
        if find(spec.data.name).missing(root_folder()):
            return {}
        return loop.task(spec.data).describe()
    except (DataError, ModuleNotFoundError):
        return {}
