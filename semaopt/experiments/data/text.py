"""A character language model's data: the sources of Python's own standard library."""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import torch

from semaopt.experiments.data.errors import DataError
from semaopt.experiments.data.tables import Table
from semaopt.experiments.data.task import Raw

CONTEXT = 32
#: Characters with a class of their own, after lower-casing; all others share the last class.
VOCABULARY = "abcdefghijklmnopqrstuvwxyz0123456789 \n_.,()[]:'\"=#-*/<>%{}\\+"
_TRAIN = [
    "argparse",
    "ast",
    "calendar",
    "codecs",
    "configparser",
    "csv",
    "difflib",
    "dis",
    "doctest",
    "fractions",
    "ftplib",
    "functools",
    "gettext",
    "heapq",
    "imaplib",
    "inspect",
    "ipaddress",
    "locale",
    "mailbox",
    "optparse",
    "os",
    "pdb",
    "pickle",
    "pickletools",
    "platform",
    "plistlib",
    "posixpath",
    "pydoc",
    "random",
    "shutil",
    "smtplib",
    "socket",
    "statistics",
    "subprocess",
    "tarfile",
]
_TEST = ["tempfile", "textwrap", "threading", "tokenize", "traceback", "typing", "uuid"]


@cache
def _read(name: str) -> str:
    path = Path(os.__file__).parent / f"{name}.py"
    try:
        return path.read_text("utf-8")
    except OSError as error:
        raise DataError(
            f"{path}: cannot be read ({error.strerror}). The data set is made of the sources of the standard library; "
            "use a Python that has them as files."
        ) from error


def version() -> str:
    """Return the SHA-256 of the text, which differs between versions of Python."""
    return hashlib.sha256("\0".join(map(_read, [*_TRAIN, *_TEST])).encode()).hexdigest()


def python_sources(_: Path, sums: Mapping[str, str]) -> Raw:
    """Read windows of 32 characters, each labelled by the character after it; the test part has other modules.

    Windows do not overlap. An input holds the number of each character in the vocabulary.
    """
    number_of = torch.full((256,), len(VOCABULARY))
    number_of[torch.tensor(list(VOCABULARY.encode()))] = torch.arange(len(VOCABULARY))
    parts = ["\n".join(map(_read, names)).lower() for names in (_TRAIN, _TEST)]
    windows, labels = [], []
    for text in parts:
        codes = number_of[torch.tensor(list(text.encode("latin-1", "replace")))]
        count = (len(codes) - 1) // CONTEXT
        windows.append(codes[: count * CONTEXT].view(count, CONTEXT))
        labels.append(codes[CONTEXT : count * CONTEXT + 1 : CONTEXT])
    facts = {
        "source": f"modules of the standard library of Python {platform.python_version()}",
        "characters": sum(map(len, parts)),
        "sha256": version(),
    }
    test = torch.arange(len(labels[0]), len(labels[0]) + len(labels[1]))
    table = Table(torch.cat(windows).to(torch.uint8), kind="text")
    return Raw(table, torch.cat(labels), len(VOCABULARY) + 1, facts, test=test)
