"""Sweeps that are killed, run out of disk space, are locked out or damaged; test_disturbed.py runs this program.

It imports everything and does one sweep undisturbed; then every sweep is a fork of it, so that twenty of them cost
little more than their training. Their outcomes are printed as JSON.
"""

from __future__ import annotations

import ctypes
import functools
import json
import os
import random
import re
import resource
import shutil
import signal
import sqlite3
import stat
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from semaopt import __main__ as program
from semaopt.experiments import report
from semaopt.experiments.files import canonical, write_output
from semaopt.experiments.results.export import to_json
from semaopt.experiments.results.model import Results
from semaopt.experiments.sweep import runner, store
from semaopt.experiments.training import single
from tests.experiments.cli.test_commands import write_spec

KILLS = 20
CHANGES = {"epochs": 24, "batch": 128, "tuning": {"rounds": 0}, "seeds": {"tuning": [100], "final": [0, 1]}}
RUNS = 24
SHORT = """
title = "Short"
loss = "cross_entropy"
batch = 128
epochs = 12
metrics = ["train_loss"]
claim = {text = "-", metric = "train_loss"}
data = {name = "digits"}
model = {name = "mlp", options = {hidden = 8}}
seeds = {final = [0, 1]}
methods = [{name = "adam", label = "Adam", algorithm = "ASA", options = {lr = 0.01, beta = 0.9}}]
"""
NOBODY = 65534


