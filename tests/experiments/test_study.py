"""A study from beginning to end: resumed, damaged, interrupted, killed, it comes to the same."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace

import pytest

from semaopt.experiments import study
from semaopt.experiments.results import to_json
from semaopt.experiments.runs import canonical
from tests.experiments.tiny import STUDY, Watcher, go

EACH = 9  # six points a method, and three more: the largest lr is best, so the grid grows
TRIALS = 3 * EACH + 3  # and the three that are chosen


def lasting(results):
    """What must not depend on how often it was interrupted."""
    return {key: value for key, value in json.loads(canonical(to_json(results))).items() if key != "session"}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    out = tmp_path_factory.mktemp("undisturbed")
    return out, go(out)


@pytest.fixture
def undrawn(monkeypatch):
    """Figures take longer than the runs."""
    monkeypatch.setattr(study, "write", lambda results, out: None)


def test_it_leaves_all_files_and_nothing_else(undisturbed):
    out, results = undisturbed
    assert set(os.listdir(out)) == {"digits.png", "digits.svg", "report.html", "results.json", "runs"}
    assert len(os.listdir(out / "runs")) == 3 * EACH // STUDY.together + 3
    assert (results.session.computed, results.session.reused) == (TRIALS, 0)
    assert (out / "digits.png").read_bytes().startswith(b"\x89PNG")
    written = json.loads((out / "results.json").read_text())
    assert written.pop("session")["computed"] == TRIALS
    assert written == lasting(results)


def test_results_hold_all_that_was_measured(undisturbed):
    found = lasting(undisturbed[1])["experiments"]["digits"]
    assert found["tuning"]["trials_per_method"] == dict.fromkeys(("adam", "beta", "both"), EACH)
    assert len(found["tuning"]["trials"]) == 3 * EACH
    assert [(e["axis"], e["value"]) for e in found["tuning"]["extensions"]] == [("lr", 0.0333333)]
    for name, method in found["methods"].items():
        assert [run["seed"] for run in method["runs"]] == [0, 1, 2]
        assert all(len(run["train_loss"]) == STUDY.epochs for run in method["runs"])
        trials = [trial for trial in found["tuning"]["trials"] if trial["method"] == name]
        assert method["tuned"]["validation_loss"] == min(trial["validation_loss"] for trial in trials)
    assert len(found["comparisons"]) == 3


@pytest.mark.usefixtures("undrawn")
def test_a_second_time_everything_is_reused(undisturbed):
    watch = Watcher()
    results = go(undisturbed[0], watch=watch)
    assert (results.session.computed, results.session.reused) == (0, TRIALS)
    assert (watch.planned, watch.finished) == (0, 0)
    assert "18 tuning trials were finished before and are reused" in watch.said
    assert lasting(results) == lasting(undisturbed[1])


@pytest.mark.usefixtures("undrawn")
def test_the_plan_is_what_is_done(tmp_path):
    watch = Watcher()
    go(tmp_path, STUDY, replace(STUDY, name="digits-noisy", noise=0.2), watch=watch)
    assert watch.planned == watch.finished == 2 * TRIALS


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("runs", [1, 7, 11])
def test_interrupted_and_resumed_it_comes_to_the_same(undisturbed, tmp_path, runs):
    with pytest.raises(KeyboardInterrupt):
        go(tmp_path, watch=Watcher(stop_after=runs))
    assert len(os.listdir(tmp_path / "runs")) == runs
    assert set(os.listdir(tmp_path)) == {"runs"}
    results = go(tmp_path)
    assert results.session.reused > 0
    assert results.session.computed + results.session.reused == TRIALS
    assert lasting(results) == lasting(undisturbed[1])


@pytest.mark.usefixtures("undrawn")
def test_damaged_runs_are_said_and_done_again(undisturbed, tmp_path):
    go(tmp_path)
    first, second, *_ = sorted((tmp_path / "runs").iterdir())
    first.write_bytes(first.read_bytes()[:40])
    second.write_text("")
    watch = Watcher()
    results = go(tmp_path, watch=watch)
    assert sorted(results.session.damaged) == sorted([first.name, second.name])
    assert watch.runs == 2
    assert {f"{path} is damaged; its run is done again" for path in (first, second)} <= set(watch.said)
    assert lasting(results) == lasting(undisturbed[1])


@pytest.mark.usefixtures("undrawn")
def test_other_code_does_not_reuse_its_runs(tmp_path, monkeypatch):
    go(tmp_path)
    known = study.fingerprint()
    monkeypatch.setattr(study, "fingerprint", lambda: {**known, "code": "changed"})
    assert go(tmp_path).session.reused == 0


def test_tuning_seeds_and_final_seeds_have_nothing_in_common():
    default = study.Study()
    assert not set(default.tuning_seeds) & set(default.final_seeds)
    assert len(default.final_seeds) == 5


CHILD = """
import sys
from pathlib import Path
from tests.experiments.tiny import Watcher, go
class Slow(Watcher):
    def done(self, points):
        super().done(points)
        print(self.runs, flush=True)
        sys.stdin.readline()
go(Path(sys.argv[1]), watch=Slow(), workers=2)
"""


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_killed_and_resumed_it_comes_to_the_same(undisturbed, tmp_path):
    command = [sys.executable, "-c", CHILD, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        for _ in range(3):
            child.stdout.readline()
            child.stdin.write("\n")
            child.stdin.flush()
        child.stdout.readline()
        child.kill()
    assert child.returncode == -signal.SIGKILL
    results = go(tmp_path, workers=2)
    assert results.session.reused >= 3 * STUDY.together
    assert lasting(results) == lasting(undisturbed[1])
