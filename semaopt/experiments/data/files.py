"""The files of a data set: where they are, where they come from, and their checksums."""

from __future__ import annotations

import hashlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from semaopt.experiments.data.errors import DataError

Form = Literal["plain", "gz", "bz2", "tar.gz"]
CHUNK = 1 << 20


def root_folder(root: str | Path | None = None) -> Path:
    """Return the folder of all data sets: ``root``, ``SEMAOPT_DATA``, or a folder in the user's cache."""
    if root is not None or os.environ.get("SEMAOPT_DATA"):
        return Path(root if root is not None else os.environ["SEMAOPT_DATA"]).expanduser()
    if sys.platform == "win32":
        cache = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        cache = Path.home() / "Library" / "Caches"
    else:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "semaopt" / "data"


@dataclass(frozen=True)
class File:
    """A file of the official layout.

    Attributes:
        path: relative to the root.
        size: in bytes; approximate if it is not published.
        md5: the published checksum.
        rows: the published number of rows, for text without a published checksum.
    """

    path: str
    size: int
    md5: str | None = None
    rows: int | None = None

    @property
    def known(self) -> str:
        """The published checksum or number of rows, as text."""
        return f"md5 {self.md5}" if self.md5 else f"{self.rows} rows, no published checksum"


@dataclass(frozen=True)
class Download:
    """A download from an official address: one file, plain or compressed, or an archive of several.

    Attributes:
        url: the address.
        files: its files. Their paths inside an archive are the same as their paths below the data root.
        form: the compression.
        md5: the published checksum of the download.
        size: in bytes, approximate.
    """

    url: str
    files: tuple[File, ...]
    form: Form = "plain"
    md5: str | None = None
    size: int = 0


def md5(path: Path) -> str:
    """Return the MD5 checksum of a file."""
    total = hashlib.md5(usedforsecurity=False)
    try:
        with path.open("rb") as file:
            while chunk := file.read(CHUNK):
                total.update(chunk)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}). Check its permissions.") from error
    return total.hexdigest()


def verify(file: File, path: Path) -> str:
    """Return the checksum of a file; raise unless it, or the number of rows, is the published one."""
    found = md5(path)
    if file.md5 is not None and found != file.md5:
        size = path.stat().st_size
        text = f"{path}: has md5 {found} ({size} bytes), but the published one is {file.md5} ({file.size} bytes)"
        raise DataError(f"{text}. Delete it and fetch it again.")
    if file.rows is not None:
        with path.open("rb") as lines:
            rows = sum(1 for line in lines if line.strip())
        if rows != file.rows:
            raise DataError(f"{path}: has {rows} rows, but {file.rows} are published. Delete it and fetch it again.")
    return found
