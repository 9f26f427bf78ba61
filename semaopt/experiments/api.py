"""The experiments from Python: what the commands do, as functions that return tables."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

from semaopt.experiments.results import table
from semaopt.experiments.results.table import Table
from semaopt.experiments.spec.errors import SpecError, near
from semaopt.experiments.spec.schema import Spec, Tuning, load
from semaopt.experiments.sweep import study
from semaopt.experiments.sweep.engines.local import Engine, Here, Workers
from semaopt.experiments.sweep.runner import Place, Runner, Silent, Watch
from semaopt.experiments.training import distributed
from semaopt.experiments.training.run import Machine

DTYPES = ("float32", "float64", "bfloat16")
MOST_WORKERS = 1024


def machine(device: str, dtype: str, group: distributed.Group) -> Machine:
    """Where runs are computed, checked."""
    if dtype not in DTYPES:
        raise SpecError(f"dtype={dtype!r}: must be one of {', '.join(DTYPES)}; the default is float32")
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:  # torch raises both for a device that is not there
        raise SpecError(f"device={device!r}: cannot be used here ({str(error).splitlines()[0]}); try cpu") from error
    return Machine(device, dtype, group.world)


@contextmanager
def engine(name: str, workers: int | None, address: str | None, group: distributed.Group) -> Iterator[Engine]:
    """Who does the runs: worker processes, Ray, or, where several processes share a run, this one with the others."""
    check_engine(name, address, workers)
    count = cores() if workers is None else workers
    if name == "ray":
        from semaopt.experiments.sweep.engines.ray import RayWorkers

        with RayWorkers(address, max(count, 1)) as cluster:
            yield cluster
    elif count == 0 or group.world > 1:
        yield Here()
    else:
        with Workers(count) as pool:
            yield pool


def check_engine(name: str, address: str | None, workers: int | None) -> None:
    """Refuse an engine that does not exist or is not installed, or what it does not take."""
    if name not in ("local", "ray"):
        raise SpecError(f"engine={name!r}: must be local or ray; local runs processes on this machine")
    if address is not None and name != "ray":
        raise SpecError(f"address={address!r}: is the address of a Ray cluster; add engine ray")
    if name == "ray" and importlib.util.find_spec("ray") is None:
        raise SpecError("engine='ray': needs the extra [ray]; pip install 'semaopt[ray]'")
    if workers is not None and (type(workers) is not int or not 0 <= workers <= MOST_WORKERS):
        rule = f"must be a whole number from 0 to {MOST_WORKERS}"
        raise SpecError(
            f"workers={workers!r}: {rule}; 0 does the runs in this process, None takes one per core, at most 8"
        )


def cores() -> int:
    """The cores this process may use, at most 8: more workers would take longer to start than they save."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(usable, 8)


def chosen(spec: str | Path | Spec, scale: str | None, only: Sequence[str]) -> Spec:
    """The spec at its scale, tried out; methods that are asked for must be there."""
    if isinstance(only, str):
        raise SpecError(f"only={only!r}: must be a list of names; write only=[{only!r}]")
    found = spec if isinstance(spec, Spec) else load(spec, scale)
    names = [method.name for method in found.methods]
    for name in only:
        if name not in names:
            raise SpecError(f"only={name!r}: is no method of {found.name}; {near(name, names)}")
    study.rehearse(found, only)
    return found


def check_tuning(spec: Spec) -> Tuning:
    """How it is tuned; refuses a spec with nothing to tune."""
    if spec.tuning is None:
        raise SpecError(f"{spec.name}: has no [tuning], so there is nothing to tune; add one, or run it")
    return spec.tuning


def run(
    spec: str | Path | Spec,
    scale: str | None = None,
    out: str | Path = "results",
    *,
    only: Sequence[str] = (),
    engine_name: str = "local",
    address: str | None = None,
    workers: int | None = None,
    device: str = "cpu",
    dtype: str = "float32",
    tensorboard: str | Path | None = None,
    checkpoint_seconds: float = 10.0,
    watch: Watch | None = None,
    command: str = "semaopt.experiments.run",
) -> Table:
    """Tune and run an experiment; what is in the store of ``out`` already is not done again.

    Args:
        spec: a TOML file, the name of a shipped spec, or a :class:`Spec`.
        scale: one of the file's scales; by default the file as it stands.
        out: the folder of the store, the figures and the page.
        only: names of methods; by default all.
        engine_name: "local" (worker processes here) or "ray".
        address: of a Ray cluster.
        workers: processes at a time; 0 does the runs in this process. By default one per core, at most 8.
        device, dtype: where and in which numbers models are trained.
        tensorboard: a folder for TensorBoard's scalars of the final runs.
        checkpoint_seconds: how long a run trains between checkpoints.
        watch: who is told how it goes.
        command: what the page says it was made by.

    Returns:
        a row for each final run; ``.results`` holds curves, comparisons and the tuning table.
    """
    found = chosen(spec, scale, only)
    with _working(out, engine_name, address, workers, device, dtype, checkpoint_seconds) as (group, who, place):
        results = study.conduct([found], place, who, watch or Silent(), command=command, only=only)
        if group.first:
            study.write(results, place.out)
            if tensorboard is not None:
                from semaopt.experiments.report import tensorboard as board

                board.write(results, Path(tensorboard))
    return table.runs(results)


def tune(
    spec: str | Path | Spec,
    scale: str | None = None,
    out: str | Path = "results",
    *,
    only: Sequence[str] = (),
    engine_name: str = "local",
    address: str | None = None,
    workers: int | None = None,
    device: str = "cpu",
    dtype: str = "float32",
    checkpoint_seconds: float = 10.0,
    watch: Watch | None = None,
) -> Table:
    """Only the tuning of :func:`run`, whose arguments it takes: a row for each trial."""
    found = chosen(spec, scale, only)
    metric = check_tuning(found).metric
    with (
        _working(out, engine_name, address, workers, device, dtype, checkpoint_seconds) as (_, who, place),
        study.opened(place) as store,
    ):
        one = study.Study(found, Runner(store, who, watch or Silent(), place), only)
        one.announce()
        return table.trials(found.name, metric, one.tune())


@contextmanager
def _working(  # noqa: PLR0917  # as run and tune are given them
    out: str | Path,
    engine_name: str,
    address: str | None,
    workers: int | None,
    device: str,
    dtype: str,
    checkpoint_seconds: float,
) -> Iterator[tuple[distributed.Group, Engine, Place]]:
    """Who trains, and where."""
    with distributed.joined(device) as group, engine(engine_name, workers, address, group) as who:
        yield group, who, Place(Path(out), machine(device, dtype, group), checkpoint_seconds)
