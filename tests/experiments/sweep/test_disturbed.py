"""Sweeps that are killed, run out of disk space, or are damaged: the results are identical, or an error says why.

disturbed.py defines what is disturbed, and how.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import pytest

from tests.experiments.sweep import disturbed

pytestmark = pytest.mark.skipif(
    not hasattr(os, "fork"), reason="sweeps are forks of a process that has imported everything"
)
ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def found():
    """Return the outcomes of all sweeps, run in a folder open to all users: one sweep runs as nobody."""
    threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    with tempfile.TemporaryDirectory() as work:
        Path(work).chmod(0o755)
        args = [sys.executable, "-m", "tests.experiments.sweep.disturbed", work]
        run = subprocess.run(args, capture_output=True, text=True, cwd=ROOT, env={**os.environ, **threads}, check=False)
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    assert found["statuses"] == [0, 0]
    return found


def said(answer, status, text):
    assert answer["status"] == status, answer["said"]
    assert re.search(text, answer["said"].replace("\n", " ")), answer["said"]
    assert "Traceback" not in answer["said"]


def test_twenty_kills_lose_no_run_and_repeat_none(found):
    killed = found["killed"]
    assert Counter(name for name, _ in killed["seen"]) == dict.fromkeys(
        ("at_step", "torn", "renamed", "in_store", "outside"), disturbed.KILLS // 5
    )
    assert {status for _, status in killed["seen"]} == {-9}
    assert (killed["lost"], killed["twice"]) == (0, 0)
    left = disturbed.RUNS - killed["stored"]
    assert left > 0, "the sweep was too short to be killed so often"
    said(killed["last"], 0, f"{left} runs computed, {killed['stored']} reused")
    assert found["same"]["killed"] == [True, True]


def test_a_full_disk_is_reported_and_stored_runs_survive(found):
    """Limit the size of files, too small for the store or a checkpoint; without the limit the sweep resumes."""
    *store, checkpoint = found["starved"]
    for answer in store:
        said(answer, 2, r"runs.sqlite cannot be used \((disk I/O error|database or disk is full)\)\. Free disk space")
    said(checkpoint, 2, r"[0-9a-f]{64}.pt cannot be written \(File too large\)\. Choose another --out")
    for answer in found["starved"]:
        assert not [name for name in answer["left"] if name.endswith(".part")]
    said(found["fed"], 0, "2 runs computed, 0 reused")
    assert found["same"]["starved"] == [True, True]


def test_a_disk_of_sixty_kilobytes(found):
    answer = found["small_disk"]
    if answer["status"] == 77:
        pytest.skip("mounting a file system is not permitted here")
    said(answer, 2, r"(cannot be written \(No space left on device\)|disk is full)")
    assert ".part" not in answer["said"].partition("left:")[2]


def test_a_folder_without_write_permission(found):
    for answer in found["not_permitted"]:
        said(answer, 2, "cannot be written to: Permission denied")
        assert answer["left"] == found["not_permitted"][0]["left"]
    assert len(found["not_permitted"]) == 2


def test_two_sweeps_on_one_folder(found):
    said(found["at_once"]["second"], 2, r"both is in use by another process\. Wait until it ends, or choose another")
    said(found["at_once"]["first"], 0, "2 runs computed, 0 reused")
    assert found["same"]["both"] == [True, True]


@pytest.mark.parametrize("damage", ["cut", "flipped"])
def test_a_damaged_checkpoint_is_reported_and_the_one_before_it_used(found, damage):
    said(found[damage], 0, r"seed 0 \(.*\): checkpoint [0-9a-f]{64}\.pt is damaged; resuming from the one before it")
    assert found["same"][damage] == [True, True]


def test_a_damaged_store(found):
    said(found["spoiled"]["head"], 2, r"runs.sqlite cannot be used \(file is not a database\)\. If it is damaged, move")
    said(found["spoiled"]["schema"], 2, r"runs.sqlite cannot be used \(malformed database schema")
    said(
        found["spoiled"]["row"], 0, "row in the store is damaged; the run is computed again.* 1 run computed, 1 reused"
    )
    assert found["spoiled"]["same"]
