"""What an experiment is: one TOML file, checked before anything runs.

A file has the protocol at the paper's scale; a table under ``[scales]`` says what differs at another scale. Methods are
overridden by their name: ``[scales.quick.methods.adam]``.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from semaopt.experiments.data.settings import Data
from semaopt.experiments.models.settings import Model
from semaopt.experiments.settings import Seed, Settings, Value
from semaopt.experiments.spec.errors import SpecError, explain
from semaopt.experiments.spec.rules import check

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FIGURES = Path(__file__).parent / "shipped"
_LARGEST = 2**20  # bytes of a file

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,79}$")]
Text = Annotated[str, Field(max_length=4000)]

_Minimizing = Literal["ASA"]
_MinMax = Literal["PDAda", "PDSM", "SGDA", "EpochSGDA", "PESSGDA", "PESAdaGrad", "PESG"]
_Beyond = Literal["SMB", "SOBA", "StocBiO", "TTSA", "BSA", "SCMA"]


class Seeds(Settings):
    """Of the tuning and of the final runs; none is both."""

    tuning: list[Seed] = Field(default_factory=list)
    final: list[Seed] = Field(min_length=1, max_length=1000)
    rerank: list[Seed] = Field(default_factory=list)
    """Additional seeds that rank the best quarter of the trials again; the winner is selected from that quarter."""


class Method(Settings):
    """An algorithm with its fixed hyper-parameters, what it decays, and what is tuned for it alone."""

    name: Name
    label: Annotated[str, Field(min_length=1, max_length=80)]
    algorithm: Literal[_Minimizing, _MinMax, _Beyond]
    decays: list[Literal["lr", "gamma"]] = Field(default_factory=list)
    """What is multiplied by ``factor`` every ``every`` epochs. The methods with stages of their own need none."""
    family: str | None = None
    """The entry of ``tuning.families`` whose ranges the method uses."""
    contains: list[str] = Field(default_factory=list)
    """Methods that are special cases of this one: its search space must contain theirs."""
    options: dict[str, Value] = Field(default_factory=dict)
    grid: dict[str, list[Value]] = Field(default_factory=dict)
    finer: dict[str, list[float]] = Field(default_factory=dict)
    """Multiples of each value of an axis that all methods share: gives a method with fewer axes as many trials."""


Range = Annotated[list[Annotated[float, Field(gt=0)]], Field(min_length=2, max_length=2)]
"""The lowest and the highest value of an axis."""


class Family(Settings):
    """Search ranges of a group of methods; they replace shared ranges of the same name."""

    ranges: dict[str, Range]


class Tuning(Settings):
    """How hyper-parameters are chosen, alike for every method, never by the test part."""

    metric: str
    """On the validation part; on the training part where the claim is about that."""
    direction: Literal["minimize", "maximize"]
    grid: dict[str, list[Value]] = Field(default_factory=dict)
    """The axes that all methods with such a hyper-parameter share."""
    ranges: dict[str, Range] = Field(default_factory=dict)
    """Axes that ``sampler = "sobol"`` searches between two numbers on a logarithmic scale."""
    families: dict[str, Family] = Field(default_factory=dict)
    """Ranges for groups of methods, for instance plain and adaptive ones; see ``Method.family``."""
    sampler: Literal["grid", "tpe", "sobol"] = "grid"
    """All combinations, tree-structured Parzen estimators, or scrambled Sobol points. Each study and each data set has
    its own scrambling; methods that share an axis share their coordinates on it."""
    budget: int | None = Field(default=None, ge=1, le=100_000)
    """Trials for each method; a grid has as many as it has points."""
    extend: list[str] = Field(default_factory=list)
    """Axes that grow by a value, for all methods, while the best value of one lies on the edge."""
    rounds: int = Field(default=2, ge=0, le=20)
    """How often they may."""
    pruner: Literal["none", "halving"] = "none"
    first_look: int | None = Field(default=None, ge=1, le=100_000)
    """The epoch after which halving first gives trials up; else a sixteenth of all. Early values may mislead it."""
    seed: Seed = 0


class Claim(Settings):
    """What the paper says, or we expect of a recorded metric: an order of methods, or who beats whom."""

    text: Text
    metric: str
    order: list[str] = Field(default_factory=list)
    """From the worst to the best: each is better than all before it."""
    beats: dict[str, list[str]] = Field(default_factory=dict)
    """Each method with those that it is better than, where the claim is no order."""
    source: Literal["paper", "ours"] = "paper"
    """Who says so."""


class Spec(Settings):
    """One experiment at one scale."""

    name: Name
    title: Annotated[str, Field(min_length=1, max_length=200)]
    about: Text = ""
    scale: str = "paper"
    claim: Claim
    loss: Literal["cross_entropy", "auc", "cleaning", "average_precision"]
    batch: int = Field(ge=1)
    epochs: int = Field(ge=1, le=100_000)
    metrics: list[str] = Field(min_length=1)
    data: Data
    model: Model
    seeds: Seeds
    methods: list[Method] = Field(min_length=1, max_length=100)
    tuning: Tuning | None = None
    together: int = Field(default=1, ge=1, le=1000)
    """Settings of one method that are trained at once as one vectorised model, each from all seeds; 1: one by one."""

    studies: int = Field(default=1, ge=1, le=100)
    """Independent repetitions of tuning and final runs, each with its own points, seeds and splits of the data.
    With several studies, intervals are over studies; with one, over seeds."""
    final_epochs: int = Field(default=3, ge=1, le=1000)
    """Comparisons use the mean over the last epochs of a run, this many."""

    def method(self, name: str) -> Method:
        """The method of this name."""
        return {method.name: method for method in self.methods}[name]


def shipped() -> list[str]:
    """The names of the specs that come with the package."""
    return sorted(path.stem for path in FIGURES.glob("*.toml"))


def find(source: str | Path) -> Path:
    """The file of a path, or of the name of a shipped spec."""
    path = Path(source)
    if str(source) in shipped() and not path.exists():
        return FIGURES / f"{source}.toml"
    return path


def load(source: str | Path, scale: str | None = None) -> Spec:
    """Read and check a spec.

    Args:
        source: a file, or the name of a shipped one.
        scale: one of the file's ``[scales]``; by default the file as it stands, which is the scale ``paper``.

    >>> load("figure1-digits", scale="quick").epochs
    30
    """
    path = find(source)
    raw = _read(path)
    scales = raw.pop("scales", {})
    if not isinstance(scales, dict) or not all(isinstance(table, dict) for table in scales.values()):
        raise SpecError(f"{path}: scales: must hold tables; write [scales.quick] and what differs there")
    if scale not in (None, "paper", *scales):
        known = ", ".join(dict.fromkeys([*scales, "paper"]))
        raise SpecError(f"{path}: scale {scale!r} is unknown; there is: {known} (the file as it stands)")
    found = build({"name": path.stem, **raw}, path)
    for name, table in scales.items():  # all are checked, so that a mistake shows before its scale is wanted
        merged = merge({"name": path.stem, **raw}, table, f"{path}: scales.{name}")
        at_scale = build({**merged, "scale": name}, path, f" (at scale {name})")
        found = at_scale if name == scale else found
    return found


def build(raw: Mapping[str, Any], path: str | Path = "spec", where: str = "") -> Spec:
    """A spec from plain values."""
    try:
        spec = Spec.model_validate(raw)
    except ValidationError as error:
        raise SpecError(explain(error, Spec, f"{path}{where}")) from error
    check(spec, f"{path}{where}")
    return spec


def _read(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            data = file.read(_LARGEST + 1)
    except (OSError, ValueError) as error:  # ValueError: a null byte in the path
        why = error.strerror if isinstance(error, OSError) else error
        raise SpecError(
            f"{path}: cannot be read ({why}); give a file, or a shipped spec: {', '.join(shipped())}"
        ) from error
    if len(data) > _LARGEST:
        raise SpecError(f"{path}: is larger than {_LARGEST} bytes, so it is no spec; a spec has some 50 lines")
    try:
        return tomllib.loads(data.decode())
    except RecursionError as error:
        raise SpecError(f"{path}: is nested too deeply; a spec has tables of tables at most") from error
    except ValueError as error:  # not TOML, or not UTF-8
        raise SpecError(f"{path}: is not TOML: {error}") from error


def merge(base: Mapping[str, Any], over: Mapping[str, Any], place: str = "spec") -> dict[str, Any]:
    """``base`` with the values of ``over``: tables key by key, methods by name, all else replaced."""
    merged = copy.deepcopy(dict(base))
    for key, value in over.items():
        if key == "methods" and isinstance(value, dict):
            merged[key] = _merge_methods(merged.get(key), value, place)
        elif key in _TABLES and isinstance(value, dict) and isinstance(merged.get(key), dict):
            other_model = key == "model" and "name" in value  # has other options
            merged[key] = dict(value) if other_model else merge(merged[key], value, f"{place}.{key}")
        else:
            merged[key] = copy.deepcopy(value)
    return merged


_TABLES = ("data", "model", "seeds", "tuning", "claim", "grid", "options")


def _merge_methods(methods: Any, over: Mapping[str, Any], place: str) -> Any:
    if not isinstance(methods, list) or not all(isinstance(method, dict) for method in methods):
        return methods  # its own error will be told
    names = [method.get("name") for method in methods]
    for name, table in over.items():
        if name not in names or not isinstance(table, dict):
            known = ", ".join(map(str, names))
            raise SpecError(f"{place}.methods.{name}: must be a table that names a method; there is: {known}")
    return [merge(method, over.get(str(method.get("name")), {}), place) for method in methods]
