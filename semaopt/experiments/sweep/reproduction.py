"""What ``semaopt reproduce`` consists of: all checks, and all shipped specs whose data are there."""

from __future__ import annotations

import importlib.util

from semaopt import checks
from semaopt.experiments.data import DataError
from semaopt.experiments.data.files import root_folder
from semaopt.experiments.data.load import find
from semaopt.experiments.spec.schema import Spec, load, shipped
from semaopt.experiments.sweep.theorems import Parts
from semaopt.experiments.training import algorithms

SCALES = ("quick", "small", "paper")
CHECKS = "checks"
#: The order of the page: the paper's figures, then what is beyond it.
GROUPS = ("figure1", "figure2", "figure3", "stability", "peers", "bilevel", "compositional")
_MOLECULES = ("bbbp", "bace")


def figures() -> list[str]:
    """All shipped specs, in the order of the page."""
    return sorted(shipped(), key=lambda name: (GROUPS.index(_group(name)), name))


def _group(name: str) -> str:
    return name.partition("-")[0]


def names() -> list[str]:
    """What ``--only`` takes."""
    return [CHECKS, *GROUPS, *figures()]


def select(scale: str, only: str | None = None) -> Parts:
    """The checks and the specs; those without their data are left out, unless they are asked for by name."""
    wanted = [name for name in figures() if only in (None, name, _group(name))]
    specs = [load(name, scale) for name in wanted]
    lacking = {spec.name: command for spec in specs if (command := _remedy(spec)) is not None}
    if only in lacking:
        raise DataError(f"{only}: what it needs is not here, and reproduce downloads nothing; first: {lacking[only]}")
    notes = []
    if lacking:
        commands = " && ".join(dict.fromkeys(lacking.values()))
        notes.append(f"Left out, for what they need is not here: {', '.join(lacking)}. To have them: {commands}")
    chosen = tuple(checks.select(None, scale == "quick")) if only in (None, CHECKS) else ()
    kept = tuple(spec for spec in specs if spec.name not in lacking)
    return Parts(kept, chosen, scale == "quick", tuple(notes))


def _remedy(spec: Spec) -> str | None:
    """The command after which a spec can be run here; None if it can be run now."""
    if find(spec.data.name).missing(root_folder()):
        return f"semaopt data fetch {spec.data.name}"
    if spec.data.name in _MOLECULES and importlib.util.find_spec("rdkit") is None:
        return "pip install 'semaopt[molecules]'"
    commands = (algorithms.find(method.algorithm).missing() for method in spec.methods)
    return next((command for command in commands if command is not None), None)
