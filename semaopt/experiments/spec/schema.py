"""The schema of an experiment: one TOML file that is validated before anything runs.

A file contains the protocol at the paper's scale. A table under ``[scales]`` holds what differs at another scale;
methods are overridden by name, ``[scales.quick.methods.adam]``, or all at once, ``[scales.quick.methods."*"]``. With
``base = "figure2-digits"`` a file contains only what differs from another spec, and ``keep = ["pdada"]`` selects
methods of the base.
"""

from __future__ import annotations

import copy
import os
import sys
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from semaopt.experiments.data.settings import Data
from semaopt.experiments.models.settings import Model
from semaopt.experiments.settings import Seed, Settings, Value
from semaopt.experiments.spec.errors import SpecError, explain
from semaopt.experiments.spec.rules import validate

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FIGURES = Path(__file__).parent / "shipped"
_LARGEST = 2**20  # bytes of a file

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,79}$")]
Text = Annotated[str, Field(max_length=4000)]


class Seeds(Settings):
    """The seeds of the tuning runs and of the final runs; no seed is in both."""

    tuning: list[Seed] = Field(default_factory=list)
    final: list[Seed] = Field(min_length=1, max_length=1000)
    rerank: list[Seed] = Field(default_factory=list)
    """Additional seeds that rank the best quarter of the trials again; the winner is selected from that quarter."""


class Method(Settings):
    """An algorithm with its fixed hyper-parameters, its decays, and the axes that are tuned for it alone."""

    name: Name
    label: Annotated[str, Field(min_length=1, max_length=80)]
    algorithm: str
    """An algorithm of the package, a class of torch.optim, or ``"package.module:name"``."""
    decays: list[Literal["lr", "gamma"]] = Field(default_factory=list)
    """Rates that are multiplied by ``factor`` every ``every`` epochs. Methods with stages of their own need none."""
    family: str | None = None
    """The entry of ``tuning.families`` whose ranges the method uses."""
    contains: list[str] = Field(default_factory=list)
    """Methods that are special cases of this one: its search space must contain theirs."""
    options: dict[str, Value] = Field(default_factory=dict)
    objective: dict[str, Value] = Field(default_factory=dict)
    """Options of the objective, for instance ``{ score = "sigmoid" }`` of the AUC."""
    positives: float | None = Field(default=None, gt=0, lt=1)
    """The share of positives in each batch, as LibAUC's DualSampler sets it; by default batches are uniform."""
    grid: dict[str, list[Value]] = Field(default_factory=dict)
    multipliers: dict[str, list[float]] = Field(default_factory=dict)
    """Multiples of each value of a shared axis, so that a method with fewer axes gets equally many trials."""


Range = Annotated[list[Annotated[float, Field(gt=0)]], Field(min_length=2, max_length=2)]
"""The lowest and the highest value of an axis."""


class Family(Settings):
    """Search ranges of a group of methods; they replace shared ranges of the same name."""

    ranges: dict[str, Range]


class Tuning(Settings):
    """The choice of hyper-parameters: the same procedure for every method, never by the test part."""

    metric: str
    """On the validation part, or on the training part if the claim is about training."""
    direction: Literal["minimize", "maximize"]
    grid: dict[str, list[Value]] = Field(default_factory=dict)
    """Axes shared by all methods that have the hyper-parameter."""
    ranges: dict[str, Range] = Field(default_factory=dict)
    """Axes that ``sampler = "sobol"`` searches between two numbers on a logarithmic scale."""
    families: dict[str, Family] = Field(default_factory=dict)
    """Ranges for groups of methods, for instance plain and adaptive ones; see ``Method.family``."""
    sampler: Literal["grid", "tpe", "sobol"] = "grid"
    """All combinations, tree-structured Parzen estimators, or scrambled Sobol points.

    Each study and each data set has its own scrambling; methods that share an axis share their coordinates on it.
    """
    budget: int | None = Field(default=None, ge=1, le=100_000)
    """Trials per method; with ``sampler = "grid"`` the number of grid points."""
    extend: list[str] = Field(default_factory=list)
    """Axes that grow by one value, for all methods, while the best value of one method lies on the edge."""
    rounds: int = Field(default=2, ge=0, le=20)
    """The largest number of extensions."""
    pruner: Literal["none", "halving"] = "none"
    first_rung: int | None = Field(default=None, ge=1, le=100_000)
    """The epoch of the first pruning, by default a sixteenth of all epochs.

    It is later if rates decay: a trial is never pruned before ``final_epochs`` epochs after the last decay of any
    method. With a schedule that changes rates until the end, no trial is pruned.
    """
    seed: Seed = 0


class Group(Settings):
    """Methods that are compared as one, by their mean in each study: for example all with one value of a factor."""

    label: Annotated[str, Field(min_length=1, max_length=80)]
    methods: list[str] = Field(min_length=1)


