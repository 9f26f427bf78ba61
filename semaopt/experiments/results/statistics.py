"""Paired comparisons over the seeds, and the sentence that they allow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.special import stdtrit

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """An estimate and its confidence interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Comparison:
    """One method's last values of a metric against another's, paired over the seeds."""

    method: str
    against: str
    metric: str
    interval: Interval | None
    """Of the ratio, or of the difference."""
    is_ratio: bool
    deviations: float | None = None
    """The difference (of logarithms, for a ratio) in standard deviations of single seeds."""

    @property
    def verdict(self) -> str:
        """What the interval says."""
        if self.interval is None:
            return "not comparable"
        equal = 1.0 if self.is_ratio else 0.0
        if self.interval.high < equal:
            return "lower"
        return "higher" if self.interval.low > equal else "no clear difference"

    @property
    def text(self) -> str:
        """The interval, as people read it."""
        return interval_text(self.interval, self.is_ratio)


def mean_and_std(values: Sequence[float]) -> tuple[float, float]:
    """The mean and the sample standard deviation (NaN for a single value).

    >>> mean_and_std([1.0, 3.0])
    (2.0, 1.4142135623730951)
    """
    mean = sum(values) / len(values)
    if len(values) < 2:
        return mean, math.nan
    return mean, math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))


def mean_interval(values: Sequence[float]) -> Interval | None:
    """The mean with Student's interval; None where there is none: a single value, or one that is not finite."""
    if len(values) < 2 or not all(map(math.isfinite, values)):
        return None
    mean, std = mean_and_std(values)
    half = float(stdtrit(len(values) - 1, (1 + CONFIDENCE) / 2)) * std / math.sqrt(len(values))
    return Interval(mean, mean - half, mean + half)


def paired_difference(a: Sequence[float], b: Sequence[float]) -> Interval | None:
    """The mean of a - b over pairs."""
    return mean_interval([x - y for x, y in zip(a, b, strict=True)])


def paired_ratio(a: Sequence[float], b: Sequence[float]) -> Interval | None:
    """The geometric mean of a/b over pairs: losses that fall by decades differ by factors.

    >>> paired_ratio([1.0, 4.0], [1.0, 1.0]).value
    2.0
    """
    if not all(math.isfinite(x) and x > 0 for x in (*a, *b)):
        return None
    logs = paired_difference([math.log(x) for x in a], [math.log(x) for x in b])
    return None if logs is None else Interval(math.exp(logs.value), math.exp(logs.low), math.exp(logs.high))


def deviations(a: Sequence[float], b: Sequence[float], is_ratio: bool = False) -> float | None:
    """The difference of the means against the noise of the seeds, the root mean square of both standard deviations.

    >>> deviations([1.0, 3.0], [5.0, 7.0])
    -2.82842712474619
    """
    if len(a) < 2 or not all(math.isfinite(x) and (x > 0 or not is_ratio) for x in (*a, *b)):
        return None
    if is_ratio:
        a, b = [math.log(x) for x in a], [math.log(x) for x in b]
    (first, spread), (second, other) = mean_and_std(a), mean_and_std(b)
    noise = math.sqrt((spread**2 + other**2) / 2)
    return (first - second) / noise if noise > 0 else None


def signed(value: float) -> str:
    """One digit after the point, with its sign.

    >>> signed(2.34), signed(-0.01)
    ('+2.3', '0.0')
    """
    return "0.0" if abs(value) < 0.05 else f"{value:+.1f}"


def number_text(value: float, digits: int = 2) -> str:
    """A few significant digits, without an exponent where it reads well.

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
    """An estimate and its interval, in the digits that tell its ends from it and from no effect (at most two more).

    >>> interval_text(Interval(0.85, 0.71, 1.2), is_ratio=True)
    '× 0.85 (0.71 to 1.2)'
    >>> interval_text(Interval(0.0012, 0.0004, 0.002), is_ratio=False)
    '+0.0012 (+0.0004 to +0.0020)'
    """
    if interval is None:
        return "not comparable"
    numbers = (interval.value, interval.low, interval.high, *((1.0,) if is_ratio else (0.0, -0.0)))
    for more in range(3):
        told = [number_text(x, 2 + more) if is_ratio else f"{x:+.{3 + more}f}" for x in numbers]
        value, low, high, *no_effect = told
        if not {low, high} & {value, *no_effect}:
            break
    return f"{'× ' if is_ratio else ''}{value} ({low} to {high})"


_ENDS = {
    "lower": "ends lower",
    "higher": "ends higher",
    "no clear difference": "shows no clear difference",
    "not comparable": "cannot be compared (a seed diverged, or there is only one)",
}


def headline(
    labels: Sequence[str],
    what: str,
    first: Sequence[Comparison],
    steps: Sequence[Comparison],
    better: str,
    *,
    whose: str = "the paper's",
) -> str:
    """What the last values say on an order.

    Args:
        labels: of the methods, from the worst to the best as it is claimed.
        what: the metric, as people read it.
        first: of each later method against the first.
        steps: of each later method against the one before it.
        better: "lower" or "higher".
        whose: order it is.
    """
    if all(step.verdict == better for step in steps):
        sign = "<" if better == "lower" else ">"
        return f"{whose} order comes out. {what[0].upper()}{what[1:]}: {f' {sign} '.join(reversed(labels))}"
    found = ", ".join(f"{label} {_ENDS[c.verdict]}" for label, c in zip(labels[1:], first, strict=True))
    between = zip(labels[1:-1], labels[2:], steps[1:], strict=True)
    found += "".join(f"; {label} {_ENDS[better]} than {before}" for before, label, c in between if c.verdict == better)
    order = "comes out in part" if better in {c.verdict for c in (*first, *steps)} else "does not come out"
    return f"{whose} order {order}. Against {labels[0]}, {found}"


def counted(out: int, of: int, whose: str = "the paper's") -> str:
    """What is said of a claim that is no order.

    >>> counted(2, 3), counted(0, 3), counted(3, 3, "the")
    ("the paper's claim comes out in 2 of 3 comparisons", "the paper's claim does not come out", 'the claim comes out')
    """
    if out == of:
        return f"{whose} claim comes out"
    return f"{whose} claim comes out in {out} of {of} comparisons" if out else f"{whose} claim does not come out"


def evidence(labels: Sequence[str], what: str, first: Sequence[Comparison], seeds: int) -> str:
    """The numbers behind :func:`headline`."""
    found = ", ".join(f"{label} {c.text}" for label, c in zip(labels[1:], first, strict=True))
    return f"{what} against {labels[0]}: {found}; {CONFIDENCE:.0%} intervals over {seeds} paired seeds"
