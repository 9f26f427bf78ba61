"""Checkpoints of unfinished units: written atomically, verified when read, with one older copy."""

from __future__ import annotations

import hashlib
import io
import pickle
import struct
import time
from pathlib import Path
from typing import Any

import torch

from semaopt.experiments.files import OutputError, remove_partial_files, write_output

_MAGIC = b"semaopt checkpoint 1\n"
_DIGITS = 64  # of a SHA-256 in hexadecimal


class Checkpoint:
    """The newest state of one unit, and the state before it in case the newest file is damaged.

    A file consists of a header line, the SHA-256 of the payload, and the payload written by ``torch.save``. It is read
    with ``weights_only=True``: files of an output folder are never executed.

    Args:
        folder: the folder of checkpoints.
        key: identifies the unit.
        every: seconds between two saves.

    >>> import tempfile
    >>> checkpoint = Checkpoint(Path(tempfile.mkdtemp()), "a" * 64)
    >>> checkpoint.save({"epoch": 3, "x": torch.ones(2)})
    >>> checkpoint.load()["epoch"], checkpoint.notes
    (3, [])
    """

    def __init__(self, folder: Path, key: str, every: float = 10.0) -> None:
        self.key, self.every = key, every
        self._saved = time.monotonic()
        self.newest = folder / f"{key}.pt"
        self.previous = folder / f"{key}.previous.pt"
        self.notes: list[str] = []

    def due(self) -> bool:
        """Return whether ``every`` seconds have passed since the last save."""
        return time.monotonic() - self._saved >= self.every

    def save(self, state: dict[str, Any]) -> None:
        """Write a state; a process killed meanwhile leaves a readable one."""
        write_output(self.newest, pack({"key": self.key, "state": state}), backup=self.previous)
        self._saved = time.monotonic()

    def load(self) -> dict[str, Any] | None:
        """Return the newest intact state, or None; damaged files are reported in :attr:`notes`."""
        for path in (self.newest, self.previous):
            try:
                content = path.read_bytes()
            except FileNotFoundError:
                continue
            except OSError as error:
                raise OutputError(f"{path} cannot be read ({error.strerror}). Choose another --out.") from error
            found = unpack(content)
            if found is not None and found.get("key") == self.key and isinstance(found.get("state"), dict):
                return dict(found["state"])
            older = path == self.newest and self.previous.exists()
            action = "resuming from the one before it" if older else "training starts from scratch"
            self.notes.append(f"checkpoint {path.name} is damaged; {action}")
        return None

    def remove(self) -> None:
        """Delete the files; the result of the run is in the store."""
        for path in (self.newest, self.previous):
            path.unlink(missing_ok=True)
        remove_partial_files(self.newest)


def pack(value: dict[str, Any]) -> bytes:
    """Serialize plain values and tensors with a checksum."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    payload = buffer.getvalue()
    return _MAGIC + hashlib.sha256(payload).hexdigest().encode() + payload


def unpack(content: bytes) -> dict[str, Any] | None:
    """Return the value that :func:`pack` serialized, or None if the content is damaged."""
    head, payload = content[: len(_MAGIC) + _DIGITS], content[len(_MAGIC) + _DIGITS :]
    if head != _MAGIC + hashlib.sha256(payload).hexdigest().encode():
        return None
    try:
        found = torch.load(io.BytesIO(payload), weights_only=True)
    except (
        *(RuntimeError, ValueError, TypeError, LookupError, AttributeError, AssertionError, EOFError, OSError),
        *(MemoryError, OverflowError, struct.error, pickle.UnpicklingError),
    ):  # the checksum matches, but the payload is not a checkpoint
        return None
    return found if isinstance(found, dict) else None
