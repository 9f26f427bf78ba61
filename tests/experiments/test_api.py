"""The functions of the experiments: run, tune, reproduce and report from Python."""

import pytest

from semaopt import experiments
from semaopt.experiments import api
from semaopt.experiments.files import OutputError
from semaopt.experiments.spec import SpecError
from tests.experiments.tiny import Watcher, a_spec

SMALL = {"epochs": 1, "seeds": {"tuning": [100], "final": [0, 1]}, "tuning": {"rounds": 0}}


def test_the_functions_are_exported():
    assert (experiments.run, experiments.tune, experiments.reproduce) == (api.run, api.tune, api.reproduce)
    with pytest.raises(AttributeError, match="no attribute 'runn'"):
        experiments.runn  # noqa: B018


def test_engine_name_is_deprecated_and_still_works(tmp_path):
    with (
        pytest.warns(DeprecationWarning, match="engine_name is deprecated; use engine"),
        pytest.raises(SpecError, match=r"engine='slurm' is invalid: it must be local or ray"),
    ):
        api.run(a_spec(), out=tmp_path, engine_name="slurm")
    with (
        pytest.warns(DeprecationWarning, match="engine_name is deprecated; use engine"),
        pytest.raises(SpecError, match=r"engine='slurm' is invalid: it must be local or ray"),
    ):
        api.tune(a_spec(), out=tmp_path, engine_name="slurm")
    assert list(tmp_path.iterdir()) == []  # nothing is written before everything is validated


def test_a_spec_is_validated_once(tmp_path, monkeypatch):
    calls, preflight = [], api.study.preflight
    monkeypatch.setattr(api.study, "preflight", lambda *given: (calls.append(1), preflight(*given)))
    api.tune(a_spec(**SMALL), out=tmp_path, workers=0, only=["adam"])
    assert len(calls) == 1


def test_run_then_report(tmp_path):
    watch = Watcher()
    table = api.run(a_spec(**SMALL), out=tmp_path / "out", workers=0, only=["adam"], watch=watch)
    assert watch.said[0] == "tiny at scale paper: Tiny"
    assert [row["seed"] for row in table] == [0, 1]
    (tmp_path / "out" / "report.html").unlink()
    results = api.report([tmp_path / "out"])
    assert (tmp_path / "out" / "report.html").exists()
    assert results.findings[0].name == "tiny"
    api.report([tmp_path / "out"], tmp_path / "other")
    assert (tmp_path / "other" / "report.html").exists()


def test_report_errors(tmp_path):
    with pytest.raises(ValueError, match="need an output folder: set out"):
        api.report([tmp_path, tmp_path])
    api.tune(a_spec(**SMALL), out=tmp_path / "tuned", workers=0, only=["adam"])
    with pytest.raises(OutputError, match=r"no finished study found\. Trials of semaopt tune have no final runs"):
        api.report([tmp_path / "tuned"])


def test_a_store_of_another_version_is_refused(tmp_path, monkeypatch):
    api.run(a_spec(**SMALL), out=tmp_path / "out", workers=0, only=["adam"])

    def unreadable(*_):
        raise api.stored.records.UnreadableError("KeyError: 'studies'")

    monkeypatch.setattr(api.stored.records, "read_finding", unreadable)
    with pytest.raises(OutputError, match=r"unreadable record of a study \(KeyError.*Stores of version 0\.1 are not"):
        api.report([tmp_path / "out"])


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"scale": "huge"}, "scale='huge' is unknown. Known: paper, quick, small."),
        ({"only": "figure9"}, "only='figure9' is unknown. Did you mean 'figure"),
    ],
)
def test_reproduce_refuses_unknown_names(tmp_path, options, text):
    with pytest.raises(SpecError) as caught:
        api.reproduce(out=tmp_path / "out", **options)
    assert text in str(caught.value)
    assert not (tmp_path / "out").exists()