class Claim(Settings):
    """A statement about a recorded metric: an order of methods, or pairs of which one beats the other."""

    text: Text
    metric: str
    order: list[str] = Field(default_factory=list)
    """From worst to best: each method is better than all before it."""
    beats: dict[str, list[str]] = Field(default_factory=dict)
    """For claims that are not an order: maps each method to the methods that it beats."""
    controls: dict[str, list[str]] = Field(default_factory=dict)
    """Comparisons with control arms, as in ``beats``: they show causes and do not count for the verdict."""
    groups: dict[str, Group] = Field(default_factory=dict)
    """Groups of methods, which ``beats`` and ``controls`` may name like methods."""
    target: str | None = None
    """A method: the report says when each method first reaches the final value of this one."""
    stability: str | None = None
    """A fixed hyper-parameter of all methods: figures show the metric against it, one line for each other setting."""
    source: Literal["paper", "ours"] = "paper"
    """The origin of the claim: the paper or this project."""


class Spec(Settings):
    """One experiment at one scale."""

    name: Name
    title: Annotated[str, Field(min_length=1, max_length=200)]
    about: Text = ""
    scale: str = "paper"
    claim: Claim
    loss: str
    """An objective of the package, or ``"package.module:name"``."""
    batch: int = Field(ge=1)
    epochs: int = Field(ge=1, le=100_000)
    metrics: list[str] = Field(min_length=1)
    data: Data
    model: Model
    seeds: Seeds
    methods: list[Method] = Field(min_length=1, max_length=100)
    tuning: Tuning | None = None
    vectorize: int = Field(default=1, ge=1, le=1000)
    """Number of settings of one method to train as one vectorized model, each with all seeds; 1 trains runs one by one.

    Algorithms that cannot be vectorized are trained one by one.
    """

    studies: int = Field(default=1, ge=1, le=100)
    """Independent repetitions of tuning and final runs, each with its own points, seeds and splits of the data.

    With several studies, intervals are over studies; with one, over seeds.
    """
    final_epochs: int = Field(default=3, ge=1, le=1000)
    """Comparisons use the mean over this many last epochs of a run."""

    def method(self, name: str) -> Method:
        """Return the method of this name."""
        return {method.name: method for method in self.methods}[name]


def shipped() -> list[str]:
    """Return the names of the specs in the package."""
    return sorted(path.stem for path in FIGURES.glob("*.toml"))


def find(source: str | Path) -> Path:
    """Return the path of a spec, given a path or the name of a shipped spec."""
    path = Path(source)
    if str(source) in shipped() and not path.exists():
        return FIGURES / f"{source}.toml"
    return path


def load(source: str | Path, scale: str | None = None) -> Spec:
    """Read and validate a spec.

    Args:
        source: a file, or the name of a shipped spec.
        scale: one of the file's ``[scales]``; by default the top level of the file, which is the scale ``paper``.

    >>> load("figure1-digits", scale="quick").epochs
    12
    """
    path = find(source)
    raw = _read_with_base(path)
    scales = raw.pop("scales", {})
    if scale not in (None, "paper", *scales):
        known = ", ".join(dict.fromkeys([*scales, "paper"]))
        raise SpecError(f"{path}: scale {scale!r} is unknown. Known: {known} (the top level of the file).")
    found = build({"name": path.stem, **raw}, path)
    for name, table in scales.items():  # validate all scales, so that mistakes show before a scale is used
        merged = merge({"name": path.stem, **raw}, table, f"{path}: scales.{name}")
        at_scale = build({**merged, "scale": name}, path, f" (at scale {name})")
        found = at_scale if name == scale else found
    return found


def build(raw: Mapping[str, Any], path: str | Path = "spec", where: str = "") -> Spec:
    """Build and validate a spec from plain values."""
    try:
        spec = Spec.model_validate(raw)
    except ValidationError as error:
        raise SpecError(explain(error, Spec, f"{path}{where}")) from error
    validate(spec, f"{path}{where}")
    return spec


def _read_with_base(path: Path, children: tuple[Path, ...] = ()) -> dict[str, Any]:
    """Read a file; if it names a base, return the base's values updated by the file's."""
    raw = _read(path)
    scales = raw.setdefault("scales", {})
    if not isinstance(scales, dict) or not all(isinstance(table, dict) for table in scales.values()):
        raise SpecError(f"{path}: scales must hold tables. Write [scales.quick] and below it what differs there.")
    if "base" not in raw:
        return raw
    name, children = raw.pop("base"), (*children, path.resolve())
    if not isinstance(name, str):
        raise SpecError(f"{path}: base={name!r} is invalid: it must be a shipped spec or a file. Try 'figure2-digits'.")
    base = FIGURES / f"{name}.toml" if name in shipped() else path.parent / name
    if not os.path.isfile(base):  # unlike Path.is_file, False for a name that is too long
        close = get_close_matches(name, shipped(), n=1)
        hint = f"Did you mean {close[0]!r}?" if close else f"Shipped specs: {', '.join(shipped())}."
        raise SpecError(f"{path}: base={name!r} is neither a shipped spec nor a file. {hint}")
    if base.resolve() in children:
        raise SpecError(f"{path}: base={name!r} is invalid: it has this file as its own base. Remove one of the two.")
    parent = _read_with_base(base, children)
    keep = raw.pop("keep", None)
    if keep is not None:
        parent["methods"] = _kept(parent.get("methods"), keep, path)
    scales = {**parent.pop("scales"), **raw.pop("scales")}
    added = raw.pop("methods") if isinstance(raw.get("methods"), list) else []
    merged = merge(parent, raw, str(path))
    if added:
        known = merged.get("methods")
        merged["methods"] = [*(known if isinstance(known, list) else ()), *added]
    if keep is not None:
        _remove_unused_families(merged)
    return {**merged, "scales": scales}


