"""Tiny files in the official formats, and the real files if they are available."""

import hashlib
import os
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from semaopt.experiments.data import catalogue

MOLECULES = ["CCO", "c1ccccc1", "C", "CC(=O)O", "C#N", "c1ccccc1O", "CCN", "C1CC1", "CC=CC=C", "[Na+].[Cl-]"]


def pickled(content):
    """Return a pickle as Python 2 writes it, with byte strings, including the stop opcode."""
    return b"\x80\x02" + _python2(content) + b"."


def _python2(value):
    if isinstance(value, dict):
        return b"}(" + b"".join(_python2(item) for pair in value.items() for item in pair) + b"u"
    if isinstance(value, list):
        return b"](" + b"".join(map(_python2, value)) + b"e"
    if isinstance(value, tuple):
        return b"(" + b"".join(map(_python2, value)) + b"t"
    if isinstance(value, bytes):
        return b"T" + struct.pack("<i", len(value)) + value
    if isinstance(value, np.ndarray):
        kind = value.dtype.str.encode()
        dtype = b"cnumpy\ndtype\n" + _python2((kind[1:], 0, 1)) + b"R"
        dtype += _python2((3, kind[:1], None, None, None, -1, -1, 0)) + b"b"
        state = b"(" + _python2(1) + _python2(value.shape) + dtype + b"\x89" + _python2(value.tobytes()) + b"t"
        return (
            b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n"
            + _python2((0,))
            + b"T\x01\0\0\0btR"
            + state
            + b"b"
        )
    return b"N" if value is None else b"J" + struct.pack("<i", value)


def cifar(root, folder="cifar-10-batches-py", classes=10, rows=20):
    rng = np.random.default_rng(0)
    single = {"cifar-100-python": (["train", "test"], b"fine_labels")}
    names, key = single.get(folder, ([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"], b"labels"))
    (root / folder).mkdir(parents=True)
    for name in names:
        x = rng.integers(256, size=(rows, 3072), dtype=np.uint8)
        (root / folder / name).write_bytes(pickled({b"data": x, key: [i % classes for i in range(rows)]}))
    (root / folder / ("meta" if key == b"fine_labels" else "batches.meta")).write_bytes(pickled({}))


def mnist(root, rows=100):
    folder = root / "MNIST" / "raw"
    folder.mkdir(parents=True)
    for part in ("train", "t10k"):
        head = struct.pack(">IIII", 0x0803, rows, 28, 28)
        (folder / f"{part}-images-idx3-ubyte").write_bytes(head + bytes(i % 256 for i in range(rows * 784)))
        labels = bytes(i % 10 for i in range(rows))
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 0x0801, rows) + labels)


def bbbp(root, smiles=tuple(MOLECULES * 4), bad=("not a molecule", "")):
    lines = [f"{i},mol{i},{i % 2},{text}" for i, text in enumerate([*bad, *smiles])]
    root.mkdir(parents=True, exist_ok=True)
    (root / "BBBP.csv").write_text("\n".join(["num,name,p_np,smiles", *lines]) + "\n")


@pytest.fixture
def trusted(monkeypatch, tmp_path):
    """Treat the files in ``tmp_path`` as the official files of a data set."""

    def trust(name, root=tmp_path):
        one = catalogue.SETS[name]

        def known(file):
            return replace(file, md5=hashlib.md5((root / file.path).read_bytes()).hexdigest(), rows=None)

        downloads = tuple(replace(d, files=tuple(map(known, d.files))) for d in one.downloads)
        monkeypatch.setitem(catalogue.SETS, name, replace(one, downloads=downloads))
        return root

    return trust


def real(name):
    """Return the root of the real files of a data set, or skip the test with the command that fetches them."""
    root = os.environ.get("SEMAOPT_DATA")
    if not root or catalogue.SETS[name].missing(Path(root)):
        pytest.skip(f"SEMAOPT_DATA has no {name}; semaopt data fetch {name}")
    return root
