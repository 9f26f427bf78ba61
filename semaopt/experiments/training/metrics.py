"""What is measured after an epoch: losses, accuracy and AUC of whole parts of the data, and the bounds of s."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy
from torch.optim import Optimizer

from semaopt.diagnostics.measure import averaged, scaling_range

PARTS = ("train", "valid", "test")
BOUNDS = ("s_min", "s_median", "s_max")
_OF_SCORES = {
    "cross_entropy": ("loss", "accuracy", "auc"),
    "auc": ("loss", "auc"),
    "cleaning": ("loss", "accuracy"),
    "average_precision": ("ap", "auc"),
}
#: Of losses that the methods of Table 2 and of the min-max problems minimize: they have bounds of s.
_SCALED = ("cross_entropy", "auc")


def names(loss: str) -> list[str]:
    """All that can be recorded with a loss.

    >>> names("auc")
    ['train_loss', 'train_auc', 'valid_loss', 'valid_auc', 'test_loss', 'test_auc', 's_min', 's_median', 's_max']
    """
    found = [f"{part}_{what}" for part in PARTS for what in _OF_SCORES[loss]]
    return [*found, *BOUNDS] if loss in _SCALED else found


def is_share(metric: str) -> bool:
    """Whether it lies between 0 and 1, higher being better.

    >>> is_share("test_auc"), is_share("train_loss")
    (True, False)
    """
    return metric.endswith(("_accuracy", "_auc", "_ap"))


def for_purpose(wanted: Iterable[str], purpose: str) -> list[str]:
    """What a run of that purpose measures: a tuning run sees the validation part, a final one the test part.

    >>> for_purpose(["train_loss", "test_loss", "valid_loss", "s_max"], "tune")
    ['train_loss', 'valid_loss', 's_max']
    """
    hidden = "test" if purpose == "tune" else "valid"
    return [name for name in dict.fromkeys(wanted) if not name.startswith(hidden)]


def class_loss(scores: Tensor, labels: Tensor, noise: float = 0.0, classes: int = 2) -> Tensor:
    """The mean cross-entropy; with label noise its mean over the noise, exactly, less the noise's entropy."""
    if scores.dim() == 1:
        target = labels.to(scores.dtype) * (1 - noise) + noise / 2
        return binary_cross_entropy_with_logits(scores, target) - entropy(noise, 2)
    return cross_entropy(scores, labels, label_smoothing=noise) - entropy(noise, classes)


def entropy(noise: float, classes: int) -> float:
    """Of a label under the noise, in nats: the smallest cross-entropy there is.

    >>> round(entropy(0.2, 10), 4), entropy(0.0, 10)
    (0.8669, 0.0)
    """
    others = noise / classes
    right = 1 - noise + others
    terms = (count * p * -math.log(p) for count, p in ((1, right), (classes - 1, others)) if 0 < p < 1)
    return sum(terms, 0.0)


def accuracy(scores: Tensor, labels: Tensor) -> float:
    """The share of rows with the right class; NaN if there is no class to take."""
    if not bool(torch.isfinite(scores).all()):
        return math.nan
    found = (scores > 0).long() if scores.dim() == 1 else scores.argmax(-1)
    return float((found == labels).double().mean())


def area_under_curve(scores: Tensor, labels: Tensor) -> float:
    """The probability that a positive row scores higher than a negative one, ties counting half.

    >>> area_under_curve(torch.tensor([0.1, 0.4, 0.4, 0.8]), torch.tensor([0, 0, 1, 1]))
    0.875
    """
    from sklearn.metrics import roc_auc_score

    positive = labels == 1
    if scores.dim() > 1 or not bool(torch.isfinite(scores).all()) or not 0 < int(positive.sum()) < len(positive):
        return math.nan
    return float(roc_auc_score(*_arrays(positive, scores)))


def average_precision(scores: Tensor, labels: Tensor) -> float:
    """The mean over the positive rows of the precision at their score; rows of equal score count at once.

    >>> average_precision(torch.tensor([0.9, 0.8, 0.7, 0.1]), torch.tensor([1, 0, 1, 0]))  # (1 + 2/3) / 2
    0.8333333333333333
    """
    from sklearn.metrics import average_precision_score

    positive = labels == 1
    if scores.dim() > 1 or not bool(torch.isfinite(scores).all()) or not bool(positive.any()):
        return math.nan
    return float(average_precision_score(*_arrays(positive, scores)))


def _arrays(*tensors: Tensor) -> list[Any]:
    """For scikit-learn; NumPy has no bfloat16."""
    return [x.detach().cpu().double().numpy() for x in tensors]


def bounds(optimizer: Optimizer) -> list[dict[str, float]]:
    """The smallest, the median and the largest s = 1/(sqrt(u) + G0) of the last step, of each averaged group."""
    found = [scaling_range(optimizer, group) for group in averaged(optimizer)]
    return [dict(zip(BOUNDS, ends, strict=True)) for ends in found if ends is not None]
