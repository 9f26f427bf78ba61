"""Intervals, verdicts, Holm's correction and number formatting."""

import math
import random

import pytest
from scipy import stats

from semaopt.experiments.results.statistics import (
    RATIO_MARGIN,
    SHARE_MARGIN,
    Comparison,
    Interval,
    geometric_mean,
    holm,
    interval_text,
    mean_interval,
    number_text,
    paired_difference,
    paired_p_value,
    paired_ratio,
    probability_of_improvement,
)


def losses(a, b=(1.0, 1.0, 1.0), **changes):
    return Comparison("a", "b", "train_loss", "lower", True, tuple(a), tuple(b), 0.5, **changes)


def aucs(a, b=(0.8, 0.8, 0.8)):
    return Comparison("a", "b", "test_auc", "higher", False, tuple(a), tuple(b), 0.5)


def test_two_methods_that_always_diverge_are_not_equivalent():
    values = (0.5, 0.5, 0.5)
    one = Comparison("a", "b", "test_auc", "higher", False, values, values, 0.5, both_diverged=True)
    assert (one.outcome, one.text) == ("undecided", "both diverged")
    assert aucs(values, values).outcome == "equivalent"


def test_mean_interval_is_students():
    # Mean 3, standard deviation sqrt(2.5), 5 values; the 97.5% quantile of t with 4 degrees of freedom is 2.776445.
    half = 2.776445 * math.sqrt(2.5 / 5)
    interval = mean_interval([1.0, 2.0, 3.0, 4.0, 5.0])
    assert (interval.value, interval.low, interval.high) == pytest.approx((3, 3 - half, 3 + half))


def test_pairing_cancels_shared_noise():
    a, b = [10.0, 20.0, 30.0], [9.0, 19.0, 29.0]
    assert paired_difference(a, b) == Interval(1.0, 1.0, 1.0)
    ratio = paired_ratio([2 * x for x in a], a)
    assert (ratio.value, ratio.low, ratio.high) == pytest.approx((2, 2, 2))


@pytest.mark.parametrize("a", [[1.0], [1.0, math.nan], [1.0, math.inf], [0.0, 1.0]])
def test_no_ratio_of_single_or_nonpositive_values(a):
    ones = [1.0] * len(a)
    assert paired_ratio(a, ones) is None
    assert losses(a, ones).outcome == "undecided"
    assert losses(a, ones).p_value == 1.0
    assert losses(a, ones).text == ("no interval" if len(a) == 1 else "not comparable")


@pytest.mark.parametrize(
    ("values", "outcome"),
    [
        ((0.5, 0.55, 0.6), "confirmed"),
        ((2.0, 2.1, 2.2), "contradicted"),
        ((0.99, 1.0, 1.01), "equivalent"),
        ((0.97, 0.975, 0.98), "equivalent"),  # clearly lower, but within a factor of 1.05
        ((0.5, 1.0, 2.0), "undecided"),
        ((0.9, 1.0, 1.04), "undecided"),  # the interval leaves the margin
    ],
)
def test_outcomes_of_ratios(values, outcome):
    assert losses(values).outcome == outcome
    if outcome in ("confirmed", "contradicted"):
        other = {"confirmed": "contradicted", "contradicted": "confirmed"}[outcome]
        assert losses((1.0, 1.0, 1.0), values).outcome == other


@pytest.mark.parametrize(
    ("values", "outcome"),
    [
        ((0.85, 0.86, 0.87), "confirmed"),
        ((0.75, 0.74, 0.73), "contradicted"),
        ((0.801, 0.802, 0.803), "equivalent"),
        ((0.7, 0.8, 0.9), "undecided"),
    ],
)
def test_outcomes_of_differences_where_higher_is_better(values, outcome):
    assert aucs(values).outcome == outcome


def test_margins():
    assert losses([1.0] * 3).margin == (1 / RATIO_MARGIN, RATIO_MARGIN) == pytest.approx((1 / 1.05, 1.05))
    assert aucs([0.8] * 3).margin == (-SHARE_MARGIN, SHARE_MARGIN) == (-0.005, 0.005)
    edge = aucs([0.8 + SHARE_MARGIN] * 2, [0.8] * 2)
    assert edge.interval.high == pytest.approx(SHARE_MARGIN)


