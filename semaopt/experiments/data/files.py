"""Files of a data set, where they come from, and whether they are what they should be."""

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
    """Where the files of all sets are: ``root``, else ``SEMAOPT_DATA``, else a folder of the user's cache."""
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
        path: below the root.
        size: in bytes; where it is not known, about.
        md5: as published.
        rows: as published, of a text that has no published checksum.
    """

    path: str
    size: int
    md5: str | None = None
    rows: int | None = None

    @property
    def known(self) -> str:
        """What it is known by, in words."""
        return f"md5 {self.md5}" if self.md5 else f"{self.rows} rows, no published checksum"


@dataclass(frozen=True)
class Download:
    """What an official address gives: one file, as it is or packed, or an archive of several.

    Attributes:
        url: the address.
        files: what it holds. In an archive they have the same paths as below the root.
        form: how they are packed.
        md5: of what is downloaded, as published.
        size: in bytes, about.
    """

    url: str
    files: tuple[File, ...]
    form: Form = "plain"
    md5: str | None = None
    size: int = 0


def md5(path: Path) -> str:
    """The checksum of a file."""
    total = hashlib.md5(usedforsecurity=False)
    try:
        with path.open("rb") as file:
            while chunk := file.read(CHUNK):
                total.update(chunk)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); check its permissions") from error
    return total.hexdigest()


def check(file: File, path: Path) -> str:
    """The checksum of a file that must have the published one, or, if none is published, the number of rows."""
    found = md5(path)
    if file.md5 is not None and found != file.md5:
        size = path.stat().st_size
        text = f"{path}: md5 {found} ({size} bytes), published {file.md5} ({file.size} bytes)"
        raise DataError(f"{text}; delete it and fetch it again")
    if file.rows is not None:
        with path.open("rb") as lines:
            rows = sum(1 for line in lines if line.strip())
        if rows != file.rows:
            raise DataError(f"{path}: {rows} rows, published {file.rows}; delete it and fetch it again")
    return found
