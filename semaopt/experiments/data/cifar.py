"""CIFAR-10 and CIFAR-100, the Python version, whose files are pickles.

A pickle can run arbitrary code. These files are read by an unpickler that accepts only the three names that NumPy
writes for an array, and maps them to small classes defined here instead of NumPy's own. Shapes and types of a hostile
file are validated before an array is created.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from semaopt.experiments.data.errors import DataError
from semaopt.experiments.data.images import Images
from semaopt.experiments.data.task import Raw

PIXELS = 3 * 32 * 32
#: Mean and standard deviation of the channels of the 50,000 training images.
SCALE = {
    10: ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    100: ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
}


class _Type:
    """Stand-in for ``numpy.dtype(code, align, copy)``."""

    def __init__(self, code: object, *_: object) -> None:
        text = code.decode() if isinstance(code, bytes) else str(code)
        self.name = {"u1": "uint8", "i8": "int64", "f4": "float32", "f8": "float64"}.get(text, text)

    def __setstate__(self, _: object) -> None:
        """Ignore the byte order, which single bytes do not have."""


class _Array:
    """Stand-in for a pickled array; its state is accepted only if it is an array of bytes."""

    content: np.ndarray[Any, Any] | None = None
    summary = "an array without content"

    def __setstate__(self, state: object) -> None:
        """Read (version, shape, dtype, whether in Fortran order, bytes)."""
        if not (isinstance(state, tuple) and len(state) == 5):
            raise pickle.UnpicklingError("the state of an array is not what NumPy writes")
        _, shape, kind, fortran, data = state
        self.summary = f"{getattr(kind, 'name', kind)} {shape}"
        whole = isinstance(shape, tuple) and all(type(n) is int and n >= 0 for n in shape) and isinstance(data, bytes)
        if whole and isinstance(kind, _Type) and kind.name == "uint8" and not fortran and len(data) == math.prod(shape):
            self.content = np.frombuffer(data, np.uint8).reshape(shape).copy()


class _Kind:
    """Stand-in for ``numpy.ndarray``, which the files only refer to."""


def _empty(kind: object, shape: object, code: object) -> _Array:
    """Stand-in for NumPy's ``_reconstruct``: return an empty array, which its state fills."""
    if kind is not _Kind or shape != (0,) or code != b"b":
        raise pickle.UnpicklingError("an array does not start as NumPy writes it")
    return _Array()


_NAMES = {
    ("numpy.core.multiarray", "_reconstruct"): _empty,
    ("numpy._core.multiarray", "_reconstruct"): _empty,
    ("numpy", "ndarray"): _Kind,
    ("numpy", "dtype"): _Type,
}


class ArrayUnpickler(pickle.Unpickler):
    """Accepts arrays as old and new versions of NumPy write them, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        """Return the harmless replacement of a name; raise an error if the name is not allowed."""
        if (module, name) in _NAMES:
            return _NAMES[module, name]
        raise pickle.UnpicklingError(f"it refers to {module}.{name}, which no CIFAR file does")


_MOST = 1_000_000  # entries of the memo; a file of 10,000 images has about 20,000


def _look_through(data: bytes) -> None:
    """Raise for operations that could exhaust the memory, or that CIFAR files do not use."""
    for operation, argument, _ in pickletools.genops(data):
        if operation.name in ("PUT", "BINPUT", "LONG_BINPUT") and not 0 <= int(argument or 0) <= _MOST:
            raise pickle.UnpicklingError(f"{operation.name} {argument}: more memo entries than a CIFAR file has")
        if operation.name in ("BYTEARRAY8", "NEXT_BUFFER", "READONLY_BUFFER", "EXT1", "EXT2", "EXT4"):
            raise pickle.UnpicklingError(f"the operation {operation.name}, which no CIFAR file uses")


def unpickle(path: Path) -> dict[bytes, Any]:
    """Return the dictionary in a CIFAR file without executing anything from it."""
    try:
        data = path.read_bytes()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # raised for invalid escapes in damaged text
            _look_through(data)
            content = ArrayUnpickler(io.BytesIO(data), encoding="bytes").load()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}). Fetch the data set again.") from error
    except (
        *(pickle.UnpicklingError, EOFError, ValueError, TypeError, AttributeError, IndexError, KeyError),
        *(ImportError, MemoryError, OverflowError, RecursionError),
    ) as error:  # damaged files make an unpickler raise any of these
        raise DataError(f"{path}: is not a CIFAR file ({error}). Delete it and fetch the data set again.") from error
    if not isinstance(content, dict):
        raise DataError(
            f"{path}: holds a {type(content).__name__} instead of a dictionary. Delete it and fetch the data set again."
        )
    return content


def batch(path: Path, key: bytes, classes: int) -> tuple[Tensor, Tensor]:
    """Return the images and labels of one file."""
    content = unpickle(path)
    array, y = content.get(b"data"), content.get(key)
    x = array.content if isinstance(array, _Array) else None
    if x is None or x.ndim != 2 or x.shape[1] != PIXELS:
        found = array.summary if isinstance(array, _Array) else type(array).__name__
        raise DataError(
            f"{path}: data is {found}, but should be uint8 (n, {PIXELS}). Delete it and fetch the data set again."
        )
    if not (isinstance(y, list) and len(y) == len(x) and all(type(v) is int and 0 <= v < classes for v in y)):
        text = f"{path}: {key.decode()} should hold {len(x)} numbers from 0 to {classes - 1}"
        raise DataError(f"{text}. Delete it and fetch the data set again.")
    return torch.from_numpy(x.reshape(-1, 3, 32, 32)), torch.tensor(y)


def _read(train: Sequence[Path], test: Path, key: bytes, classes: int) -> Raw:
    parts = [batch(path, key, classes) for path in (*train, test)]
    x, y = (torch.cat(side) for side in zip(*parts, strict=True))
    official = torch.arange(len(y) - len(parts[-1][1]), len(y))
    mean, std = SCALE[classes]
    facts = {"source": "https://www.cs.toronto.edu/~kriz/cifar.html", "pixels": f"scaled by mean {mean}, std {std}"}
    return Raw(Images(x, mean, std), y, classes, facts, test=official)


def cifar10(root: Path, _: Mapping[str, str]) -> Raw:
    """Read 50,000 + 10,000 images of 10 classes."""
    folder = root / "cifar-10-batches-py"
    return _read([folder / f"data_batch_{i}" for i in range(1, 6)], folder / "test_batch", b"labels", 10)


def cifar100(root: Path, _: Mapping[str, str]) -> Raw:
    """Read 50,000 + 10,000 images of 100 classes."""
    folder = root / "cifar-100-python"
    return _read([folder / "train"], folder / "test", b"fine_labels", 100)
