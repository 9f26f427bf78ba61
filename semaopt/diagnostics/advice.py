"""What the numbers mean, in words."""

from __future__ import annotations

import math
from dataclasses import dataclass

from semaopt._validation import LARGEST_BOUND, SMALLEST_BOUND
from semaopt.theory.constants import Constants
from semaopt.theory.minimize import eta_limits


@dataclass(frozen=True)
class Seen:
    """What a monitor has measured of one optimizer; None where it could not."""

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
    """Whether the steps had samples of the whole gradient, so that sigma2 can be known."""


#: c_u/c_l from which on the theorems' bounds say little.
WIDE = 1e3

#: Measured numbers below this are 0: their products need not be numbers.
TINY = 1e-200


def advise(seen: Seen) -> list[str]:
    """One sentence per finding, each with what to do about it."""
    found = [
        f"the bounds of s are not known for {name}: it has no read(m, seen) that returns u from its buffers; "
        "add one (see semaopt.scalings.Scaling)"
        for name in seen.unread
    ]
    if not seen.sampled:
        found.append(
            "sigma^2 is not measured: SBMA averages the pieces of the hypergradient, and no sample of the whole is "
            "ever formed; semaopt.SMB has one"
        )
    if seen.c_l is not None and seen.c_u is not None:
        found += _step_size(seen, seen.c_l, seen.c_u)
    sigma2, gradient, tracking = map(_usable, (seen.sigma2, seen.gradient, seen.tracking))
    if sigma2 is not None and gradient is not None:
        found += _noise(seen, sigma2, gradient)
    if tracking is not None and gradient is not None and tracking > gradient:
        found.append(
            f"|v - grad F|^2 = {tracking:.2g} on average, more than |grad F|^2 = {gradient:.2g}: v mostly "
            "points elsewhere; lower lr (v must keep up with x) and gamma = 1 - beta (less noise) together, as "
            "semaopt.schedules do"
        )
    return found


def _usable(value: float | None) -> float | None:
    """A measured number to compute with: of NaN, Inf and 0 there is nothing to say."""
    return value if value is not None and TINY < value < math.inf else None


def _largest(c_l: float, c_u: float, L: float, gamma: float) -> float:
    ratio, cap = eta_limits(Constants(L=L, c_l=c_l, c_u=c_u))
    return min(ratio * gamma, cap)


def _step_size(seen: Seen, c_l: float, c_u: float) -> list[str]:
    """The largest lr of ``thm:2``, if L is known, and what clipping s would change."""
    if not (SMALLEST_BOUND <= c_l <= c_u <= LARGEST_BOUND):
        return [_boundless(c_l, c_u)]
    spread = c_u / c_l
    if seen.L is None:
        if spread < WIDE:
            return []
        said = f"c_u/c_l = {spread:.1g}: the bounds of thm:2 grow with it"
        return [f"{said}; {_clip(seen, c_l, c_u)} (pass full_gradient to learn L, and the largest lr)"]
    L = _usable(seen.L)
    if L is None:  # grad F was the same everywhere, so any lr will do; or the run has diverged
        return []
    limit = _largest(c_l, c_u, L, seen.gamma)
    if seen.lr <= limit:
        return []
    said = f"c_u/c_l = {spread:.1g}: thm:2 asks lr <= {limit:.1g} (L = {L:.2g}), and lr = {seen.lr:.2g}"
    return [f"{said}; {_clip(seen, c_l, c_u)}"] if spread >= 10 else [f"{said}; lower lr, or raise gamma = 1 - beta"]


def _boundless(c_l: float, c_u: float) -> str:
    """Bounds of s with which no constants can be made."""
    said = f"s runs from {c_l:.2g} to {c_u:.2g}"
    if not (0 < c_l <= c_u < math.inf):
        return f"{said}: ass:2 does not hold; clip_scaling=(c_l, c_u) holds s between bounds"
    return (
        f"{said}: with such bounds thm:2 promises nothing; clip_scaling=(c_l, c_u) between {SMALLEST_BOUND:g} and "
        f"{LARGEST_BOUND:g}, or a larger g0, brings them together"
    )


def _clip(seen: Seen, c_l: float, c_u: float) -> str:
    """A factor 10 around the median of s, and what it would allow."""
    middle = seen.median if seen.median is not None and c_l <= seen.median <= c_u else math.sqrt(c_l * c_u)
    low, high = max(c_l, float(f"{middle / math.sqrt(10):.1g}")), min(c_u, float(f"{middle * math.sqrt(10):.1g}"))
    low, high = min(low, high), max(low, high)
    text = f"clip_scaling=({low:.3g}, {high:.3g}) would bring it to {high / low:.2g}"
    return text if seen.L is None else f"{text} and allow lr <= {_largest(low, high, seen.L, seen.gamma):.1g}"


def _noise(seen: Seen, sigma2: float, gradient: float) -> list[str]:
    """Whether gamma is small against the noise: v averages about 2/gamma samples."""
    left = seen.gamma / (2 - seen.gamma) * sigma2
    if left <= gradient:
        return []
    wanted = 2 * gradient / (sigma2 + gradient)
    return [
        f"noise: an average with gamma = {seen.gamma:.2g} leaves {left:.2g} of sigma^2 = {sigma2:.2g}, more than "
        f"|grad F|^2 = {gradient:.2g}; gamma <= {wanted:.1g} (beta >= {1 - wanted:.6g}) would leave less"
    ]
