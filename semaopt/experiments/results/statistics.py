"""Comparisons of two methods: interval, probability of improvement, and the verdict they support."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from scipy.special import stdtr, stdtrit

CONFIDENCE = 0.95
#: Differences of AUC, accuracy or average precision within this margin are equivalent.
SHARE_MARGIN = 0.005
#: Losses within this factor of each other are equivalent.
RATIO_MARGIN = 1.05

Direction = Literal["lower", "higher"]
Outcome = Literal["confirmed", "contradicted", "equivalent", "undecided"]


@dataclass(frozen=True)
class Interval:
    """An estimate with its confidence interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Comparison:
    """The statement "``method`` is better than ``against``" on one metric, with its evidence.

    The values of both methods are paired: entry k of each belongs to the same study (or, in a spec with one study, to
    the same seed).
    """

    method: str
    against: str
    metric: str
    better: Direction
    is_ratio: bool
    """Whether the interval is of the ratio of the values, or of their difference."""
    values: tuple[float, ...]
    other_values: tuple[float, ...]
    probability: float
    """Share of the pairs of single runs in which ``method`` is better; ties count one half."""
    confidence: float = CONFIDENCE
    """Confidence level of the interval; larger where several comparisons belong to one claim (see :func:`holm`)."""
    both_diverged: bool = False
    """Whether every run of both methods diverged; nothing can then be said about them."""

    @property
    def interval(self) -> Interval | None:
        """Student's interval of the mean ratio or difference; None for a single pair or values without a ratio."""
        compute = paired_ratio if self.is_ratio else paired_difference
        return compute(self.values, self.other_values, self.confidence)

    @property
    def p_value(self) -> float:
        """Two-sided p-value of the paired t-test; 1 where there is no interval."""
        if self.is_ratio and not _positive(self.values, self.other_values):
            return 1.0
        return paired_p_value(*((_logs(x) if self.is_ratio else x) for x in (self.values, self.other_values)))

    @property
    def margin(self) -> tuple[float, float]:
        """The range of ratios or differences that count as equivalent."""
        return (1 / RATIO_MARGIN, RATIO_MARGIN) if self.is_ratio else (-SHARE_MARGIN, SHARE_MARGIN)

    @property
    def outcome(self) -> Outcome:
        """The verdict on the statement.

        Equivalent if the interval lies inside the margin, confirmed or contradicted if it lies on one side of "no
        effect", undecided otherwise.
        """
        interval = self.interval
        if interval is None or self.both_diverged:
            return "undecided"
        low, high = self.margin
        if low <= interval.low and interval.high <= high:
            return "equivalent"
        no_effect = 1.0 if self.is_ratio else 0.0
        if interval.high < no_effect:
            return "confirmed" if self.better == "lower" else "contradicted"
        if interval.low > no_effect:
            return "confirmed" if self.better == "higher" else "contradicted"
        return "undecided"

    @property
    def deviations(self) -> float | None:
        """The difference (of logarithms, for a ratio) in standard deviations of single values."""
        return deviations(self.values, self.other_values, self.is_ratio)

    @property
    def text(self) -> str:
        """The interval as text."""
        if self.both_diverged:
            return "both diverged"
        return "no interval" if len(self.values) < 2 else interval_text(self.interval, self.is_ratio)


