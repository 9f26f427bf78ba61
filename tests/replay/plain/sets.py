"""Projections onto convex sets, in numpy."""

import numpy as np


def box(y, lo, hi):
    return np.minimum(np.maximum(y, lo), hi)


def ball(y, radius, center=0.0):
    d = y - center
    return center + d * min(1.0, radius / max(np.sqrt((d**2).sum()), 1e-300))


def simplex(y, total=1.0):
    """max(y - theta, 0) with the theta for which the sum is ``total``, by bisection."""
    low, high = y.min() - total, y.max()
    for _ in range(200):
        theta = (low + high) / 2
        low, high = (theta, high) if np.maximum(y - theta, 0).sum() > total else (low, theta)
    return np.maximum(y - (low + high) / 2, 0)


def spectral_ball(y, radius):
    u, s, vh = np.linalg.svd(y, full_matrices=False)
    return (u * np.minimum(s, radius)) @ vh
