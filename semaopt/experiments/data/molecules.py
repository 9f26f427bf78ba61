"""Data sets of molecules: CSV files with SMILES and labels; the features are computed once and cached."""

from __future__ import annotations

import csv
import io
import lzma
import struct
import tokenize
import warnings
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path

import numpy as np
import torch

from semaopt.experiments.data.errors import DataError
from semaopt.experiments.data.featurize import ATOM_FEATURES, VERSION, Flat, bond_kinds, featurize
from semaopt.experiments.data.molecule_batches import Molecules
from semaopt.experiments.data.task import Raw
from semaopt.experiments.files import write_atomic

CACHE = ".featurized"


def table(path: Path, smiles: str, label: str) -> tuple[list[dict[str, str]], list[int]]:
    """Return the rows of a CSV file and their labels, 0 or 1."""
    remedy = "Delete it and fetch the data set again."
    try:
        text = path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: is not UTF-8 text ({error.reason} at byte {error.start}). {remedy}") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}). {remedy}") from error
    try:
        rows = list(csv.DictReader(io.StringIO(text, newline=""), strict=True))
    except csv.Error as error:
        raise DataError(f"{path}: is not a CSV file ({error}). {remedy}") from error
    labels = []
    for line, row in enumerate(rows, start=1):
        for column in (smiles, label):
            if row.get(column) is None:
                raise DataError(f"{path}: row {line} has no column {column!r}. {remedy}")
        if row[label] not in ("0", "1"):
            raise DataError(f"{path}: row {line} has {label}={row[label]!r}, but it should be 0 or 1. {remedy}")
        labels.append(int(row[label]))
    if not rows:
        raise DataError(f"{path}: has no rows. {remedy}")
    return rows, labels


def reader(name: str, smiles: str, label: str, title: str) -> Callable[[Path, Mapping[str, str]], Raw]:
    """Return the reader of a data set; the arguments name the columns of the SMILES, the label and the title."""

    def read(root: Path, sums: Mapping[str, str]) -> Raw:
        rows, labels = table(root / name, smiles, label)
        texts = [row[smiles] for row in rows]
        flat = cached(root / CACHE / f"{Path(name).stem}-{sums[name]}-v{VERSION}.npz", texts)
        parsed = set(flat.parsed.tolist())
        facts = {
            "source": "MoleculeNet, https://moleculenet.org",
            "rows": len(rows),
            "molecules": len(parsed),
            "distinct_molecules": len(set(flat.canonical.tolist())),
            "distinct_scaffolds": len(set(flat.scaffolds.tolist())),
            "unparsable": [
                {"row": i + 1, "name": row.get(title) or "", "smiles": row[smiles]}
                for i, row in enumerate(rows)
                if i not in parsed
            ],
        }
        kept = torch.tensor(labels)[torch.from_numpy(flat.parsed)]
        return Raw(Molecules(flat), kept, 2, facts, scaffolds=tuple(flat.scaffolds.tolist()))

    return read


def cached(path: Path, smiles: list[str]) -> Flat:
    """Return the features in ``path`` if they are intact; otherwise compute and write them."""
    found = _kept(path, len(smiles))
    if found is not None:
        return found
    flat = featurize(smiles)
    if len(flat.parsed) == 0:
        raise DataError(
            f"none of {len(smiles)} SMILES can be parsed; the first is {smiles[0]!r}. Fetch the data set again."
        )
    content = io.BytesIO()
    np.savez_compressed(content, **{one.name: getattr(flat, one.name) for one in fields(Flat)})
    try:
        write_atomic(path, content.getvalue())
    except OSError as error:
        text = f"{path}: cannot be written ({error.strerror}); the features are computed again each time"
        warnings.warn(text, stacklevel=2)
    return flat


def _kept(path: Path, rows: int) -> Flat | None:
    """Return the features in a cached file, or None if it is missing or damaged; pickles are not read."""
    if not path.is_file():
        return None
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as content:
            flat = Flat(**{one.name: content[one.name] for one in fields(Flat)})
    except (
        *(OSError, ValueError, KeyError, EOFError, SyntaxError, RuntimeError, MemoryError, OverflowError),
        *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, tokenize.TokenError),
    ):  # a damaged zip file (RuntimeError: it seems encrypted) or array header raises any of these
        return None
    return flat if _whole(flat, rows) else None


def _whole(flat: Flat, rows: int) -> bool:
    """Whether the arrays are consistent with each other and with the number of rows."""
    count = len(flat.parsed)
    starts = ((flat.atom_start, flat.atoms), (flat.bond_start, flat.bonds))
    return (
        0 < count <= rows
        and flat.atoms.shape[1:] == (ATOM_FEATURES,)
        and flat.bonds.shape[1:] == (3,)
        and all(len(start) == count + 1 and start[0] == 0 and start[-1] == len(of) for start, of in starts)
        and all(bool((np.diff(start) >= 0).all()) for start, _ in starts)
        and bool((flat.bonds[:, 2] < len(bond_kinds()) - 1).all())
        and len(flat.scaffolds) == len(flat.canonical) == count
    )
