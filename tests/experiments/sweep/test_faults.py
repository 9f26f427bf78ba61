"""Sweeps killed at any moment end with identical results, even on Ray; two processes can train one run."""

import contextlib
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from semaopt.experiments import api
from semaopt.experiments.files import canonical
from semaopt.experiments.results.export import to_json
from semaopt.experiments.spec import schema
from tests.experiments.cli.test_commands import ROOT, stored, write_spec
from tests.experiments.tiny import a_spec, go

pytestmark = pytest.mark.slow
CHANGES = {"epochs": 60, "batch": 64, "tuning": {"rounds": 0}, "seeds": {"tuning": [100], "final": [0, 1]}}


def lasting(out):
    written = json.loads((out / "results.json").read_text())
    return {key: value for key, value in written.items() if key != "session"}


def command(path, out, *more):
    args = [sys.executable, "-m", "semaopt", "run", path, "--out", str(out), "--checkpoint-seconds", "0.02", *more]
    return {"args": args, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "cwd": ROOT}


def at_work(out):
    """Return whether a checkpoint was written just now."""
    times = [path.stat().st_mtime for path in (out / "checkpoints").glob("*.pt")]
    return bool(times) and time.time() - max(times) < 0.5


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Return the results of an uninterrupted sweep, computed once per value of ``vectorize``."""
    folder, known = tmp_path_factory.mktemp("whole"), {}

    def found(vectorize=1):
        if vectorize not in known:
            path = write_spec(folder / "mine.toml", **CHANGES, vectorize=vectorize)
            results = go(folder / str(vectorize), schema.load(path))
            known[vectorize] = json.loads(canonical(to_json(results)))["experiments"]
        return known[vectorize]

    return found


@pytest.mark.parametrize("vectorize", [1, 3])
def test_kills_at_random_moments_do_not_change_the_results(tmp_path, vectorize, whole):
    """Kill the command and its workers; test_disturbed.py kills more often, even while files are written."""
    path = write_spec(tmp_path / "mine.toml", **CHANGES, vectorize=vectorize)
    moments = random.Random(vectorize)
    before = -1
    for _ in range(2):
        with subprocess.Popen(**command(path, tmp_path / "killed", "--workers", "2"), start_new_session=True) as run:
            deadline = time.monotonic() + 120
            while not at_work(tmp_path / "killed") and run.poll() is None and time.monotonic() < deadline:
                time.sleep(0.01)
            time.sleep(moments.uniform(0, 1))
            with contextlib.suppress(ProcessLookupError):  # it may have finished
                os.killpg(run.pid, signal.SIGKILL)
        assert stored(tmp_path / "killed") >= before  # finished runs stay
        before = stored(tmp_path / "killed")
    last = subprocess.run(**command(path, tmp_path / "killed", "--workers", "2"), check=True)
    assert f"{before} reused" in last.stderr
    assert "Traceback" not in last.stderr
    assert lasting(tmp_path / "killed")["experiments"] == whole(vectorize)
    assert not (tmp_path / "killed" / "checkpoints").exists()


def test_a_killed_worker_is_replaced(tmp_path, whole):
    """The command continues: the run resumes from its checkpoint in a new process."""
    path = write_spec(tmp_path / "mine.toml", **CHANGES)
    with subprocess.Popen(**command(path, tmp_path / "killed", "--workers", "2")) as run:
        killed = 0
        deadline = time.monotonic() + 300
        while killed < 2 and time.monotonic() < deadline and run.poll() is None:
            if at_work(tmp_path / "killed") and kill_a_child(run.pid):
                killed += 1
                time.sleep(1)  # so that its checkpoint is not mistaken for a new one
            time.sleep(0.05)
        _, err = run.communicate(timeout=600)
    assert run.returncode == 0, err
    assert killed > 0
    assert lasting(tmp_path / "killed")["experiments"] == whole()


def kill_a_child(parent):
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
            words = stat.with_name("cmdline").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[1]) == parent and "spawn_main" in words:
            os.kill(int(stat.parent.name), signal.SIGKILL)
            return True
    return False


def test_a_killed_ray_worker_does_not_change_the_results(tmp_path, whole):
    pytest.importorskip("ray", reason="the extra [ray] is not installed")
    path = write_spec(tmp_path / "mine.toml", **CHANGES)
    with subprocess.Popen(**command(path, tmp_path / "ray", "--workers", "2", "--engine", "ray")) as run:
        killed = False
        deadline = time.monotonic() + 300
        while not killed and time.monotonic() < deadline and run.poll() is None:
            busy = list((tmp_path / "ray" / "checkpoints").glob("*.pt"))
            killed = bool(busy) and kill_a_ray_worker(run.pid)
            time.sleep(0.02)
        _, err = run.communicate(timeout=600)
    assert run.returncode == 0, err
    assert killed
    assert lasting(tmp_path / "ray")["experiments"] == whole()


def kill_a_ray_worker(driver):
    """Return a process that executes a job now: Ray sets its title to the name of the job."""
    import psutil

    mine = psutil.Process(driver).children(recursive=True)
    busy = [process for process in mine if process.cmdline()[:1] and process.cmdline()[0].startswith("ray::_one")]
    if not busy:
        return False
    busy[0].kill()
    return True


def test_two_processes_train_one_run_like_one(tmp_path):
    path = write_spec(tmp_path / "mine.toml", batch=100)  # 1,078 examples: the last batch has 78
    args = command(path, tmp_path / "two")
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
    args["args"] = [sys.executable, *launch, *args["args"][2:], "--only", "both"]
    run = subprocess.run(**args, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False, timeout=600)
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == [str(tmp_path / "two" / "report.html")]
    (one,) = go(tmp_path / "one", schema.load(path), only=["both"]).findings
    two = lasting(tmp_path / "two")["experiments"]["mine"]["methods"]["both"]
    for a, b in zip(one.finals[0].runs, two["runs"], strict=True):
        assert b["curves"]["train_loss"] == pytest.approx(a.curves["train_loss"], rel=1e-3)
        assert b["curves"]["test_loss"] == pytest.approx(a.curves["test_loss"], rel=1e-3)
    with sqlite3.connect(tmp_path / "two" / "runs.sqlite") as db:
        machines = {json.loads(row[0])["machine"]["ranks"] for row in db.execute("SELECT config FROM runs")}
    db.close()
    assert machines == {2}


def test_run_returns_a_table(tmp_path):
    small = a_spec(tuning={"rounds": 0}, seeds={"final": [0, 1]})
    table = api.run(small, out=tmp_path, workers=2)
    assert len(table) == 6
    assert {row["method"] for row in table} == {"adam", "beta", "both"}
    assert table.summary().columns[:3] == ["experiment", "method", "train_loss"]
    assert table.to_markdown().startswith("| experiment | method | seed | status | train_loss |")
    tuned = api.tune(small, out=tmp_path, workers=0)
    assert len(tuned) == 18
    assert sum(row["chosen"] for row in tuned) == 3
