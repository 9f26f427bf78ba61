"""Intervals over paired seeds, and the sentences made from them."""

import math

import pytest

from semaopt.experiments.results.statistics import (
    Comparison,
    Interval,
    evidence,
    headline,
    interval_text,
    mean_interval,
    number_text,
    paired_difference,
    paired_ratio,
)

LABELS = ("Adam", "beta", "both")
LOWER, HIGHER, EQUAL = Interval(0.5, 0.4, 0.6), Interval(2.0, 1.5, 2.5), Interval(1.0, 0.9, 1.1)


def against(ratio):
    return Comparison("a", "b", "train_loss", ratio, is_ratio=True)


def test_the_interval_is_students():
    # Mean 3, standard deviation sqrt(2.5), 5 values; the 97.5% quantile of t with 4 degrees of freedom is 2.776445.
    half = 2.776445 * math.sqrt(2.5 / 5)
    interval = mean_interval([1.0, 2.0, 3.0, 4.0, 5.0])
    assert (interval.value, interval.low, interval.high) == pytest.approx((3, 3 - half, 3 + half))


def test_pairs_cancel_what_seeds_share():
    a, b = [10.0, 20.0, 30.0], [9.0, 19.0, 29.0]
    assert paired_difference(a, b) == Interval(1.0, 1.0, 1.0)
    ratio = paired_ratio([2 * x for x in a], a)
    assert (ratio.value, ratio.low, ratio.high) == pytest.approx((2, 2, 2))


@pytest.mark.parametrize("a", [[1.0], [1.0, math.nan], [1.0, math.inf], [0.0, 1.0]])
def test_where_there_is_no_ratio(a):
    assert paired_ratio(a, [1.0] * len(a)) is None


@pytest.mark.parametrize(
    ("second", "third", "step", "said"),
    [
        (LOWER, LOWER, LOWER, "the paper's order comes out. Training loss: both < beta < Adam"),
        (LOWER, LOWER, EQUAL, "in part. Against Adam, beta ends lower, both ends lower"),
        (EQUAL, LOWER, LOWER, "in part. Against Adam, beta shows no clear difference, both ends lower"),
        (EQUAL, EQUAL, LOWER, "in part. Against Adam, beta shows no clear difference, both shows no clear"),
        (EQUAL, EQUAL, LOWER, "; both ends lower than beta"),
        (EQUAL, HIGHER, HIGHER, "does not come out. Against Adam, beta shows no clear difference, both ends higher"),
        (None, HIGHER, None, "does not come out. Against Adam, beta cannot be compared (a seed diverged"),
    ],
)
def test_the_headline_claims_no_more_than_the_intervals(second, third, step, said):
    first, steps = [against(second), against(third)], [against(second), against(step)]
    assert said in headline(LABELS, "training loss", first, steps, "lower")


def test_where_higher_is_better_the_order_is_written_so():
    better = [Comparison("a", "b", "train_auc", Interval(0.1, 0.05, 0.15), is_ratio=False)]
    assert headline(("SGDA", "PDAda"), "training AUC", better, better, "higher").endswith("PDAda > SGDA")
    assert better[0].text == "+0.100 (+0.050 to +0.150)"


def test_the_evidence_has_the_numbers():
    text = evidence(LABELS, "Final loss", [against(LOWER), against(None)], 5)
    assert text == (
        "Final loss against Adam: beta × 0.50 (0.40 to 0.60), both not comparable; 95% intervals over 5 paired seeds"
    )


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0.0"), (0.12345, "0.12"), (25.4, "25"), (1e-5, "1.0e-05"), (math.inf, "diverged")]
)
def test_numbers_read_well(value, text):
    assert number_text(value) == text


@pytest.mark.parametrize(
    ("interval", "is_ratio", "text"),
    [
        ((1.11, 1.08, 1.14), True, "× 1.11 (1.08 to 1.14)"),
        ((0.85, 0.71, 1.02), True, "× 0.850 (0.710 to 1.02)"),  # not "to 1.0", which may be either side
        ((0.059, 0.00076, 4.5), True, "× 0.059 (0.00076 to 4.5)"),
        ((0.038, 0.032, 0.044), False, "+0.038 (+0.032 to +0.044)"),
        ((-0.0021, -0.0024, -0.0018), False, "-0.0021 (-0.0024 to -0.0018)"),
        ((-0.001, -0.002, -0.0001), False, "-0.0010 (-0.0020 to -0.0001)"),
        ((0.2, 0.2, 0.2), False, "+0.20000 (+0.20000 to +0.20000)"),
    ],
)
def test_an_interval_has_the_digits_that_it_needs(interval, is_ratio, text):
    assert interval_text(Interval(*interval), is_ratio) == text
