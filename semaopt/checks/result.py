"""Results of a check: measured numbers with the promised ones, and the curves of its figure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from torch import Tensor

#: Tolerance by which a fitted exponent may exceed that of the theorem, which holds for T -> infinity.
SLACK = 0.1
#: Tolerance by which a fitted exponent may lie below 0 where a quantity must not shrink.
FLAT = SLACK / 2
#: An explanation of the margins, for reports.
MARGIN = (
    "The margin of a bound is the bound divided by the upper end of the 95% interval of the measured mean. "
    "The theorems hold for T to infinity, so the interval of a fitted exponent may exceed the promised one by "
    f"{SLACK:g} (or lie below 0 by {FLAT:g} where a quantity must not shrink). The margin of an exponent is the unused "
    "part of this tolerance."
)
#: The two-sided 95% quantile of the normal distribution.
_Z = 1.96


@dataclass(frozen=True)
class Line:
    """One claim: the measured and the promised number, and the margin between them."""

    claim: str
    measured: float
    promised: float
    margin: str
    passed: bool
    detail: str = ""


@dataclass(frozen=True)
class Curve:
    """Points with a band, or a reference line without one."""

    label: str
    x: list[float]
    y: list[float]
    low: list[float] | None = None
    high: list[float] | None = None


@dataclass(frozen=True)
class Figure:
    """A message and the curves that show it."""

    message: str
    x_label: str
    y_label: str
    curves: list[Curve]
    logarithmic: bool = True


@dataclass
class CheckResult:
    """The result of one check."""

    name: str
    theorem: str
    lines: list[Line]
    figure: Figure
    settings: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        return all(line.passed for line in self.lines)

    def plain(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {"passed": self.passed, **asdict(self)}


def mean_and_half(samples: Tensor) -> tuple[float, float]:
    """Return the mean over the seeds and half the width of its 95% confidence interval."""
    half = _Z * float(samples.std()) / math.sqrt(len(samples)) if len(samples) > 1 else 0.0
    return float(samples.mean()), half


def band(label: str, x: Sequence[float], samples: Sequence[Tensor]) -> Curve:
    """Return the means over the seeds with a band from the 5th to the 95th percentile."""
    low, high = ([float(s.quantile(q)) for s in samples] for q in (0.05, 0.95))
    return Curve(label, [float(v) for v in x], [float(s.mean()) for s in samples], low, high)


def reference(label: str, x: Sequence[float], y: Sequence[float]) -> Curve:
    """Return a curve without a band."""
    return Curve(label, [float(v) for v in x], [float(v) for v in y])


def below(claim: str, samples: Sequence[Tensor], bounds: Sequence[float], at: Sequence[object]) -> Line:
    """Test that the upper end of the mean's interval is below the bound everywhere. Report the worst place."""
    ratios = []
    for sample, bound in zip(samples, bounds, strict=True):
        mean, half = mean_and_half(sample)
        # A diverged run is above every bound.
        ratios.append((mean + half) / bound if math.isfinite(mean) else math.inf)
    worst = max(range(len(ratios)), key=ratios.__getitem__)
    mean, half = mean_and_half(samples[worst])
    margin = f"{1 / ratios[worst]:.3g}x" if 0 < ratios[worst] < math.inf else "none"
    detail = f"worst at {at[worst]}, +-{half:.2g}"
    return Line(claim, mean, float(bounds[worst]), margin, ratios[worst] <= 1, detail)


def slope(
    x: Sequence[float], samples: Sequence[Tensor], divide_by: Sequence[float] | None = None
) -> tuple[float, float]:
    """Fit mean ~ x^p by least squares in logarithms. Return p and half the width of its 95% interval over the seeds.

    The seeds of different x are independent. So the variance of p is the sum of the variances of the logarithms of the
    means (by the delta method), each multiplied by its squared weight in the fit.
    """
    logs = [math.log(v) for v in x]
    middle = sum(logs) / len(logs)
    weights = [(v - middle) / sum((u - middle) ** 2 for u in logs) for v in logs]
    fitted, variance = 0.0, 0.0
    for k, (weight, sample) in enumerate(zip(weights, samples, strict=True)):
        mean, half = mean_and_half(sample)
        if not (0 < mean < math.inf):
            return math.nan, math.nan
        fitted += weight * math.log(mean / (divide_by[k] if divide_by else 1.0))
        variance += (weight * half / mean) ** 2
    return fitted, math.sqrt(variance)


def rate(
    claim: str, promised: float, x: Sequence[float], samples: Sequence[Tensor], divide_by: Sequence[float] | None = None
) -> Line:
    """Test that the upper end of the fitted exponent's interval is at most the promised one plus :data:`SLACK`."""
    fitted, half = slope(x, samples, divide_by)
    room = promised + SLACK - fitted - half
    detail = f"+-{half:.2g}, from {x[0]:g} to {x[-1]:g}; may exceed the exponent by {SLACK}"
    return Line(claim, fitted, promised, f"{room:+.2f}", bool(room >= 0), detail)


def flat(claim: str, x: Sequence[float], samples: Sequence[Tensor]) -> Line:
    """Test that a quantity does not shrink: the lower end of the exponent's interval is at least -:data:`FLAT`."""
    fitted, half = slope(x, samples)
    room = fitted - half + FLAT
    return Line(claim, fitted, 0.0, f"{room:+.2f}", bool(room >= 0), f"+-{half:.2g}, from {x[0]:g} to {x[-1]:g}")


def inside(seen: Sequence[tuple[float, float]], bounds: tuple[float, float]) -> Line:
    """Test ``ass:2``: every s lies between c_l and c_u, that is, the largest of c_l/s and s/c_u is at most 1."""
    low, high = min(s[0] for s in seen), max(s[1] for s in seen)
    worst = max(bounds[0] / low, high / bounds[1])
    detail = f"s from {low:.4g} to {high:.4g}, bounds {bounds[0]:.4g} and {bounds[1]:.4g}"
    return Line("c_l <= s <= c_u", worst, 1.0, f"{1 / worst:.3g}x", worst <= 1 + 1e-9, detail)
