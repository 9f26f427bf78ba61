"""The A/A check: a method tuned against itself is rarely found different from itself."""

import json
import math
import random
from collections import Counter

import pytest

from semaopt.__main__ import main
from semaopt.experiments import api
from semaopt.experiments.files import OutputError
from semaopt.experiments.results.model import Final, Finding, StudyResult
from semaopt.experiments.results.statistics import Comparison
from semaopt.experiments.spec.errors import SpecError
from semaopt.experiments.sweep import aa
from semaopt.experiments.training.run import Result
from tests.experiments.cli.test_commands import write_spec
from tests.experiments.tiny import a_spec


def finding(studies, spread, seed=7):
    """Return studies whose losses differ by chance in the tuning (``spread``) and hardly by the seed."""
    rng = random.Random(seed)
    spec = a_spec(studies=studies, epochs=1)
    found = []
    for number in range(studies):
        luck = rng.gauss(0, spread)
        runs = tuple(Result({"train_loss": [math.exp(luck + rng.gauss(0, 0.01))]}, 0.0) for _ in range(3))
        found.append(StudyResult(tuple(Final(method, None, runs) for method in spec.methods), None, number))
    return Finding(spec, {}, tuple(found))


def test_halves_of_one_method_are_rarely_different():
    """A single set of studies can be unlucky; on average the rate is the nominal 5%."""
    results = [aa.compare_halves(finding(10, 0.5, seed=seed), "adam", resamples=50) for seed in range(40)]
    assert {(one.studies, one.resamples) for one in results} == {(5, 50)}
    assert 0.03 < sum(one.rate for one in results) / 40 < 0.07


def test_intervals_over_seeds_would_decide_nearly_always():
    """With one study per side, chance in the tuning looks like a difference. This is why the study is the unit."""
    found = finding(10, 0.5)
    spec, decided = found.spec.model_copy(update={"studies": 1}), 0
    for first, second in zip(found.studies[::2], found.studies[1::2], strict=True):
        a, b = (Finding(spec, {}, (one,)).units("adam", "train_loss") for one in (first, second))
        one = Comparison("adam", "adam", "train_loss", "lower", True, a, b, 0.5)
        decided += one.outcome in ("confirmed", "contradicted")
    assert decided >= 4


def test_methods_without_noise_are_equivalent():
    result = aa.compare_halves(finding(4, 0.001), "beta", resamples=20)
    assert (result.decided, result.equivalent, result.rate) == (0, 20, 0.0)


@pytest.mark.parametrize(("values", "count", "most", "splits"), [(10, 200, 2, 126), (10, 126, 1, 126), (4, 7, 3, 3)])
def test_all_splits_are_used_equally_often(values, count, most, splits):
    used = Counter()
    for a, b in aa.halves(range(values), count, random.Random(0)):
        assert sorted((*a, *b)) == list(range(values))
        used[frozenset((frozenset(a), frozenset(b)))] += 1
    assert len(used) == splits == math.comb(values, values // 2) // 2
    assert max(used.values()) == most == math.ceil(count / splits)
    assert min(used.values()) == count // splits


def test_200_resamples_tell_the_rate_of_many():
    """The error of 200 resamples is below that of 200 independent ones, 0.015."""
    errors = []
    for seed in range(20):
        found = finding(10, 0.5, seed=seed)
        errors.append(aa.compare_halves(found, "adam", 200).rate - aa.compare_halves(found, "adam", 126 * 20).rate)
    assert math.sqrt(sum(error**2 for error in errors) / len(errors)) < 0.012


def test_the_rate_has_a_binomial_standard_error():
    result = aa.AAResult("adam", studies=5, resamples=200, decided=10, equivalent=0)
    assert result.standard_error == pytest.approx(math.sqrt(0.05 * 0.95 / 200))
    assert aa.RESAMPLES == 20_000


def test_from_python_and_from_the_command_line(tmp_path, capsys, monkeypatch):
    changes = {"studies": 2, "epochs": 1, "seeds": {"tuning": [100], "final": [0]}, "tuning": {"rounds": 0}}
    path = write_spec(tmp_path / "mine.toml", **changes)
    table = api.run(path, out=tmp_path / "out", only=["adam"], workers=0, aa=True)
    (row,) = table
    assert (row["method"], row["studies per side"], row["resamples"]) == ("adam", 2, 20_000)
    assert 0 <= row["rate"] == row["decided"] / 20_000 <= 1
    assert not (tmp_path / "out" / "report.html").exists()
    options = ["--aa", "--only", "adam", "--workers", "0", "--out", str(tmp_path / "out")]
    monkeypatch.setattr("sys.argv", ["semaopt", "run", str(path), *options])
    main()
    assert capsys.readouterr().out == table.to_markdown() + "\n"
    text, stored = ((tmp_path / "out" / name).read_text() for name in ("aa.md", "aa.json"))
    assert text.startswith("# A/A check: Tiny\n\nExperiment mine at scale paper. Each method was tuned in 4 studies")
    assert text.endswith(f"\n\n{table.to_markdown()}\n")
    (method,) = json.loads(stored)["methods"]
    assert (method["method"], method["decided"], method["rate"]) == ("adam", row["decided"], row["rate"])
    with pytest.raises(
        OutputError, match=r"no finished study found, but an A/A check .*out/aa\.md\. For a report, run"
    ):
        api.report([tmp_path / "out"])
    again = api.run(path, out=tmp_path / "out", only=["adam"], workers=0, aa=True, aa_resamples=6)
    assert [row["resamples"] for row in again] == [6]
    assert "| 6 |" in (tmp_path / "out" / "aa.md").read_text()  # replaced


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"aa_resamples": 10}, r"aa_resamples=10 applies to an A/A check only\. Set aa=True \(--aa\), or leave it out"),
        (
            {"aa": True, "aa_resamples": 0},
            r"aa_resamples=0 is invalid: it must be an integer >= 1\. The default is 20000",
        ),
    ],
)
def test_invalid_numbers_of_resamples(tmp_path, options, text):
    with pytest.raises(SpecError, match=text):
        api.run(a_spec(studies=2), out=tmp_path, workers=0, **options)


def test_one_study_is_not_enough(tmp_path):
    with pytest.raises(SpecError, match=r"studies=1 is invalid for an A/A check: it must be at least 2"):
        api.run(a_spec(), out=tmp_path, workers=0, aa=True)
