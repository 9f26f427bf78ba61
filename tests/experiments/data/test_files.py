"""Readers of the official formats, and their errors for damaged files."""

import os
import pickle
import struct

import numpy as np
import pytest
import torch

from semaopt.experiments import data
from semaopt.experiments.data import catalogue, cifar, libsvm, mnist
from tests.experiments.data import official
from tests.experiments.data.official import pickled, trusted

__all__ = ["trusted"]


def test_cifar10(tmp_path, trusted):
    official.cifar(tmp_path)
    task = data.load("cifar10", root=trusted("cifar10"))
    assert (len(task.train), len(task.valid), len(task.test), task.classes) == (90, 10, 20, 10)
    assert task.shape == (3, 32, 32)
    content = pickle.loads((tmp_path / "cifar-10-batches-py" / "test_batch").read_bytes(), encoding="bytes")
    pixel = content[b"data"][0, 1024] / 255  # the first of green
    assert task.test.inputs(torch.tensor([0]))[0, 1, 0, 0].item() == pytest.approx((pixel - 0.4822) / 0.2435, abs=1e-5)
    assert task.test.labels.tolist() == content[b"labels"]


def test_cifar100(tmp_path, trusted):
    official.cifar(tmp_path, "cifar-100-python", 100, rows=1000)
    task = data.load("cifar100", root=trusted("cifar100"), binary=True)
    assert (len(task.train), task.classes, int(task.test.labels.sum())) == (900, 2, 500)


def test_mnist(tmp_path, trusted):
    official.mnist(tmp_path)
    task = data.load("mnist", root=trusted("mnist"), subset=20)
    assert (len(task.train), len(task.test), task.shape) == (20, 100, (1, 28, 28))


class Hostile:
    def __init__(self, *call):
        self.call = call

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize(
    "make",
    [
        lambda flag: pickle.dumps(Hostile(os.system, (f"touch {flag}",)), protocol=2),
        lambda flag: pickle.dumps({b"data": Hostile(eval, (f"open({str(flag)!r}, 'w')",))}, protocol=2),
        lambda flag: b"cos\nsystem\n(S'touch " + str(flag).encode() + b"'\ntR.",
        lambda flag: b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I9999999999999\nt" + b"S'b'\ntR.",
        lambda flag: b"cnumpy\nload\n(S'" + str(flag).encode() + b"'\ntR.",
        lambda flag: pickled({b"data": np.zeros((3, 3072), np.uint8)})[:-200],
        lambda flag: b"",
        lambda flag: b"\x80\x02garbage",
        lambda flag: os.urandom(500),
        lambda flag: b"\x80\x02" + b"(" * 10000 + b"t.",
        lambda flag: b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x7f",
    ],
)
def test_hostile_and_broken_pickles_execute_nothing(tmp_path, make):
    flag, path = tmp_path / "executed", tmp_path / "data_batch_1"
    path.write_bytes(make(flag))
    with pytest.raises(data.DataError, match=r"data_batch_1: .*Delete it and fetch the data set again"):
        cifar.batch(path, b"labels", 10)
    assert not flag.exists()


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ([1], "holds a list"),
        ({b"labels": [1]}, "data is NoneType, but should be uint8"),
        ({b"data": np.zeros((2, 3), np.uint8), b"labels": [1, 1]}, r"data is uint8 \(2, 3\)"),
        ({b"data": np.zeros((2, 3072), np.float32), b"labels": [1, 1]}, "data is float32"),
        ({b"data": np.zeros((2, 3072), np.uint8), b"labels": [1, 10]}, "should hold 2 numbers from 0 to 9"),
        ({b"data": np.zeros((2, 3072), np.uint8), b"labels": [1]}, "should hold 2 numbers"),
    ],
)
def test_pickles_with_wrong_content(tmp_path, content, text):
    path = tmp_path / "data_batch_1"
    path.write_bytes(pickled(content))
    with pytest.raises(data.DataError, match=text):
        cifar.batch(path, b"labels", 10)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "is not an IDX file"),
        (b"\x1f\x8b" + bytes(30), "is not an IDX file"),
        (struct.pack(">IIII", 0x0803, 1, 28, 28) + bytes(700), r"has 700 values, but its header says \(1, 28, 28\)"),
        (struct.pack(">IIII", 0x0803, 2**32 - 1, 2**32 - 1, 2**32 - 1), "0 values"),
    ],
)
def test_broken_idx(tmp_path, content, text):
    (tmp_path / "images").write_bytes(content)
    with pytest.raises(data.DataError, match=text):
        mnist.idx(tmp_path / "images", 3)


def test_libsvm(tmp_path):
    (tmp_path / "a").write_text("-1 1:0.5 3:2\n+1 2:1\n")
    x, y = libsvm.parse(tmp_path / "a", 2, 3)
    assert x.tolist() == [[0.5, 0, 2], [0, 1, 0]]
    assert y.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"-1 1:1\n", "has 1 rows, but 2 are published"),
        (b"-1 1:1\n+1 9:1\n", "not LIBSVM text of 3 columns"),
        (b"-1 1:x\n+1 1:1\n", "not LIBSVM text"),
        (b"<html>\n</html>\n", "not LIBSVM text"),
        (b"-1 1:1\n3 1:1\n", r"has labels \[-1.0, 3.0\], but they should be -1 and 1"),
        (b"-1 1:nan\n1 1:1\n", "NaN or infinite values"),
        (bytes(range(128, 256)), "not LIBSVM text"),
    ],
)
def test_broken_libsvm(tmp_path, content, text):
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(data.DataError, match=text):
        libsvm.parse(tmp_path / "a", 2, 3)


def test_a_file_with_a_wrong_checksum_is_not_read(tmp_path, monkeypatch):
    official.cifar(tmp_path)
    monkeypatch.setattr(cifar, "unpickle", lambda _: pytest.fail("read a file that is not the published one"))
    with pytest.raises(
        data.DataError,
        match=r"data_batch_1: has md5 \w+ \(\d+ bytes\), but the published one is c99cafc1.*fetch it again",
    ):
        data.load("cifar10", root=tmp_path)


def test_the_root_folder(tmp_path, monkeypatch):
    from semaopt.experiments.data.files import root_folder

    monkeypatch.setenv("SEMAOPT_DATA", str(tmp_path / "a"))
    assert root_folder() == tmp_path / "a"
    assert root_folder(tmp_path / "b") == tmp_path / "b"
    monkeypatch.delenv("SEMAOPT_DATA")
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "c"))
    assert root_folder() == tmp_path / "c" / "semaopt" / "data"


def test_every_data_set_has_a_description():
    for name in data.NAMES:
        about = data.describe(name)
        assert about["name"] == name
        assert all(file.md5 or file.rows for file in catalogue.SETS[name].files)
    with pytest.raises(data.DataError, match="Did you mean 'mnist'"):
        data.describe("minst")
