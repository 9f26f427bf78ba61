"""The store: damage, other files in its place, failed writes, speed, and the lock of its folder."""

import math
import os
import signal
import sqlite3
import stat
import subprocess
import sys
import time

import pytest

from semaopt.experiments.files import OutputError, locked, write_output
from semaopt.experiments.sweep.store import Store
from semaopt.experiments.training.run import Result

RESULT = Result({"loss": [2.0, math.nan], "accuracy": [0.1, 0.9]}, 1.5, "diverged")


def row(key="k" * 64, **changes):
    known = {
        "experiment": "e",
        "method": "m",
        "purpose": "final",
        "seed": 0,
        "config": {"lr": 0.1},
        "program": {"a": 1},
    }
    return {"key": key, **known, **changes}


@pytest.fixture
def path(tmp_path):
    with Store(tmp_path / "runs.sqlite") as store:
        store.put([(row(), RESULT)])
    return tmp_path / "runs.sqlite"


def test_get_returns_what_put_stored(path):
    with Store(path) as store:
        found = store.get("k" * 64)
        assert (found.seconds, found.status, len(store)) == (1.5, "diverged", 1)
        assert found.curves["accuracy"] == [0.1, 0.9]
        assert found.curves["loss"][0] == 2.0
        assert math.isnan(found.last("loss"))
        assert store.get("other") is None
        store.put([(row(), Result({"loss": [1.0]}, 2.0))])
        assert store.get("k" * 64).curves == {"loss": [1.0]}
        assert store.damaged == []


def test_put_stores_all_results_or_none(path):
    with Store(path) as store:
        with pytest.raises(KeyError):
            store.put([(row("a"), RESULT), ({"key": "b"}, RESULT)])
        assert len(store) == 1
        assert store.get("a") is None


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE runs SET seconds = 1.25",
        "UPDATE runs SET status = 'done'",
        "UPDATE runs SET checksum = 'x'",
        "UPDATE curves SET epochs = '[2.5, null]' WHERE metric = 'loss'",
        "UPDATE curves SET epochs = '[2.0, nu' WHERE metric = 'loss'",
        "UPDATE curves SET epochs = '{}' WHERE metric = 'loss'",
        "UPDATE curves SET metric = 'lost' WHERE metric = 'loss'",
        "DELETE FROM curves WHERE metric = 'loss'",
    ],
)
def test_a_damaged_row_is_detected_and_replaced(path, damage):
    with sqlite3.connect(path) as db:
        db.execute(damage)
    db.close()
    with Store(path) as store:
        assert store.get("k" * 64) is None
        assert store.damaged == ["k" * 64]
        store.put([(row(), RESULT)])
        assert store.get("k" * 64).status == "diverged"


@pytest.mark.parametrize(
    "content", [b"not a database, but long enough to look at" * 100, b"SQLite format 3\0" + b"\xff" * 4096]
)
def test_a_file_that_is_not_a_store_stays_unchanged(tmp_path, content):
    path = tmp_path / "runs.sqlite"
    path.write_bytes(content)
    with pytest.raises(OutputError, match=r"cannot be used \(.*\)\. If it is damaged, move it away"):
        Store(path)
    assert path.read_bytes() == content


def test_a_store_of_another_version_is_refused(path):
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(OutputError, match="its schema is 99, this program's is 1"):
        Store(path)


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot be used"):
        Store(tmp_path / "file" / "runs.sqlite")


def test_a_read_only_store_is_refused_when_it_is_opened(path, monkeypatch):
    before = path.read_bytes()
    Store(path).__exit__()
    assert path.read_bytes() == before  # opening writes and rolls back
    connect = sqlite3.connect

    def unprivileged(address, **options):  # imitate a file mode that forbids writing, which root could ignore
        return connect(address.replace("mode=rwc", "mode=ro"), **options)

    monkeypatch.setattr(sqlite3, "connect", unprivileged)
    text = r"cannot be used \(attempt to write a readonly database\)\. Make it writable \(chmod u\+w\), or choose"
    with pytest.raises(OutputError, match=text):
        Store(path)
    with Store(path, read_only=True) as store:
        assert len(store) == 1


KILLED = """
import os, signal, sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("PRAGMA cache_size = 1")  # changed pages go to the file before the commit, which makes the journal hot
db.execute("BEGIN IMMEDIATE")
for k in range(100):
    db.execute("INSERT INTO curves VALUES (?, ?, ?, 0)", ("k" * 64, f"m{k}", "0" * 3000))
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def interrupted(path):
    """Return a store whose writer was killed during a commit."""
    assert subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False).returncode == -signal.SIGKILL
    assert path.with_name("runs.sqlite-journal").stat().st_size > 0
    return path


def test_reading_rolls_an_interrupted_commit_back(interrupted):
    with Store(interrupted, read_only=True) as store:
        assert (len(store), store.get("k" * 64).status, store.damaged) == (1, "diverged", [])
    assert not interrupted.with_name("runs.sqlite-journal").exists()


def test_an_interrupted_commit_in_a_file_that_cannot_be_written(interrupted, monkeypatch):
    before = interrupted.read_bytes()
    monkeypatch.setattr(os, "access", lambda *_: False)  # imitate a file mode that root could ignore
    text = r"readonly database\)\. The command that wrote it was killed\. Run that command again; or copy the file and "
    with pytest.raises(OutputError, match=text + r"runs\.sqlite-journal to a folder that can be written to"):
        Store(interrupted, read_only=True)
    assert interrupted.read_bytes() == before


def test_looking_up_runs_is_fast(tmp_path):
    with Store(tmp_path / "runs.sqlite") as store:
        curve = [0.5] * 60
        store.put([(row(f"{k:064}", seed=k), Result({"loss": curve, "auc": curve}, 1.0)) for k in range(10_000)])
        started = time.process_time()
        assert all(store.get(f"{k:064}") is not None for k in range(0, 10_000, 10))
        assert time.process_time() - started < 5  # for 1000 lookups; scanning the table each time would take minutes
        plan = store._db.execute("EXPLAIN QUERY PLAN SELECT * FROM runs WHERE key = 'a'").fetchall()
        assert "SEARCH" in plan[0][3]


def test_a_folder_is_locked_by_one_process(tmp_path):
    with locked(tmp_path), pytest.raises(OutputError, match=r"in use by another process\. Wait"), locked(tmp_path):
        raise AssertionError("locked twice")
    with locked(tmp_path):
        assert (tmp_path / ".lock").exists()


def test_file_and_folder_are_synchronized(tmp_path, monkeypatch):
    synchronized, sync = [], os.fsync

    def recorded(handle):
        synchronized.append("folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file")
        sync(handle)

    monkeypatch.setattr(os, "fsync", recorded)
    write_output(tmp_path / "a.txt", "content")
    assert synchronized == ["file", "folder"]


def test_a_failed_write_leaves_only_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    write_output(path, "old")

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OutputError, match=r"a.txt cannot be written \(No space left on device\)"):
        write_output(path, "new")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]
