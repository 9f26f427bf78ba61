"""The state of a run that is under way: whole or not there, checked when read, the one before it kept."""

from __future__ import annotations

import hashlib
import io
import pickle
import struct
import time
from pathlib import Path
from typing import Any

import torch

from semaopt.experiments.files import OutputError, remove_parts, write_whole

_MAGIC = b"semaopt checkpoint 1\n"
_SUM = 64  # hexadecimal digits of a SHA-256


class Checkpoint:
    """Two files for one unit of work: the newest state, and the one before it for the case that it is damaged.

    A file is a line that says what it is, the SHA-256 of the rest, and the rest as ``torch.save`` wrote it. It is read
    with ``weights_only=True``: what lies in an output folder is never run.

    >>> import tempfile
    >>> kept = Checkpoint(Path(tempfile.mkdtemp()), "a" * 64)
    >>> kept.save({"epoch": 3, "x": torch.ones(2)})
    >>> kept.load()["epoch"], kept.notes
    (3, [])
    """

    def __init__(self, folder: Path, key: str, every: float = 10.0) -> None:
        self.key, self.every = key, every
        self._saved = time.monotonic()
        self.newest = folder / f"{key}.pt"
        self.previous = folder / f"{key}.previous.pt"
        self.notes: list[str] = []

    def due(self) -> bool:
        """Whether ``every`` seconds have passed since the last state was saved."""
        return time.monotonic() - self._saved >= self.every

    def save(self, state: dict[str, Any]) -> None:
        """Write a new state; whoever is killed meanwhile leaves one that can be read."""
        write_whole(self.newest, pack({"key": self.key, "state": state}), before=self.previous)
        self._saved = time.monotonic()

    def load(self) -> dict[str, Any] | None:
        """The newest state that is whole, or None; what is damaged is said in :attr:`notes`."""
        for path in (self.newest, self.previous):
            try:
                content = path.read_bytes()
            except FileNotFoundError:
                continue
            except OSError as error:
                raise OutputError(f"{path}: cannot be read ({error.strerror}); choose another --out") from error
            found = unpack(content)
            if found is not None and found.get("key") == self.key and isinstance(found.get("state"), dict):
                return dict(found["state"])
            after = "the one before it is used" if path == self.newest and self.previous.exists() else "it starts anew"
            self.notes.append(f"checkpoint {path.name} is damaged; {after}")
        return None

    def remove(self) -> None:
        """The run is in the store."""
        for path in (self.newest, self.previous):
            path.unlink(missing_ok=True)
        remove_parts(self.newest)


def pack(value: dict[str, Any]) -> bytes:
    """Plain values and tensors as bytes that can be checked."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    payload = buffer.getvalue()
    return _MAGIC + hashlib.sha256(payload).hexdigest().encode() + payload


def unpack(content: bytes) -> dict[str, Any] | None:
    """What :func:`pack` packed, or None if it is not all there."""
    head, payload = content[: len(_MAGIC) + _SUM], content[len(_MAGIC) + _SUM :]
    if head != _MAGIC + hashlib.sha256(payload).hexdigest().encode():
        return None
    try:
        found = torch.load(io.BytesIO(payload), weights_only=True)
    except (
        *(RuntimeError, ValueError, TypeError, LookupError, AttributeError, AssertionError, EOFError, OSError),
        *(MemoryError, OverflowError, struct.error, pickle.UnpicklingError),
    ):  # a right sum of something else: whatever torch's reader makes of it
        return None
    return found if isinstance(found, dict) else None
