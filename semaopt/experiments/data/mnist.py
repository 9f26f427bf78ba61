"""MNIST, from its four IDX files."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from semaopt.experiments.data.errors import DataError
from semaopt.experiments.data.images import Images
from semaopt.experiments.data.task import Raw

FOLDER = "MNIST/raw"
BYTES = 0x08  # of IDX's types, unsigned bytes


def idx(path: Path, dimensions: int) -> Tensor:
    """An array of bytes: 0, 0, the type, the number of dimensions, their sizes (big endian), the values."""
    remedy = "delete it and fetch mnist again"
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); {remedy}") from error
    head = 4 + 4 * dimensions
    if len(content) < head or content[:4] != bytes([0, 0, BYTES, dimensions]):
        raise DataError(f"{path}: does not begin as an IDX file of bytes with {dimensions} dimensions; {remedy}")
    shape = struct.unpack(f">{dimensions}I", content[4:head])
    if len(content) - head != np.prod(shape, dtype=object):
        raise DataError(f"{path}: {len(content) - head} values, and {shape} in its head; {remedy}")
    return torch.from_numpy(np.frombuffer(content, np.uint8, offset=head).reshape(shape).copy())


def mnist(root: Path, _: Mapping[str, str]) -> Raw:
    """60,000 + 10,000 images of 28x28, 10 classes."""
    images, labels = [], []
    for part in ("train", "t10k"):
        x = idx(root / FOLDER / f"{part}-images-idx3-ubyte", 3)
        y = idx(root / FOLDER / f"{part}-labels-idx1-ubyte", 1)
        if len(x) != len(y) or (len(y) and int(y.max()) > 9):
            text = f"{root / FOLDER}: {len(x)} images and {len(y)} labels of {part}, up to {int(y.max())}"
            raise DataError(f"{text}; delete them and fetch mnist again")
        images.append(x[:, None])
        labels.append(y.long())
    official = torch.arange(len(labels[0]), len(labels[0]) + len(labels[1]))
    facts = {"source": "http://yann.lecun.com/exdb/mnist/", "pixels": "scaled by mean 0.1307, std 0.3081"}
    return Raw(Images(torch.cat(images), (0.1307,), (0.3081,)), torch.cat(labels), 10, facts, test=official)