def forked(do: Callable[[], object], log: Path) -> int:
    """Call ``do`` in a fork that prints to ``log``; return its process id."""
    child = os.fork()
    if child:
        return child
    status = 70
    try:
        handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        found = do()
        status = found if isinstance(found, int) else 0
    except BaseException as error:  # printed as the interpreter would
        sys.excepthook(type(error), error, error.__traceback__)
        status = 71
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def ended(child: int) -> int:
    """Return the exit status of a child, or the negative signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def command(spec: str, out: Path, every: float = 0.01) -> Callable[[], int]:
    """Return a function that calls ``semaopt run`` in this process."""

    def do() -> int:
        options = ["--out", str(out), "--workers", "0", "--checkpoint-seconds", str(every)]
        sys.argv = ["semaopt", "run", spec, *options]
        return program.main()

    return do


def outcome(do: Callable[[], object], log: Path) -> dict[str, Any]:
    """Return the exit status and the output."""
    return {"status": ended(forked(do, log)), "said": log.read_text()}


def rows(out: Path) -> dict[str, Any]:
    """Return the content of the store without times and checksums."""
    with sqlite3.connect(f"file:{out / 'runs.sqlite'}?mode=ro", uri=True, timeout=30) as db:
        runs = db.execute("SELECT key, experiment, method, purpose, seed, status, config FROM runs ORDER BY key")
        curves = db.execute("SELECT key, metric, epochs FROM curves ORDER BY key, metric")
        found = {"runs": runs.fetchall(), "curves": curves.fetchall()}
    db.close()
    return found


def lasting(out: Path) -> dict[str, Any]:
    written = json.loads((out / "results.json").read_text())
    return {key: value for key, value in written.items() if key != "session"}


def die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def at_step(n: int) -> None:
    """Kill the process in the n-th training step."""
    left, step = [n], single.SingleRun.step

    def counted(self: single.SingleRun, k: int) -> None:
        left[0] -= 1
        if left[0] == 0:
            die()
        step(self, k)

    single.SingleRun.step = counted  # type: ignore[method-assign]


def torn(n: int) -> None:
    """Kill the process while it writes the n-th checkpoint: half of the file is on disk."""
    left, sync = [n], os.fsync

    def half(handle: int) -> None:
        left[0] -= stat.S_ISREG(os.fstat(handle).st_mode)  # folders are synchronized as well
        if left[0] == 0:
            os.ftruncate(handle, os.fstat(handle).st_size // 2)
            die()
        sync(handle)

    os.fsync = half


def renamed(n: int) -> None:
    """Kill the process after the n-th rename of a checkpoint; saving one takes two renames."""
    left, replace = [n], Path.replace

    def counted(self: Path, target: Any) -> Path:
        done = replace(self, target)
        left[0] -= 1
        if left[0] == 0:
            die()
        return done

    Path.replace = counted  # type: ignore[method-assign,assignment]


def in_store(n: int) -> None:
    """Kill the process before the n-th statement that writes to the store, inside a transaction or at its commit."""
    left, connect = [n], sqlite3.connect

    def watched(*args: Any, **options: Any) -> sqlite3.Connection:
        db = connect(*args, **options)

        def look(statement: str) -> None:
            left[0] -= statement.startswith(("INSERT", "DELETE", "COMMIT", "BEGIN"))
            if left[0] == 0:
                die()

        db.set_trace_callback(look)
        return db

    store.sqlite3.connect = watched  # type: ignore[assignment]


def keys(out: Path) -> set[str]:
    """Return the keys in the store, read from a copy so that the journal of a killed process stays."""
    with tempfile.TemporaryDirectory() as folder:
        for path in out.glob("runs.sqlite*"):
            shutil.copy(path, folder)
        with sqlite3.connect(Path(folder, "runs.sqlite")) as db:
            there = db.execute("SELECT count(*) FROM sqlite_schema WHERE name = 'runs'").fetchone()[0]
            found = {row[0] for row in db.execute("SELECT key FROM runs")} if there else set()
        db.close()
    return found


def noted(do: Callable[[], int], notes: Path) -> Callable[[], int]:
    """Wrap ``do`` so that the key of each run that starts training is appended to a file."""

    def noting() -> int:
        perform = runner.perform

        def begin(unit: Any, **place: Any) -> Any:
            with notes.open("a") as file:
                file.writelines(f"{run.key}\n" for run in unit.runs)
            return perform(unit, **place)

        runner.perform = begin
        return do()

    return noting


INSIDE: tuple[tuple[Callable[[int], None], int], ...] = ((at_step, 300), (torn, 4), (renamed, 8), (in_store, 20))


def killed(spec: str, out: Path, work: Path, seed: int) -> dict[str, Any]:
    """Kill the sweep twenty times, one in five from outside, then let it finish."""
    rng = random.Random(seed)
    log, notes = work / "log", work / "notes"
    found: dict[str, Any] = {"seen": [], "journals": 0, "lost": 0, "twice": 0}
    for k in range(KILLS):
        before = keys(out)
        notes.write_text("")
        do = noted(command(spec, out), notes)
        if k % 5 < 4:
            how, most = INSIDE[k % 5]
            name = how.__name__
            child = forked(functools.partial(_doomed, how, rng.randrange(1, most), do), log)
        else:
            name = "outside"
            child = forked(do, log)
            deadline = time.monotonic() + rng.uniform(0.1, 0.5)
            while time.monotonic() < deadline and not (out / "runs.sqlite-journal").exists():
                continue
            os.kill(child, signal.SIGKILL)
        found["seen"].append([name, ended(child)])
        found["journals"] += (out / "runs.sqlite-journal").exists()
        found["lost"] += len(before - keys(out))
        found["twice"] += len(before & set(notes.read_text().split()))
    found["stored"] = len(keys(out))
    return {**found, "last": outcome(command(spec, out), log)}


def _doomed(how: Callable[[int], None], n: int, do: Callable[[], int]) -> int:
    how(n)
    return do()


def starved(spec: str, out: Path, log: Path) -> list[dict[str, Any]]:
    """Limit the size of files: first the store cannot be created, then no checkpoint can be written."""

    def limited(most: int) -> int:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))
        return command(spec, out, 0.0)()

    found = [{**outcome(functools.partial(limited, most), log), "left": names(out)} for most in (1_000, 12_000)]
    ended(forked(functools.partial(_doomed, at_step, 3, command(spec, out)), log))  # creates the store
    return [*found, {**outcome(functools.partial(limited, 6_000), log), "left": names(out)}]


def names(out: Path) -> list[str]:
    return sorted(path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file())


def on_small_disk(spec: str, folder: Path, log: Path) -> dict[str, Any]:
    """Run on a file system of 60 kB, if mounting is permitted (status 77 if not)."""
    folder.mkdir()

    def do() -> int:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.unshare(0x00020000) != 0 or libc.mount(b"none", b"/", None, 0x4000 | 0x40000, None) != 0:
            return 77
        if libc.mount(b"tmpfs", os.fsencode(folder), b"tmpfs", 0, b"size=60k") != 0:
            return 77
        status = command(spec, folder / "out", 0.0)()
        print("left:", *names(folder))
        return status

    return outcome(do, log)


def not_permitted(spec: str, folder: Path, log: Path) -> list[dict[str, Any]]:
    """Run in a folder without write permission; root becomes nobody, since it may write everywhere."""

    def as_nobody(out: Path) -> int:
        if os.getuid() == 0:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
        return command(spec, out)()

    folder.mkdir()
    outcome(command(spec, folder / "full"), log)
    found = []
    for path in (folder, folder / "full"):
        path.chmod(0o555)
    for out in (folder / "new", folder / "full"):
        found.append({**outcome(functools.partial(as_nobody, out), log), "left": names(folder)})
    for path in (folder, folder / "full"):
        path.chmod(0o755)
    return found


def at_once(spec: str, out: Path, work: Path) -> dict[str, Any]:
    """Start a second sweep on a folder in use."""
    first = forked(command(spec, out), work / "first")
    deadline = time.monotonic() + 60
    while not list(out.glob("checkpoints/*.pt")) and time.monotonic() < deadline:
        time.sleep(0.005)
    os.kill(first, signal.SIGSTOP)
    second = outcome(command(spec, out), work / "log")
    os.kill(first, signal.SIGCONT)
    return {"second": second, "first": {"status": ended(first), "said": (work / "first").read_text()}}


def damaged(spec: str, out: Path, work: Path, cut: bool) -> dict[str, Any]:
    """Truncate the newest checkpoint of a killed sweep, or flip one of its bits."""
    ended(
        forked(functools.partial(_doomed, renamed, 7, command(spec, out, 0.0)), work / "log")
    )  # while it saves the fourth
    newest = next(path for path in (out / "checkpoints").glob("*.pt") if "previous" not in path.name)
    content = newest.read_bytes()
    at = len(content) // 2
    newest.write_bytes(content[:at] if cut else content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
    return outcome(command(spec, out), work / "log")


def spoiled(spec: str, out: Path, log: Path) -> dict[str, Any]:
    """Flip a bit in the header, the schema or a row of the store of a finished sweep."""
    path = out / "runs.sqlite"
    content = path.read_bytes()
    curve = re.search(rb"\[\d\.\d\d\d", content)
    assert curve is not None
    found: dict[str, Any] = {}
    before = rows(out)
    for name, at in (("head", 16), ("schema", content.index(b"CREATE TABLE") + 3), ("row", curve.end() - 1)):
        path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        found[name] = outcome(command(spec, out), log)
    found["same"] = rows(out) == before  # the damaged run was computed again
    path.write_bytes(content)
    return found


def record(results: Results, out: Path) -> None:
    """Replace report.write, which takes longer than these sweeps."""
    write_output(out / "results.json", canonical(to_json(results)))


def main(folder: str) -> None:
    torch.set_num_threads(1)
    report.write = record
    work = Path(folder)
    whole, short = write_spec(work / "whole.toml", **CHANGES), str(work / "short.toml")
    Path(short).write_text(SHORT)
    null = os.open(os.devnull, os.O_WRONLY)
    real, error = os.dup(1), os.dup(2)
    os.dup2(null, 1)
    os.dup2(null, 2)
    statuses = [command(spec, work / name)() for spec, name in ((whole, "whole"), (short, "short"))]
    os.dup2(real, 1)
    os.dup2(error, 2)
    log = work / "log"
    found = {
        "statuses": statuses,
        "killed": killed(whole, work / "killed", work, 0),
        "starved": starved(short, work / "starved", log),
        "fed": outcome(command(short, work / "starved"), log),
        "small_disk": on_small_disk(short, work / "disk", log),
        "not_permitted": not_permitted(short, work / "readable", log),
        "at_once": at_once(short, work / "both", work),
        "cut": damaged(short, work / "cut", work, True),
        "flipped": damaged(short, work / "flipped", work, False),
    }
    same = {name: [rows(work / name) == rows(work / like), lasting(work / name) == lasting(work / like)]
            for name, like in (("killed", "whole"), ("starved", "short"), ("both", "short"), ("cut", "short"),
                               ("flipped", "short"))}  # fmt: skip
    print(json.dumps({**found, "same": same, "spoiled": spoiled(short, work / "short", log)}))


if __name__ == "__main__":
    main(sys.argv[1])
