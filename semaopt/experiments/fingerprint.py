"""The code, versions and hardware that the numbers of a run depend on besides its configuration."""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Sequence
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

import semaopt

#: The folders and modules that compute a run's numbers. Editing any other file keeps every stored run.
COMPUTING = (
    *("estimator.py", "scalings.py", "projections.py", "iterates.py", "ensemble.py", "samplers.py"),
    *("kernels", "optimizers", "baselines", "schedules", "losses", "hypergradient", "diagnostics"),
    *("experiments/training", "experiments/data", "experiments/models"),
)
_VERSIONS = ("torch", "numpy", "scikit-learn", "rdkit", "torch-geometric", "libauc")
_PACKAGES = ("numpy", "scipy", "scikit-learn", "matplotlib", "optuna", "rdkit", "torch-geometric", "libauc", "ray")


@lru_cache(maxsize=1)
def fingerprint() -> dict[str, str]:
    """Return the hash of the computing code, the versions it uses and the kind of machine."""
    known = environment()
    versions = {name: known[name] for name in _VERSIONS if name in known}
    step = "compiled" if semaopt.kernels.available() else "foreach"
    return {"code": code_digest(COMPUTING), **versions, "step": step, "machine": platform.machine()}


def code_digest(places: Sequence[str]) -> str:
    """Return the hash of the code in these folders and modules of the package."""
    root = Path(semaopt.__file__).parent
    code = hashlib.sha256()
    # The compiled step counts as built, not as C source: wheels contain no sources, and in a checkout the sources may
    # be newer than the library. Equal sources and an equal compiler give equal bytes, so a rebuild keeps the keys.
    folders = [root / name for name in places]
    files = [path for place in folders for path in (place.rglob("*") if place.is_dir() else (place,))]
    for path in sorted(path for path in files if path.suffix in {".py", ".so", ".dll"} and path.is_file()):
        code.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return code.hexdigest()


def environment() -> dict[str, str]:
    """Return the versions of the installed packages and a description of the machine, for the report."""
    found = {"semaopt": semaopt.__version__, "torch": torch.__version__}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # an extra that is not installed
            continue
    return {
        **found,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cores": str(os.cpu_count()),
    }
