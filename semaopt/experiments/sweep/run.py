"""What a run is, and the key under which its result is kept."""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

import torch

import semaopt
from semaopt.experiments.files import digest
from semaopt.experiments.spec.schema import Method, Spec
from semaopt.experiments.training import libauc, metrics

Purpose = Literal["tune", "final"]


@dataclass(frozen=True)
class Machine:
    """Where and in which numbers a run is computed."""

    device: str = "cpu"
    dtype: str = "float32"
    ranks: int = 1
    """Processes that train one model together; they change the order of sums."""

    def options(self) -> list[str]:
        """Those of the command line that are not the default.

        >>> Machine("cuda", "float64").options(), Machine().options()
        (['--device cuda', '--dtype float64'], [])
        """
        named = {"--device": (self.device, Machine.device), "--dtype": (self.dtype, Machine.dtype)}
        return [f"{name} {value}" for name, (value, usual) in named.items() if value != usual]


@dataclass(frozen=True)
class Run:
    """One model trained from one seed with one setting: all that the numbers depend on besides code and versions."""

    experiment: str
    """A name for people; it is not part of the key."""
    method: str
    purpose: Purpose
    """A tuning run does not see the test part, a final one not the validation part."""
    seed: int
    training: Mapping[str, Any]
    """Data, model, loss, batch, epochs and metrics."""
    algorithm: Mapping[str, Any]
    """Its name, what it decays, and all its hyper-parameters."""
    until: int
    """The epoch after which it stops, at most ``training["epochs"]``."""
    machine: Machine = field(default_factory=Machine)
    together: str = ""
    """A digest of the runs that share its unit: vectorised sums round as their company has it."""

    @cached_property
    def config(self) -> dict[str, Any]:
        """What the key is made from, as plain values."""
        named = {
            name: getattr(self, name) for name in ("purpose", "seed", "training", "algorithm", "until", "together")
        }
        return {**named, "machine": asdict(self.machine)}

    @cached_property
    def key(self) -> str:
        """The SHA-256 of configuration, code and versions: equal keys, equal numbers."""
        return digest([self.config, fingerprint()])

    @cached_property
    def path(self) -> str:
        """As the key, without the epoch at which it stops: runs of equal path are the same up to the earlier end."""
        return digest([{**self.config, "until": None}, fingerprint()])

    @property
    def values(self) -> dict[str, Any]:
        """All hyper-parameters."""
        return dict(self.algorithm["values"])

    def row(self) -> dict[str, Any]:
        """What the store keeps beside the result."""
        named = {name: getattr(self, name) for name in ("key", "experiment", "method", "purpose", "seed", "config")}
        return {**named, "program": fingerprint()}

    def __str__(self) -> str:
        values = " ".join(f"{name}={value}" for name, value in sorted(self.values.items()))
        return f"{self.experiment}, {self.method}, {self.purpose} seed {self.seed} ({values})"


@dataclass(frozen=True)
class Unit:
    """What a worker is handed: one run, or several that are trained as one vectorised model."""

    runs: tuple[Run, ...]
    folder: Path
    """Of its checkpoint."""
    every: float = 10.0
    """Seconds between checkpoints; a unit that takes less has none, and is done anew if it is cut off."""

    @property
    def key(self) -> str:
        """Of its checkpoint."""
        return digest([run.path for run in self.runs])

    @property
    def epochs(self) -> int:
        """To be trained."""
        return self.runs[0].until

    def __str__(self) -> str:
        more = f" and {len(self.runs) - 1} more" if len(self.runs) > 1 else ""
        return f"{self.runs[0]}{more}"


def make(
    spec: Spec,
    method: Method,
    values: Mapping[str, Any],
    *,
    seed: int,
    purpose: Purpose,
    machine: Machine,
    until: int | None = None,
) -> Run:
    """The run of a method with these values of what is tuned."""
    wanted = [*spec.metrics, *([spec.tuning.metric] if spec.tuning is not None else [])]
    training = {
        "data": spec.data.model_dump(),
        "model": spec.model.model_dump(),
        "loss": spec.loss,
        "batch": spec.batch,
        "epochs": spec.epochs,
        "metrics": metrics.for_purpose(wanted, purpose),
    }
    algorithm = {"name": method.algorithm, "decays": list(method.decays), "values": {**method.options, **values}}
    return Run(spec.name, method.name, purpose, seed, training, algorithm, until or spec.epochs, machine)


def units(runs: Sequence[Run], together: int, folder: Path, every: float) -> list[Unit]:
    """Work units: one for each run, or ``together`` neighbours of one method in one."""
    if together == 1:
        return [Unit((run,), folder, every) for run in runs]
    parts: list[list[Run]] = []
    for run in runs:
        if parts and len(parts[-1]) < together and _compatible(parts[-1][0], run):
            parts[-1].append(run)
        else:
            parts.append([run])
    found = []
    for part in parts:
        mark = digest([run.path for run in part]) if len(part) > 1 else ""
        found.append(Unit(tuple(replace(run, together=mark) for run in part), folder, every))
    return found


def _compatible(a: Run, b: Run) -> bool:
    """Whether two runs can be one unit: they may differ in their seeds and in the rates of their groups."""
    shared = ("every", "factor", "growth", "proximal")
    alike = ("method", "purpose", "training", "until", "machine")
    if a.algorithm["name"] == libauc.PESG:
        return False
    staged_g0 = a.algorithm["name"] != "PESAdaGrad" or a.values.get("g0") == b.values.get("g0")
    return (
        all(getattr(a, name) == getattr(b, name) for name in alike)
        and all(a.values.get(name) == b.values.get(name) for name in shared)
        and staged_g0
    )


#: The folders and modules that compute a run's numbers. Editing any other file keeps every stored run.
COMPUTING = (
    *("estimator.py", "scalings.py", "projections.py", "iterates.py", "ensemble.py"),
    *("kernels", "optimizers", "baselines", "schedules", "losses", "hypergradient"),
    *("experiments/training", "experiments/data", "experiments/models"),
)


@lru_cache(maxsize=1)
def fingerprint() -> dict[str, str]:
    """What a stored run depends on besides its configuration: reusing it after an update would mix two programs."""
    root = Path(semaopt.__file__).parent
    code = hashlib.sha256()
    # Of the compiled step what was built, not its sources: wheels have none, and in a checkout they may be newer. Equal
    # sources and an equal compiler give equal bytes, so building it again keeps the keys.
    places = [root / name for name in COMPUTING]
    files = [path for place in places for path in (place.rglob("*") if place.is_dir() else (place,))]
    for path in sorted(path for path in files if path.suffix in {".py", ".so"} and path.is_file()):
        code.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    known = environment()
    names = ("torch", "numpy", "scikit-learn", "rdkit", "torch-geometric", "libauc")
    versions = {name: known[name] for name in names if name in known}
    step = "compiled" if semaopt.kernels.available() else "foreach"
    return {"code": code.hexdigest(), **versions, "step": step, "machine": platform.machine()}


def environment() -> dict[str, str]:
    """Versions and machine: what the numbers may depend on besides the configuration."""
    found = {"semaopt": semaopt.__version__, "torch": torch.__version__}
    for name in ("numpy", "scipy", "scikit-learn", "matplotlib", "optuna", "rdkit", "torch-geometric", "libauc", "ray"):
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
