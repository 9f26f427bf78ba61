"""Fuzzing targets: for each kind of input a generator and the rule that every input must satisfy.

The rule is always the same: an input is taken for what it is, or refused by the library's own error with a message; no
other exception, nothing executed, nothing left half written.
"""

from __future__ import annotations

import functools
import io
import pickle
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch

from semaopt.experiments.data import catalogue, cifar, featurize, libsvm, mnist, molecules
from semaopt.experiments.data.errors import DataError
from semaopt.experiments.files import OutputError, canonical
from semaopt.experiments.spec import schema
from semaopt.experiments.spec.errors import SpecError
from semaopt.experiments.sweep.checkpoint import Checkpoint, pack
from semaopt.experiments.sweep.store import Store
from semaopt.experiments.training.run import Result
from tests.experiments.data.official import MOLECULES, pickled
from tests.fuzz import mutate

KEY = "c" * 64
#: Arguments of calls made by hostile files; must stay empty.
FIRED: list[object] = []


def fire(*given: object) -> object:
    """Record a call; stands in for what a hostile pickle would call."""
    FIRED.append(given)
    return given


@dataclass(frozen=True)
class Target:
    """``make(rng)`` returns an input, ``run(input, folder)`` whether it was accepted; an exception is a finding."""

    name: str
    make: Callable[[Random], Any]
    run: Callable[[Any, Path], bool]
    share: int
    """Percentage of the inputs to run; lower for slow targets."""

    def verify(self, given: Any, folder: Path) -> bool:
        """Run an input and verify that nothing was executed."""
        accepted = self.run(given, folder)
        assert not FIRED, "the file had a function called"
        return accepted


def refused(read: Callable[[], object], kinds: tuple[type[Exception], ...]) -> bool:
    """Return whether ``read`` raises one of these errors, with a message."""
    said = None
    try:
        read()
    except kinds as error:
        said = str(error)
    assert said is None or len(said) > 10, "an error without a message"
    return said is not None


def written(folder: Path, name: str, data: bytes) -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


# Specs


@functools.cache
def _specs() -> tuple[bytes, ...]:
    return tuple((schema.FIGURES / f"{name}.toml").read_bytes() for name in schema.shipped())


@functools.cache
def _tables() -> tuple[dict[str, Any], ...]:
    return tuple(schema.tomllib.loads(text.decode()) for text in _specs())


@functools.cache
def _words() -> tuple[bytes, ...]:
    """Return keys and values of the shipped specs, to insert them in wrong places."""
    return (*mutate.BYTES, *{word for text in _specs() for word in text.split() if len(word) < 30})


def _load(data: bytes, folder: Path) -> bool:
    path = written(folder, "fuzzed.toml", data)
    return not refused(lambda: schema.load(path), (SpecError,))


def _spec_bytes(rng: Random) -> bytes:
    change = rng.choice((mutate.of_bytes, mutate.of_lines))
    return change(rng, rng.choice(_specs()), _words())


def _spec_values(rng: Random) -> bytes:
    return mutate.document(mutate.of_values(rng, rng.choice(_tables())))


# Data


@functools.cache
def _cifar() -> tuple[bytes, ...]:
    x = np.arange(2 * cifar.PIXELS, dtype=np.uint8).reshape(2, -1)
    content = {b"data": x, b"labels": [3, 7], b"batch_label": b"one", b"filenames": [b"a.png", b"b.png"]}
    modern = pickle.dumps({b"data": x, b"labels": [3, 7]}, protocol=4)
    return pickled(content), pickled(content), modern


_CALLS = (
    *(b"ctests.fuzz.targets\nfire\n(tR", b"ctests.fuzz.targets\nfire\n", b"cos\nmkdir\n(S'fired'\ntR"),
    *(b"cbuiltins\neval\n(S'FIRED'\ntR", b"cnumpy\nload\n", b"cnumpy\nndarray\n", b"cnumpy\ndtype\n", b"R", b"b", b"0"),
    *(b"\x93", b"\x81", b"\x92", b"i", b"o", b"(", b"t", b"}", b"]", b"N", b"2", b"h\x00", b"q\x00", b"\x94", b"P1\n"),
    *(b"cnumpy.core.multiarray\n_reconstruct\n", b"cnumpy.core.multiarray\nscalar\n", b"J\xff\xff\xff\x7f", b"\x8b"),
    *(b"cnumpy\ndtype\n(S'O'\nI0\nI1\ntR", b"cnumpy\nndarray\n((I1000\nI1000\nI1000\nttR", b"I99999999999999\n", b"."),
)


