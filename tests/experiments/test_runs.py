"""The store survives what happens to files; workers change nothing but the time."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from semaopt.experiments.runs import OutputError, Store, Workers, finite, write_whole

CONFIG, RESULT = {"lr": 0.1, "seeds": (1, 2)}, {"loss": [1.0, float("nan")]}


def square(x):
    return x * x, torch.get_num_threads()


@pytest.fixture
def store(tmp_path):
    store = Store(tmp_path)
    store.put(CONFIG, RESULT)
    return store


def test_what_was_put_is_got(store):
    assert store.get(CONFIG) == {"loss": [1.0, None]}
    assert store.get({**CONFIG, "lr": 0.2}) is None
    assert store.damaged == []


@pytest.mark.parametrize(
    "damage",
    [
        lambda path, data: path.write_bytes(data[: len(data) // 2]),
        lambda path, _: path.write_bytes(b""),
        lambda path, _: path.write_bytes(b"\xff\xfe\x00"),
        lambda path, _: path.write_text("[]"),
        lambda path, _: path.write_text("{}"),
        lambda path, _: path.write_text("null"),
        lambda path, data: path.write_bytes(data.replace(b"1.0", b"1.5")),
        lambda path, data: path.write_bytes(data.replace(b"0.1", b"0.3")),
        lambda path, _: path.write_text(json.dumps({"config": CONFIG, "result": RESULT, "checksum": 0})),
    ],
)
def test_a_damaged_file_is_noticed_and_replaced(store, damage):
    path = store.path(CONFIG)
    damage(path, path.read_bytes())
    assert store.get(CONFIG) is None
    assert store.damaged == [path]
    store.put(CONFIG, RESULT)
    assert store.get(CONFIG) == finite(RESULT)


def test_the_file_of_another_run_is_not_taken_for_this_one(store):
    other = {**CONFIG, "lr": 0.2}
    store.path(other).write_bytes(store.path(CONFIG).read_bytes())
    assert store.get(other) is None
    assert store.damaged == [store.path(other)]


def test_a_run_file_that_is_a_directory_says_so(tmp_path):
    store = Store(tmp_path)
    store.path(CONFIG).mkdir()
    with pytest.raises(OutputError, match=r"cannot be read \(Is a directory\); choose another --out"):
        store.get(CONFIG)


def test_a_write_that_fails_leaves_the_old_file_and_no_other(tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    write_whole(path, "old")

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OutputError, match=r"a.txt: cannot be written \(No space left on device\)"):
        write_whole(path, "new")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_in_this_process_a_job_has_one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with Workers(1) as workers:
            assert list(workers.do(square, [2, 3])) == [(2, (4, 1)), (3, (9, 1))]
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_workers_start_only_when_there_is_work():
    with Workers(2) as workers:
        assert list(workers.do(square, [])) == []
        assert workers._pool is None


ORPHANS = """
import multiprocessing, os, sys, time
from semaopt.experiments.runs import Workers
with Workers(2) as workers:
    for _ in workers.do(abs, [1, 2]):
        pass
    print(*[child.pid for child in multiprocessing.active_children()], flush=True)
    time.sleep(60)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks processes up in /proc")
def test_workers_leave_when_their_parent_is_killed():
    parent = subprocess.Popen([sys.executable, "-c", ORPHANS], stdout=subprocess.PIPE, text=True)
    with parent:
        children = parent.stdout.readline().split()
        parent.kill()
    assert len(children) == 2
    deadline = time.monotonic() + 20
    while any(_alive(pid) for pid in children) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(_alive(pid) for pid in children)


def _alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
