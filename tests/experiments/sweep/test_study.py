"""Studies: interrupted, resumed or damaged, they end with the same results."""

import json
import math
import shutil
import sqlite3
from collections import Counter
from pathlib import Path

import pytest

from semaopt.experiments import fingerprint, report
from semaopt.experiments.files import OutputError, canonical, locked
from semaopt.experiments.report import figures
from semaopt.experiments.results.export import to_json
from semaopt.experiments.spec import schema
from semaopt.experiments.sweep import run as runs
from semaopt.experiments.sweep import runner, study
from semaopt.experiments.sweep.engines.local import Failure
from semaopt.experiments.sweep.runner import RunsError
from semaopt.experiments.training import run
from semaopt.experiments.training.run import Machine
from tests.experiments.tiny import AUC, EACH, RAW, RUNS, Watcher, a_spec, go


def lasting(results):
    """Return what must not depend on interruptions."""
    return {key: value for key, value in json.loads(canonical(to_json(results))).items() if key != "session"}


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    out = tmp_path_factory.mktemp("uninterrupted")
    return out, go(out)


def test_a_finished_study_leaves_only_the_store(uninterrupted):
    out, results = uninterrupted
    assert {path.name for path in out.iterdir()} <= {"runs.sqlite", ".lock"}
    assert (results.session.computed, results.session.reused) == (RUNS, 0)
    with sqlite3.connect(out / "runs.sqlite") as db:
        assert db.execute("SELECT count(*) FROM runs").fetchone() == (RUNS,)
        assert db.execute("SELECT count(*) FROM curves WHERE metric LIKE 'test_%'").fetchone() == (2 * 9,)
        assert db.execute("SELECT count(*) FROM programs").fetchone() == (1,)
    db.close()


def test_results_contain_all_measurements(uninterrupted):
    found = lasting(uninterrupted[1])["experiments"]["tiny"]
    (tuning,) = found["tuning"]
    assert tuning["trials_per_method"] == dict.fromkeys(("adam", "beta", "both"), EACH)
    assert [(e["axis"], e["value"]) for e in tuning["extensions"]] == [("lr", 0.0333333)]
    for name, method in found["methods"].items():
        assert [run["seed"] for run in method["runs"]] == [0, 1, 2]
        assert all(len(run["curves"]["train_loss"]) == 3 for run in method["runs"])
        trials = [trial for trial in tuning["trials"] if trial["method"] == name]
        assert method["tuning_metric"] == [min(trial["mean"] for trial in trials)]
    assert len(found["comparisons"]) == 3 * 3
    assert found["data"]["sizes"] == {"train": 1078, "valid": 359, "test": 360}


