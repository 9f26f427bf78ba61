"""Turn measurements into advice, one sentence per finding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from semaopt._validation import LARGEST_BOUND, SMALLEST_BOUND
from semaopt.theory.constants import Constants
from semaopt.theory.minimize import eta_limits


@dataclass(frozen=True)
class Measurements:
    """Summary of what a monitor has measured; None where it could not measure."""

    lr: float
    gamma: float
    c_l: float | None
    median: float | None
    c_u: float | None
    L: float | None
    sigma2: float | None
    gradient: float | None
    """Average of |grad F|^2."""
    tracking: float | None
    """Average of |v - grad F|^2."""
    unread: tuple[str, ...] = ()
    """Scalings whose s cannot be read."""
    sampled: bool = True
    """Whether each step has a sample of the whole gradient, so that sigma2 can be measured."""


#: Ratio c_u/c_l above which the bounds of the theorems say little.
WIDE = 1e3

#: Measured numbers below this count as 0: products of them may underflow.
TINY = 1e-200


def advise(m: Measurements) -> list[str]:
    """Return one sentence per finding, each with a remedy."""
    found = [
        f"The bounds of s are not known for {name}: its u cannot be read. A scaling of your own needs read(m, seen) "
        "(see semaopt.scalings.Scaling)."
        for name in m.unread
    ]
    if not m.sampled:
        found.append(
            "sigma^2 is not measured: SBMA averages the pieces of the hypergradient and never forms a sample of the "
            "whole. semaopt.SMB does."
        )
    if m.c_l is not None and m.c_u is not None:
        found += _step_size(m, m.c_l, m.c_u)
    sigma2, gradient, tracking = map(_usable, (m.sigma2, m.gradient, m.tracking))
    if sigma2 is not None and gradient is not None:
        found += _noise(m, sigma2, gradient)
    if tracking is not None and gradient is not None and tracking > gradient:
        found.append(
            f"Tracking: |v - grad F|^2 = {tracking:.2g} on average exceeds |grad F|^2 = {gradient:.2g}, so v mostly "
            "points elsewhere. Lower lr (so that v keeps up with x) and gamma = 1 - beta (less noise) together, as "
            "semaopt.schedules do."
        )
    return found


def describe_noise(noise_scale: float | None, batch_size: int) -> str | None:
    """Return one sentence that compares the batch size with the noise scale, or None if it is unknown."""
    if noise_scale is None or math.isnan(noise_scale):
        return None
    ratio = batch_size / noise_scale if noise_scale > 0 else math.inf
    start = f"Noise scale {noise_scale:.2g} against batch size {batch_size}: "
    if ratio < 0.5:
        return start + "noise dominates, larger batches save steps almost in proportion."
    if ratio <= 2:
        return start + "the batch size is close to the critical one."
    return start + "noise is small, smaller batches would need few additional steps."


def describe_best_gamma(best: float | None, tried: Sequence[float], gamma: float) -> str | None:
    """Return one sentence about the gamma that tracked the gradient best in hindsight, or None if it is unknown."""
    if best is None:
        return None
    if len(tried) > 1 and best == max(tried):
        end = "; larger ones were not tried"
    else:
        end = "; smaller ones were not tried" if len(tried) > 1 and best == min(tried) else ""
    fact = f"Best gamma in hindsight: {best:g} (beta = {1 - best:g}), now {gamma:.2g}{end}."
    return f"{fact} It tracks the gradient best, which need not lower the loss."


def _usable(value: float | None) -> float | None:
    """Return a number that can be used in formulas; None for NaN, Inf and 0."""
    return value if value is not None and TINY < value < math.inf else None


def _largest_lr(c_l: float, c_u: float, L: float, gamma: float) -> float:
    ratio, cap = eta_limits(Constants(L=L, c_l=c_l, c_u=c_u))
    return min(ratio * gamma, cap)


def _step_size(m: Measurements, c_l: float, c_u: float) -> list[str]:
    """Compare lr with the largest one of ``thm:2`` if L is known, and say what clipping s would change."""
    if not (SMALLEST_BOUND <= c_l <= c_u <= LARGEST_BOUND):
        return [_unbounded(c_l, c_u)]
    spread = c_u / c_l
    if m.L is None:
        if spread < WIDE:
            return []
        fact = f"c_u/c_l = {spread:.1g}: the bounds of thm:2 grow with it."
        return [f"{fact} {_clip(m, c_l, c_u)}. Pass full_gradient to measure L and the largest lr."]
    L = _usable(m.L)
    if L is None:  # grad F is constant, so that any lr works, or the run has diverged
        return []
    limit = _largest_lr(c_l, c_u, L, m.gamma)
    if m.lr <= limit:
        return []
    fact = f"c_u/c_l = {spread:.1g}: thm:2 requires lr <= {limit:.1g} (L = {L:.2g}), but lr = {m.lr:.2g}."
    return [f"{fact} {_clip(m, c_l, c_u)}." if spread >= 10 else f"{fact} Lower lr, or raise gamma = 1 - beta."]


def _unbounded(c_l: float, c_u: float) -> str:
    """Describe bounds of s for which the theorems have no constants."""
    fact = f"s ranges from {c_l:.2g} to {c_u:.2g}"
    if not (0 < c_l <= c_u < math.inf):
        return f"{fact}: ass:2 does not hold. Bound s with clip_scaling=(c_l, c_u)."
    return (
        f"{fact}: with these bounds thm:2 guarantees nothing. Use clip_scaling=(c_l, c_u) between {SMALLEST_BOUND:g} "
        f"and {LARGEST_BOUND:g}, or a larger g0."
    )


def _clip(m: Measurements, c_l: float, c_u: float) -> str:
    """Propose bounds a factor sqrt(10) below and above the median of s, and name the lr that they allow."""
    middle = m.median if m.median is not None and c_l <= m.median <= c_u else math.sqrt(c_l * c_u)
    low, high = max(c_l, float(f"{middle / math.sqrt(10):.1g}")), min(c_u, float(f"{middle * math.sqrt(10):.1g}"))
    low, high = min(low, high), max(low, high)
    text = f"clip_scaling=({low:.3g}, {high:.3g}) would reduce it to {high / low:.2g}"
    return text if m.L is None else f"{text} and allow lr <= {_largest_lr(low, high, m.L, m.gamma):.1g}"


def _noise(m: Measurements, sigma2: float, gradient: float) -> list[str]:
    """Compare gamma with the noise: v averages about 2/gamma samples."""
    left = m.gamma / (2 - m.gamma) * sigma2
    if left <= gradient:
        return []
    wanted = 2 * gradient / (sigma2 + gradient)
    return [
        f"Noise: an average with gamma = {m.gamma:.2g} keeps {left:.2g} of sigma^2 = {sigma2:.2g}, more than "
        f"|grad F|^2 = {gradient:.2g}. Use gamma <= {wanted:.1g} (beta >= {1 - wanted:.6g})."
    ]
