"""Result folders read back: from their records, and from the runs alone where there are none."""

import dataclasses
import json
import math
import sqlite3

import pytest
from semaopt.experiments.report.section import tuned_axes

from semaopt.experiments.files import OutputError, canonical
from semaopt.experiments.report import figures, markdown, theorem_figure
from semaopt.experiments.report import html as report
from semaopt.experiments.results import records
from semaopt.experiments.results.export import to_json
from semaopt.experiments.results.trials import Extension, Trial, Tuning
from semaopt.experiments.sweep import load, reproduction, study
from semaopt.experiments.sweep.engines.local import InProcess
from semaopt.experiments.sweep.runner import Workspace
from semaopt.experiments.sweep.store import Store
from semaopt.experiments.training import run
from tests.experiments.tiny import RUNS, Watcher, a_spec, go

SMALL = {"seeds": {"tuning": [100], "final": [0, 1]}, "tuning": {"rounds": 0}}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A finished study with a check beside it."""
    out = tmp_path_factory.mktemp("made")
    parts = reproduction.Parts((a_spec(**SMALL),), ("smb[logistic]",), True, ("something was left out",))
    results = study.conduct(
        parts.specs, Workspace(out, run.Machine()), InProcess(), Watcher(), command="semaopt reproduce", parts=parts
    )
    return out, results


def lasting(results):
    return {key: value for key, value in json.loads(canonical(to_json(results))).items() if key != "session"}


def page(results):
    panels = {finding.name: figures.panels(finding) for finding in results.findings}
    return report.page(
        results, panels, {c.name: theorem_figure.panel(c, theorem_figure.element(c)) for c in results.checks}
    )


def test_it_comes_back_as_it_was_also_by_other_code(made, monkeypatch):
    out, results = made
    monkeypatch.setattr(run, "fingerprint", lambda: {"code": "changed"})
    found = load.results([out], "semaopt report")
    assert lasting(found) == lasting(results)
    assert found.findings[0].origin == results.findings[0].origin
    assert found.findings[0].origin.command == "semaopt reproduce"
    assert found.findings[0].origin.runs == 3 * 6 + 3 * 2
    assert found.checks[0].lines == results.checks[0].lines
    assert found.notes == ()
    html = page(found)
    assert html.count("<svg") == 3
    assert html.index('href="#checks"') < html.index('<h2 id="tiny">') < html.index('<h2 id="checks">')
    columns = ["lr", "beta", "g0"]  # the store keeps another order
    assert [tuned_axes(one.findings[0]) for one in (results, found)] == [columns] * 2


def copied(out, to, *statements):
    to.mkdir()
    with sqlite3.connect(out / "runs.sqlite") as db, sqlite3.connect(to / "runs.sqlite") as copy:
        db.backup(copy)
        for statement in statements:
            copy.execute(statement)
    db.close()
    copy.close()
    return to


def older(made, to, monkeypatch, *statements):
    """As a version without records has left it, its spec among the shipped ones."""
    monkeypatch.setattr(load, "shipped", lambda: ["tiny"])
    monkeypatch.setattr(load, "load", lambda name, scale: a_spec(**SMALL, epochs=3 if scale == "paper" else 2))
    return copied(made[0], to, "DROP TABLE records", *statements)


def test_a_store_without_records_is_matched_by_configuration(made, tmp_path, monkeypatch):
    folder = older(made, tmp_path / "old", monkeypatch)
    monkeypatch.setattr(run, "fingerprint", lambda: {"code": "changed"})
    found = load.results([folder], "semaopt report")
    assert lasting(found)["experiments"] == lasting(made[1])["experiments"]
    origin = found.findings[0].origin
    assert (origin.runs, origin.rerun) == (24, "semaopt run tiny --scale paper")
    assert origin.environment["torch"] == made[1].environment["torch"]
    assert found.checks == ()


def test_members_of_a_vectorised_run_are_matched_too(tmp_path, monkeypatch):
    """The company that a run was trained in names the program as well, which has changed."""
    made = tmp_path / "new", go(tmp_path / "new", a_spec(**SMALL, together=3))
    monkeypatch.setattr(load, "shipped", lambda: ["tiny"])
    monkeypatch.setattr(load, "load", lambda name, scale: a_spec(**SMALL, together=3))
    monkeypatch.setattr(run, "fingerprint", lambda: {"code": "changed"})
    found = load.results([copied(made[0], tmp_path / "old", "DROP TABLE records")], "semaopt report")
    assert lasting(found)["experiments"] == lasting(made[1])["experiments"]


def test_trials_come_back_as_they_were():
    trials = [
        Trial("pdsm", {"betas": [0.5, 0.9], "lr": 0.1}, (0.75, 0.5), -1, 3, {1: (0.5, 0.25)}, 1),
        Trial("pdsm", {"lr": 1.0}, (0.25,), 1, None),
        Trial("pdsm", {"lr": 2.0}, (math.nan,), -1, 1),
    ]
    tuning = Tuning({"lr": [0.1, 1.0]}, {"pdsm": {canonical(trial.values): trial for trial in trials}})
    tuning.extensions, tuning.on_edge = [Extension("lr", 1.0, ("pdsm",))], {("lr", -1): ("pdsm",)}
    back = records._read_tuning(json.loads(canonical(records._tuning(tuning))))
    assert repr(back) == repr(tuning)  # NaN is not equal to itself
    older = json.loads(canonical(records._tuning(tuning)))
    for trial in older["trials"]["pdsm"]:
        del trial["passed"], trial["round"]
    assert records._read_tuning(older).best_before("pdsm") is None


def test_of_two_programs_none_is_mixed(made, tmp_path, monkeypatch):
    """The newer program has one run only: the figure is the older one's."""
    change = [
        'INSERT INTO programs (fingerprint) VALUES (\'{"code":"new"}\')',
        "UPDATE runs SET program = 2, finished = '2100-01-01 00:00:00' WHERE key = (SELECT max(key) FROM runs)",
    ]
    folder = older(made, tmp_path / "old", monkeypatch, *change)
    found = load.results([folder], "semaopt report")
    assert found.findings == ()
    assert found.notes == (
        f"tiny: is not finished in {folder} by the rules of this version, and left out; to go on: semaopt run tiny "
        f"--scale paper --out {folder}",
    )


