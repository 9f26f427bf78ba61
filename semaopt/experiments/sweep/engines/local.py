"""Engines on this machine: this process, or single-threaded worker processes (the fastest on a CPU)."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import torch

from semaopt._threads import one_thread
from semaopt.experiments.data.errors import DataError
from semaopt.experiments.files import OutputError
from semaopt.experiments.training import distributed

Job = TypeVar("Job")
Done = TypeVar("Done")
ATTEMPTS = 3
FATAL = (OutputError, DataError)
"""Errors that concern all jobs (the output folder, the data) and end the sweep."""
_TRANSIENT = (MemoryError, OSError, torch.cuda.OutOfMemoryError)  # errors that may not occur again
_POLL = 0.5  # seconds between two updates of the progress


@dataclass(frozen=True)
class Failure:
    """A job that failed, and why."""

    reason: str
    transient: bool = field(default=True, compare=False)
    """Whether trying again may succeed."""
    error: BaseException | None = field(default=None, compare=False, repr=False)
    """The exception it raised, if any."""


def failure(error: BaseException) -> Failure:
    """Return the failure of a job that raised ``error``; runs are deterministic, so most errors would recur."""
    return Failure(f"{type(error).__name__}: {error}", isinstance(error, _TRANSIENT), error)


class Engine(Protocol):
    """Executes jobs."""

    def run(
        self, work: Callable[[Job], Done], jobs: Sequence[Job], on_progress: Callable[[int], None]
    ) -> Iterator[tuple[Job, Done | Failure]]:
        """Yield each job with its result as it finishes.

        Args:
            work: the function to apply to each job.
            jobs: the jobs.
            on_progress: called with the number of epochs trained so far.
        """


class InProcess:
    """Executes the jobs in this process, one after the other; an error is a :class:`Failure` of its job."""

    def run(
        self, work: Callable[[Job], Done], jobs: Sequence[Job], on_progress: Callable[[int], None]
    ) -> Iterator[tuple[Job, Done | Failure]]:
        """See :class:`Engine`."""
        before = epochs_done()
        for job in jobs:
            done: Done | Failure
            try:
                with one_thread():
                    done = work(job)
            except FATAL:
                raise
            except Exception as error:
                if distributed.current().world > 1:  # the other processes may be waiting for this one
                    raise
                done = failure(error)
            on_progress(epochs_done() - before)
            yield job, done


class Workers:
    """Executes jobs in ``count`` single-threaded processes; the results do not depend on ``count``.

    If a process dies (killed, out of memory), only its job is affected and is tried again. A job that raises an error
    is a :class:`Failure`; the others continue.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._context = multiprocessing.get_context("spawn")
        self._epochs = self._context.RawArray("q", count)  # one slot per worker needs no lock
        self._pools: list[ProcessPoolExecutor | None] = [None] * count

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        for pool in self._pools:
            if pool is not None:
                _stop(pool)

    def run(
        self, work: Callable[[Job], Done], jobs: Sequence[Job], on_progress: Callable[[int], None]
    ) -> Iterator[tuple[Job, Done | Failure]]:
        """See :class:`Engine`."""
        waiting = deque((job, 1) for job in jobs)
        running: dict[Future[Done], tuple[int, Job, int]] = {}
        idle = list(range(self.count))
        before = sum(self._epochs)
        while waiting or running:
            while waiting and idle:
                job, attempt = waiting.popleft()
                slot = idle.pop()
                running[self._submitted(slot, work, job)] = slot, job, attempt
            finished, _ = wait(running, timeout=_POLL, return_when=FIRST_COMPLETED)
            on_progress(sum(self._epochs) - before)
            for future in finished:
                slot, job, attempt = running.pop(future)
                idle.append(slot)
                error = future.exception()
                if isinstance(error, BrokenProcessPool):
                    self._pools[slot] = None
                    if attempt < ATTEMPTS:
                        waiting.append((job, attempt + 1))
                    else:
                        yield job, Failure(f"its process died {attempt} times (out of memory?)")
                elif isinstance(error, FATAL):
                    raise error
                else:
                    yield job, future.result() if error is None else failure(error)

    def _submitted(self, slot: int, work: Callable[[Job], Done], job: Job) -> Future[Done]:
        try:
            return self._started(slot).submit(work, job)
        except BrokenProcessPool:  # its process died while it was idle
            self._pools[slot] = None
            return self._started(slot).submit(work, job)

    def _started(self, slot: int) -> ProcessPoolExecutor:
        pool = self._pools[slot]
        if pool is None:
            pool = ProcessPoolExecutor(
                1, mp_context=self._context, initializer=_start_worker, initargs=(self._epochs, slot)
            )
            self._pools[slot] = pool
            # Ctrl-C reaches every process of the terminal, and only this one should react. Workers inherit the
            # setting that ignores interrupts, so they are started here.
            with _ignoring_interrupts():
                pool.submit(os.getpid)
        return pool


def _stop(pool: ProcessPoolExecutor) -> None:
    """Terminate the process of a pool at once; its run resumes from its checkpoint."""
    for process in list((pool._processes or {}).values()):
        process.terminate()
    pool.shutdown(wait=True, cancel_futures=True)


_COUNT: Any = [0]
_SLOT = 0


def count_epoch() -> None:
    """Count one trained epoch of this process."""
    _COUNT[_SLOT] += 1


def epochs_done() -> int:
    """Return the number of epochs that this process has counted."""
    return int(_COUNT[_SLOT])


def _start_worker(epochs: Any, slot: int) -> None:
    global _COUNT, _SLOT  # set once when the process starts
    _COUNT, _SLOT = epochs, slot
    torch.set_num_threads(1)
    parent = multiprocessing.parent_process()

    def exit_with_parent() -> None:  # a parent that was killed cannot stop its workers
        if parent is not None:
            parent.join()
        os._exit(1)

    threading.Thread(target=exit_with_parent, daemon=True).start()


@contextmanager
def _ignoring_interrupts() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():  # only the main thread can set a handler
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
