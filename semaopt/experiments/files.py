"""Atomic file writes, canonical JSON, and a lock for output folders."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import secrets
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout


class OutputError(OSError):
    """An output folder that cannot be used; the message names the path and the reason."""

    option: str | None = None
    """The command-line option that set the folder, if it is not the usual one."""


def write_output(path: Path, data: str | bytes, *, backup: Path | None = None) -> None:
    """Call :func:`write_atomic` for a file of an output folder; failures raise :class:`OutputError`."""
    try:
        write_atomic(path, data.encode() if isinstance(data, str) else data, backup=backup)
    except OSError as error:
        raise OutputError(f"{path} cannot be written ({error.strerror}). Choose another --out.") from error


def write_atomic(path: Path, data: bytes, *, backup: Path | None = None) -> None:
    """Write a file so that readers see either the old or the complete new content.

    With ``backup`` the old content is renamed to that path first; for a moment ``path`` does not exist.
    """
    part = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")  # process ids are not unique across hosts
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with part.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if backup is not None and path.exists():
            path.replace(backup)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    _sync(path.parent)


def remove_partial_files(path: Path) -> None:
    """Remove the temporary files that killed processes left while writing ``path``."""
    for part in path.parent.glob(f".{path.name}.*.part"):
        part.unlink(missing_ok=True)


def _sync(folder: Path) -> None:
    """Flush the entries of a folder to disk; Windows and some network file systems cannot."""
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
    """Return JSON that is identical for equal values; NaN and infinities become null."""
    return json.dumps(finite(value), sort_keys=True, allow_nan=False, separators=(",", ":"))


def finite(value: Any) -> Any:
    """Return the value with None in place of every number that JSON cannot represent."""
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def digest(value: Any) -> str:
    """Return the SHA-256 of :func:`canonical`.

    >>> digest({"a": 1, "b": [2.0]}) == digest({"b": (2.0,), "a": 1})
    True
    """
    return hashlib.sha256(canonical(value).encode()).hexdigest()


def require_writable(folder: Path, option: str | None = None) -> None:
    """Create the folder and write to it once, so that a bad path fails before the work starts."""
    remedy = "Choose a folder that can be created and written to."
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return
    except (FileExistsError, NotADirectoryError) as error:
        failure = OutputError(f"{str(folder)!r} is not a folder, or lies below a file. {remedy}")
        failure.__cause__ = error
    except OSError as error:
        failure = OutputError(f"{str(folder)!r} cannot be written to: {error.strerror}. {remedy}")
        failure.__cause__ = error
    failure.option = option
    raise failure


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock an output folder for this process; the system releases the lock when the process ends."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / ".lock").acquire(blocking=False)
    except Timeout as error:
        text = f"{folder} is in use by another process. Wait until it ends, or choose another --out."
        raise OutputError(text) from error
    except OSError as error:
        raise OutputError(f"{folder} cannot be written to ({error.strerror}). Choose another --out.") from error
    with lock:
        yield
