"""The catalogue: what each set is, which files it has, where they come from and how they are checked."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from semaopt.experiments.data import tables
from semaopt.experiments.data.task import Raw


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
class DataSet:
    """A set of the catalogue."""

    name: str
    about: str
    reader: Callable[[Path], Raw]

    def read(self, root: Path) -> Raw:
        """Read it from the files under ``root``."""
        return self.reader(root)

    def describe(self) -> dict[str, Any]:
        """What it is, in plain values."""
        return {"name": self.name, "about": self.about, "files": []}


SETS: dict[str, DataSet] = {
    one.name: one
    for one in (
        DataSet("digits", "1,797 digits of 8x8 pixels, 10 classes", tables.digits),
        DataSet("breast_cancer", "569 tumours, 30 measurements, 2 classes", tables.breast_cancer),
    )
}
