"""Files that are whole at any time, plain values that compare, and one owner for an output folder."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout


class OutputError(OSError):
    """The output folder cannot be used; the text says which path and why."""

    option: str | None = None
    """Of the command line, if it is not the usual one that says where."""


def write_whole(path: Path, data: str | bytes, *, before: Path | None = None) -> None:
    """:func:`put_whole` into an output folder."""
    try:
        put_whole(path, data.encode() if isinstance(data, str) else data, before=before)
    except OSError as error:
        raise OutputError(f"{path}: cannot be written ({error.strerror}); choose another --out") from error


def put_whole(path: Path, data: bytes, *, before: Path | None = None) -> None:
    """Write a file so that whoever reads it, at any time, sees the old content or all of the new.

    With ``before`` the old content is kept under that name; for a moment it has no other.
    """
    part = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")  # two hosts may have one process number
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with part.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if before is not None and path.exists():
            path.replace(before)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    _sync(path.parent)


def remove_parts(path: Path) -> None:
    """Remove what processes that were killed while they wrote this file have left."""
    for part in path.parent.glob(f".{path.name}.*.part"):
        part.unlink(missing_ok=True)


def _sync(folder: Path) -> None:
    """The new names, too, must be on the disk; Windows and some networks know no such thing for a folder."""
    try:
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        if error.errno == errno.EIO:
            raise


def canonical(value: Any) -> str:
    """JSON that is the same for equal values; NaN and infinities become null."""
    return json.dumps(finite(value), sort_keys=True, allow_nan=False, separators=(",", ":"))


def finite(value: Any) -> Any:
    """The same value with None for each number that JSON cannot hold."""
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def digest(value: Any) -> str:
    """The SHA-256 of :func:`canonical`.

    >>> digest({"a": 1, "b": [2.0]}) == digest({"b": (2.0,), "a": 1})
    True
    """
    return hashlib.sha256(canonical(value).encode()).hexdigest()


@contextmanager
def owned(folder: Path) -> Iterator[None]:
    """Hold the folder: a second process is refused. The system lets go when the owner ends, however it ends."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        held = FileLock(folder / ".lock").acquire(blocking=False)
    except Timeout as error:
        text = f"{folder}: another process is working there; wait until it ends, or choose another --out"
        raise OutputError(text) from error
    except OSError as error:
        raise OutputError(f"{folder}: cannot be written to ({error.strerror}); choose another --out") from error
    with held:
        yield
