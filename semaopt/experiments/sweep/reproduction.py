"""The parts of ``semaopt reproduce``: all theorem checks and all shipped specs whose data are available."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass

from semaopt import checks
from semaopt.experiments.data import DataError
from semaopt.experiments.data.files import root_folder
from semaopt.experiments.data.load import find
from semaopt.experiments.spec.schema import Method, Spec, load, shipped
from semaopt.experiments.training import algorithms, objectives

SCALES = ("quick", "small", "paper")
CHECKS = "checks"
#: Groups of specs in the order of the report: the paper's figures first.
GROUPS = ("figure1", "figure2", "figure3", "beta-study", "stability", "peers", "balanced", "bilevel", "compositional")
_MOLECULES = ("bbbp", "bace")


@dataclass(frozen=True)
class Parts:
    """The specs and theorem checks of a reproduction, and notes about what was skipped."""

    specs: tuple[Spec, ...]
    checks: tuple[str, ...] = ()
    quick: bool = True
    """Whether to run the short versions of the checks."""
    notes: tuple[str, ...] = ()


def figures() -> list[str]:
    """Return the names of all shipped specs in the order of the report."""
    return sorted(shipped(), key=position)


def position(name: str) -> tuple[int, str]:
    """Return the sort key of a spec in the report; specs outside the groups come last."""
    group = group_of(name)
    return GROUPS.index(group) if group else len(GROUPS), name


def group_of(name: str) -> str:
    """Return the group of a spec, or an empty string if it has none.

    >>> group_of("beta-study-digits"), group_of("mine")
    ('beta-study', '')
    """
    return next((group for group in GROUPS if name.startswith(f"{group}-")), "")


def names() -> list[str]:
    """Return the valid values of ``--only``."""
    return [CHECKS, *GROUPS, *figures()]


def select(scale: str, only: str | None = None) -> Parts:
    """Return the checks and specs to run.

    Specs whose data or packages are missing are skipped with a note; if ``only`` names such a spec, an error is raised.
    """
    wanted = [name for name in figures() if only in (None, name, group_of(name))]
    specs = [load(name, scale) for name in wanted]
    missing = {spec.name: command for spec in specs if (command := _remedy(spec)) is not None}
    if only in missing:
        raise DataError(f"{only} cannot run: its data or packages are missing. Get them with: {missing[only]}")
    notes = []
    if missing:
        commands = " && ".join(dict.fromkeys(missing.values()))
        notes.append(f"Skipped (data or packages not found): {', '.join(missing)}. Get them with: {commands}")
    chosen = tuple(checks.select(None, scale == "quick")) if only in (None, CHECKS) else ()
    available = tuple(spec for spec in specs if spec.name not in missing)
    return Parts(available, chosen, scale == "quick", tuple(notes))


def _remedy(spec: Spec) -> str | None:
    """Return the command that makes a spec runnable here, or None if it is runnable."""
    if find(spec.data.name).missing(root_folder()):
        return f"semaopt data fetch {spec.data.name}"
    if spec.data.name in _MOLECULES and importlib.util.find_spec("rdkit") is None:
        return "pip install 'semaopt[molecules]'"
    commands = (missing(spec, method) for method in spec.methods)
    return next((command for command in commands if command is not None), None)


def missing(spec: Spec, method: Method) -> str | None:
    """Return the command that installs a package that a method needs, or None if nothing is missing."""
    return algorithms.find(method.algorithm).missing() or objectives.find(spec.loss).missing(method.objective)
