"""Reading output folders: finished studies and checks come back from their records, nothing is trained or written."""

import dataclasses
import json
import math
import sqlite3

import pytest

from semaopt.experiments import fingerprint as program
from semaopt.experiments import report
from semaopt.experiments.files import OutputError, canonical
from semaopt.experiments.results import records
from semaopt.experiments.results.export import to_json
from semaopt.experiments.results.trials import Extension, Trial, Tuning
from semaopt.experiments.sweep import load, reproduction, study
from semaopt.experiments.sweep.engines.local import InProcess
from semaopt.experiments.sweep.runner import Workspace
from semaopt.experiments.sweep.store import Store
from semaopt.experiments.training import run
from tests.experiments.tiny import Watcher, a_spec, go

SMALL = {"seeds": {"tuning": [100], "final": [0, 1]}, "tuning": {"rounds": 0}}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A finished study and a theorem check."""
    out = tmp_path_factory.mktemp("made")
    parts = reproduction.Parts((a_spec(**SMALL),), ("smb[logistic]",), True, ("something was skipped",))
    workspace = Workspace(out, run.Machine())
    results = study.conduct(parts.specs, workspace, InProcess(), Watcher(), command="semaopt reproduce", parts=parts)
    return out, results


def lasting(results):
    """Return what does not depend on the session."""
    return {key: value for key, value in json.loads(canonical(to_json(results))).items() if key != "session"}


def test_results_come_back_unchanged_also_with_other_code(made, monkeypatch):
    out, results = made
    for module in (program, run):
        monkeypatch.setattr(module, "fingerprint", lambda: {"code": "changed"})
    found = load.results([out], "semaopt report")
    assert lasting(found) == lasting(results)
    assert found.findings[0].origin == results.findings[0].origin
    assert found.findings[0].origin.command == "semaopt reproduce"
    assert found.findings[0].origin.runs == 3 * 6 + 3 * 2
    assert found.checks[0].lines == results.checks[0].lines
    assert found.notes == ()


def test_several_studies_come_back_unchanged(tmp_path):
    results = go(tmp_path, a_spec(**SMALL, studies=2))
    found = load.results([tmp_path], "")
    assert lasting(found) == lasting(results)
    assert [len(one.finals) for one in found.findings[0].studies] == [3, 3]


def copied(out, to, *statements):
    to.mkdir()
    with sqlite3.connect(out / "runs.sqlite") as db, sqlite3.connect(to / "runs.sqlite") as copy:
        db.backup(copy)
        for statement in statements:
            copy.execute(statement)
    db.close()
    copy.close()
    return to


def test_an_unfinished_experiment_is_skipped_with_a_note(made, tmp_path):
    folder = copied(made[0], tmp_path / "part", "DELETE FROM records WHERE kind = 'study'")
    found = load.results([folder], "")
    assert found.findings == ()
    assert found.notes == (
        f"tiny: skipped, its runs in {folder} are not finished. Resume with: semaopt run tiny --out {folder}",
    )
    assert load.results([folder, made[0]], "").notes == ()  # it is finished in the other folder


def test_trials_come_back_unchanged():
    trials = [
        Trial("pdsm", {"betas": [0.5, 0.9], "lr": 0.1}, (0.75, 0.5), -1, 3, {1: (0.5, 0.25)}, 1),
        Trial("pdsm", {"lr": 1.0}, (0.25,), 1, None, geometric=True, reranked=True),
        Trial("pdsm", {"lr": 2.0}, (math.nan,), -1, 1),
    ]
    tuning = Tuning({"lr": [0.1, 1.0]}, {"pdsm": {canonical(trial.values): trial for trial in trials}})
    tuning.extensions, tuning.on_edge = [Extension("lr", 1.0, ("pdsm",))], {("lr", -1): ("pdsm",)}
    tuning.spaces = {"pdsm": {"lr": [0.1, 1.0]}}
    back = records._read_tuning(json.loads(canonical(records._tuning(tuning))))
    assert repr(back) == repr(tuning)  # NaN is not equal to itself


def test_several_folders_are_merged(made, tmp_path):
    go(tmp_path / "b", a_spec(**SMALL, scale="quick", epochs=2))
    go(tmp_path / "c", a_spec(**SMALL, name="other"))
    found = load.results([made[0], tmp_path / "b", tmp_path / "c", made[0]], "semaopt report")
    assert [one.name for one in found.findings] == ["other", "tiny-paper", "tiny-quick"]
    assert len(found.checks) == 1
    report.write(found, tmp_path / "out")
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"report.html", "results.md", "results.json", "tiny-quick.svg", "check-smb-logistic.svg"} <= names


def shown(*folders):
    found = load.results(folders, "semaopt report").findings
    return {one.name: [final.method.name for final in one.finals] for one in found}


def test_a_run_with_some_methods_does_not_replace_one_with_all(made, tmp_path):
    folder = copied(made[0], tmp_path / "both")
    go(folder, a_spec(**SMALL), only=["beta"])
    assert shown(folder) == {"tiny": ["adam", "beta", "both"]}
    go(tmp_path / "parts", a_spec(**SMALL), only=["beta"])
    go(tmp_path / "parts", a_spec(**SMALL), only=["both"])
    assert shown(tmp_path / "parts") == {"tiny-part1": ["beta"], "tiny-part2": ["both"]}
    report.write(load.results([tmp_path / "parts"], ""), tmp_path / "out")
    assert (tmp_path / "out" / "tiny-part2.svg").exists()
    assert shown(folder, tmp_path / "parts") == shown(tmp_path / "parts", folder) == shown(folder)


def test_groups_have_a_fixed_order(made):
    one = made[1].findings[0]
    names = ["compositional-x", "other", "peers-x", "figure3-x", "figure1-x"]
    found = [dataclasses.replace(one, spec=one.spec.model_copy(update={"name": name})) for name in names]
    listed = [one.name for one in sorted(found, key=lambda one: reproduction.position(one.name))]
    assert listed == ["figure1-x", "figure3-x", "peers-x", "compositional-x", "other"]


@pytest.mark.parametrize(
    ("statement", "note"),
    [
        ("UPDATE records SET content = '{}'", "skipped 2 damaged rows of the store"),
        ("DELETE FROM runs WHERE purpose = 'final'", "skipped an unreadable record of a study"),
    ],
)
def test_damaged_rows_are_skipped_with_a_note(made, tmp_path, statement, note):
    folder = copied(made[0], tmp_path / "bad", statement)
    found = load.results([folder], "")
    assert found.findings == ()
    assert any(note in text for text in found.notes)


def test_a_record_of_another_version_is_skipped_with_a_note(made, tmp_path):
    folder = copied(made[0], tmp_path / "new")
    with Store(folder / "runs.sqlite") as store:
        (key, content) = next(iter(store.records(records.STUDY).items()))
        store.put_record(records.STUDY, "tiny", key, {**content, "spec": {**content["spec"], "future": 1}})
        store.put_record(records.CHECK, "x", "x", {"name": "x"})
    notes = load.results([folder], "").notes
    assert any("skipped an unreadable record of a study (ValidationError" in text for text in notes)
    assert any("skipped an unreadable theorem check (KeyError" in text for text in notes)


def test_a_record_of_an_older_layout_is_skipped_with_a_note(made, tmp_path):
    """Trials without the field ``passed``, as versions before halving wrote them."""
    folder = copied(made[0], tmp_path / "older")
    with Store(folder / "runs.sqlite") as store:
        (key, content) = next(iter(store.records(records.STUDY).items()))
        for study in content["studies"]:
            for trials in study["tuning"]["trials"].values():
                for trial in trials:
                    del trial["passed"]
        store.put_record(records.STUDY, "tiny", key, content)
    found = load.results([folder], "")
    assert found.findings == ()
    assert f"{folder}: skipped an unreadable record of a study (KeyError: 'passed')" in found.notes


def test_a_record_with_an_unknown_method_is_skipped_with_a_note(made, tmp_path):
    folder = copied(made[0], tmp_path / "new")
    with Store(folder / "runs.sqlite") as store:
        (key, content) = next(iter(store.records(records.STUDY).items()))
        (one,) = content["studies"]
        first, *others = one["finals"]
        wrong = {**one, "finals": [{**first, "method": "adamm"}, *others]}
        store.put_record(records.STUDY, "tiny", key, {**content, "studies": [wrong]})
    found = load.results([folder], "")
    assert found.findings == ()
    assert f"{folder}: skipped an unreadable record of a study (KeyError: 'adamm')" in found.notes
    (finding,) = made[1].findings
    with pytest.raises(KeyError, match="adamm"):
        finding.final("adamm")


def test_reading_writes_nothing(made, tmp_path):
    folder = copied(made[0], tmp_path / "old")
    before = (folder / "runs.sqlite").read_bytes()
    load.results([folder], "")
    assert (folder / "runs.sqlite").read_bytes() == before
    assert [path.name for path in folder.iterdir()] == ["runs.sqlite"]
    with pytest.raises(OutputError, match=r"is not an output folder: it contains no runs.sqlite. Give a folder"):
        load.results([tmp_path], "")


def test_checks_are_listed_in_their_order_not_as_they_finished(made, tmp_path):
    folder = copied(made[0], tmp_path / "more")
    with Store(folder / "runs.sqlite") as store:
        (content,) = store.records(records.CHECK).values()
        for name in ("of another version", "counterexample"):
            store.put_record(records.CHECK, name, name, {**content, "name": name})
    names = [check.name for check in load.results([folder], "").checks]
    assert names == ["counterexample", "smb[logistic]", "of another version"]
