"""Checkpoints: atomic, verified, with one older copy; their content is never executed."""

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


def test_the_newest_state_is_loaded(kept):
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
def test_a_damaged_file_is_reported_and_the_one_before_it_is_used(kept, damage):
    kept.newest.write_bytes(damage(kept.newest.read_bytes()))
    assert kept.load()["epoch"] == 1
    assert kept.notes == [f"checkpoint {KEY}.pt is damaged; resuming from the one before it"]


@pytest.mark.parametrize("damage", DAMAGES)
def test_training_starts_from_scratch_if_both_files_are_damaged(kept, damage):
    for path in (kept.newest, kept.previous):
        path.write_bytes(damage(path.read_bytes()))
    assert kept.load() is None
    assert len(kept.notes) == 2
    assert kept.notes[1] == f"checkpoint {KEY}.previous.pt is damaged; training starts from scratch"


def test_the_older_file_survives_a_kill_between_two_renames(kept):
    kept.newest.replace(kept.previous)
    assert kept.load()["epoch"] == 2
    assert kept.notes == []


def test_the_checkpoint_of_another_run_is_ignored(kept, tmp_path):
    other = Checkpoint(tmp_path / "deep", "d" * 64)
    other.newest.write_bytes(kept.newest.read_bytes())
    assert other.load() is None
    assert "damaged" in other.notes[0]


class Hostile:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_content_is_never_executed(kept, tmp_path):
    hostile = Hostile(str(tmp_path / "ran"))
    kept.newest.write_bytes(pack({"key": KEY, "state": {"x": hostile}}))
    assert kept.load()["epoch"] == 1
    assert unpack(pickle.dumps(hostile)) is None
    assert not (tmp_path / "ran").exists()
    pickle.loads(pickle.dumps(hostile))
    assert (tmp_path / "ran").exists()  # unsafe loading does execute it


def test_remove_leaves_no_file(kept):
    kept.newest.with_name(f".{KEY}.pt.123.part").write_bytes(b"as much as process 123 wrote until it was killed")
    kept.remove()
    assert os.listdir(kept.newest.parent) == []
    assert kept.load() is None


def test_a_full_disk_leaves_the_old_file(kept, monkeypatch):
    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OutputError, match=r"cannot be written \(No space left on device\)"):
        kept.save({"epoch": 3})
    monkeypatch.undo()
    assert kept.load()["epoch"] == 2
    assert len(os.listdir(kept.newest.parent)) == 2
