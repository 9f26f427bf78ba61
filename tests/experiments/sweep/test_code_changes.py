"""A stored sweep after an edit of the package: runs are reused unless code that computes them has changed."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import semaopt

ROOT = Path(semaopt.__file__).parent
PROGRAM = """
import json, sys
import semaopt
from tests.experiments.tiny import a_spec, go

assert semaopt.__file__.startswith(sys.argv[1]), semaopt.__file__
spec = a_spec(epochs=1, seeds={"tuning": [100], "final": [0]}, tuning={"rounds": 0})
session = go(sys.argv[2], spec, only=["adam"]).session
print(json.dumps([session.computed, session.reused]))
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """A copy of the package, and a store with seven runs made by it."""
    folder = tmp_path_factory.mktemp("copy")
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT, folder / "semaopt", ignore=ignored)
    shutil.copytree(Path(__file__).parents[2], folder / "tests", ignore=ignored)
    assert sweep(folder) == [7, 0]  # six trials and a final run
    return folder


def sweep(folder):
    """Run the sweep with the copy; return how many runs were computed and reused."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder), str(folder / "out")],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def edit(path):
    """Add a sentence to the docstring of a module."""
    text = path.read_text()
    assert text.startswith('"""')
    path.write_text('"""Edited. ' + text[3:])


def test_editing_docstrings_of_theory_checks_and_report_keeps_every_run(package):
    for name in ("theory/__init__.py", "checks/__init__.py", "experiments/report/__init__.py"):
        edit(package / "semaopt" / name)
    assert sweep(package) == [0, 7]


def test_editing_kernels_keeps_no_run(package):
    edit(package / "semaopt" / "kernels" / "__init__.py")
    assert sweep(package) == [7, 0]