def _kept(methods: Any, keep: Any, path: Path) -> list[Any]:
    """Return the methods of a base whose names are in ``keep``."""
    known = [method.get("name") for method in methods if isinstance(method, dict)] if isinstance(methods, list) else []
    unknown = [name for name in keep if name not in known] if isinstance(keep, list) else [keep]
    if unknown:
        names = ", ".join(map(str, known))
        raise SpecError(f"{path}: keep={keep!r} is invalid: it must list methods of the base. Known: {names}.")
    return [method for method, name in zip(methods, known, strict=True) if name in keep]


def _remove_unused_families(raw: dict[str, Any]) -> None:
    """Remove the search ranges of families whose methods were not kept."""
    tuning = raw.get("tuning")
    if isinstance(tuning, dict) and isinstance(tuning.get("families"), dict):
        used = [method.get("family") for method in raw["methods"] if isinstance(method, dict)]
        tuning["families"] = {name: family for name, family in tuning["families"].items() if name in used}


def _read(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            data = file.read(_LARGEST + 1)
    except (OSError, ValueError) as error:  # ValueError: a null byte in the path
        why = error.strerror if isinstance(error, OSError) else error
        close = get_close_matches(str(path), shipped(), n=1)
        hint = f"Did you mean {close[0]!r}? " if close else ""
        known = ", ".join(shipped())
        raise SpecError(
            f"{path}: cannot be read ({why}). {hint}Give a file or the name of a shipped spec: {known}."
        ) from error
    if len(data) > _LARGEST:
        raise SpecError(f"{path}: is larger than {_LARGEST} bytes. A spec is a TOML file of about 50 lines.")
    try:
        return tomllib.loads(data.decode())
    except RecursionError as error:
        raise SpecError(
            f"{path}: is nested too deeply. Tables of a spec may hold tables, but no deeper ones."
        ) from error
    except ValueError as error:  # not TOML, or not UTF-8
        raise SpecError(f"{path}: is not TOML ({error}). Correct the syntax there.") from error


def merge(base: Mapping[str, Any], over: Mapping[str, Any], place: str = "spec") -> dict[str, Any]:
    """Return ``base`` updated by ``over``: tables key by key, methods by name, everything else replaced.

    Data or a model with a name replaces the old one, whose options do not apply.
    """
    merged = copy.deepcopy(dict(base))
    for key, value in over.items():
        if key == "methods" and isinstance(value, dict):
            merged[key] = _merge_methods(merged.get(key), value, place)
        elif key in _TABLES and isinstance(value, dict) and isinstance(merged.get(key), dict):
            other = key in {"data", "model"} and "name" in value
            merged[key] = dict(value) if other else merge(merged[key], value, f"{place}.{key}")
        else:
            merged[key] = copy.deepcopy(value)
    return merged


_TABLES = ("data", "model", "seeds", "tuning", "claim", "grid", "options")


def _merge_methods(methods: Any, over: Mapping[str, Any], place: str) -> Any:
    if not isinstance(methods, list) or not all(isinstance(method, dict) for method in methods):
        return methods  # the validation of the merged values reports it
    names = [method.get("name") for method in methods]
    for name, table in over.items():
        if name not in ("*", *names) or not isinstance(table, dict):
            known = ", ".join(map(str, names))
            raise SpecError(
                f"{place}.methods.{name}: must be a table with the name of a method, or '*' for all methods. "
                f"Known: {known}."
            )
    all_methods = over.get("*", {})
    unused = _leaves(all_methods).difference(*(_leaves(_common(all_methods, method)) for method in methods))
    if unused:
        raise SpecError(f"{place}.methods.'*'.{min(unused)}: no method has this key. Write it below a method's name.")
    merged = [merge(method, _common(all_methods, method), place) for method in methods]
    return [merge(method, over.get(str(method.get("name")), {}), place) for method in merged]


def _common(table: Mapping[str, Any], method: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of ``table`` whose keys the method has: ``methods."*"`` changes values, it adds none."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        if key not in method:
            continue
        both = isinstance(value, dict) and isinstance(method[key], dict)
        part = _common(value, method[key]) if both else value
        if part != {}:
            found[key] = part
    return found


def _leaves(table: Mapping[str, Any], place: str = "") -> set[str]:
    """Return the dotted names of all values."""
    found: set[str] = set()
    for key, value in table.items():
        found |= _leaves(value, f"{place}{key}.") if isinstance(value, dict) else {f"{place}{key}"}
    return found
