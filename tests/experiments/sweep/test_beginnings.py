"""Common beginnings: trained once, with the same results to the bit."""

from dataclasses import replace

import pytest

from semaopt.experiments.sweep import beginnings, runner
from semaopt.experiments.sweep.checkpoint import Checkpoint
from semaopt.experiments.sweep.run import make, units
from semaopt.experiments.sweep.runner import perform
from semaopt.experiments.training import loop
from semaopt.experiments.training.run import Machine
from tests.experiments.tiny import RAW, a_spec, go

POINT = {"lr": 1e-2, "g0": 1e-7, "beta": 0.9}
DECAYED = {"bias_correction": True, "every": 2, "factor": 0.2}
METHODS = [
    RAW["methods"][0],
    {**RAW["methods"][1], "options": DECAYED},
    {**RAW["methods"][2], "options": DECAYED},
]
CHANGES = {"epochs": 4, "methods": METHODS, "tuning": {"rounds": 0}, "seeds": {"tuning": [100], "final": [0, 1]}}


@pytest.fixture
def epochs(monkeypatch):
    """Count the epochs that are trained."""
    trained = []
    finish = loop._finish_epoch
    monkeypatch.setattr(loop, "_finish_epoch", lambda *args: (trained.append(1), finish(*args))[1])
    return trained


@pytest.mark.parametrize("vectorize", [1, 3])
def test_results_are_the_same_to_the_bit(tmp_path, monkeypatch, epochs, vectorize):
    spec = a_spec(**CHANGES, vectorize=vectorize)
    (with_,) = go(tmp_path / "with", spec).findings
    trained, epochs[:] = len(epochs), []
    monkeypatch.setattr(runner, "shared", lambda work: (list(work), []))
    (without,) = go(tmp_path / "without", spec).findings
    assert trained < len(epochs)
    for a, b in zip(with_.finals, without.finals, strict=True):
        assert [run.curves for run in a.runs] == [run.curves for run in b.runs]
    for name, trials in with_.tuning.trials.items():
        assert {k: t.measured for k, t in trials.items()} == {
            k: t.measured for k, t in without.tuning.trials[name].items()
        }
    assert with_.origin.runs == without.origin.runs
    assert not (tmp_path / "with" / "checkpoints").exists()


def a_unit(method, values=POINT, **changes):
    spec = a_spec(**{**CHANGES, **changes})
    names = {"lr", "g0", *(["beta"] if spec.method(method).decays else [])}
    point = {name: value for name, value in values.items() if name in names}
    (unit,) = units([make(spec, spec.method(method), point, seed=3, purpose="final", machine=Machine())])
    return unit


def perform_all(work, folder):
    return [perform(unit, folder=folder, checkpoint_seconds=1000.0)[0] for unit in work]


def test_runs_with_and_without_decays_share_a_beginning(tmp_path, epochs):
    work = [a_unit("adam"), a_unit("beta"), a_unit("both"), a_unit("both", {**POINT, "lr": 3e-3})]
    first, later = beginnings.shared(work)
    assert [unit.key for unit in (*first, *later)] == [work[k].key for k in (0, 3, 1, 2)]
    assert [unit.leads for unit in (*first, *later)] == [True, False, False, False]
    assert {unit.beginning for unit in (first[0], *later)} == {beginnings.beginning(work[1])}
    assert first[1].beginning == ""
    alone = perform_all(work, tmp_path / "alone")
    epochs.clear()
    found = perform_all([*first, *later], tmp_path)
    assert len(epochs) == 4 + 4 + 2 * 3  # the last step of epoch 2 is shared, but not the end of the epoch
    assert [found[k].curves for k in (0, 2, 3, 1)] == [one.curves for one in alone]


def test_the_time_of_a_beginning_is_counted_once(tmp_path):
    (first,), (later,) = beginnings.shared([a_unit("beta"), a_unit("both")])
    perform_all([first], tmp_path)
    saved = Checkpoint(tmp_path, first.beginning).load()
    saved["progress"]["seconds"] = 1e6
    Checkpoint(tmp_path, first.beginning).save(saved)
    assert perform_all([later], tmp_path)[0].seconds < 1e5


def test_a_missing_beginning_changes_nothing(tmp_path):
    _, (later,) = beginnings.shared([a_unit("beta"), a_unit("both")])
    assert perform_all([later], tmp_path)[0].curves == perform_all([a_unit("both")], tmp_path)[0].curves


def test_what_has_no_common_beginning():
    assert beginnings.shared([a_unit("both")])[1] == []
    assert beginnings.shared([a_unit("adam"), a_unit("adam", {**POINT, "g0": 1e-3})])[1] == []
    short = [replace(unit, runs=(replace(unit.runs[0], until=2),)) for unit in (a_unit("beta"), a_unit("both"))]
    assert beginnings.shared(short)[1] == []
    options = {"every": 2, "factor": 0.2, "lr": 1e-2}
    methods = [{**METHODS[k], "algorithm": "AdamW", "options": options, "grid": {}, "multipliers": {}} for k in (1, 2)]
    spec = a_spec(methods=methods, epochs=4, claim={"order": []}, tuning=None)
    runs = [make(spec, method, {}, seed=3, purpose="final", machine=Machine()) for method in spec.methods]
    assert beginnings.shared(units(runs))[1] == []
