"""Work done by single-threaded processes: on a CPU the fastest way to do many runs."""

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
ENDING = (OutputError, DataError)
"""What jobs share is not there: an error that ends all of them, and is not the failure of one."""
_PASSING = (MemoryError, OSError, torch.cuda.OutOfMemoryError)  # errors that the same job may not meet again
_TICK = 0.5  # seconds between looks at how far the workers are


@dataclass(frozen=True)
class Failure:
    """A job that could not be done, and why."""

    reason: str
    again: bool = field(default=True, compare=False)
    """Whether it may well go better another time."""
    error: BaseException | None = field(default=None, compare=False, repr=False)
    """What it raised, for those who look for the place."""


def raised(error: BaseException) -> Failure:
    """The failure of a job that raised an error; it mostly does so each time, for its numbers are the same."""
    return Failure(f"{type(error).__name__}: {error}", isinstance(error, _PASSING), error)


class Engine(Protocol):
    """Does jobs somewhere."""

    def do(
        self, work: Callable[[Job], Done], jobs: Sequence[Job], tick: Callable[[int], None]
    ) -> Iterator[tuple[Job, Done | Failure]]:
        """Each job with its result, in the order in which they finish; ``tick`` hears of progress in between."""


class Here:
    """Does the jobs in this process, one after the other; one that raises an error is a :class:`Failure`."""

    def do(
        self, work: Callable[[Job], Done], jobs: Sequence[Job], tick: Callable[[int], None]
    ) -> Iterator[tuple[Job, Done | Failure]]:
        """See :class:`Engine`."""
        before = epochs_done()
        for job in jobs:
            done: Done | Failure
            try:
                with one_thread():
                    done = work(job)
            except ENDING:
                raise
            except Exception as error:
                if distributed.current().world > 1:  # the others may be waiting for this one
                    raise
                done = raised(error)
            tick(epochs_done() - before)
            yield job, done


class Workers:
    """Runs jobs in ``count`` processes of one thread each: the numbers do not depend on how many there are.

    A process that dies (killed, out of memory) takes only its own job with it, which is tried again; a job that raises
    an error is a :class:`Failure`, and the others go on.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._context = multiprocessing.get_context("spawn")
        self._epochs = self._context.RawArray("q", count)  # each worker counts in its own place: no lock to die with
        self._pools: list[ProcessPoolExecutor | None] = [None] * count

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        for pool in self._pools:
            if pool is not None:
                _stop(pool)

    def do(
        self, work: Callable[[Job], Done], jobs: Sequence[Job], tick: Callable[[int], None]
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
            finished, _ = wait(running, timeout=_TICK, return_when=FIRST_COMPLETED)
            tick(sum(self._epochs) - before)
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
                elif isinstance(error, ENDING):
                    raise error
                else:
                    yield job, future.result() if error is None else raised(error)

    def _submitted(self, slot: int, work: Callable[[Job], Done], job: Job) -> Future[Done]:
        try:
            return self._started(slot).submit(work, job)
        except BrokenProcessPool:  # its process died while it had nothing to do, and took no job with it
            self._pools[slot] = None
            return self._started(slot).submit(work, job)

    def _started(self, slot: int) -> ProcessPoolExecutor:
        pool = self._pools[slot]
        if pool is None:
            pool = ProcessPoolExecutor(
                1, mp_context=self._context, initializer=_start_worker, initargs=(self._epochs, slot)
            )
            self._pools[slot] = pool
            # Ctrl-C reaches every process of the terminal. Only this one may answer; the workers inherit that they
            # ignore it, so they are started here.
            with _ignoring_interrupts():
                pool.submit(os.getpid)
        return pool


def _stop(pool: ProcessPoolExecutor) -> None:
    """End its process now, not when its run ends: the run has a checkpoint."""
    for process in list((pool._processes or {}).values()):
        process.terminate()
    pool.shutdown(wait=True, cancel_futures=True)


_COUNT: Any = [0]
_SLOT = 0


def count_epoch() -> None:
    """Called by a job after each epoch that it has trained."""
    _COUNT[_SLOT] += 1


def epochs_done() -> int:
    """How many this process has counted."""
    return int(_COUNT[_SLOT])


def _start_worker(epochs: Any, slot: int) -> None:
    global _COUNT, _SLOT  # what a process is told when it starts
    _COUNT, _SLOT = epochs, slot
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