def test_p_value_agrees_with_scipy():
    rng = random.Random(0)
    a, b = ([rng.random() for _ in range(6)] for _ in range(2))
    assert paired_p_value(a, b) == pytest.approx(stats.ttest_rel(a, b).pvalue)
    ratio = losses(a, b)
    assert ratio.p_value == pytest.approx(stats.ttest_rel([math.log(x) for x in a], [math.log(x) for x in b]).pvalue)
    assert paired_p_value([1.0, 2.0], [1.0, 2.0]) == 1.0
    assert paired_p_value([1.0, 2.0], [0.0, 1.0]) == 0.0


def test_an_interval_excludes_no_effect_exactly_if_the_p_value_is_small():
    rng = random.Random(1)
    for _ in range(50):
        one = losses([rng.uniform(0.5, 1.2) for _ in range(4)], [1.0] * 4)
        excluded = one.interval.high < 1 or one.interval.low > 1
        assert excluded == (one.p_value < 0.05)


def test_holm_tests_the_smallest_p_value_at_the_strictest_level():
    first, second, third = losses((0.1, 0.11, 0.12)), losses((0.8, 0.7, 0.9)), losses((0.9, 1.2, 1.0))
    assert first.p_value < second.p_value < third.p_value
    levels = [1 - one.confidence for one in holm([third, first, second])]
    assert levels[1] == pytest.approx(0.05 / 3)
    assert second.p_value > 0.05 / 2  # so the procedure stops here, and the last keeps this level
    assert levels[2] == pytest.approx(0.05 / 2)
    assert levels[0] == pytest.approx(0.05 / 2)
    (alone,) = holm([second])
    assert alone.confidence == pytest.approx(0.95)


def test_holm_can_turn_a_confirmed_comparison_undecided():
    one = losses((0.8, 0.7, 0.9))
    assert one.p_value < 0.1
    both = [losses((0.5, 0.8, 0.6), (1.0, 1.1, 1.05)), losses((0.52, 0.8, 0.6), (1.0, 1.1, 1.05))]
    assert [c.outcome for c in both] == ["confirmed", "confirmed"]
    assert {c.outcome for c in holm(both * 3)} == {"undecided"}


def test_holm_keeps_the_family_wise_error_below_five_percent():
    rng = random.Random(2)
    wrong = 0
    for _ in range(400):
        family = [losses([math.exp(rng.gauss(0, 0.5)) for _ in range(5)], [1.0] * 5) for _ in range(3)]
        wrong += any(one.outcome in ("confirmed", "contradicted") for one in holm(family))
    assert wrong / 400 < 0.075  # 5% and two standard errors


def test_probability_of_improvement_counts_pairs():
    assert probability_of_improvement([1.0, 2.0], [3.0, 4.0], "lower") == 1.0
    assert probability_of_improvement([1.0, 2.0], [3.0, 4.0], "higher") == 0.0
    assert probability_of_improvement([1.0, 3.0], [2.0, 3.0], "lower") == 0.625
    assert probability_of_improvement([math.nan, 1.0], [2.0], "lower") == 0.5
    assert probability_of_improvement([math.nan], [math.inf], "higher") == 0.5  # both diverged


def test_geometric_mean_of_losses():
    assert geometric_mean([1e-4, 1.0]) == pytest.approx(1e-2)
    assert geometric_mean([-1.0, 3.0]) == 1.0
    assert math.isnan(geometric_mean([math.nan, 1.0]))


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0.0"), (0.12345, "0.12"), (25.4, "25"), (1e-5, "1.0e-05"), (math.inf, "diverged")]
)
def test_number_text(value, text):
    assert number_text(value) == text


@pytest.mark.parametrize(
    ("interval", "is_ratio", "text"),
    [
        ((1.11, 1.08, 1.14), True, "× 1.11 (1.08 to 1.14)"),
        ((0.85, 0.71, 1.02), True, "× 0.850 (0.710 to 1.02)"),  # not "to 1.0", which may be on either side
        ((0.059, 0.00076, 4.5), True, "× 0.059 (0.00076 to 4.5)"),
        ((0.038, 0.032, 0.044), False, "+0.038 (+0.032 to +0.044)"),
        ((-0.0021, -0.0024, -0.0018), False, "-0.0021 (-0.0024 to -0.0018)"),
        ((-0.001, -0.002, -0.0001), False, "-0.0010 (-0.0020 to -0.0001)"),
        ((0.2, 0.2, 0.2), False, "+0.20000 (+0.20000 to +0.20000)"),
    ],
)
def test_interval_text_has_the_digits_it_needs(interval, is_ratio, text):
    assert interval_text(Interval(*interval), is_ratio) == text
