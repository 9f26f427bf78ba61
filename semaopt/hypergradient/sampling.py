"""Random numbers that depend on a seed and a step alone."""

from __future__ import annotations

_MASK = 2**64 - 1


def uniform(k: int, seed: int, t: int) -> int:
    """A number of 0..k-1 from (seed, t): the same on every rank and after a resume.

    SplitMix64: Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
    """
    golden = 0x9E3779B97F4A7C15
    return _mix(_mix(seed & _MASK) + (t + 1) * golden & _MASK) * k >> 64


def _mix(z: int) -> int:
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & _MASK
    return z ^ (z >> 31)
