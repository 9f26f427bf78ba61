"""Experiments from Python: the functions behind ``semaopt run``, ``tune``, ``reproduce`` and ``report``."""

from __future__ import annotations

import importlib.util
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch

from semaopt.experiments import report as reports
from semaopt.experiments.files import OutputError, require_writable
from semaopt.experiments.results import table
from semaopt.experiments.results.model import Results
from semaopt.experiments.results.table import Table
from semaopt.experiments.spec.errors import SpecError, near
from semaopt.experiments.spec.schema import Spec, Tuning, load
from semaopt.experiments.sweep import aa as aa_check
from semaopt.experiments.sweep import load as stored
from semaopt.experiments.sweep import reproduction, study
from semaopt.experiments.sweep.engines.local import Engine, InProcess, Workers
from semaopt.experiments.sweep.runner import Runner, Silent, Watch, Workspace
from semaopt.experiments.training import distributed
from semaopt.experiments.training.run import Machine

DTYPES = ("float32", "float64", "bfloat16")
MAX_WORKERS = 1024


def run(  # the options of the command
    spec: str | Path | Spec,
    scale: str | None = None,
    out: str | Path | None = None,
    *,
    only: Sequence[str] = (),
    studies: Sequence[int] = (),
    aa: bool = False,
    aa_resamples: int | None = None,
    engine: str = "local",
    address: str | None = None,
    workers: int | None = None,
    device: str = "cpu",
    dtype: str = "float32",
    tensorboard: str | Path | None = None,
    checkpoint_seconds: float = 10.0,
    watch: Watch | None = None,
    command: str = "semaopt.experiments.run",
    engine_name: str | None = None,
) -> Table:
    """Tune and run an experiment, and write its report. Runs that are stored in ``out`` are reused.

    Args:
        spec: a TOML file, the name of a shipped spec, a :class:`Spec`, or a group of shipped specs such as
            "beta-study". Specs of a group whose data are not available are skipped with a note.
        scale: one of the scales of the file; by default the file as it is.
        out: the folder of the store and the report; by default ``results/NAME``.
        only: names of the methods to run; by default all.
        studies: numbers of the studies to compute, from 1; by default all. The report shows these and all other
            finished studies that ``out`` contains. :func:`report` joins the studies of several folders.
        aa: run an A/A check instead: tune each method against itself, and count how often the protocol finds a
            difference that does not exist. It trains twice as many studies as the spec has. Instead of a report it
            writes ``aa.json`` and ``aa.md``.
        aa_resamples: the number of comparisons of each method with itself in the A/A check, by default 20,000.
        engine: "local" (processes on this machine) or "ray".
        address: the address of a Ray cluster.
        workers: number of processes; 0 runs in this process. By default one per core, at most 8.
        device, dtype: device and dtype of the models.
        tensorboard: a folder for TensorBoard scalars of the final runs.
        checkpoint_seconds: seconds between two checkpoints of a run.
        watch: receives progress and messages.
        command: the command that the report shows.
        engine_name: deprecated, use ``engine``.

    Returns:
        A table with one row per final run; its ``results`` contain curves, comparisons and trials. With ``aa``, a table
        with one row per method.
    """
    engine = _renamed(engine, engine_name)
    parts, name = _parts(spec, scale, only)
    if aa and len(parts.specs) > 1:
        raise SpecError(f"aa=True checks one spec, but {name} is a group of {len(parts.specs)}. Name one of them.")
    numbers = _numbers(parts.specs, studies, aa)
    resamples = _resamples(aa_resamples, aa)
    validate_engine(engine, address, workers)
    with distributed.joined(device) as group:
        validate_machine(device, dtype)
        if tensorboard is not None:
            require_writable(Path(tensorboard), "--tensorboard")
        workspace = _workspace(out, name, device, dtype, checkpoint_seconds)
        with open_engine(engine, workers, address) as executor:
            watch = watch or Silent()
            for note in parts.notes:
                watch.say(note)
            for found in parts.specs:
                _started(watch, found)
            if aa:
                (found,) = parts.specs
                with workspace.open_store() as store:
                    runner = Runner(store, executor, watch, workspace)
                    checked = aa_check.check(found, runner, only, resamples)
                if group.first:
                    aa_check.write(found, checked, workspace.out)
                return aa_check.table(found, checked)
            results = study.conduct(
                parts.specs, workspace, executor, watch, command=command, only=only, numbers=numbers, parts=parts
            )
        if group.first:
            reports.write(results, workspace.out)
            if tensorboard is not None:
                from semaopt.experiments.report import tensorboard as scalars

                scalars.write(results, Path(tensorboard))
    return table.runs(results)


