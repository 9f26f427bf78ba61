"""Metrics of whole parts of the data after an epoch, and the bounds of the scaling s."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy
from torch.optim import Optimizer

from semaopt.diagnostics.measure import averaged, scaling_quantiles

PARTS = ("train", "valid", "test")
#: Quantiles of the scaling s over the coordinates, and their names in a report.
BOUNDS = {
    "s_min": "smallest s",
    "s_q01": "1% quantile of s",
    "s_q25": "25% quantile of s",
    "s_median": "median s",
    "s_q75": "75% quantile of s",
    "s_q99": "99% quantile of s",
    "s_max": "largest s",
}
_SHARES = (0.0, 0.01, 0.25, 0.5, 0.75, 0.99, 1.0)


@dataclass(frozen=True)
class ScoreMetric:
    """A metric of scores and labels that lies in [0, 1]; higher is better.

    Attributes:
        value: the function.
        title: its name in a report.
        binary: whether it is defined for two classes only, both of which must be present.
    """

    value: Callable[[Tensor, Tensor], float]
    title: str
    binary: bool = False


def is_share(metric: str) -> bool:
    """Whether a metric lies in [0, 1] and higher is better. For all other metrics lower is better.

    >>> is_share("test_auc"), is_share("train_loss")
    (True, False)
    """
    return metric.partition("_")[2] in OF_SCORES


def for_purpose(wanted: Iterable[str], purpose: str) -> list[str]:
    """Return the metrics of a run: a tuning run never measures the test part, a final one never the validation part.

    >>> for_purpose(["train_loss", "test_loss", "valid_loss", "s_max"], "tune")
    ['train_loss', 'valid_loss', 's_max']
    """
    hidden = "test" if purpose == "tune" else "valid"
    return [name for name in dict.fromkeys(wanted) if not name.startswith(hidden)]


def of_part(wanted: Iterable[str], part: str) -> list[str]:
    """Return the metrics of one part, without its name.

    >>> of_part(["train_loss", "test_loss", "test_auc"], "test")
    ['loss', 'auc']
    """
    return [name.removeprefix(f"{part}_") for name in wanted if name.startswith(f"{part}_")]


def class_loss(scores: Tensor, labels: Tensor, noise: float = 0.0, classes: int = 2) -> Tensor:
    """Return the mean cross-entropy; with label noise, its exact mean over the noise minus the entropy of the noise."""
    if scores.dim() == 1:
        target = labels.to(scores.dtype) * (1 - noise) + noise / 2
        return binary_cross_entropy_with_logits(scores, target) - entropy(noise, 2)
    return cross_entropy(scores, labels, label_smoothing=noise) - entropy(noise, classes)


def entropy(noise: float, classes: int) -> float:
    """Return the entropy of a noisy label in nats, which is the smallest possible cross-entropy.

    >>> round(entropy(0.2, 10), 4), entropy(0.0, 10)
    (0.8669, 0.0)
    """
    others = noise / classes
    right = 1 - noise + others
    terms = (count * p * -math.log(p) for count, p in ((1, right), (classes - 1, others)) if 0 < p < 1)
    return sum(terms, 0.0)


def accuracy(scores: Tensor, labels: Tensor) -> float:
    """Return the share of rows with the right class; NaN if a score is not finite."""
    return float(_correct(scores, labels).mean()) if _finite(scores) else math.nan


def worst_accuracy(scores: Tensor, labels: Tensor) -> float:
    """Return the lowest accuracy of a class; NaN if a score is not finite.

    >>> worst_accuracy(torch.tensor([1.0, -1.0, 1.0]), torch.tensor([1, 1, 1])), accuracy(torch.ones(2), torch.ones(2))
    (0.6666666666666666, 1.0)
    """
    if not _finite(scores):
        return math.nan
    correct = _correct(scores, labels)
    return min(float(correct[labels == label].mean()) for label in set(labels.tolist()))


def _correct(scores: Tensor, labels: Tensor) -> Tensor:
    found = (scores > 0).long() if scores.dim() == 1 else scores.argmax(-1)
    return (found == labels).double()


def _finite(scores: Tensor) -> bool:
    return bool(torch.isfinite(scores).all())


def area_under_curve(scores: Tensor, labels: Tensor) -> float:
    """Return the probability that a positive row scores higher than a negative one; ties count half.

    It is NaN if a score is not finite or a class is absent.

    >>> area_under_curve(torch.tensor([0.1, 0.4, 0.4, 0.8]), torch.tensor([0, 0, 1, 1]))
    0.875
    """
    from sklearn.metrics import roc_auc_score

    positive = labels == 1
    if not _finite(scores) or not 0 < int(positive.sum()) < len(positive):
        return math.nan
    return float(roc_auc_score(*_arrays(positive, scores)))


def average_precision(scores: Tensor, labels: Tensor) -> float:
    """Return the mean over the positive rows of the precision at their score; rows of equal score are counted together.

    It is NaN if a score is not finite or no row is positive.

    >>> average_precision(torch.tensor([0.9, 0.8, 0.7, 0.1]), torch.tensor([1, 0, 1, 0]))  # (1 + 2/3) / 2
    0.8333333333333333
    """
    from sklearn.metrics import average_precision_score

    positive = labels == 1
    if not _finite(scores) or not bool(positive.any()):
        return math.nan
    return float(average_precision_score(*_arrays(positive, scores)))


def _arrays(*tensors: Tensor) -> list[Any]:
    """Convert for scikit-learn; NumPy has no bfloat16."""
    return [x.detach().cpu().double().numpy() for x in tensors]


OF_SCORES = {
    "accuracy": ScoreMetric(accuracy, "accuracy"),
    "worst_accuracy": ScoreMetric(worst_accuracy, "accuracy of the worst class"),
    "auc": ScoreMetric(area_under_curve, "AUC", binary=True),
    "ap": ScoreMetric(average_precision, "average precision", binary=True),
}


def wants_bounds(wanted: Iterable[str]) -> bool:
    """Whether bounds of s are among the metrics."""
    return any(name in BOUNDS for name in wanted)


def bounds(optimizer: Optimizer) -> list[dict[str, float]]:
    """Return the quantiles of s = 1/(sqrt(u) + G0) in the last step, for each averaged group."""
    found = [scaling_quantiles(optimizer, group, _SHARES) for group in averaged(optimizer)]
    return [dict(zip(BOUNDS, ends, strict=True)) for ends in found if ends is not None]
