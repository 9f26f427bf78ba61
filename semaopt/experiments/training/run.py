"""A training run: its configuration, its key and its result."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from typing import Any, Literal

from pydantic import Field

from semaopt.experiments.data.catalogue import SETS
from semaopt.experiments.data.settings import Data
from semaopt.experiments.files import digest
from semaopt.experiments.fingerprint import fingerprint
from semaopt.experiments.models.settings import Model
from semaopt.experiments.plugins import is_plugin, source_hash
from semaopt.experiments.settings import Settings, Value

Purpose = Literal["tune", "final"]


class Algorithm(Settings):
    """An algorithm with all its hyper-parameters."""

    name: str
    decays: list[Literal["lr", "gamma"]] = Field(default_factory=list)
    """Rates that are multiplied by ``factor`` every ``every`` epochs."""
    values: dict[str, Value] = Field(default_factory=dict)


@dataclass(frozen=True)
class Machine:
    """The device, the dtype and the number of processes of a run."""

    device: str = "cpu"
    dtype: str = "float32"
    ranks: int = 1
    """Processes that train one model together; their number changes the order of sums."""

    def options(self) -> list[str]:
        """Return the command-line options that differ from the defaults.

        >>> Machine("cuda", "float64").options(), Machine().options()
        (['--device cuda', '--dtype float64'], [])
        """
        named = {"--device": (self.device, Machine.device), "--dtype": (self.dtype, Machine.dtype)}
        return [f"{name} {value}" for name, (value, default) in named.items() if value != default]


@dataclass(frozen=True)
class Run:
    """One model trained from one seed with one setting.

    The numbers of a run depend on :attr:`config`, on the code and on the versions. ``experiment`` and ``method`` are
    names for people and not part of the key.
    """

    experiment: str
    method: str
    purpose: Purpose
    """A tuning run never reads the test part, a final run never the validation part."""
    seed: int
    data: Data
    model: Model
    loss: str
    algorithm: Algorithm
    batch: int
    epochs: int
    metrics: tuple[str, ...]
    until: int
    """The epoch after which it stops, at most ``epochs``; a pruned tuning run stops early."""
    measured: int = 1
    """A tuning run is measured after this many last epochs, a final run after every epoch."""
    objective: dict[str, Value] = field(default_factory=dict)
    """Options of the objective, for instance the score of an AUC loss."""
    positives: float | None = None
    """The share of positives in each batch; None draws batches uniformly."""
    machine: Machine = field(default_factory=Machine)
    vectorized_with: str = ""
    """A digest of the runs in its unit: the rounding of vectorized sums depends on them. Empty if trained alone."""

    @cached_property
    def config(self) -> dict[str, Any]:
        """Everything the key is made from except code and versions, as plain values."""
        names = [one.name for one in fields(self) if one.name not in ("experiment", "method")]
        return {name: _plain(getattr(self, name)) for name in names}

    @cached_property
    def key(self) -> str:
        """The SHA-256 of configuration, code and versions: runs of equal keys give equal numbers."""
        return digest([self.config, fingerprint(), self.plugins])

    @cached_property
    def path(self) -> str:
        """The key without ``until``: runs of equal path agree up to the epoch at which the shorter one stops."""
        return digest([{**self.config, "until": None}, fingerprint(), self.plugins])

    @cached_property
    def plugins(self) -> dict[str, str]:
        """The plug-ins of the run, each with the hash of its source file, and the version of the data if it has one."""
        names = (self.data.name, self.model.name, self.loss, self.algorithm.name)
        found = {name: source_hash(name) for name in names if is_plugin(name)}
        version = SETS[self.data.name].version() if self.data.name in SETS else ""
        return {**found, self.data.name: version} if version else found

    @property
    def values(self) -> dict[str, Any]:
        """All hyper-parameters."""
        return dict(self.algorithm.values)

    def row(self) -> dict[str, Any]:
        """Return the columns that the store keeps next to the result."""
        named = {name: getattr(self, name) for name in ("key", "experiment", "method", "purpose", "seed", "config")}
        return {**named, "program": fingerprint()}

    def __str__(self) -> str:
        values = " ".join(f"{name}={value}" for name, value in sorted(self.values.items()))
        return f"{self.experiment}, {self.method}, {self.purpose} seed {self.seed} ({values})"


def _plain(value: Any) -> Any:
    if isinstance(value, Settings):
        return value.model_dump()
    return asdict(value) if isinstance(value, Machine) else value


@dataclass(frozen=True)
class Unit:
    """The work of one job: one run, or several that are trained as one vectorized model.

    Attributes:
        runs: the runs.
        beginning: the key of a checkpoint that it shares with other units; empty if it shares none.
        branch: the epoch in which the shared checkpoint is saved, by the first of these units.
        leads: whether it is the first, which trains from scratch.
    """

    runs: tuple[Run, ...]
    beginning: str = ""
    branch: int = 0
    leads: bool = False

    @property
    def key(self) -> str:
        """The key of its own checkpoint."""
        return digest([run.path for run in self.runs])

    @property
    def epochs(self) -> int:
        """The epoch after which training stops."""
        return self.runs[0].until

    @property
    def may_continue(self) -> bool:
        """Whether it stops before the last epoch, so that a later unit may resume it."""
        return self.epochs < self.runs[0].epochs

    def __str__(self) -> str:
        more = f" and {len(self.runs) - 1} more" if len(self.runs) > 1 else ""
        return f"{self.runs[0]}{more}"


@dataclass(frozen=True)
class Result:
    """The outcome of a run.

    Attributes:
        curves: for each metric its value after each epoch (of a tuning run, after the last ones); NaN once it diverged.
        seconds: compute time.
        status: "done" or "diverged".
        notes: messages for people about what happened during the run; they are not stored.
    """

    curves: dict[str, list[float]]
    seconds: float
    status: str = "done"
    notes: tuple[str, ...] = field(default=(), compare=False)

    def last(self, metric: str) -> float:
        """Return the value after the last epoch."""
        return self.curves[metric][-1]

    def end(self, metric: str, epochs: int) -> float:
        """Return the mean over the last ``epochs`` epochs; NaN if the run diverged.

        >>> Result({"loss": [9.0, 2.0, 1.0]}, 0.1).end("loss", 2)
        1.5
        """
        values = self.curves[metric][-epochs:]
        return sum(values) / len(values)