def _batch(rng: Random) -> bytes:
    data = rng.choice(_cifar())
    if rng.random() < 0.5:
        data = mutate.of_bytes(rng, data, _CALLS)
    head, tail = data[: rng.choice((150, 300, len(data)))], data[-150:]
    if rng.random() < 0.5:  # pixels do not matter to the parser
        data = mutate.of_bytes(rng, head, _CALLS) + data[len(head) : -150] + mutate.of_bytes(rng, tail, _CALLS)
    return data


def _read_batch(data: bytes, folder: Path) -> bool:
    path = written(folder, "data_batch_1", data)
    return not refused(lambda: cifar.batch(path, b"labels", 10), (DataError,))


def _idx(rng: Random) -> bytes:
    return mutate.of_bytes(rng, struct.pack(">IIII", 0x0803, 3, 4, 5) + bytes(60))


def _read_idx(data: bytes, folder: Path) -> bool:
    path = written(folder, "images", data)
    return not refused(lambda: mnist.idx(path, 3), (DataError,))


_SVM = b"\n".join(b"%+d 1:%g 3:0.5 22:1" % (1 - 2 * (i % 2), i / 7) for i in range(8)) + b"\n"


def _libsvm(rng: Random) -> bytes:
    words = (*mutate.BYTES, b"22:1", b"23:1", b"0:1", b"1:nan", b"1:1e400", b"qid:3", b"+2", b"-1 ", b"3:1 2:1")
    return rng.choice((mutate.of_bytes, mutate.of_lines))(rng, _SVM, words)


def _read_libsvm(data: bytes, folder: Path) -> bool:
    path = written(folder, "ijcnn1", data)
    return not refused(lambda: libsvm.parse(path, 8, 22), (DataError,))


_CSV = "\n".join(["num,name,p_np,smiles", *(f'{i},"a, {i}",{i % 2},{s}' for i, s in enumerate(MOLECULES))]).encode()


def _csv(rng: Random) -> bytes:
    words = (*mutate.BYTES, b'""', b"smiles", b"p_np", b",,,,,", b"2", b"C" * 3000, b"\r")
    return rng.choice((mutate.of_bytes, mutate.of_lines))(rng, _CSV, words)


def _read_csv(data: bytes, folder: Path) -> bool:
    path = written(folder, "BBBP.csv", data)
    return not refused(lambda: molecules.table(path, "smiles", "p_np"), (DataError,))


_SMILES = (
    *MOLECULES,
    "CC(=O)Oc1ccccc1C(=O)O",
    "C[C@H](N)C(=O)O",
    "F/C=C/F",
    "[13CH4]",
    "[O-][N+](=O)c1ccc(cc1)S(=O)(=O)N",
)
_PARTS = (*"()[]=#@+-/\\.%123456789cnosCNOPSFIBH*:", "[Fe+2]", "Cl", "[C@@H]", "%99", "[nH]", ">>", "[Xx]", "[999C]")


def _smiles(rng: Random) -> list[str]:
    def one() -> str:
        atoms = list(rng.choice(_SMILES))
        for _ in range(rng.randrange(6)):
            at = rng.randrange(len(atoms) + 1)
            atoms[at : at + rng.randrange(3)] = rng.choices((*_PARTS, "\0", "é", " "), k=rng.randrange(1, 4))
        return "".join(atoms)

    return [one() for _ in range(3)]


def _read_smiles(texts: list[str], folder: Path) -> bool:
    """Require that the shapes of all arrays agree, whichever molecules parsed."""
    flat = featurize.featurize(texts)
    if len(flat.parsed) == 0:
        return False
    assert molecules._whole(flat, len(texts))
    batch = molecules.Molecules(flat).take(torch.arange(len(flat.parsed)), "cpu", torch.float32)
    assert len(batch) == len(flat.parsed)
    return True


@functools.cache
def _flat() -> tuple[featurize.Flat, bytes]:
    flat, buffer = featurize.featurize(MOLECULES), io.BytesIO()
    np.savez_compressed(buffer, **{one.name: getattr(flat, one.name) for one in fields(flat)})
    return flat, buffer.getvalue()


def _cache(rng: Random) -> bytes:
    return mutate.of_bytes(rng, _flat()[1])


def _read_cache(data: bytes, folder: Path) -> bool:
    """Require the stored arrays unchanged, or none."""
    found = molecules._kept(written(folder, "cache.npz", data), len(MOLECULES))
    if found is None:
        return False
    assert all(np.array_equal(getattr(found, one.name), getattr(_flat()[0], one.name)) for one in fields(found))
    return True


_OFFICIAL = [(one, file) for one in catalogue.SETS.values() for file in one.files]


def _published(rng: Random) -> tuple[int, bytes]:
    whole = (*_cifar(), _SVM, _CSV, struct.pack(">IIII", 0x0803, 3, 4, 5) + bytes(60))
    return rng.randrange(len(_OFFICIAL)), mutate.of_bytes(rng, rng.choice(whole))


