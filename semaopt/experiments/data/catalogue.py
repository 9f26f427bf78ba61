"""The catalogue of data sets: descriptions, files, addresses and checksums."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from semaopt.experiments.data import cifar, libsvm, mnist, molecules, tables, text
from semaopt.experiments.data.download import Progress, fetch_all
from semaopt.experiments.data.files import Download, File, verify
from semaopt.experiments.data.task import Raw


@dataclass(frozen=True)
class DataSet:
    """A data set; one without downloads is part of scikit-learn or of Python, or a plug-in."""

    name: str
    about: str
    reader: Callable[[Path, Mapping[str, str]], Raw]
    downloads: tuple[Download, ...] = ()
    classes: int | None = 2
    """None if the number is known only after reading."""
    version: Callable[[], str] = lambda: ""
    """Returns a digest of contents that differ between machines; it is part of the key of a run."""

    @property
    def files(self) -> tuple[File, ...]:
        """All files of the data set."""
        return tuple(file for download in self.downloads for file in download.files)

    def missing(self, root: Path) -> list[File]:
        """Return the files that do not exist; existing files are not read."""
        return [
            file for file in self.files if not os.path.isfile(root / file.path)
        ]  # False for a name that is too long

    def fetch(self, root: Path, progress: Progress = lambda *_: None) -> list[Path]:
        """Download missing and damaged files; return the new files."""
        return fetch_all(self.downloads, root, progress) if self.downloads else []

    def read(self, root: Path) -> Raw:
        """Read the data set from ``root``; missing files are downloaded, all files are verified."""
        if self.missing(root):
            self.fetch(root)
        sums = {file.path: verify(file, root / file.path) for file in self.files}
        raw = self.reader(root, sums)
        return replace(raw, facts={**raw.facts, "files": {path: f"md5 {found}" for path, found in sums.items()}})

    def describe(self) -> dict[str, Any]:
        """Return a description as plain values."""
        files = [{"path": file.path, "bytes": file.size, "md5": file.md5} for file in self.files]
        return {"name": self.name, "about": self.about, "files": files, "urls": [d.url for d in self.downloads]}


def _cifar(
    classes: int, folder: str, packed: tuple[str, int], size: Mapping[str, int], sums: Mapping[str, str]
) -> Download:
    url = f"https://www.cs.toronto.edu/~kriz/cifar-{classes}-python.tar.gz"
    files = tuple(File(f"{folder}/{name}", size[name], md5) for name, md5 in sums.items())
    return Download(url, files, "tar.gz", *packed)


_BATCHES = {
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
    "batches.meta": "5ff9c542aee3614f3951f8cda6e48888",
}
_CIFAR10 = _cifar(
    10,
    "cifar-10-batches-py",
    ("c58f30108f718f92721af3b95e74349a", 170_498_071),
    {**dict.fromkeys(_BATCHES, 31_035_704), "batches.meta": 158},
    _BATCHES,
)
_CIFAR100 = _cifar(
    100,
    "cifar-100-python",
    ("eb9058c3a382ffc7106e4002c42a8d85", 169_001_437),
    {"train": 155_249_918, "test": 31_049_696, "meta": 1_530},
    {
        "train": "16019d7e3df5f24257cddd939b257f8d",
        "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
        "meta": "7973b15100ade9c7d40fb424638fde48",
    },
)
_MNIST = tuple(
    Download(
        f"https://ossci-datasets.s3.amazonaws.com/mnist/{name}.gz",
        (File(f"{mnist.FOLDER}/{name}", size, md5),),
        "gz",
        packed,
        packed_size,
    )
    for name, size, md5, packed, packed_size in (
        (
            *("train-images-idx3-ubyte", 47_040_016, "6bbc9ace898e44ae57da46a324031adb"),
            *("f68b3c2dcbeaaa9fbdd348bbdeb94873", 9_912_422),
        ),
        (
            *("train-labels-idx1-ubyte", 60_008, "a25bea736e30d166cdddb491f175f624"),
            *("d53e105ee54ea40749a09fcbcd1e9432", 28_881),
        ),
        (
            *("t10k-images-idx3-ubyte", 7_840_016, "2646ac647ad5339dbf082846283269ea"),
            *("9fb629c4189551a2d022fa330f9573f3", 1_648_877),
        ),
        (
            *("t10k-labels-idx1-ubyte", 10_008, "27ae3e4e09519cfbb04c329615203637"),
            *("ec29112dd5afa0611ce80d1b7f02629c", 4_542),
        ),
    )
)


def _molnet(name: str, size: int, md5: str) -> tuple[Download]:
    url = f"https://deepchemdata.s3-us-west-1.amazonaws.com/datasets/{name}"
    return (Download(url, (File(name, size, md5),), md5=md5, size=size),)


def _libsvm(name: str, packed: str, sizes: tuple[int, int], rows: tuple[int, int]) -> tuple[Download, ...]:
    site = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary"
    return tuple(
        Download(f"{site}/{one}{packed}", (File(f"libsvm/{one}", size, rows=n),), "bz2" if packed else "plain")
        for one, size, n in zip((name, f"{name}.t"), sizes, rows, strict=True)
    )


SETS: dict[str, DataSet] = {
    one.name: one
    for one in (
        DataSet("digits", "1,797 digits of 8x8 pixels, 10 classes", tables.digits, classes=10),
        DataSet("breast_cancer", "569 tumours, 30 measurements, 2 classes", tables.breast_cancer),
        DataSet(
            "python_sources",
            "characters of Python's standard library, 61 classes; the text depends on the version of Python",
            text.python_sources,
            classes=len(text.VOCABULARY) + 1,
            version=text.version,
        ),
        DataSet("cifar10", "60,000 colour images of 32x32 pixels, 10 classes", cifar.cifar10, (_CIFAR10,), 10),
        DataSet("cifar100", "60,000 colour images of 32x32 pixels, 100 classes", cifar.cifar100, (_CIFAR100,), 100),
        DataSet("mnist", "70,000 digits of 28x28 pixels, 10 classes", mnist.mnist, _MNIST, 10),
        DataSet(
            "bbbp",
            "2,050 molecules, whether they pass the blood-brain barrier",
            molecules.reader("BBBP.csv", smiles="smiles", label="p_np", title="name"),
            _molnet("BBBP.csv", 148_743, "66286cb9e6b148bd75d80c870df580fb"),
        ),
        DataSet(
            "bace",
            "1,513 molecules, whether they inhibit beta-secretase 1",
            molecules.reader("bace.csv", smiles="mol", label="Class", title="CID"),
            _molnet("bace.csv", 3_897_767, "ba7f8fa3fdf463a811fa7edea8c982c2"),
        ),
        DataSet(
            "a9a",
            "48,842 people, 123 binary features, 2 classes (24% positive)",
            libsvm.reader("a9a", (32_561, 16_281), 123),
            _libsvm("a9a", "", (2_329_874, 1_164_628), (32_561, 16_281)),
        ),
        DataSet(
            "ijcnn1",
            "141,691 rows, 22 features, 2 classes (10% positive)",
            libsvm.reader("ijcnn1", (49_990, 91_701), 22),
            _libsvm("ijcnn1", ".bz2", (7_844_877, 14_213_968), (49_990, 91_701)),
        ),
    )
}
