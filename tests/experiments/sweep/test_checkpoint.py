"""Checkpoints: whole, checked, the one before kept; nothing in them is run."""

import os
import pickle

import pytest
import torch

from semaopt.experiments.files import OutputError
from semaopt.experiments.sweep.checkpoint import Checkpoint, pack, unpack

KEY = "c" * 64


@pytest.fixture
def kept(tmp_path):
    kept = Checkpoint(tmp_path / "deep", KEY)
    kept.save({"epoch": 1, "x": torch.arange(3.0)})
    kept.save({"epoch": 2, "x": torch.arange(4.0)})
    return kept


def test_the_newest_is_read(kept):
    found = kept.load()
    assert found["epoch"] == 2
    assert torch.equal(found["x"], torch.arange(4.0))
    assert kept.notes == []
    assert len(os.listdir(kept.newest.parent)) == 2


DAMAGES = [
    lambda data: data[: len(data) // 2],
    lambda data: b"",
    lambda data: data[:-1],
    lambda data: data + b"\0",
    lambda data: data[:300] + bytes([data[300] ^ 1]) + data[301:],
    lambda data: b"x" + data[1:],
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_one_is_said_and_the_one_before_it_is_used(kept, damage):
    kept.newest.write_bytes(damage(kept.newest.read_bytes()))
    assert kept.load()["epoch"] == 1
    assert kept.notes == [f"checkpoint {KEY}.pt is damaged; resuming from the one before it"]


@pytest.mark.parametrize("damage", DAMAGES)
def test_both_damaged_it_starts_anew(kept, damage):
    for path in (kept.newest, kept.previous):
        path.write_bytes(damage(path.read_bytes()))
    assert kept.load() is None
    assert len(kept.notes) == 2
    assert kept.notes[1] == f"checkpoint {KEY}.previous.pt is damaged; training starts from scratch"


def test_killed_between_two_names_the_one_before_is_there(kept):
    kept.newest.replace(kept.previous)
    assert kept.load()["epoch"] == 2
    assert kept.notes == []


def test_that_of_another_run_is_not_taken(kept, tmp_path):
    other = Checkpoint(tmp_path / "deep", "d" * 64)
    other.newest.write_bytes(kept.newest.read_bytes())
    assert other.load() is None
    assert "damaged" in other.notes[0]


class Hostile:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_what_lies_there_is_never_run(kept, tmp_path):
    hostile = Hostile(str(tmp_path / "ran"))
    kept.newest.write_bytes(pack({"key": KEY, "state": {"x": hostile}}))
    assert kept.load()["epoch"] == 1
    assert unpack(pickle.dumps(hostile)) is None
    assert not (tmp_path / "ran").exists()
    pickle.loads(pickle.dumps(hostile))
    assert (tmp_path / "ran").exists()  # so it would have shown


def test_removed_nothing_is_left(kept):
    kept.newest.with_name(f".{KEY}.pt.123.part").write_bytes(b"as much as process 123 wrote until it was killed")
    kept.remove()
    assert os.listdir(kept.newest.parent) == []
    assert kept.load() is None


def test_a_full_disk_leaves_what_was_there(kept, monkeypatch):
    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OutputError, match=r"cannot be written \(No space left on device\)"):
        kept.save({"epoch": 3})
    monkeypatch.undo()
    assert kept.load()["epoch"] == 2
    assert len(os.listdir(kept.newest.parent)) == 2
