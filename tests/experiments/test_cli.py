"""The command line: what it says and with which status it ends."""

import ast
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import semaopt
from semaopt import __main__ as program
from semaopt.experiments import catalogue, cli
from tests.experiments.tiny import STUDY

ROOT = Path(__file__).parents[2]


@pytest.fixture
def call(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli, "_cores", lambda: 1)
    monkeypatch.setitem(catalogue.SCALES, "quick", (STUDY,))

    def call(*args):
        monkeypatch.setattr(sys, "argv", ["semaopt", *args])
        status = program.main()
        return status, *capsys.readouterr()

    return call


def test_version(call):
    assert call("--version") == (0, f"semaopt {semaopt.__version__}\n", "")


@pytest.mark.parametrize("args", [(), ("--help",)])
def test_help(call, args):
    status, out, _ = call(*args)
    assert status == 0
    assert "reproduce" in out


def test_reproduce_ends_with_the_path_of_the_report(call):
    status, out, err = call("reproduce", "--only", "digits")
    assert (status, out) == (0, "results/quick/report.html\n")
    assert "30 trials run, 0 reused" in err
    assert "the paper's order" in err
    page = Path(out.strip()).read_text()
    assert "semaopt reproduce --only digits" in page
    status, out, err = call("reproduce", "--out", "results/quick")
    assert "0 trials run, 30 reused" in err


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (("reproduce", "--scale", "paper"), "'paper' is unknown; there is: quick"),
        (("reproduce", "--only", "cifar"), "'cifar' is unknown; there is: digits"),
        (("reproduce", "--frob"), "No such option"),
        (("reproduce", "extra"), "unexpected extra argument"),
        (("frob",), "No such command 'frob'"),
        (("bench", "frob"), "'frob' is unknown; there is: step"),
        (("reproduce", "--out", "file"), "'file' is not a directory, or lies below a file"),
        (("reproduce", "--out", "file/below"), "'file/below' is not a directory, or lies below a file"),
        (("reproduce", "--out", "/proc/nothing"), "'/proc/nothing' cannot be written to"),
    ],
)
def test_bad_arguments(call, tmp_path, args, text):
    (tmp_path / "file").write_text("mine")
    status, out, err = call(*args)
    assert (status, out) == (2, "")
    assert text in err
    assert "Traceback" not in err
    assert os.listdir(tmp_path) == ["file"]
    assert (tmp_path / "file").read_text() == "mine"


def test_a_disk_that_fills_up(call, monkeypatch):
    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    status, out, err = call("reproduce")
    assert (status, out) == (2, "")
    assert "cannot be written (No space left on device)" in err


def test_a_missing_module_of_our_own_is_a_bug(monkeypatch):
    monkeypatch.setitem(sys.modules, "semaopt.experiments.cli", None)
    with pytest.raises(ModuleNotFoundError):
        program.main()


WITHOUT = """
import contextlib, io, json, sys
from semaopt.__main__ import main
missing, calls = sys.argv[1], json.loads(sys.argv[2])
sys.modules[missing] = None
said = []
for args in calls:
    sys.argv = ["semaopt", *args]
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        said.append([main(), out.getvalue(), err.getvalue()])
print(json.dumps(said))
"""


def without(missing, *calls):
    """What each call answers where that module cannot be imported."""
    args = [sys.executable, "-c", WITHOUT, missing, json.dumps(calls)]
    return json.loads(subprocess.run(args, capture_output=True, text=True, check=True, cwd=ROOT).stdout)


NEEDED = "this command needs the extra [experiments]: pip install 'semaopt[experiments]'\n"


def test_with_torch_alone():
    version = f"semaopt {semaopt.__version__}\n"
    usage = f"{version}Its commands need the extra [experiments]: pip install 'semaopt[experiments]'\n"
    said = without("typer", ["--version"], [], ["--help"], ["reproduce"], ["frob"])
    assert said == [[0, version, ""], [0, usage, ""], [0, usage, ""], [2, "", NEEDED], [2, "", NEEDED]]


@pytest.mark.slow
@pytest.mark.parametrize("missing", ["matplotlib", "sklearn"])
def test_without_one_part_of_the_extra(missing, tmp_path):
    assert without(missing, ["reproduce", "--out", str(tmp_path / "x")]) == [[2, "", NEEDED]]
    assert os.listdir(tmp_path) == []


def test_the_extra_is_what_is_imported():
    imported = set()
    for path in (ROOT / "semaopt" / "experiments").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) else []
            imported |= {name.partition(".")[0] for name in names}
    outside = imported - set(sys.stdlib_module_names) - {"semaopt", "torch"}
    outside -= {"rdkit", "torch_geometric"}  # of the extra [molecules], whose absence is told where it is needed
    assert outside == program.EXTRA
    listed = re.search(r"^experiments = \[(.*?)\]", (ROOT / "pyproject.toml").read_text(), re.DOTALL | re.MULTILINE)
    packages = set(re.findall(r'"([\w-]+)', listed[1]))
    assert {"sklearn" if name == "scikit-learn" else name for name in packages} == outside


INTERRUPTED = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts background jobs with it ignored
from dataclasses import replace
from semaopt.__main__ import main
from semaopt.experiments import catalogue, cli
from tests.experiments.tiny import STUDY
catalogue.SCALES["quick"] = (replace(STUDY, epochs=int(sys.argv.pop()), together=1),)
cli._cores = lambda: 2
sys.exit(main())
"""


@pytest.mark.slow
def test_ctrl_c_keeps_what_is_finished(tmp_path):
    # The signal goes to the whole group, as from a terminal.
    args = [sys.executable, "-c", INTERRUPTED, "reproduce", "--out", str(tmp_path), "90"]
    with subprocess.Popen(
        args, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as run:
        deadline = time.monotonic() + 300
        while len(list(tmp_path.glob("runs/*.json"))) < 2 and time.monotonic() < deadline:
            time.sleep(0.02)
        os.killpg(run.pid, signal.SIGINT)
        out, err = run.communicate(timeout=300)
    assert (run.returncode, out) == (130, "")
    assert "Interrupted; what is finished is kept. To go on: semaopt reproduce --out" in err
    assert "Traceback" not in err
    kept = list(tmp_path.glob("runs/*"))
    assert 2 <= len(kept) < 27
    assert all(json.loads(path.read_text())["checksum"] for path in kept)
    assert os.listdir(tmp_path) == ["runs"]
