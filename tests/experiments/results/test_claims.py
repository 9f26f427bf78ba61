"""The table of claims: which pairs a claim is made of, and what is said of each and of all together."""

import math

import pytest

from semaopt.experiments.results import claims
from semaopt.experiments.results.model import Final, Finding, Origin
from semaopt.experiments.training.run import Result
from tests.experiments.tiny import a_spec

ORIGIN = Origin("", "", {}, 0, 0.0, 0.0, "")
SEEDS = (0.99, 1.0, 1.01)


def finding(order=("adam", "beta", "both"), beats=None, **losses):
    """Three seeds around each method's loss; their noise is shared, so that pairs differ by the same ratio."""
    spec = a_spec(claim={"text": "It falls.", "metric": "train_loss", "order": list(order), "beats": beats or {}})
    finals = []
    for method in spec.methods:
        values = losses.get(method.name, 1.0)
        each = values if isinstance(values, list) else [values * seed for seed in SEEDS]
        runs = tuple(Result({"train_loss": [1.0, value]}, 0.0) for value in each)
        finals.append(Final(method, None, runs))
    return Finding(spec, {}, tuple(finals), None, ORIGIN)


NOISY = [0.5, 1.1, 2.0]


@pytest.mark.parametrize(
    ("losses", "outcomes", "together"),
    [
        ({"beta": 0.5, "both": 0.2}, ["came out"] * 3, "came out"),
        ({"beta": 0.5, "both": 0.7}, ["came out", "came out", "the other way"], "in part"),
        ({"beta": 2.0, "both": 3.0}, ["the other way"] * 3, "the other way"),
        ({"beta": NOISY, "both": 3.0}, ["within noise", "the other way", "within noise"], "the other way"),
        ({"beta": NOISY, "both": 0.1}, ["within noise", "came out", "came out"], "in part"),
        ({"beta": NOISY, "both": NOISY[::-1]}, ["within noise"] * 3, "within noise"),
        (
            {"beta": [1.0, math.nan, 1.0], "both": 0.1},
            ["not comparable", "came out", "not comparable"],
            "in part",
        ),
    ],
)
def test_each_comparison_and_all_together(losses, outcomes, together):
    verdict = claims.verdict(finding(**losses))
    assert [row.outcome for row in verdict.rows] == outcomes
    assert (verdict.outcome, verdict.counted) == (together, f"{outcomes.count('came out')} of 3")


def test_who_is_compared_with_whom():
    pairs = [(one.method, one.against) for one in finding().claimed()]
    assert pairs == [("beta", "adam"), ("both", "adam"), ("both", "beta")]
    assert [(one.method, one.against) for one in finding(order=["adam", "both"]).claimed()] == [("both", "adam")]
    beats = finding(order=(), beats={"both": ["adam"], "beta": ["adam"]}).claimed()  # in the order of the methods
    assert [(one.method, one.against) for one in beats] == [("beta", "adam"), ("both", "adam")]


@pytest.mark.parametrize(
    ("losses", "said"),
    [
        (
            {"beta": 0.5, "both": 0.7},
            "claim comes out. The lowest training loss has increasing β, 0.500",
        ),
        (
            {"beta": 2.0, "both": 0.7},
            "Tiny: the paper's claim comes out in 1 of 2 comparisons. The lowest",
        ),
        ({"beta": 2.0, "both": 3.0}, "does not come out. The lowest training loss has folklore Adam, 1.00 in the mean"),
        ({"beta": [math.nan] * 3, "both": 3.0}, "does not come out. The lowest training loss has folklore Adam"),
    ],
)
def test_the_headline_of_who_beats_whom_says_no_more_than_the_table(losses, said):
    found = finding(order=(), beats={"beta": ["adam"], "both": ["adam"]}, **losses)
    assert said in found.headline
    assert claims.verdict(found).counted in ("2 of 2", "1 of 2", "0 of 2")


def test_a_row_says_how_much_and_against_which_noise():
    row = claims.verdict(finding(beta=0.5)).rows[0]
    assert row.statement == "increasing β ends lower than folklore Adam"
    assert row.difference == "× 0.5000 (0.5000 to 0.5000)"
    # ln 0.5 over the deviation of the logarithms of single seeds, which is 0.01.
    assert float(row.deviations) == pytest.approx(math.log(0.5) / 0.01, rel=0.01)


def test_a_claim_without_an_order_is_measured():
    verdict = claims.verdict(finding(order=(), beta=0.5))
    assert (verdict.outcome, len(verdict.rows)) == ("measured", 1)
    assert "runs from 0.50 (increasing β) to 1.0" in verdict.rows[0].statement


def test_shares_are_told_with_digits_enough_to_tell_them_apart():
    spec = a_spec(claim={"text": "More.", "metric": "test_accuracy", "order": [], "beats": {"both": ["adam"]}})
    finals = tuple(
        Final(method, None, (Result({"test_accuracy": [share]}, 0.0),) * 3)
        for method, share in zip(spec.methods, (0.90781, 0.90774, 1.0), strict=True)
    )
    said = Finding(spec, {}, finals, None, ORIGIN).evidence
    assert "folklore Adam 0.9078, increasing β 0.9077, increasing β + decreasing lr 1.000; means over 3 seeds" in said
    losses = finding(order=(), beats={"both": ["adam"]}).evidence
    assert "folklore Adam 1.0, increasing β 1.0" in losses


def test_the_tally_counts_comparisons_not_figures():
    both = [finding(beta=0.5, both=0.7), finding(order=())]
    assert claims.tally(both) == "Of 3 comparisons 2 came out as claimed, 1 came out the other way"
    assert claims.tally([]) == "Nothing is compared here"
