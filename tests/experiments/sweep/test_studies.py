"""Some studies of an experiment: interrupted, chosen one by one, and joined from several folders."""

import json
from dataclasses import asdict, replace

import pytest

from semaopt.experiments import api, report
from semaopt.experiments.files import OutputError, canonical
from semaopt.experiments.report import html, markdown, view, wording
from semaopt.experiments.results import claims, records
from semaopt.experiments.results.export import to_json
from semaopt.experiments.results.model import Origin
from semaopt.experiments.results.statistics import paired_ratio
from semaopt.experiments.spec.errors import SpecError
from semaopt.experiments.sweep import load, study
from semaopt.experiments.sweep.store import Store
from semaopt.experiments.training import run
from tests.experiments.tiny import Watcher, a_spec, go

CHANGES = {
    "studies": 3,
    "epochs": 2,
    "seeds": {"tuning": [100], "final": [0, 1]},
    "tuning": {"rounds": 0, "extend": [], "grid": {"lr": [1e-2]}},
}
SPEC = a_spec(**CHANGES)
RUNS = 3 * 3 + 3 * 2  # of one study: trials and final runs of three methods


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """All studies in one folder; read back, because a store does not keep the order of options."""
    out = tmp_path_factory.mktemp("whole")
    go(out, SPEC)
    return load.results([out], "semaopt report")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """One folder per study."""
    found = [tmp_path_factory.mktemp(f"study{number}") for number in range(3)]
    for number, folder in enumerate(found):
        go(folder, SPEC, numbers=[number])
    return found


def lasting(results):
    """Return what does not depend on the session."""
    return {key: value for key, value in json.loads(canonical(to_json(results))).items() if key != "session"}


def shown(results):
    """Return what the report shows, without times and commands."""
    return [replace(one, origin="", rerun="") for one in view.page(results).experiments]


def interrupted(folder, studies):
    """Stop a run within the study after this many finished ones."""
    with pytest.raises(KeyboardInterrupt):
        go(folder, SPEC, watch=Watcher(stop_after=RUNS * studies + 3))
    return load.results([folder], "semaopt report")


def test_one_finished_study_is_reported_without_a_verdict(tmp_path, whole):
    results = interrupted(tmp_path, 1)
    (finding,) = results.findings
    assert finding.missing == (1, 2)
    assert records.same_numbers(finding.studies[0], whole.findings[0].studies[0])
    verdict = claims.verdict(finding)
    assert (verdict.outcome, {row.outcome for row in verdict.rows}) == ("undecided", {"undecided"})
    assert {row.comparison.text for row in verdict.rows} == {"no interval"}
    line = "No verdict: an interval over studies needs at least two of them. 1 of 3 studies is finished."
    assert wording.headline(finding) == f"Tiny: undecided. {line}"
    report.write(results, tmp_path)
    for file in ("report.html", "results.md"):
        page = (tmp_path / file).read_text()
        assert "tiny: 1 of 3 studies is finished, so the results are preliminary." in page
        assert line in page
        assert "1 of 3 studies with 2 seeds each" in page
        assert wording.STUDIES in page
    assert json.loads((tmp_path / "results.json").read_text())["experiments"]["tiny"]["studies"] == [1]


def test_two_finished_studies_have_intervals_over_both(tmp_path, whole):
    (finding,) = interrupted(tmp_path, 2).findings
    both = [whole.findings[0].units(name, "train_loss")[:2] for name in ("both", "adam")]
    one = finding.compare("train_loss", "both", "adam")
    assert (one.values, one.other_values) == tuple(both)
    assert one.interval == paired_ratio(*both)
    assert wording.headline(finding).endswith(" 2 of 3 studies are finished.")
    resumed = go(tmp_path, SPEC)
    assert resumed.session.computed == RUNS - 3
    assert lasting(resumed) == lasting(load.results([tmp_path], "")) == lasting(whole)
    assert wording.notes(resumed.findings) == []


def test_studies_of_several_folders_are_joined(folders, whole):
    for order in (folders, folders[::-1]):
        joined = load.results(order, "semaopt report")
        assert lasting(joined) == lasting(whole)
        assert shown(joined) == shown(whole)
        assert joined.notes == ()
        assert wording.notes(joined.findings) == []
        assert html.render(joined).count("<table") == html.render(whole).count("<table")
    assert joined.findings[0].origin.runs == whole.findings[0].origin.runs == 3 * RUNS


def test_some_joined_studies_are_the_same_as_those_of_one_folder(folders, tmp_path):
    joined = load.results([folders[2], folders[0]], "")
    assert [one.number for one in joined.findings[0].studies] == [0, 2]
    assert joined.findings[0].seeds == (0, 1, 2000, 2001)
    go(tmp_path, SPEC, numbers=[0, 2])
    together = load.results([tmp_path], "")
    assert lasting(joined) == lasting(together)
    assert shown(joined) == shown(together)
    assert "Study 3, folklore Adam: 3 trials" in html.render(joined)
    assert "| folklore Adam | 3 |" in markdown.render(joined)


def test_studies_are_added_to_a_folder_and_a_second_run_reuses_them(tmp_path, whole):
    assert [one.number for one in go(tmp_path, SPEC, numbers=[2]).findings[0].studies] == [2]
    assert [one.number for one in go(tmp_path, SPEC, numbers=[0]).findings[0].studies] == [0, 2]
    results = go(tmp_path, SPEC)
    assert (results.session.computed, results.session.reused) == (RUNS, 2 * RUNS)
    assert lasting(results) == lasting(whole)