def mean_and_std(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and the sample standard deviation (NaN for a single value).

    >>> mean_and_std([1.0, 3.0])
    (2.0, 1.4142135623730951)
    """
    mean = sum(values) / len(values)
    if len(values) < 2:
        return mean, math.nan
    return mean, math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))


def geometric_mean(values: Sequence[float]) -> float:
    """Return the geometric mean of positive values, otherwise the arithmetic mean.

    >>> geometric_mean([1.0, 4.0])
    2.0
    """
    if not _positive(values):
        return sum(values) / len(values)
    return math.exp(sum(_logs(values)) / len(values))


def spread_text(values: Sequence[float], digits: int = 3, *, percent: bool = False, is_ratio: bool = False) -> str:
    """Format the mean and the standard deviation of the runs that did not diverge, and count those that did.

    Values that are compared by their ratio get the geometric mean and the factor of one standard deviation.

    >>> spread_text([1.0, 3.0]), spread_text([0.5, 0.52], percent=True), spread_text([1.0, 4.0], is_ratio=True)
    ('2.00 ± 1.4', '51.00 ± 1.41', '2.00 ×/÷ 2.67')
    >>> spread_text([1.0, 3.0, float("nan")]), spread_text([float("nan")])
    ('2.00 ± 1.4, 1 of 3 diverged', 'diverged')
    """
    finite = [100 * x if percent else x for x in values if math.isfinite(x)]
    if not finite:
        return "diverged"
    is_ratio = is_ratio and _positive(finite)
    mean, std = mean_and_std(_logs(finite) if is_ratio else finite)
    if is_ratio:
        mean, std = math.exp(mean), math.exp(std)
    first, second = number_text(mean, digits), number_text(std, 3 if is_ratio else 2)
    if percent:
        first, second = f"{mean:.2f}", f"{std:.2f}"
    text = first if math.isnan(std) else f"{first} {'×/÷' if is_ratio else '±'} {second}"
    lost = len(values) - len(finite)
    return f"{text}, {lost} of {len(values)} diverged" if lost else text


def mean_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> Interval | None:
    """Return the mean with Student's interval; None for a single value or one that is not finite."""
    if len(values) < 2 or not all(map(math.isfinite, values)):
        return None
    mean, std = mean_and_std(values)
    half = float(stdtrit(len(values) - 1, (1 + confidence) / 2)) * std / math.sqrt(len(values))
    return Interval(mean, mean - half, mean + half)


def paired_difference(a: Sequence[float], b: Sequence[float], confidence: float = CONFIDENCE) -> Interval | None:
    """Return the mean of a - b over pairs with its interval."""
    return mean_interval([x - y for x, y in zip(a, b, strict=True)], confidence)


def paired_ratio(a: Sequence[float], b: Sequence[float], confidence: float = CONFIDENCE) -> Interval | None:
    """Return the geometric mean of a/b over pairs with its interval; None unless all values are positive.

    >>> paired_ratio([1.0, 4.0], [1.0, 1.0]).value
    2.0
    """
    if not _positive(a, b):
        return None
    logs = paired_difference(_logs(a), _logs(b), confidence)
    return None if logs is None else Interval(math.exp(logs.value), math.exp(logs.low), math.exp(logs.high))


def paired_p_value(a: Sequence[float], b: Sequence[float]) -> float:
    """Return the two-sided p-value of the paired t-test; 1 where there is no test.

    >>> round(paired_p_value([1.0, 2.0, 3.0, 4.0], [0.0, 0.5, 2.0, 1.5]), 4)
    0.024
    """
    differences = [x - y for x, y in zip(a, b, strict=True)]
    if len(differences) < 2 or not all(map(math.isfinite, differences)):
        return 1.0
    mean, std = mean_and_std(differences)
    if std == 0:
        return 1.0 if mean == 0 else 0.0
    return 2 * float(stdtr(len(differences) - 1, -abs(mean) / (std / math.sqrt(len(differences)))))


def holm(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Return the comparisons of one claim with the confidence levels of Holm's step-down procedure.

    Of m comparisons the one with the smallest p-value is tested at level 0.05/m, the next at 0.05/(m-1), and so on.
    The first comparison that is not significant sets the level of all later ones. The family-wise error stays below 5%.
    """
    order = sorted(range(len(comparisons)), key=lambda k: comparisons[k].p_value)
    found = list(comparisons)
    level, stopped = 0.0, False
    for rank, k in enumerate(order):
        if not stopped:
            level = (1 - CONFIDENCE) / (len(order) - rank)
            stopped = comparisons[k].p_value > level
        found[k] = replace(comparisons[k], confidence=1 - level)
    return found


def probability_of_improvement(a: Sequence[float], b: Sequence[float], better: Direction) -> float:
    """Return the share of pairs (one value of a, one of b) in which a is better; ties count one half.

    A value that is not finite is worse than every finite one.

    >>> probability_of_improvement([0.9, 0.8], [0.7, 0.8], "higher")
    0.875
    """
    sign = -1 if better == "lower" else 1
    first, second = ([sign * x if math.isfinite(x) else -math.inf for x in values] for values in (a, b))
    wins = sum(float(x > y) + 0.5 * float(x == y) for x in first for y in second)
    return wins / (len(first) * len(second))


def deviations(a: Sequence[float], b: Sequence[float], is_ratio: bool = False) -> float | None:
    """Return the difference of the means divided by the root mean square of both standard deviations.

    >>> deviations([1.0, 3.0], [5.0, 7.0])
    -2.82842712474619
    """
    if len(a) < 2 or not all(math.isfinite(x) and (x > 0 or not is_ratio) for x in (*a, *b)):
        return None
    if is_ratio:
        a, b = _logs(a), _logs(b)
    (first, spread), (second, other) = mean_and_std(a), mean_and_std(b)
    noise = math.sqrt((spread**2 + other**2) / 2)
    return (first - second) / noise if noise > 0 else None


def _positive(*values: Sequence[float]) -> bool:
    return all(math.isfinite(x) and x > 0 for listed in values for x in listed)


def _logs(values: Sequence[float]) -> list[float]:
    return [math.log(x) for x in values]


def signed(value: float) -> str:
    """Format a number with its sign and one decimal.

    >>> signed(2.34), signed(-0.01)
    ('+2.3', '0.0')
    """
    return "0.0" if abs(value) < 0.05 else f"{value:+.1f}"


def number_text(value: float, digits: int = 2) -> str:
    """Format a number with a few significant digits, without an exponent where that reads well.

    >>> number_text(0.03812), number_text(0.00041), number_text(12.3), number_text(float("nan"))
    ('0.038', '0.00041', '12', 'diverged')
    """
    if not math.isfinite(value):
        return "diverged"
    if value == 0 or 1e-4 <= abs(value) < 1e4:
        exponent = 0 if value == 0 else math.floor(math.log10(abs(value)))
        return f"{value:.{max(digits - 1 - exponent, 0)}f}"
    return f"{value:.{digits - 1}e}"


def interval_text(interval: Interval | None, is_ratio: bool) -> str:
    """Format an estimate and its interval.

    Up to two digits are added until the ends differ from the estimate and from "no effect".

    >>> interval_text(Interval(0.85, 0.71, 1.2), is_ratio=True)
    '× 0.85 (0.71 to 1.2)'
    >>> interval_text(Interval(0.0012, 0.0004, 0.002), is_ratio=False)
    '+0.0012 (+0.0004 to +0.0020)'
    """
    if interval is None:
        return "not comparable"
    numbers = (interval.value, interval.low, interval.high, *((1.0,) if is_ratio else (0.0, -0.0)))
    for more in range(3):
        texts = [number_text(x, 2 + more) if is_ratio else f"{x:+.{3 + more}f}" for x in numbers]
        value, low, high, *no_effect = texts
        if not {low, high} & {value, *no_effect}:
            break
    return f"{'× ' if is_ratio else ''}{value} ({low} to {high})"