def test_the_report_files(uninterrupted, tmp_path):
    report.write(uninterrupted[1], tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {
        "tiny.png",
        "tiny.svg",
        "report.html",
        "results.json",
        "results.md",
    }
    assert (tmp_path / "tiny.png").read_bytes().startswith(b"\x89PNG")
    written = json.loads((tmp_path / "results.json").read_text())
    assert written.pop("session")["computed"] == RUNS
    assert written == lasting(uninterrupted[1])


def test_a_second_run_reuses_everything(uninterrupted):
    watch = Watcher()
    results = go(uninterrupted[0], watch=watch)
    assert (results.session.computed, results.session.reused) == (0, RUNS)
    assert (watch.planned, watch.finished) == (0, 0)
    assert "36 finished runs found in the store and reused" in watch.said
    assert lasting(results) == lasting(uninterrupted[1])


def test_planned_epochs_equal_trained_epochs_for_vectorized_runs(tmp_path):
    watch = Watcher()
    spec = a_spec(vectorize=3)
    results = go(tmp_path, spec, watch=watch)
    assert watch.planned == watch.finished == 3 * (3 * 3 + 3)  # three units per method and round, and one of final runs
    assert results.session.computed == RUNS
    again = go(tmp_path, spec)
    assert again.session.reused == RUNS
    assert lasting(again) == lasting(results)


@pytest.mark.parametrize("units", [1, 40, 60])
def test_an_interrupted_study_resumes_to_the_same_results(uninterrupted, tmp_path, units):
    with pytest.raises(KeyboardInterrupt):
        go(tmp_path, watch=Watcher(stop_after=units))
    results = go(tmp_path)
    assert results.session.reused == units
    assert results.session.computed == RUNS - units
    assert lasting(results) == lasting(uninterrupted[1])


def test_running_one_method_gives_its_results(uninterrupted, tmp_path):
    results = go(tmp_path, only=["both"])
    (final,) = results.findings[0].finals
    assert final.method.name == "both"
    assert final.runs[0].curves == uninterrupted[1].findings[0].final("both").runs[0].curves


def test_a_damaged_row_is_reported_and_computed_again(uninterrupted, tmp_path):
    go(tmp_path)
    with sqlite3.connect(tmp_path / "runs.sqlite") as db:
        db.execute("UPDATE curves SET epochs = '[0.0]' WHERE key = (SELECT min(key) FROM runs WHERE purpose = 'tune')")
    db.close()
    watch = Watcher()
    results = go(tmp_path, watch=watch)
    assert len(results.session.damaged) == 1
    assert results.session.computed == 1
    assert any("its row in the store is damaged; the run is computed again" in text for text in watch.said)
    assert lasting(results) == lasting(uninterrupted[1])


def test_runs_of_other_code_are_not_reused(tmp_path, monkeypatch):
    go(tmp_path, only=["adam"])
    known = run.fingerprint()
    monkeypatch.setattr(run, "fingerprint", lambda: {**known, "code": "changed"})
    assert go(tmp_path, only=["adam"]).session.reused == 0


@pytest.fixture
def code(tmp_path, monkeypatch):
    """Return a function that edits a file of a copy of the package and returns the fingerprint."""
    root = tmp_path / "semaopt"
    shutil.copytree(Path(fingerprint.semaopt.__file__).parent, root, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(fingerprint.semaopt, "__file__", str(root / "__init__.py"))

    def edited(name, text="# edited"):
        if name is not None:
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text + (path.read_text() if path.suffix == ".py" and path.exists() else ""))
        return fingerprint.fingerprint.__wrapped__()["code"]

    return edited


@pytest.mark.parametrize("folder", ["theory", "checks", "problems", "experiments/report", "experiments/results"])
def test_editing_a_folder_that_does_not_compute_keeps_the_fingerprint(code, folder):
    before = code(None)
    assert code(f"{folder}/__init__.py") == before


@pytest.mark.parametrize(
    "name",
    [
        *("estimator.py", "scalings.py", "projections.py", "kernels/dispatch.py", "optimizers/asa.py"),
        *(
            "baselines/sgda.py",
            "schedules/decay.py",
            "losses/auc.py",
            "hypergradient/inverses.py",
            "diagnostics/measure.py",
        ),
        *("experiments/training/loop.py", "experiments/data/splits.py", "experiments/models/mlp.py"),
    ],
)
def test_editing_computing_code_changes_the_fingerprint(code, name):
    before = code(None)
    assert code(name) != before


def test_all_computing_folders_exist():
    root = Path(fingerprint.semaopt.__file__).parent
    assert all((root / name).exists() for name in fingerprint.COMPUTING)


def test_the_fingerprint_covers_the_compiled_step_not_its_sources(code):
    """Wheels have no C sources, and in a checkout the sources may be newer than the library."""
    first = code("kernels/_step.so", "built")
    assert code("kernels/step.c", "other") == first
    assert code("kernels/_step.so", "other") != first
    assert code("kernels/_step.so", "built") == first


def test_the_key_covers_everything_but_names():
    def key(**changes):
        spec = a_spec(**changes)
        return runs.make(spec, spec.methods[0], {"lr": 0.1}, seed=0, purpose="final", machine=Machine()).key

    assert key() == key(name="other", title="Other", claim={"text": "x"}, seeds={"final": [0]})
    changes = [{"epochs": 4}, {"batch": 3}, {"data": {"seed": 1}}, {"model": {"options": {"hidden": 9}}}]
    assert len({key(), *(key(**change) for change in changes)}) == 5


def test_a_folder_in_use_is_refused(tmp_path):
    with locked(tmp_path), pytest.raises(OutputError, match="in use by another process"):
        go(tmp_path)


class Unlucky:
    """Executes all jobs but the second."""

    count = 0

    def run(self, work, jobs, on_progress):
        for job in jobs:
            self.count += 1
            yield job, Failure("it failed") if self.count == 2 else work(job)


def test_a_failed_run_is_named_and_the_others_are_stored(tmp_path):
    place = study.Workspace(tmp_path, Machine())
    with pytest.raises(RunsError, match=r"1 of 36 failed:\ntiny, adam, tune seed 101 \(.*\): it failed"):
        study.conduct([a_spec()], place, Unlucky(), Watcher(), command="")
    results = go(tmp_path)
    assert results.session.reused == 35


def test_tree_estimators_resume_with_the_same_proposals(tmp_path):
    spec = a_spec(**AUC)
    whole = go(tmp_path / "a", spec)
    trials = whole.findings[0].tuning.trials
    assert {name: len(found) for name, found in trials.items()} == {"sgda": 5, "pdada": 5}
    assert set(next(iter(trials["sgda"].values())).values) == {"lr", "dual_lr"}
    with pytest.raises(KeyboardInterrupt):
        go(tmp_path / "b", spec, watch=Watcher(stop_after=11))
    resumed = go(tmp_path / "b", spec)
    assert resumed.session.reused == 11
    assert lasting(resumed) == lasting(whole)


def test_successive_halving_prunes_and_continues_from_checkpoints(tmp_path, monkeypatch):
    counted = []
    monkeypatch.setattr(runner, "count_epoch", lambda: counted.append(1))
    never = {name: {"options": {"every": 100, "factor": 1.0}} for name in ("beta", "both")}
    spec = a_spec(epochs=8, tuning={"pruner": "halving", "rounds": 0}, seeds={"final": [0]}, methods=never)
    results = go(tmp_path, spec)
    trials = [trial for found in results.findings[0].tuning.trials.values() for trial in found.values()]
    assert len(trials) == 18
    pruned = [trial.pruned for trial in trials if trial.pruned is not None]
    assert Counter(pruned) == {1: 12, 4: 3}  # six per method; the best quarter, rounded up, continues
    ends = sum(8 if trial.pruned is None else trial.pruned for trial in trials)
    assert len(counted) == 2 * ends + 3 * 8  # no epoch is trained twice
    assert all(results.findings[0].tuning.best(name).pruned is None for name in ("adam", "beta", "both"))
    assert not (tmp_path / "checkpoints").exists()
    origin = results.findings[0].origin
    assert origin.runs == 2 * (18 + 6 + 3) + 3  # trials at epochs 1, 4 and 8, and the final runs: every rung counts
    with sqlite3.connect(tmp_path / "runs.sqlite") as db:
        assert db.execute("SELECT count(*), sum(seconds) FROM runs").fetchone() == (
            origin.runs,
            pytest.approx(origin.seconds),
        )
    db.close()


def test_bounds_of_the_scaling_are_measured(tmp_path):
    methods = [
        {"name": name, "label": label, "algorithm": "ASA", "options": {"lr": 1e-2, "beta": 0.9, "scaling": scaling}}
        for name, label, scaling in (("adam", "Adam", "adam"), ("bound", "AdaBound", "adabound"))
    ]
    claim = {"text": "Bounded.", "metric": "s_max", "order": []}
    raw = {"methods": methods, "claim": claim, "metrics": ["s_max", "s_min", "train_loss"], "vectorize": 2}
    spec = study.Spec.model_validate({**a_spec().model_dump(exclude={"tuning"}), **raw})
    (finding,) = go(tmp_path, spec).findings
    assert finding.tuning is None
    assert finding.final("adam").last("s_max") == pytest.approx([1e7] * 3, rel=1e-3)  # pixels that are always 0
    assert finding.final("bound").last("s_max") == pytest.approx([1000] * 3)
    assert all(math.isfinite(value) for value in finding.final("adam").last("s_min"))
    assert figures.panel_metrics(finding) == ["s_min", "s_max"]


def test_studies_have_their_own_seeds_splits_and_selection(tmp_path):
    spec = a_spec(studies=2, seeds={"tuning": [100], "final": [0, 1]}, tuning={"rounds": 0})
    results = go(tmp_path, spec)
    finding = results.findings[0]
    assert len(finding.studies) == 2
    with sqlite3.connect(tmp_path / "runs.sqlite") as db:
        rows = db.execute("SELECT DISTINCT purpose, seed, json_extract(config, '$.data.seed') FROM runs").fetchall()
    db.close()
    # Study k: seeds plus 1000 k; split 2 k for tuning and 2 k + 1 for the final runs.
    assert set(rows) == {
        *(("tune", 100, 0), ("final", 0, 1), ("final", 1, 1)),
        *(("tune", 1100, 2), ("final", 1000, 3), ("final", 1001, 3)),
    }
    first, second = (study.tuning.trials["adam"] for study in finding.studies)
    assert [trial.measured for trial in first.values()] != [trial.measured for trial in second.values()]
    assert all(len(final.runs) == 4 for final in finding.finals)
    assert finding.origin.runs == results.session.computed == 2 * (3 * 6 + 3 * 2)
    again = go(tmp_path, spec)
    assert (again.session.computed, again.session.reused) == (0, 48)
    assert lasting(again) == lasting(results)


def test_sobol_studies_with_reranking_resume_to_the_same_results(tmp_path):
    ranges = {"sampler": "sobol", "budget": 8, "metric": "valid_loss", "direction": "minimize"}
    methods = [{**one, "multipliers": {}, "grid": {"beta": [0.9, 0.5]}} for one in RAW["methods"]]
    methods[0]["grid"] = {}
    raw = {**RAW, "methods": methods, "studies": 2, "seeds": {"tuning": [100], "rerank": [110, 111], "final": [0]}}
    spec = schema.build({**raw, "tuning": {**ranges, "ranges": {"lr": [1e-3, 1e-1], "g0": [1e-7, 1e-3]}}})
    whole = go(tmp_path / "a", spec)
    tuning = whole.findings[0].studies[0].tuning
    assert {len(trials) for trials in tuning.trials.values()} == {8}
    reranked = [trial for trial in tuning.trials["both"].values() if trial.reranked]
    assert [len(trial.measured) for trial in reranked] == [3, 3]
    assert tuning.best("both") in reranked
    assert tuning.trials.keys() == {"adam", "beta", "both"}
    assert whole.session.computed == 2 * 3 * (8 + 2 * 2 + 1)
    with pytest.raises(KeyboardInterrupt):
        go(tmp_path / "b", spec, watch=Watcher(stop_after=45))
    resumed = go(tmp_path / "b", spec)
    assert resumed.session.reused == 45
    assert lasting(resumed) == lasting(whole)
