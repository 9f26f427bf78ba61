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
BYTES = 0x08  # the IDX type of unsigned bytes


def idx(path: Path, dimensions: int) -> Tensor:
    """Read an IDX file of bytes: 0, 0, type, number of dimensions, their sizes (big endian), values."""
    remedy = "Delete it and fetch mnist again."
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}). {remedy}") from error
    head = 4 + 4 * dimensions
    if len(content) < head or content[:4] != bytes([0, 0, BYTES, dimensions]):
        raise DataError(f"{path}: is not an IDX file of bytes with {dimensions} dimensions. {remedy}")
    shape = struct.unpack(f">{dimensions}I", content[4:head])
    if len(content) - head != np.prod(shape, dtype=object):
        raise DataError(f"{path}: has {len(content) - head} values, but its header says {shape}. {remedy}")
    return torch.from_numpy(np.frombuffer(content, np.uint8, offset=head).reshape(shape).copy())


def mnist(root: Path, _: Mapping[str, str]) -> Raw:
    """Read 60,000 + 10,000 images of 28x28 pixels, 10 classes."""
    images, labels = [], []
    for part in ("train", "t10k"):
        x = idx(root / FOLDER / f"{part}-images-idx3-ubyte", 3)
        y = idx(root / FOLDER / f"{part}-labels-idx1-ubyte", 1)
        if len(x) != len(y) or (len(y) and int(y.max()) > 9):
            text = f"{root / FOLDER}: has {len(x)} images and {len(y)} labels up to {int(y.max())} in {part}"
            raise DataError(f"{text}. Delete them and fetch mnist again.")
        images.append(x[:, None])
        labels.append(y.long())
    official = torch.arange(len(labels[0]), len(labels[0]) + len(labels[1]))
    facts = {"source": "http://yann.lecun.com/exdb/mnist/", "pixels": "scaled by mean 0.1307, std 0.3081"}
    return Raw(Images(torch.cat(images), (0.1307,), (0.3081,)), torch.cat(labels), 10, facts, test=official)