def test_an_unknown_spec_without_a_record(made, tmp_path):
    folder = copied(made[0], tmp_path / "old", "DROP TABLE records")
    assert "tiny: is no shipped spec" in load.results([folder], "").notes[0]
    report.write(made[1], folder)  # results.json has the spec
    found = load.results([folder], "")
    assert lasting(found)["experiments"] == lasting(made[1])["experiments"]


def test_several_folders_are_joined(made, tmp_path):
    go(tmp_path / "b", a_spec(**SMALL, scale="quick", epochs=2))
    go(tmp_path / "c", a_spec(**SMALL, name="other"))
    found = load.results([made[0], tmp_path / "b", tmp_path / "c", made[0]], "semaopt report")
    assert [one.name for one in found.findings] == ["other", "tiny-paper", "tiny-quick"]
    assert len(found.checks) == 1
    text = markdown.text(found)
    assert "# Results" in text
    assert "| other | " not in text
    for name in ("other", "tiny-paper", "tiny-quick"):
        assert f"({name}.svg)" in text
        assert f'<a id="{name}"></a>' in text
    assert text.count("PASS |") == len(found.checks[0].lines)
    report.write(found, tmp_path / "out")
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"report.html", "results.md", "results.json", "tiny-quick.svg", "check-smb-logistic.svg"} <= names


def shown(*folders):
    found = load.results(folders, "semaopt report").findings
    return {one.name: [final.method.name for final in one.finals] for one in found}


