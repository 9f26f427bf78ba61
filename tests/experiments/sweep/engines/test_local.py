"""Engines: results do not depend on them, a dead worker affects only its own job, progress is reported."""

import functools
import os
import pickle
import signal
import subprocess
import sys
import time
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from semaopt.experiments.data import DataError
from semaopt.experiments.files import OutputError
from semaopt.experiments.sweep.engines.local import ATTEMPTS, Failure, InProcess, Workers, count_epoch, failure
from semaopt.experiments.sweep.engines.ray import RayWorkers
from semaopt.experiments.sweep.runner import RunsError
from semaopt.experiments.training import distributed


def square(x):
    count_epoch()
    return x * x, torch.get_num_threads()


def dangerous(job):
    folder, name = job
    path = Path(folder, name)
    count = int(path.read_text()) if path.exists() else 0
    path.write_text(str(count + 1))
    if name == "fatal" or (name == "shaky" and count == 0):
        os.kill(os.getpid(), signal.SIGKILL)
    if name == "wrong":
        raise ValueError("a bad job")
    if name == "full":
        raise OutputError("the disk is full")
    if name == "lost":
        raise DataError("no such file")
    return name


def test_jobs_in_this_process_use_one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    ticks = []
    try:
        assert list(InProcess().run(square, [2, 3], ticks.append)) == [(2, (4, 1)), (3, (9, 1))]
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert ticks == [1, 2]


def test_in_this_process_a_failed_job_is_reported_and_a_fatal_error_raised(tmp_path, monkeypatch):
    jobs = [(str(tmp_path), name) for name in ("a", "wrong", "b")]
    found = [done for _, done in InProcess().run(dangerous, jobs, lambda _: None)]
    assert found == ["a", Failure("ValueError: a bad job"), "b"]
    assert not found[1].transient
    assert failure(MemoryError()).transient
    for name, error in (("full", OutputError), ("lost", DataError)):
        with pytest.raises(error):
            list(InProcess().run(dangerous, [(str(tmp_path), name)], lambda _: None))
    group = distributed.Group()
    group.world = 2  # the other process would wait forever
    monkeypatch.setattr(distributed, "current", lambda: group)
    with pytest.raises(ValueError, match="a bad job"):
        list(InProcess().run(dangerous, jobs, lambda _: None))


def test_workers_start_on_demand():
    with Workers(2) as workers:
        assert list(workers.run(square, [], lambda _: None)) == []
        assert workers._pools == [None, None]


@pytest.mark.slow
def test_a_job_whose_process_dies_is_tried_again(tmp_path):
    ticks = []
    with Workers(2) as workers:
        jobs = [(str(tmp_path), name) for name in ("fatal", "a", "shaky", "wrong", "b", "c")]
        found = {job[1]: done for job, done in workers.run(dangerous, jobs, ticks.append)}
        assert {name: found[name] for name in ("a", "b", "c", "shaky")} == {n: n for n in ("a", "b", "c", "shaky")}
        assert found["fatal"] == Failure(f"its process died {ATTEMPTS} times (out of memory?)")
        assert found["wrong"] == Failure("ValueError: a bad job")
        tries = {path.name: int(path.read_text()) for path in tmp_path.iterdir()}
        assert tries == {"fatal": ATTEMPTS, "shaky": 2, "a": 1, "b": 1, "c": 1, "wrong": 1}
        with pytest.raises(OutputError, match="the disk is full"):
            list(workers.run(dangerous, [(str(tmp_path), "full")], ticks.append))
        with pytest.raises(DataError, match="no such file"):
            list(workers.run(dangerous, [(str(tmp_path), "lost")], ticks.append))
        assert sorted(done[0] for _, done in workers.run(square, [1, 2, 3], ticks.append)) == [1, 4, 9]
        assert ticks[-1] == 3


@pytest.mark.slow
def test_an_idle_worker_that_died_is_started_again():
    with Workers(1) as workers:
        assert [done for _, done in workers.run(square, [2], lambda _: None)] == [(4, 1)]
        (pool,) = workers._pools
        for process in pool._processes.values():
            process.kill()
        with suppress(BrokenProcessPool):  # raised once the pool notices the death
            while True:
                pool.submit(abs, 1).exception()
        assert [done for _, done in workers.run(square, [3], lambda _: None)] == [(9, 1)]


class FakeRay:
    """Executes a task when its result is requested."""

    class exceptions:  # noqa: N801  # Ray's name
        RayTaskError = type("RayTaskError", (Exception,), {})
        RayError = type("RayError", (Exception,), {})

    def remote(self, **_):
        return lambda task: SimpleNamespace(remote=lambda *given: functools.partial(task, *given))

    def wait(self, references, num_returns):
        return references[:num_returns], references[num_returns:]

    def get(self, reference):
        try:
            return reference()
        except ValueError as error:
            failed = self.exceptions.RayTaskError()
            failed.cause = error
            raise failed from error


def test_ray_reports_progress_when_a_job_ends(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", FakeRay())
    ticks = []
    before = torch.get_num_threads()
    try:
        engine = RayWorkers(None, 1)
        assert [done[0] for _, done in engine.run(square, [2, 3], ticks.append)] == [4, 9]
        (wrong,) = (done for _, done in engine.run(dangerous, [(str(tmp_path), "wrong")], ticks.append))
    finally:
        torch.set_num_threads(before)
    assert wrong == Failure("ValueError: a bad job")
    assert ticks == [1, 2, 0]


ORPHANS = """
import multiprocessing, os, sys, time
from semaopt.experiments.sweep.engines.local import Workers
with Workers(2) as workers:
    for _ in workers.run(abs, [1, 2], lambda _: None):
        pass
    print(*[child.pid for child in multiprocessing.active_children()], flush=True)
    time.sleep(60)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks processes up in /proc")
def test_workers_exit_when_their_parent_is_killed():
    parent = subprocess.Popen([sys.executable, "-c", ORPHANS], stdout=subprocess.PIPE, text=True)
    with parent:
        children = parent.stdout.readline().split()
        parent.kill()
    assert len(children) == 2
    deadline = time.monotonic() + 30
    while any(_alive(pid) for pid in children) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(_alive(pid) for pid in children)


def _alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_runs_error_keeps_the_cause_and_survives_pickling():
    cause = ValueError("deep inside")
    error = RunsError.from_failures("3", [("a run", Failure("its process died")), ("another", failure(cause))])
    assert str(error) == "2 of 3 failed:\na run: its process died\nanother: ValueError: deep inside"
    assert error.__cause__ is cause
    assert error.transient
    error = pickle.loads(pickle.dumps(RunsError.from_failures("1", [("another", failure(cause))])))
    assert not error.transient
