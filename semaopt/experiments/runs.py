"""Finished runs: kept one file each, done by worker processes, never done twice."""

from __future__ import annotations

import hashlib
import json
import math
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch

from semaopt._threads import one_thread

Job = TypeVar("Job")
Result = TypeVar("Result")


class OutputError(OSError):
    """The output directory cannot be used; the text says which path and why."""


def write_whole(path: Path, data: str | bytes) -> None:
    """Write a file so that whoever reads it, at any time, sees the old content or all of the new."""
    data = data.encode() if isinstance(data, str) else data
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with part.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise OutputError(f"{path}: cannot be written ({error.strerror}); choose another --out") from error


def canonical(value: Any) -> str:
    """JSON that is the same for equal values; NaN and infinities become null."""
    return json.dumps(finite(value), sort_keys=True, allow_nan=False)


def finite(value: Any) -> Any:
    """The same value with None for each number that JSON cannot hold."""
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


class Store:
    """A directory with one JSON file for each finished run, named by the hash of the run's configuration.

    >>> import tempfile
    >>> store = Store(Path(tempfile.mkdtemp()))
    >>> store.put({"lr": 0.1}, {"loss": 2.0})
    >>> store.get({"lr": 0.1}), store.get({"lr": 0.2})
    ({'loss': 2.0}, None)
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.damaged: list[Path] = []
        """Files that were there but could not be trusted; their runs are done again."""

    def path(self, config: Mapping[str, Any]) -> Path:
        """Where the run of this configuration is kept."""
        return self.directory / f"{_digest(config)[:20]}.json"

    def get(self, config: Mapping[str, Any]) -> dict[str, Any] | None:
        """The stored result, or None if there is none that can be trusted."""
        path = self.path(config)
        try:
            kept = json.loads(path.read_bytes())
            result: dict[str, Any] = kept["result"]
            whole = kept["checksum"] == _digest([kept["config"], result]) and kept["config"] == finite(config)
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError):  # not JSON, not UTF-8, or JSON of another shape
            whole = False
        except OSError as error:
            raise OutputError(f"{path}: cannot be read ({error.strerror}); choose another --out") from error
        if not whole:
            self.damaged.append(path)
            return None
        return result

    def put(self, config: Mapping[str, Any], result: Mapping[str, Any]) -> None:
        """Keep a result."""
        kept = {"config": config, "result": result, "checksum": _digest([config, result])}
        write_whole(self.path(config), canonical(kept) + "\n")


def _digest(value: Any) -> str:
    return hashlib.sha256(canonical(value).encode()).hexdigest()


class Workers:
    """Runs jobs in ``count`` single-threaded processes, or, for ``count=1``, in this one.

    A job has one thread wherever it runs: its numbers do not depend on how many workers there are.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def do(self, work: Callable[[Job], Result], jobs: Sequence[Job]) -> Iterator[tuple[Job, Result]]:
        """Each job with its result, in the order in which they finish."""
        if self.count == 1:
            for job in jobs:
                with one_thread():
                    result = work(job)
                yield job, result
        elif jobs:
            pool = self._started()
            futures = {pool.submit(work, job): job for job in jobs}
            for future in as_completed(futures):
                yield futures[future], future.result()

    def _started(self) -> ProcessPoolExecutor:
        if self._pool is None:
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(self.count, mp_context=context, initializer=_start_worker)
            # Ctrl-C reaches every process of the terminal. Only this one may answer; the workers inherit that they
            # ignore it, so all of them are started here.
            with _ignoring_interrupts():
                for _ in range(self.count):
                    self._pool.submit(os.getpid)
        return self._pool


def _start_worker() -> None:
    torch.set_num_threads(1)
    parent = multiprocessing.parent_process()

    def leave_with_parent() -> None:  # a parent that was killed cannot tell its workers to stop
        if parent is not None:
            parent.join()
        os._exit(1)

    threading.Thread(target=leave_with_parent, daemon=True).start()


@contextmanager
def _ignoring_interrupts() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():  # only the main thread may set a handler
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
