"""Labels in all common forms: {0, 1}, {-1, 1}, booleans, class numbers; NaN for a missing label."""

from __future__ import annotations

import math
from typing import NoReturn

import torch
from torch import Tensor

from semaopt._validation import require


def is_positive(labels: Tensor, dtype: torch.dtype, *, validate: bool) -> Tensor:
    """Return 1 for a positive label and 0 for a negative or missing one; a negative label is 0 or -1."""
    if labels.dtype == torch.bool:
        return labels.to(dtype)
    if validate:
        validate_labels(labels)
    return (labels == 1).to(dtype)


def is_present(labels: Tensor) -> Tensor | None:
    """Return which labels are not NaN, or None if the dtype has no NaN."""
    return ~labels.isnan() if labels.is_floating_point() else None


def validate_labels(labels: Tensor) -> None:
    """Raise unless all labels are {0, 1} or {-1, 1}, or NaN."""
    if labels.dtype == torch.bool or torch.equal(labels * labels, labels):  # all are 0 or 1
        return
    positive, missing = labels == 1, labels.isnan()
    for negative in (0, -1):
        if bool((positive | (labels == negative) | missing).all()):
            return
    refuse(labels)


def refuse(labels: Tensor) -> NoReturn:
    """Raise for labels that are neither {0, 1} nor {-1, 1}; name the first column that has others."""
    column, where = labels, ""
    if labels.dim() == 2 and labels.shape[1] > 1:
        for k, one in enumerate(labels.unbind(1)):
            try:
                validate_labels(one)
            except ValueError:
                column, where = one, f" in column {k}"
                break
    values = torch.unique(column[~column.isnan()])[:6].tolist()
    raise ValueError(
        f"labels={values}{where}: must be {{0, 1}} or {{-1, 1}}, where 1 is the positive class; map "
        "the classes to one of these pairs and mark missing labels with NaN"
    )


def one_hot(labels: Tensor, classes: int, *, validate: bool) -> Tensor:
    """Return class numbers (n,) as one boolean column per class."""
    ok = labels.dim() == 1 and not (labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool)
    rule = f"must be integer class numbers of shape (n,), or have one column for each of the {classes} classes"
    single = labels.dim() < 2 or labels.shape[1:].numel() == 1
    remedy = f"Try labels.{'flatten().long()' if single else 'argmax(1)'}."
    require(ok, "labels", f"{labels.dtype} of shape {tuple(labels.shape)}", rule, remedy)
    if validate and len(labels) > 0:
        ends = int(labels.min()), int(labels.max())
        ok = ends[0] >= 0 and ends[1] < classes
        require(ok, "labels", ends, f"must lie in 0..{classes - 1}", "Number the classes from 0.")
    return labels.unsqueeze(-1) == torch.arange(classes, device=labels.device)


def count_priors(labels: Tensor) -> Tensor:
    """Return the share of positives in each column, without missing labels.

    A column without any label gets 0.5: a loss skips it, so the number is never used.
    """
    rows = labels.reshape(len(labels), -1)
    present = is_present(rows)
    positives = is_positive(rows, torch.float64, validate=True).sum(0)
    counts = torch.full_like(positives, len(rows)) if present is None else present.sum(0).to(torch.float64)
    refuse_one_class(positives, counts, "labels")
    require(bool((counts > 0).any()), "labels", "NaN", "must not all be missing", "Pass those of the training set.")
    return torch.where(counts > 0, positives / counts.clamp_min(1), 0.5)


def refuse_one_class(positives: Tensor, counts: Tensor, source: str) -> None:
    """Raise if a column has labels of one class only.

    Args:
        positives, counts: numbers of positive and of known labels in each column.
        source: where the labels are, for the text.
    """
    for k in range(len(counts)):
        if counts[k] > 0 and positives[k] in (0, counts[k]):
            kind = "positive" if positives[k] else "negative"
            several = len(counts) > 1
            where, whose = (f"column {k} has", "its") if several else ("there are", "the")
            remedy = "drop the column, set its labels to NaN to skip it, or " if several else ""
            raise ValueError(
                f"{source}: {where} only {kind} labels ({math.ceil(counts[k])} of them), so {whose} AUC is not "
                f"defined; {remedy}add examples of the other class"
            )