def _read_published(given: tuple[int, bytes], folder: Path) -> bool:
    """Require that a file in place of an official one is refused by its checksum or its rows."""
    one, file = _OFFICIAL[given[0]]
    path = written(folder, "official", given[1])
    assert refused(lambda: catalogue.verify(file, path), (DataError,)), f"{one.name}: taken for the official file"
    return False


# Output folders


@functools.cache
def _state() -> dict[str, Any]:
    x = torch.nn.Parameter(torch.arange(6.0).reshape(2, 3))
    optimizer = torch.optim.Adam([x])
    x.grad = torch.ones(2, 3)
    optimizer.step()
    return {"epoch": 3, "optimizer": optimizer.state_dict(), "name": "x", "rate": 0.5, "none": None}


@functools.cache
def _packed() -> tuple[bytes, bytes]:
    whole = pack({"key": KEY, "state": _state()})
    return whole, pack({"key": KEY, "state": {"epoch": 2}})


def _checkpoint(rng: Random) -> tuple[bytes, bool]:
    """Return a damaged file and whether its checksum was corrected."""
    data = _packed()[0]
    if rng.random() < 0.5:
        return mutate.of_bytes(rng, data), False
    payload = data[len(pack({})) - len(_plain({})) :]
    return mutate.of_bytes(rng, payload, (*mutate.BYTES, *_CALLS)), True


def _plain(value: dict[str, Any]) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def _read_checkpoint(given: tuple[bytes, bool], folder: Path) -> bool:
    """Require the newest state if it is intact, otherwise the one before it and a note."""
    data, forged = given
    if forged:
        import hashlib

        head = _packed()[0][: len(pack({})) - len(_plain({})) - 64]
        data = head + hashlib.sha256(data).hexdigest().encode() + data
    kept = Checkpoint(folder, KEY)
    kept.newest.write_bytes(data)
    kept.previous.write_bytes(_packed()[1])
    found = kept.load()
    assert found is not None, "the one before it was not used"
    if kept.notes:
        assert found == {"epoch": 2}
        assert kept.notes == [f"checkpoint {KEY}.pt is damaged; resuming from the one before it"]
        return False
    if not forged:
        assert data == _packed()[0], "a damaged file was taken"
    return True


RESULTS = {f"{k:064}": Result({"loss": [1.0 / (k + 1), float("nan")], "auc": [0.5, 0.25]}, 0.5 * k) for k in range(20)}


def row(key: str) -> dict[str, Any]:
    known = {"experiment": "e", "method": "m", "purpose": "final", "seed": 0, "config": {"lr": 0.1}, "program": {}}
    return {"key": key, **known}


@functools.cache
def _database() -> bytes:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "runs.sqlite")
        with Store(path) as store:
            store.put([(row(key), result) for key, result in RESULTS.items()])
        return path.read_bytes()


def _sqlite(rng: Random) -> bytes:
    data = _database()
    if rng.random() < 0.3:
        return mutate.of_bytes(rng, data)
    page = 4096 * rng.randrange(len(data) // 4096)  # page headers hold the structure
    at = page + rng.choice((rng.randrange(100), rng.randrange(4096)))
    return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]


def _read_sqlite(data: bytes, folder: Path) -> bool:
    """Require the stored result, or None for a damaged row, or an error."""
    for old in folder.glob("runs.sqlite*"):
        old.unlink()
    path = written(folder, "runs.sqlite", data)

    def use() -> None:
        with Store(path) as store:
            for key, result in RESULTS.items():
                found = store.get(key)
                assert found is None or canonical(found.curves) == canonical(result.curves), "a damaged row was taken"
                assert found is None or found.seconds == result.seconds
            store.put([(row("f" * 64), RESULTS["0" * 64])])
            assert len(store) >= 0

    return not refused(use, (OutputError,))


def fresh(folder: Path) -> None:
    """Empty the folder."""
    for path in sorted(folder.rglob("*"), reverse=True):
        with suppress(OSError):
            path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()


TARGETS = [
    Target("spec bytes", _spec_bytes, _load, 6),
    Target("spec values", _spec_values, _load, 6),
    Target("cifar pickles", _batch, _read_batch, 25),
    Target("mnist idx", _idx, _read_idx, 12),
    Target("libsvm text", _libsvm, _read_libsvm, 10),
    Target("molecule tables", _csv, _read_csv, 12),
    Target("smiles", _smiles, _read_smiles, 4),
    Target("molecule cache", _cache, _read_cache, 5),
    Target("official files", _published, _read_published, 8),
    Target("checkpoints", _checkpoint, _read_checkpoint, 7),
    Target("stores", _sqlite, _read_sqlite, 3),
]
