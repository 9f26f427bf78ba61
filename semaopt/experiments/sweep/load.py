"""Results of stored sweeps, read from their output folders without training anything."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from semaopt.checks import select as known_checks
from semaopt.checks.result import CheckResult as Check
from semaopt.experiments.files import OutputError
from semaopt.experiments.fingerprint import environment
from semaopt.experiments.results import records
from semaopt.experiments.results.model import Finding, Results, Session
from semaopt.experiments.sweep.reproduction import position
from semaopt.experiments.sweep.store import STORE_FILE, Store


def results(folders: Sequence[Path], command: str) -> Results:
    """Return everything stored in these folders.

    Studies of one spec in several folders are joined. If an experiment was run at one scale with different specs, the
    last folder counts. Runs of one spec with different methods are all included, unless another finding has the same
    methods and studies and more.
    """
    findings: dict[tuple[str, str], list[Finding]] = {}
    checks: dict[str, Check] = {}
    notes: list[str] = []
    unfinished: dict[str, str] = {}
    for folder in folders:
        with open_store(folder) as store:
            for one in _findings(folder, store, notes, unfinished):
                known = findings.get((one.name, one.spec.scale), [])
                if known and known[0].spec != one.spec:
                    where = ", ".join(dict.fromkeys(study.folder for other in known for study in other.studies))
                    notes.append(f"{one.name}: skipped the results in {where}; the spec in {folder} is different")
                    known = []
                findings[one.name, one.spec.scale] = _merged(known, one)
            for content in store.records(records.CHECK).values():
                try:
                    check = records.read_check(content)
                except records.UnreadableError as error:
                    notes.append(f"{folder}: skipped an unreadable theorem check ({error})")
                    continue
                checks[check.name] = check
            if store.damaged:
                notes.append(f"{folder}: skipped {len(store.damaged)} damaged rows of the store")
    finished = {name for name, _ in findings}
    notes += [note for name, note in unfinished.items() if name not in finished]
    listed = sorted(
        _distinct([one for same in findings.values() for one in same]), key=lambda finding: position(finding.name)
    )
    runs, seconds = sum(one.origin.runs for one in listed), sum(one.origin.seconds for one in listed)
    scales = ", ".join(dict.fromkeys(one.spec.scale for one in listed))
    session = Session(command, 0.0, seconds, 0, runs, ())
    order = {name: k for k, name in enumerate(known_checks(None))}
    ordered = sorted(checks.values(), key=lambda check: order.get(check.name, len(order)))
    return Results(scales, tuple(listed), environment(), session, tuple(ordered), tuple(notes))


def open_store(folder: Path) -> Store:
    """Open the store of an output folder for reading."""
    path = folder / STORE_FILE
    if not os.path.isfile(path):  # unlike Path.is_file, False for a name that is too long
        raise OutputError(
            f"{folder} is not an output folder: it contains no {STORE_FILE}. Give a folder written by semaopt "
            "reproduce or semaopt run (its --out)."
        )
    return Store(path, read_only=True)


def _merged(known: Sequence[Finding], new: Finding) -> list[Finding]:
    """Join a finding with the one that has the same methods, and drop findings that are part of another."""
    for one in known:
        if _methods(one) == _methods(new):
            new = _joined(one, new)
    others = [one for one in known if not _is_part(one, new)]
    return others if any(_is_part(new, one) for one in others) else [*others, new]


def _joined(one: Finding, other: Finding) -> Finding:
    """Return the studies of both findings; raise an error if a study is in both with different numbers."""
    known = {study.number: study for study in one.studies}
    for study in other.studies:
        same = known.setdefault(study.number, study)
        if not records.same_numbers(same, study):
            raise OutputError(
                f"{one.name}: study {study.number + 1} has different results in {same.folder} and {study.folder}. A "
                "study must be the same wherever it is stored. Leave out the folder that is out of date."
            )
        one = one.updated(same)
    return one


def _is_part(one: Finding, other: Finding) -> bool:
    """Return whether the other finding has all methods and all studies of this one."""
    return _methods(one) <= _methods(other) and set(other.missing) <= set(one.missing)


def _methods(finding: Finding) -> set[str]:
    return {final.method.name for final in finding.finals}


def _distinct(findings: Sequence[Finding]) -> Iterator[Finding]:
    """Make the names unique, since they name files: append the scale, or a number for parts of one spec."""
    for one in findings:
        same = [other for other in findings if other.name == one.name]
        same_scale = [other for other in same if other.spec.scale == one.spec.scale]
        name = one.name if len(same) == len(same_scale) else f"{one.name}-{one.spec.scale}"
        name += f"-part{same_scale.index(one) + 1}" if len(same_scale) > 1 else ""
        yield replace(one, spec=one.spec.model_copy(update={"name": name}))


def _findings(folder: Path, store: Store, notes: list[str], unfinished: dict[str, str]) -> Iterator[Finding]:
    finished = set()
    for content in store.records(records.STUDY).values():
        try:
            one = records.read_finding(content, store.get, folder)
        except records.UnreadableError as error:
            notes.append(f"{folder}: skipped an unreadable record of a study ({error})")
            continue
        finished.add(one.spec.name)
        yield one
    for name in dict.fromkeys(row.experiment for row in store.rows()):
        if name not in finished:
            resume = f"semaopt run {name} --out {folder}"
            unfinished[name] = f"{name}: skipped, its runs in {folder} are not finished. Resume with: {resume}"
