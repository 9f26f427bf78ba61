"""Data sets of the LIBSVM collection: a training and a test file with lines ``label index:value ...``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from semaopt.experiments.data.errors import DataError
from semaopt.experiments.data.tables import Table
from semaopt.experiments.data.task import Raw


def parse(path: Path, rows: int, columns: int) -> tuple[Tensor, Tensor]:
    """Return the table and the labels (1 for +1, 0 for -1); the counts are validated, as no checksum is published."""
    from sklearn.datasets import load_svmlight_file

    remedy = "Delete it and fetch the data set again."
    try:
        x, y = load_svmlight_file(str(path), n_features=columns, dtype=np.float32)
    except (ValueError, IndexError, OverflowError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: is not LIBSVM text of {columns} columns ({error}). {remedy}") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}). {remedy}") from error
    if len(y) != rows:
        raise DataError(f"{path}: has {len(y)} rows, but {rows} are published. {remedy}")
    if not np.isin(y, (-1, 1)).all():
        raise DataError(f"{path}: has labels {np.unique(y)[:5].tolist()}, but they should be -1 and 1. {remedy}")
    if not np.isfinite(x.data).all():
        raise DataError(f"{path}: holds NaN or infinite values. {remedy}")
    return torch.from_numpy(x.toarray()), torch.from_numpy((y > 0).astype(np.int64))


def reader(name: str, rows: tuple[int, int], columns: int) -> Callable[[Path, Mapping[str, str]], Raw]:
    """Return the reader of a data set with these published counts."""

    def read(root: Path, _: Mapping[str, str]) -> Raw:
        parts = [parse(root / "libsvm" / f"{name}{end}", n, columns) for end, n in zip(("", ".t"), rows, strict=True)]
        x, y = (torch.cat(side) for side in zip(*parts, strict=True))
        facts = {"source": "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary.html"}
        return Raw(Table(x), y, 2, facts, test=torch.arange(rows[0], sum(rows)))

    return read