def test_a_part_does_not_replace_the_whole(made, tmp_path):
    folder = copied(made[0], tmp_path / "both")
    go(folder, a_spec(**SMALL), only=["beta"])
    assert shown(folder) == {"tiny": ["adam", "beta", "both"]}
    go(tmp_path / "parts", a_spec(**SMALL), only=["beta"])
    go(tmp_path / "parts", a_spec(**SMALL), only=["both"])
    assert shown(tmp_path / "parts") == {"tiny-part1": ["beta"], "tiny-part2": ["both"]}
    report.write(load.results([tmp_path / "parts"], ""), tmp_path / "out")
    assert (tmp_path / "out" / "tiny-part2.svg").exists()
    assert shown(folder, tmp_path / "parts") == shown(tmp_path / "parts", folder) == shown(folder)


def test_the_groups_stand_in_one_order(made):
    one = made[1].findings[0]
    names = ["compositional-x", "other", "peers-x", "figure3-x", "figure1-x"]
    found = [dataclasses.replace(one, spec=one.spec.model_copy(update={"name": name})) for name in names]
    listed = [one.name for one in sorted(found, key=load._place)]
    assert listed == ["figure1-x", "figure3-x", "peers-x", "compositional-x", "other"]


@pytest.mark.parametrize(
    ("statement", "note"),
    [
        ("UPDATE records SET content = '{}'", "2 damaged rows of the store were left out"),
        ("DELETE FROM runs WHERE purpose = 'final'", "a record of a study cannot be read"),
    ],
)
def test_what_cannot_be_trusted_is_left_out_and_said(made, tmp_path, statement, note):
    folder = copied(made[0], tmp_path / "bad", statement)
    found = load.results([folder], "")
    assert found.findings == ()
    assert any(note in text for text in found.notes)


def test_a_record_of_another_version_is_left_out_and_said(made, tmp_path):
    folder = copied(made[0], tmp_path / "new")
    with Store(folder / "runs.sqlite") as store:
        (key, content) = next(iter(store.records(records.STUDY).items()))
        store.put_record(records.STUDY, "tiny", key, {**content, "spec": {**content["spec"], "future": 1}})
        store.put_record(records.CHECK, "x", "x", {"name": "x"})
    notes = load.results([folder], "").notes
    assert any("a record of a study cannot be read (ValidationError" in text for text in notes)
    assert any("a theorem check cannot be read (KeyError" in text for text in notes)


def test_a_record_that_names_an_unknown_method_is_left_out_and_said(made, tmp_path):
    folder = copied(made[0], tmp_path / "new")
    with Store(folder / "runs.sqlite") as store:
        (key, content) = next(iter(store.records(records.STUDY).items()))
        first, *others = content["finals"]
        store.put_record(records.STUDY, "tiny", key, {**content, "finals": [{**first, "method": "adamm"}, *others]})
    found = load.results([folder], "")
    assert found.findings == ()
    assert f"{folder}: a record of a study cannot be read (KeyError: 'adamm')" in found.notes
    (finding,) = made[1].findings
    with pytest.raises(KeyError, match="adamm"):
        finding.final("adamm")


def test_nothing_is_written_into_what_is_read(made, tmp_path):
    folder = copied(made[0], tmp_path / "old", "DROP TABLE records")
    before = (folder / "runs.sqlite").read_bytes()
    load.results([folder], "")
    assert (folder / "runs.sqlite").read_bytes() == before
    assert [path.name for path in folder.iterdir()] == ["runs.sqlite"]
    with pytest.raises(OutputError, match=r"is no result folder, it holds no runs.sqlite; give a folder that semaopt"):
        load.results([tmp_path], "")
    assert RUNS > 24  # what SMALL leaves out


def test_checks_stand_in_their_order_and_not_in_that_of_their_ends(made, tmp_path):
    folder = copied(made[0], tmp_path / "more")
    with Store(folder / "runs.sqlite") as store:
        (content,) = store.records(records.CHECK).values()
        for name in ("of another version", "counterexample"):
            store.put_record(records.CHECK, name, name, {**content, "name": name})
    names = [check.name for check in load.results([folder], "").checks]
    assert names == ["counterexample", "smb[logistic]", "of another version"]