def tune(  # the options of the command
    spec: str | Path | Spec,
    scale: str | None = None,
    out: str | Path | None = None,
    *,
    only: Sequence[str] = (),
    engine: str = "local",
    address: str | None = None,
    workers: int | None = None,
    device: str = "cpu",
    dtype: str = "float32",
    checkpoint_seconds: float = 10.0,
    watch: Watch | None = None,
    engine_name: str | None = None,
) -> Table:
    """Tune an experiment without its final runs; the arguments are those of :func:`run`.

    Returns:
        A table with one row per trial, best first.
    """
    engine = _renamed(engine, engine_name)
    found = validate_spec(spec, scale, only)
    options = _tuning(found)
    validate_engine(engine, address, workers)
    with distributed.joined(device):
        workspace = _workspace(out, found.name, device, dtype, checkpoint_seconds)
        with open_engine(engine, workers, address) as executor, workspace.open_store() as store:
            runner = Runner(store, executor, _started(watch, found), workspace)
            experiment = study.Experiment(found, runner, only)
            experiment.announce()
            return table.trials(found.name, options.metric, experiment.tune())


def reproduce(
    scale: str = "quick",
    only: str | None = None,
    out: str | Path | None = None,
    *,
    workers: int | None = None,
    device: str = "cpu",
    dtype: str = "float32",
    watch: Watch | None = None,
    command: str = "semaopt.experiments.reproduce",
) -> Results:
    """Run every theorem check and every shipped experiment whose data are available, and write the report.

    Args:
        scale: "quick" (minutes), "small" (hours) or "paper".
        only: "checks", the name of a shipped spec, or a group such as "figure1".
        out: the folder of the store and the report; by default ``results/SCALE``.
        workers, device, dtype, watch, command: as for :func:`run`.
    """
    _require_one_of("scale", scale, reproduction.SCALES)
    if only is not None:
        _require_one_of("only", only, reproduction.names())
    validate_engine("local", None, workers)
    workspace = _workspace(out, scale, device, dtype)
    parts = reproduction.select(scale, only)
    watch = watch or Silent()
    for note in parts.notes:
        watch.say(note)
    with open_engine("local", workers, None) as executor:
        results = study.conduct(parts.specs, workspace, executor, watch, command=command, parts=parts)
    reports.write(results, workspace.out)
    return results


def report(
    folders: Sequence[str | Path], out: str | Path | None = None, *, command: str = "semaopt.experiments.api.report"
) -> Results:
    """Write the report of stored results again, without training anything.

    Findings whose studies are not all finished are reported too, and say how many are.

    Args:
        folders: output folders of :func:`run` or :func:`reproduce`; several are merged into one report. Studies of one
            spec are joined; a study that has different results in two folders is an error.
        out: the folder to write to; by default the folder itself, if there is one.
        command: the command that the report shows.
    """
    paths = [Path(folder) for folder in folders]
    if out is None and len(paths) != 1:
        raise ValueError(f"folders={[str(path) for path in paths]} need an output folder: set out.")
    results = stored.results(paths, command)
    if not results.findings and not results.checks:
        listed = ", ".join(map(str, paths))
        unreadable = [note for note in results.notes if "unreadable" in note]
        if unreadable:
            raise OutputError(
                f"{'; '.join(unreadable)}. Stores of version 0.1 are not supported: install that version to show them, "
                "or run the spec again."
            )
        checked = [path / aa_check.TEXT_FILE for path in paths if (path / aa_check.TEXT_FILE).is_file()]
        if checked:
            raise OutputError(
                f"{listed}: no finished study found, but an A/A check (semaopt run --aa), whose result is in "
                f"{', '.join(map(str, checked))}. For a report, run the spec without --aa."
            )
        raise OutputError(
            f"{listed}: no finished study found. Trials of semaopt tune have no final runs; run the same spec into "
            "that folder, which reuses them."
        )
    target = paths[0] if out is None else Path(out)
    require_writable(target)
    reports.write(results, target)
    return results


def _renamed(engine: str, engine_name: str | None) -> str:
    if engine_name is None:
        return engine
    warnings.warn("engine_name is deprecated; use engine", DeprecationWarning, stacklevel=3)
    return engine_name


