"""Weighted ROC curves on NumPy arrays, the metrics and thresholds they give, and Platt's calibration."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

Array = Any  # np.ndarray; its stubs need type arguments that say nothing here


class Curve(NamedTuple):
    """Weights of the false and true positives among the scores >= each threshold, from none to all."""

    thresholds: Array
    fps: Array
    tps: Array

    @property
    def fpr(self) -> Array:
        """False positive rates."""
        return self.fps / self.fps[-1]

    @property
    def tpr(self) -> Array:
        """True positive rates."""
        return self.tps / self.tps[-1]


def curve(scores: Array, positive: Array, weight: Array) -> Curve:
    """Return the curve of these scores; both classes must be present."""
    order = np.argsort(-scores, kind="stable")
    s, b, w = scores[order], positive[order], weight[order]
    last = np.append(np.flatnonzero(np.diff(s)), len(s) - 1)  # of each group of equal scores
    fps, tps = (np.append(0.0, np.cumsum(w * part)[last]) for part in (~b, b))
    return Curve(np.append(np.inf, s[last]), fps, tps)


def _area(x: Array, y: Array) -> float:
    return float((np.diff(x) * (y[1:] + y[:-1])).sum() / 2)


def auroc(c: Curve) -> float:
    """Return the area under the ROC curve.

    >>> import numpy as np
    >>> auroc(curve(np.array([3.0, 2.0, 1.0]), np.array([True, False, True]), np.ones(3)))
    0.5
    """
    return _area(c.fpr, c.tpr)


def average_precision(c: Curve) -> float:
    """Return the average precision."""
    return float((np.diff(c.tpr) * c.tps[1:] / (c.tps[1:] + c.fps[1:])).sum())


def partial_auroc(c: Curve, max_fpr: float) -> float:
    """Return the area up to ``max_fpr``, scaled to 0.5 for random and 1 for perfect scores (McClish)."""
    x, y = c.fpr, c.tpr
    stop = int(np.searchsorted(x, max_fpr, "right"))
    end = np.interp(max_fpr, x[stop - 1 : stop + 1], y[stop - 1 : stop + 1])
    area, least = _area(np.append(x[:stop], max_fpr), np.append(y[:stop], end)), max_fpr**2 / 2
    return 0.5 * (1 + (area - least) / (max_fpr - least))


def best_threshold(c: Curve, rule: str) -> float:
    """Return the score above which an example is positive: the largest Youden index or F1 on the curve.

    >>> import numpy as np
    >>> best_threshold(curve(np.array([4.0, 3.0, 1.0]), np.array([True, True, False]), np.ones(3)), "youden")
    2.0
    """
    gain = c.tpr - c.fpr if rule == "youden" else 2 * c.tps / (c.tps + c.fps + c.tps[-1])
    k = int(np.argmax(gain))
    if k == 0:
        return float(c.thresholds[1])
    if k == len(gain) - 1:
        return float(np.nextafter(c.thresholds[k], -np.inf))
    return float((c.thresholds[k] + c.thresholds[k + 1]) / 2)


def platt(scores: Array, positive: Array, weight: Array) -> tuple[float, float]:
    """Return (slope, offset) of P(positive) = sigmoid(slope * score + offset), slope > 0.

    Maximum likelihood with Platt's smoothed targets, by damped Newton steps. If higher scores are not more often
    positive, the slope is set to a small positive number, which keeps the order of the scores.
    """
    w = weight / weight.mean()
    ones, zeros = w[positive].sum(), w[~positive].sum()
    target = np.where(positive, (ones + 1) / (ones + 2), 1 / (zeros + 2))
    center, spread = scores.mean(), scores.std() or 1.0
    z = np.stack([(scores - center) / spread, np.ones_like(scores)], 1)
    x = np.array([0.0, np.log((ones + 1) / (zeros + 1))])

    def loss(x: Array) -> float:
        h = z @ x
        return float((w * (np.logaddexp(0, h) - target * h)).sum())

    value = loss(x)
    for _ in range(100):
        p = 1 / (1 + np.exp(-np.clip(z @ x, -500, 500)))
        gradient = z.T @ (w * (p - target))
        hessian = (z * (w * p * (1 - p))[:, None]).T @ z + 1e-9 * np.eye(2)
        step = np.linalg.solve(hessian, gradient)
        size = 1.0
        while loss(x - size * step) > value and size > 1e-6:
            size /= 2
        x, last = x - size * step, value
        value = loss(x)
        if last - value < 1e-12 * (1 + abs(value)):
            break
    slope = max(x[0], 1e-3)
    return float(slope / spread), float(x[1] - slope * center / spread)
