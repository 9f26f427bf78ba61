"""Verdicts on claims: which pairs are compared, and the verdict on each and on the whole claim."""

import math

import pytest

from semaopt.experiments.results import claims
from semaopt.experiments.results.model import Final, Finding, StudyResult
from semaopt.experiments.training.run import Result
from tests.experiments.tiny import a_spec

SEEDS = (0.99, 1.0, 1.01)
NOISY = [0.5, 1.1, 2.0]


def study(spec, losses, number=0):
    """Three seeds around the loss of each method; their noise is shared, so all pairs have the same ratio."""
    finals = []
    for method in spec.methods:
        values = losses.get(method.name, 1.0)
        each = values if isinstance(values, list) else [values * seed for seed in SEEDS]
        finals.append(Final(method, None, tuple(Result({"train_loss": [2.0, *[value] * 3]}, 0.0) for value in each)))
    return StudyResult(tuple(finals), None, number)


def finding(*studies, order=("adam", "beta", "both"), beats=None, controls=None, **losses):
    claim = {"text": "It falls.", "metric": "train_loss", "order": list(order), "beats": beats or {}}
    claim["controls"] = controls or {}
    spec = a_spec(claim=claim, epochs=4, studies=max(len(studies), 1))
    return Finding(spec, {}, tuple(study(spec, one, k) for k, one in enumerate(studies or (losses,))))


@pytest.mark.parametrize(
    ("losses", "outcomes", "claim"),
    [
        ({"beta": 0.5, "both": 0.2}, ["confirmed"] * 3, "confirmed"),
        ({"beta": 0.5, "both": 0.7}, ["confirmed", "confirmed", "contradicted"], "contradicted"),
        ({"beta": 2.0, "both": 3.0}, ["contradicted"] * 3, "contradicted"),
        ({"beta": NOISY, "both": 3.0}, ["undecided", "contradicted", "undecided"], "contradicted"),
        ({"beta": NOISY, "both": 0.01}, ["undecided", "confirmed", "confirmed"], "undecided"),
        ({"beta": NOISY, "both": NOISY[::-1]}, ["undecided"] * 3, "undecided"),
        ({"beta": 1.01, "both": 0.1}, ["equivalent", "confirmed", "confirmed"], "equivalent"),
        ({"beta": 1.01, "both": 0.99}, ["equivalent"] * 3, "equivalent"),
    ],
)
def test_each_comparison_and_the_whole_claim(losses, outcomes, claim):
    verdict = claims.verdict(finding(**losses))
    assert [row.outcome for row in verdict.rows] == outcomes
    assert verdict.outcome == claim


def test_pairs_of_a_claim():
    pairs = [(one.method, one.against) for one in finding().claimed()]
    assert pairs == [("beta", "adam"), ("both", "adam"), ("both", "beta")]
    assert [(one.method, one.against) for one in finding(order=["adam", "both"]).claimed()] == [("both", "adam")]
    beats = finding(order=(), beats={"both": ["adam"], "beta": ["adam"]}).claimed()  # in the order of the methods
    assert [(one.method, one.against) for one in beats] == [("beta", "adam"), ("both", "adam")]


def test_intervals_of_a_claim_are_corrected_for_their_number():
    found = finding(beta=[0.45, 0.5, 0.55], both=[0.2, 0.25, 0.3])
    alone = found.compare("train_loss", "beta", "adam")
    (row,) = [row for row in claims.verdict(found).rows if row.comparison.method == "beta"]
    assert row.comparison.confidence > alone.confidence == 0.95
    assert row.comparison.interval.low < alone.interval.low


def test_evidence_of_a_comparison():
    one = finding(beta=0.5).compare("train_loss", "beta", "adam")
    assert one.text == "× 0.5000 (0.5000 to 0.5000)"
    # ln 0.5 over the standard deviation of the logarithms of single seeds, which is 0.01.
    assert one.deviations == pytest.approx(math.log(0.5) / 0.01, rel=0.01)
    assert one.probability == 1.0
    assert finding(beta=1.0).compare("train_loss", "beta", "adam").probability == 0.5


def test_a_claim_without_comparisons_is_measured():
    verdict = claims.verdict(finding(order=(), beta=0.5))
    assert (verdict.outcome, verdict.rows) == ("measured", ())


def test_comparisons_use_the_mean_of_the_last_epochs():
    spec = a_spec(epochs=4, final_epochs=3)
    curves = {"adam": [9.0, 1.0, 1.0, 1.0], "beta": [9.0, 2.0, 2.0, 0.5], "both": [9.0, 1.0, 1.0, 1.0]}
    finals = tuple(Final(m, None, (Result({"train_loss": curves[m.name]}, 0.0),) * 2) for m in spec.methods)
    found = Finding(spec, {}, (StudyResult(finals, None),))
    assert found.ends("beta", "train_loss") == [1.5, 1.5]
    assert found.compare("train_loss", "beta", "adam").interval.value == pytest.approx(1.5)  # the last epoch says 0.5


