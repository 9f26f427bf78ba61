"""Train, validation and test splits."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from semaopt.experiments.data.errors import DataError
from semaopt.experiments.data.task import Raw

#: The share of an official training set that is used for validation.
VALIDATION = 0.1


class Rows(NamedTuple):
    """The rows of the three parts, and a description of the split."""

    train: Tensor
    valid: Tensor
    test: Tensor
    how: str


def stratified(rows: Tensor, labels: Tensor, second: float | int, seed: int) -> tuple[Tensor, Tensor]:
    """Split ``rows`` in two parts with equal class proportions; ``second`` is the share or size of the second part."""
    from sklearn.model_selection import train_test_split

    try:
        a, b = train_test_split(rows.numpy(), test_size=second, stratify=labels[rows].numpy(), random_state=seed)
    except ValueError as error:  # raised by scikit-learn: too few rows of a class
        text = f"{len(rows)} rows cannot be split with all classes in both parts ({error}). Use more rows."
        raise DataError(text) from error
    return torch.from_numpy(a), torch.from_numpy(b)


def by_label(raw: Raw, seed: int) -> Rows:
    """Split at random, stratified by label; an official test set is kept."""
    everyone = torch.arange(len(raw.labels))
    if raw.test is not None:
        rest = everyone[~torch.isin(everyone, raw.test)]
        train, valid = stratified(rest, raw.labels, VALIDATION, seed)
        how = f"official test set; {VALIDATION:.0%} of the training set for validation, stratified, seed {seed}"
        return Rows(train, valid, raw.test, how)
    train, rest = stratified(everyone, raw.labels, raw.held_out, seed)
    valid, test = stratified(rest, raw.labels, 0.5, seed)
    parts = f"{1 - raw.held_out:.0%} / {raw.held_out / 2:.0%} / {raw.held_out / 2:.0%}"
    return Rows(train, valid, test, f"random {parts}, stratified, seed {seed}")


def by_scaffold(scaffolds: Sequence[str]) -> Rows:
    """Assign whole Bemis-Murcko scaffolds, most frequent first, to train (80%), validation (10%) and test.

    The split is deterministic, as in DeepChem's ``ScaffoldSplitter``: among equally frequent scaffolds the one that
    appears last comes first, and a scaffold that does not fit a part goes to the next. (In the opposite order the test
    part of BBBP, whose rows are sorted, would have one class.)
    """
    groups: dict[str, list[int]] = defaultdict(list)
    for row, scaffold in enumerate(scaffolds):
        groups[scaffold].append(row)
    parts: tuple[list[int], list[int], list[int]] = ([], [], [])
    for group in sorted(groups.values(), key=lambda g: (len(g), g[0]), reverse=True):
        if len(parts[0]) + len(group) <= 0.8 * len(scaffolds):
            parts[0].extend(group)
        elif len(parts[0]) + len(parts[1]) + len(group) <= 0.9 * len(scaffolds):
            parts[1].extend(group)
        else:
            parts[2].extend(group)
    train, valid, test = (torch.tensor(part, dtype=torch.long) for part in parts)
    return Rows(train, valid, test, "scaffold 80% / 10% / 10% (Bemis-Murcko, frequent ones first; no randomness)")


def imbalanced(train: Tensor, labels: Tensor, ratio: float, seed: int) -> Tensor:
    """Remove random positive rows until positives make up the share ``ratio`` of the rows."""
    positive = labels[train] == 1
    share = positive.double().mean().item()
    if not 0 < ratio <= share:
        text = f"imbalance={ratio!r} is invalid: it must lie in (0, {share:.4g}], up to the share of positives"
        raise DataError(f"{text}. Use a smaller value.")
    keep = round(ratio / (1 - ratio) * int((~positive).sum()))
    if keep == 0:
        raise DataError(f"imbalance={ratio!r} leaves none of {int(positive.sum())} positives. Use a larger value.")
    order = torch.randperm(int(positive.sum()), generator=torch.Generator().manual_seed(seed))
    chosen = train[positive][order[:keep]]
    return train[~positive | torch.isin(train, chosen)]


def smaller(train: Tensor, labels: Tensor, size: int, seed: int) -> Tensor:
    """Return ``size`` of the rows, stratified."""
    if not 0 < size <= len(train):
        raise DataError(f"subset={size!r} is invalid: it must lie in 1..{len(train)}, the training rows. Use fewer.")
    return train if size == len(train) else stratified(train, labels, size, seed)[1]