def _require_one_of(name: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        raise SpecError(f"{name}={value!r} is unknown. {near(value, known)}.")


def validate_spec(spec: str | Path | Spec, scale: str | None, only: Sequence[str]) -> Spec:
    """Return the spec at its scale after validating it, its methods, its data and its model."""
    if isinstance(only, str):
        raise SpecError(f"only={only!r} is invalid: it must be a list of names. Write only=[{only!r}].")
    found = spec if isinstance(spec, Spec) else load(spec, scale)
    names = [method.name for method in found.methods]
    for name in only:
        if name not in names:
            raise SpecError(f"only={name!r} is not a method of {found.name}. {near(name, names)}.")
    study.preflight(found, only)
    return found


def _parts(spec: str | Path | Spec, scale: str | None, only: Sequence[str]) -> tuple[reproduction.Parts, str]:
    """Return the specs to run (one, or all of a group) and the name of their default output folder."""
    if not isinstance(spec, str) or spec not in reproduction.GROUPS or Path(spec).exists():
        found = validate_spec(spec, scale, only)
        return reproduction.Parts((found,)), found.name
    _require_one_of("scale", scale or "paper", reproduction.SCALES)
    parts = reproduction.select(scale or "paper", spec)
    if not parts.specs:
        raise SpecError(f"{spec}: {' '.join(parts.notes)}")
    known = {one.name: {method.name for method in one.methods} for one in parts.specs}
    everywhere = frozenset[str]().union(*known.values())
    specs = tuple(one for one in parts.specs if not only or known[one.name] & set(only) or not set(only) <= everywhere)
    for one in specs:
        validate_spec(one, None, [name for name in only if name in known[one.name] or name not in everywhere])
    return replace(parts, specs=specs), spec


def _numbers(specs: Sequence[Spec], studies: Sequence[int], aa: bool) -> list[int]:
    """Return the numbers of the chosen studies, from 0, after validating them for each spec."""
    if isinstance(studies, (int, str)):
        raise SpecError(f"studies={studies!r} is invalid: it must be a list of numbers. Write studies=[{studies}].")
    if studies and aa:
        text = f"studies={list(studies)} is invalid with aa=True: an A/A check needs all studies"
        raise SpecError(f"{text}. Leave one of the two out.")
    for spec in specs:
        for number in studies:
            where = f"{spec.name}: study {number!r} is invalid"
            if spec.studies == 1:
                raise SpecError(f"{where}: the spec has one study. Choose none, or set studies = 5 in the spec.")
            if type(number) is not int or not 1 <= number <= spec.studies:
                raise SpecError(f"{where}: it must be an integer from 1 to {spec.studies}. The first study is 1.")
            if list(studies).count(number) > 1:
                raise SpecError(f"{where}: it is given twice. Give each study once.")
    return [number - 1 for number in studies]


def _resamples(resamples: int | None, aa: bool) -> int:
    """Return the number of resamples of an A/A check after validating it."""
    if resamples is None:
        return aa_check.RESAMPLES
    if not aa:
        raise SpecError(
            f"aa_resamples={resamples!r} applies to an A/A check only. Set aa=True (--aa), or leave it out."
        )
    if type(resamples) is not int or resamples < 1:
        raise SpecError(f"aa_resamples={resamples!r} is invalid: it must be an integer >= 1. The default is 20000.")
    return resamples


def _tuning(spec: Spec) -> Tuning:
    if spec.tuning is None:
        raise SpecError(f"{spec.name} has no [tuning], so there is nothing to tune. Add a [tuning], or run the spec.")
    return spec.tuning


def _started(watch: Watch | None, spec: Spec) -> Watch:
    watch = watch or Silent()
    watch.say(f"{spec.name} at scale {spec.scale}: {spec.title}")
    return watch


def _workspace(
    out: str | Path | None, name: str, device: str, dtype: str, checkpoint_seconds: float = 10.0
) -> Workspace:
    """Return the output folder and the machine after validating both."""
    machine = validate_machine(device, dtype)
    folder = Path("results", name) if out is None else Path(out)
    require_writable(folder)
    return Workspace(folder, machine, checkpoint_seconds)


def validate_machine(device: str, dtype: str) -> Machine:
    """Return the machine of the runs; raise an error if the device or the dtype is not available."""
    if dtype not in DTYPES:
        raise SpecError(f"dtype={dtype!r} is invalid: it must be one of {', '.join(DTYPES)}. The default is float32.")
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:  # torch raises either for a missing device
        reason = str(error).splitlines()[0]
        raise SpecError(f"device={device!r} is not available here ({reason}). Try cpu.") from error
    return Machine(device, dtype, distributed.current().world)


def validate_engine(name: str, address: str | None, workers: int | None) -> None:
    """Raise an error for an engine that does not exist or is not installed, or for invalid options of it."""
    if name not in ("local", "ray"):
        raise SpecError(f"engine={name!r} is invalid: it must be local or ray. local uses processes of this machine.")
    if address is not None and name != "ray":
        raise SpecError(f"address={address!r} is the address of a Ray cluster, but engine={name!r}. Set engine to ray.")
    if name == "ray" and importlib.util.find_spec("ray") is None:
        raise SpecError("engine='ray' needs the extra [ray]. Install it with: pip install 'semaopt[ray]'")
    if workers is not None and (type(workers) is not int or not 0 <= workers <= MAX_WORKERS):
        raise SpecError(
            f"workers={workers!r} is invalid: it must be an integer from 0 to {MAX_WORKERS}. 0 runs in this process; "
            "None uses one process per core, at most 8."
        )


@contextmanager
def open_engine(name: str, workers: int | None, address: str | None) -> Iterator[Engine]:
    """Open an engine: worker processes, Ray, or this process if several processes share each run."""
    count = default_workers() if workers is None else workers
    if name == "ray":
        from semaopt.experiments.sweep.engines.ray import RayWorkers

        with RayWorkers(address, max(count, 1)) as cluster:
            yield cluster
    elif count == 0 or distributed.current().world > 1:
        yield InProcess()
    else:
        with Workers(count) as pool:
            yield pool


def default_workers() -> int:
    """Return the number of cores of this process, at most 8: starting more processes takes longer than it saves."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(usable, 8)
