"""What a check finds: lines of measured against promised, and the curves of its figure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from torch import Tensor

#: How far a fitted exponent may lie above the theorem's: the theorems are about T -> infinity.
SLACK = 0.1
#: How far below 0 it may lie where a theorem says that nothing shrinks.
FLAT = SLACK / 2
#: What the column of margins means, for reports.
MARGIN = (
    "The margin of a bound is the bound over what was measured together with half of its 95% interval. A fitted "
    f"exponent, with half of its interval, may lie above the promised one by {SLACK:g} (where nothing is to shrink, "
    f"below it by {FLAT:g}), for the theorems are about T to infinity; its margin is what is left of that."
)
#: Two-sided 95% of a normal distribution.
_Z = 1.96


@dataclass(frozen=True)
class Line:
    """One claim: ``measured`` against ``promised``, and how much room there was."""

    claim: str
    measured: float
    promised: float
    margin: str
    passed: bool
    detail: str = ""


@dataclass(frozen=True)
class Curve:
    """Points with a band; without one it is a reference, drawn as a line."""

    label: str
    x: list[float]
    y: list[float]
    low: list[float] | None = None
    high: list[float] | None = None


@dataclass(frozen=True)
class Figure:
    """One message and the curves that say it."""

    message: str
    x_label: str
    y_label: str
    curves: list[Curve]
    logarithmic: bool = True


@dataclass
class Result:
    """A check that ran."""

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
        """As JSON has it."""
        return {"passed": self.passed, **asdict(self)}


def mean_and_half(samples: Tensor) -> tuple[float, float]:
    """The mean over the seeds and half of its 95% confidence interval."""
    half = _Z * float(samples.std()) / math.sqrt(len(samples)) if len(samples) > 1 else 0.0
    return float(samples.mean()), half


def band(label: str, x: Sequence[float], samples: Sequence[Tensor]) -> Curve:
    """Means over the seeds with the band from the 5th to the 95th percentile of the seeds."""
    low, high = ([float(s.quantile(q)) for s in samples] for q in (0.05, 0.95))
    return Curve(label, [float(v) for v in x], [float(s.mean()) for s in samples], low, high)


def reference(label: str, x: Sequence[float], y: Sequence[float]) -> Curve:
    return Curve(label, [float(v) for v in x], [float(v) for v in y])


def below(claim: str, samples: Sequence[Tensor], bounds: Sequence[float], at: Sequence[object]) -> Line:
    """The mean over the seeds, and the upper end of its interval, below the bound everywhere; tells the worst place."""
    ratios = []
    for sample, bound in zip(samples, bounds, strict=True):
        mean, half = mean_and_half(sample)
        # A run that diverged is above every bound.
        ratios.append((mean + half) / bound if math.isfinite(mean) else math.inf)
    worst = max(range(len(ratios)), key=ratios.__getitem__)
    mean, half = mean_and_half(samples[worst])
    margin = f"{1 / ratios[worst]:.3g}x" if 0 < ratios[worst] < math.inf else "none"
    detail = f"worst at {at[worst]}, +-{half:.2g}"
    return Line(claim, mean, float(bounds[worst]), margin, ratios[worst] <= 1, detail)


def slope(
    x: Sequence[float], samples: Sequence[Tensor], divide_by: Sequence[float] | None = None
) -> tuple[float, float]:
    """The exponent p of mean ~ x^p by least squares in logarithms, and half of its 95% interval over the seeds.

    The seeds of different x are independent, so the variance of the exponent is the sum of the variances of the
    logarithms of the means (the delta method), each with its squared weight in the fit.
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
    """The fitted exponent, and the upper end of its interval, at most the promised one plus :data:`SLACK`."""
    fitted, half = slope(x, samples, divide_by)
    room = promised + SLACK - fitted - half
    detail = f"+-{half:.2g}, from {x[0]:g} to {x[-1]:g}; may exceed the exponent by {SLACK}"
    return Line(claim, fitted, promised, f"{room:+.2f}", bool(room >= 0), detail)


def flat(claim: str, x: Sequence[float], samples: Sequence[Tensor]) -> Line:
    """The converse: without averaging nothing shrinks, the exponent and the lower end of its interval are about 0."""
    fitted, half = slope(x, samples)
    room = fitted - half + FLAT
    return Line(claim, fitted, 0.0, f"{room:+.2f}", bool(room >= 0), f"+-{half:.2g}, from {x[0]:g} to {x[-1]:g}")


def inside(seen: Sequence[tuple[float, float]], bounds: tuple[float, float]) -> Line:
    """All s seen between c_l and c_u (``ass:2``): the largest of c_l/s and s/c_u is at most 1."""
    low, high = min(s[0] for s in seen), max(s[1] for s in seen)
    worst = max(bounds[0] / low, high / bounds[1])
    detail = f"s from {low:.4g} to {high:.4g}, bounds {bounds[0]:.4g} and {bounds[1]:.4g}"
    return Line("c_l <= s <= c_u", worst, 1.0, f"{1 / worst:.3g}x", worst <= 1 + 1e-9, detail)
