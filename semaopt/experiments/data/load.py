"""Load a task from the name of a data set and options."""

from __future__ import annotations

import inspect
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from semaopt.experiments import plugins
from semaopt.experiments.data import plugin, splits
from semaopt.experiments.data.catalogue import SETS, DataSet
from semaopt.experiments.data.errors import DataError, unknown
from semaopt.experiments.data.files import root_folder
from semaopt.experiments.data.task import Part, Raw, Task

NAMES = tuple(SETS)


def find(name: str) -> DataSet:
    """Return the data set of this name: one of the catalogue, or the plug-in ``"package.module:name"``."""
    if name in SETS:
        return SETS[name]
    if plugins.is_plugin(name):
        return plugin.data_set(name)
    raise DataError(unknown("data set", name, SETS))


def describe(name: str) -> dict[str, Any]:
    """Describe a data set and its files without reading them."""
    return find(name).describe()


def fetch(name: str, root: str | Path | None = None) -> list[Path]:
    """Download missing and damaged files of a data set; return the new files."""
    return find(name).fetch(root_folder(root))


def load(
    name: str,
    root: str | Path | None = None,
    *,
    split: str | None = None,
    seed: int = 0,
    binary: bool = False,
    imbalance: float | None = None,
    subset: int | None = None,
    noise: float = 0.0,
    **options: Any,
) -> Task:
    """Read a data set and split it into three parts.

    Args:
        name: one of ``NAMES``, or a plug-in ``"package.module:name"``.
        root: the folder of the files, by default ``SEMAOPT_DATA`` or the user's cache. Missing files are downloaded.
        split: "random" (the default: stratified by label, an official test set is kept) or, for molecules, "scaffold".
        seed: the seed of the random split, of ``imbalance`` and of ``subset``.
        binary: whether to make the last K/2 of K classes positive (label 1) and the others negative.
        imbalance: remove positives from the training part until they are this share of it.
        subset: the number of training rows, stratified; taken after ``imbalance``.
        noise: the probability that a label of the training part is replaced when it is drawn (:meth:`Part.draw`).
        options: any other option raises an error that names the nearest known one.

    Example:
        >>> task = load("digits", binary=True, imbalance=0.1)
        >>> task.classes, round(task.train.labels.double().mean().item(), 3)
        (2, 0.1)
    """
    for option in options:
        raise DataError(unknown("option", option, [p for p in inspect.signature(load).parameters if p != "options"]))
    if not 0 <= noise < 1:
        raise DataError(f"noise={noise!r} is invalid: it must lie in [0, 1). Use 0.0 for clean labels.")
    raw = find(name).read(root_folder(root))
    rows = _rows(name, raw, split, seed)
    labels, classes = _halved(name, raw) if binary else (raw.labels, raw.classes)
    train = rows.train
    if imbalance is not None:
        if classes != 2:
            text = f"imbalance={imbalance!r} needs two classes, but {name} has {classes}"
            raise DataError(f"{text}. Pass binary=True as well.")
        train = splits.imbalanced(train, labels, imbalance, seed)
    if subset is not None:
        train = splits.smaller(train, labels, subset, seed)
    inputs = raw.inputs.fitted(rows.train)
    parts = {
        part: Part(labels[index], index, inputs, classes)
        for part, index in (("train", train), ("valid", rows.valid), ("test", rows.test))
    }
    parts["train"] = replace(parts["train"], noise=noise)
    facts: dict[str, Any] = {
        "name": name,
        **raw.facts,
        "classes": classes,
        "split": rows.how,
        "sizes": {part: len(content) for part, content in parts.items()},
    }
    if classes == 2:
        facts["positives"] = {part: int((content.labels == 1).sum()) for part, content in parts.items()}
    if binary and raw.classes > 2:
        facts["binary"] = f"classes {raw.classes // 2} to {raw.classes - 1} of {raw.classes} are positive"
    facts |= {"imbalance": imbalance, "subset": subset, "noise": noise}
    return Task(name, classes, **parts, facts=facts)


def _rows(name: str, raw: Raw, split: str | None, seed: int) -> splits.Rows:
    if split == "scaffold":
        if raw.scaffolds is None:
            raise DataError(f"split='scaffold' needs molecules, and {name} holds none. Use 'random'.")
        return splits.by_scaffold(raw.scaffolds)
    if split not in (None, "random"):
        raise DataError(unknown("split", str(split), ["random", *(["scaffold"] if raw.scaffolds else [])]))
    return splits.by_label(raw, seed)


def _halved(name: str, raw: Raw) -> tuple[Tensor, int]:
    if raw.classes % 2:
        raise DataError(f"binary=True: {name} has {raw.classes} classes, an odd number. Leave it out.")
    return raw.labels if raw.classes == 2 else (raw.labels >= raw.classes // 2).to(torch.long), 2