def test_divergence_counts_as_the_worst_result():
    found = finding(beta=[0.5, math.nan, 0.5], both=[math.nan] * 3)
    assert math.isnan(found.ends("beta", "train_loss")[1])
    assert found.scores("beta", "train_loss") == [0.5, 2.0, 0.5]  # 2.0 is the largest loss after any epoch
    assert found.compare("train_loss", "both", "adam").outcome == "contradicted"
    assert found.compare("train_loss", "both", "adam").probability == 0.0
    assert found.compare("train_loss", "adam", "both").outcome == "confirmed"
    neither = finding(beta=[math.nan] * 3, both=[math.nan] * 3).compare("train_loss", "both", "beta")
    assert (neither.values, neither.both_diverged, neither.outcome) == (neither.other_values, True, "undecided")
    assert not found.compare("train_loss", "both", "beta").both_diverged


@pytest.mark.parametrize(("metric", "worst"), [("test_auc", 0.5), ("test_accuracy", 0.0)])
def test_divergence_of_a_share_counts_as_chance_level(metric, worst):
    spec = a_spec()
    finals = tuple(
        Final(m, None, (Result({metric: [0.9] * 3}, 0.0), Result({metric: [math.nan] * 3}, 0.0))) for m in spec.methods
    )
    found = Finding(spec, {}, (StudyResult(finals, None),))
    assert found.scores("adam", metric) == pytest.approx([0.9, worst])


def test_with_several_studies_the_study_is_the_unit():
    """Seeds within a study agree closely; the studies do not. Only an interval over studies shows that."""
    lucky, unlucky = {"beta": 0.5}, {"beta": 1.9}
    found = finding(lucky, unlucky, lucky)
    assert found.units("beta", "train_loss") == pytest.approx((0.5, 1.9, 0.5), rel=1e-3)  # geometric means
    assert len(found.compare("train_loss", "beta", "adam").values) == 3
    assert found.compare("train_loss", "beta", "adam").outcome == "undecided"
    assert len(found.ends("beta", "train_loss")) == 9
    assert found.seeds == (0, 1, 2, 1000, 1001, 1002, 2000, 2001, 2002)
    assert finding(lucky, lucky, lucky).compare("train_loss", "beta", "adam").outcome == "confirmed"


def test_control_arms_do_not_count_for_the_verdict():
    found = claims.verdict(finding(order=("adam", "both"), controls={"both": ["beta"]}, beta=0.2, both=0.5))
    assert found.outcome == "confirmed"
    (control,) = found.controls
    assert (control.comparison.method, control.comparison.against) == ("both", "beta")
    assert control.outcome == "contradicted"
    assert control.comparison.confidence == pytest.approx(0.95)  # Holm is within the claim and within the controls


def test_a_diverged_run_is_never_better_than_a_finished_one():
    spec = a_spec()
    ends = {"adam": 0.4, "beta": math.nan, "both": 0.9}
    finals = tuple(Final(m, None, (Result({"test_auc": [ends[m.name]] * 3}, 0.0),)) for m in spec.methods)
    found = Finding(spec, {}, (StudyResult(finals, None),))
    assert found.scores("beta", "test_auc") == pytest.approx([0.4])


def test_a_group_is_the_mean_of_its_methods_in_each_study():
    groups = {"decays": {"label": "both decays", "methods": ["beta", "both"]}}
    spec_claim = {"text": "-", "metric": "train_loss", "order": [], "beats": {"decays": ["adam"]}, "groups": groups}
    spec = a_spec(claim=spec_claim, epochs=4, studies=3)
    losses = ({"beta": 0.2, "both": 0.8}, {"beta": 0.3, "both": 0.9}, {"beta": 0.2, "both": 0.9})
    found = Finding(spec, {}, tuple(study(spec, one, k) for k, one in enumerate(losses)))
    assert found.units("decays", "train_loss") == pytest.approx((0.4, math.sqrt(0.27), math.sqrt(0.18)), rel=1e-3)
    (row,) = claims.verdict(found).rows
    assert (row.outcome, found.label("decays"), row.comparison.probability) == ("confirmed", "both decays", 1.0)


def test_time_to_target_counts_runs_that_never_reach_it():
    curves = {"adam": [4.0, 3.0, 2.0, 2.0], "beta": [3.0, 2.0, 1.0, 1.0], "both": [4.0, 4.0, 4.0, 4.0]}
    spec = a_spec(epochs=4, final_epochs=2, claim={"target": "adam"})
    finals = tuple(Final(m, None, (Result({"train_loss": curves[m.name]}, 8.0),) * 2) for m in spec.methods)
    adam, beta, both = Finding(spec, {}, (StudyResult(finals, None),)).times_to_target()
    assert (adam.target, adam.epochs, adam.seconds, adam.reached) == (2.0, 3, 6.0, 2)
    assert (beta.epochs, beta.seconds, beta.runs) == (2, 4.0, 2)
    assert (both.reached, both.epochs) == (0, math.inf)