def rewritten(folder, to, change):
    """Copy a store and change its record of the finding."""
    to.mkdir()
    (to / "runs.sqlite").write_bytes((folder / "runs.sqlite").read_bytes())
    with Store(to / "runs.sqlite") as store:
        ((key, content),) = store.records(records.STUDY).items()
        store.put_record(records.STUDY, "tiny", key, change(content))
    return to


def test_a_study_in_two_folders_counts_once_if_it_is_the_same(folders, tmp_path):
    go(tmp_path, SPEC, numbers=[0, 1])
    joined = load.results([folders[0], tmp_path], "")
    assert [one.number for one in joined.findings[0].studies] == [0, 1]
    assert [one.folder for one in joined.findings[0].studies] == [str(folders[0]), str(tmp_path)]


def test_a_study_that_differs_in_two_folders_is_an_error(folders, tmp_path):
    def change(content):
        content["studies"][0]["tuning"]["trials"]["adam"][0]["measured"][0] += 1e-9
        return content

    other = rewritten(folders[1], tmp_path / "other", change)
    with pytest.raises(OutputError) as caught:
        api.report([folders[0], folders[1], other], tmp_path / "out")
    assert str(caught.value) == (
        f"tiny: study 2 has different results in {folders[1]} and {other}. A study must be the same wherever it is "
        "stored. Leave out the folder that is out of date."
    )
    assert not (tmp_path / "out" / "report.html").exists()


def test_results_of_another_spec_are_skipped_with_a_note(folders, tmp_path):
    go(tmp_path, a_spec(**{**CHANGES, "epochs": 1}), numbers=[1])
    found = load.results([folders[0], tmp_path], "")
    assert [one.number for one in found.findings[0].studies] == [1]
    assert found.notes == (f"tiny: skipped the results in {folders[0]}; the spec in {tmp_path} is different",)
    go(tmp_path, SPEC, numbers=[0])  # replaces the finding of the other spec
    assert lasting(load.results([tmp_path], "")) == lasting(load.results([folders[0]], ""))


def test_fewer_methods_with_more_studies_are_shown_separately(folders, tmp_path):
    go(tmp_path, SPEC, numbers=[0], only=["adam"])
    assert len(load.results([folders[0], tmp_path], "").findings) == 1
    go(tmp_path, SPEC, numbers=[1], only=["adam"])
    names = [one.name for one in load.results([folders[0], tmp_path], "").findings]
    assert names == ["tiny-part1", "tiny-part2"]


def test_studies_of_different_code_are_joined_and_the_report_says_so(folders, tmp_path, monkeypatch):
    known = run.fingerprint()
    for module in (run, study):
        monkeypatch.setattr(module, "fingerprint", lambda: {**known, "code": "c0ffee" * 8})
    go(tmp_path, SPEC, numbers=[1, 2])
    results = load.results([folders[0], tmp_path], "")
    (note,) = wording.notes(results.findings)
    assert note == (
        "tiny: its studies were computed with different code, versions or machines. "
        f"Study 1: code {known['code'][:12]}. Studies 2 and 3: code c0ffeec0ffee."
    )
    assert note in html.render(results)
    assert note in markdown.render(results)
    captions = [table.caption for table in view.page(results).environments]
    assert captions == ["Environment of tiny (study 1).", "Environment of tiny (studies 2 and 3)."]
    (origins,) = to_json(results)["session"]["origins"].values()
    assert origins["studies"][2]["environment"]["code"] == "c0ffeec0ffee"
    assert "code" not in origins["environment"]


def test_the_origin_of_several_studies():
    first = Origin("semaopt run a", "a", {"torch": "1", "code": "x"}, 2, 3.0, 60.0, "2026-01-01 10:00:00")
    second = Origin("semaopt run b", "b", {"torch": "1", "code": "y"}, 4, 5.0, 30.0, "2026-01-01 11:00:00")
    whole = Origin("semaopt run b", "b", {"torch": "1"}, 6, 8.0, 3660.0, "2026-01-01 11:00:00")
    assert Origin.joined([first, second]) == Origin.joined([second, first]) == whole
    assert Origin.joined([first]) == first
    assert asdict(Origin.joined([Origin()])) == asdict(Origin())


@pytest.mark.parametrize(
    ("studies", "options", "text"),
    [
        ([0], {}, r"tiny: study 0 is invalid: it must be an integer from 1 to 3. The first study is 1\."),
        ([1, 6], {}, r"tiny: study 6 is invalid: it must be an integer from 1 to 3\."),
        (["2"], {}, r"tiny: study '2' is invalid: it must be an integer"),
        ([2, 2], {}, r"tiny: study 2 is invalid: it is given twice. Give each study once\."),
        (2, {}, r"studies=2 is invalid: it must be a list of numbers. Write studies=\[2\]\."),
        ([1], {"aa": True}, r"studies=\[1\] is invalid with aa=True: an A/A check needs all studies\. Leave one"),
    ],
)
def test_invalid_studies(tmp_path, studies, options, text):
    with pytest.raises(SpecError, match=text):
        api.run(SPEC, out=tmp_path / "out", studies=studies, **options)
    assert not (tmp_path / "out").exists()


def test_a_spec_with_one_study_has_no_choice(tmp_path):
    with pytest.raises(SpecError, match=r"tiny: study 1 is invalid: the spec has one study. Choose none, or set"):
        api.run(a_spec(), out=tmp_path / "out", studies=[1])


def test_the_table_numbers_studies_as_the_option_does(folders):
    table = api.run(SPEC, out=folders[1], studies=[2], workers=0)
    assert [(row["study"], row["seed"]) for row in table if row["method"] == "adam"] == [(2, 1000), (2, 1001)]
