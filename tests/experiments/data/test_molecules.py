"""Molecules: features, batches and the cache."""

import sys
import warnings

import numpy as np
import pytest
import torch

from semaopt.experiments import data
from semaopt.experiments.data import featurize, molecules
from semaopt.experiments.data.featurize import BONDS, HYBRIDIZATIONS, SYMBOLS
from semaopt.experiments.data.molecule_batches import Molecules
from tests.experiments.data import official
from tests.experiments.data.official import MOLECULES, trusted

__all__ = ["trusted"]


def test_features_of_acetic_acid():
    flat = featurize.featurize(["CC(=O)O"])
    names = [*SYMBOLS, *(f"v{i}" for i in range(7)), *(f"h{i}" for i in range(5)), *HYBRIDIZATIONS]
    found = [[name for name, on in zip(names, row, strict=True) if on] for row in flat.atoms]
    assert found == [
        ["C", "v4", "h3", "SP3"],
        ["C", "v4", "h0", "SP2"],
        ["O", "v2", "h0", "SP2"],
        ["O", "v2", "h1", "SP2"],
    ]
    kinds = [*BONDS, "not conjugated", "conjugated", "loop"]
    table = featurize.bond_kinds()
    bonds = {(int(a), int(b)): [k for k, on in zip(kinds, table[kind], strict=True) if on] for a, b, kind in flat.bonds}
    single, double = ["SINGLE", "not conjugated"], ["DOUBLE", "conjugated"]
    conjugated = ["SINGLE", "conjugated"]
    assert bonds == {
        (0, 1): single,
        (1, 0): single,
        (1, 2): double,
        (2, 1): double,
        (1, 3): conjugated,
        (3, 1): conjugated,
    }
    assert [kinds[i] for i in np.flatnonzero(table[-1])] == ["loop"]


def test_unparsable_smiles_are_skipped_silently(capfd):
    flat = featurize.featurize(["CCO", "nonsense", "", "C(C)(C)(C)(C)C", "C"])
    assert flat.parsed.tolist() == [0, 4]
    assert capfd.readouterr() == ("", "")


def test_a_batch_holds_the_requested_molecules():
    flat = featurize.featurize(MOLECULES)
    rows = torch.tensor([6, 0, 2, 1, 1, 9])
    batch = Molecules(flat).take(rows, "cpu", torch.float64)
    source, target, features = batch.edges()
    start = (batch.sizes.cumsum(0) - batch.sizes).tolist()
    table = featurize.bond_kinds()
    for place, asked in enumerate(rows[batch.order].tolist()):
        first, size = start[place], int(batch.sizes[place])
        own = slice(flat.atom_start[asked], flat.atom_start[asked + 1])
        assert batch.atoms[first : first + size].tolist() == flat.atoms[own].tolist()
        mine = batch.molecule[target] == place
        found = {
            (int(a) - first, int(b) - first, tuple(f))
            for a, b, f in zip(source[mine], target[mine], features[mine].tolist(), strict=True)
        }
        bonds = flat.bonds[flat.bond_start[asked] : flat.bond_start[asked + 1]]
        loops = {(i, i, tuple(table[-1].tolist())) for i in range(size)}
        assert found == {(a, b, tuple(table[k].tolist())) for a, b, k in bonds.tolist()} | loops
        assert int(mine.sum()) == len(found)
    assert batch.sizes.tolist() == sorted(batch.sizes.tolist())
    assert batch.to(dtype=torch.float32).atoms.dtype == torch.float32
    assert batch.to(dtype=torch.float32).source.dtype == torch.int64


def test_the_facts_name_the_skipped_rows(tmp_path, trusted):
    official.bbbp(tmp_path)
    task = data.load("bbbp", root=trusted("bbbp"), split="scaffold")
    facts = task.describe()
    assert (facts["rows"], facts["molecules"], facts["distinct_molecules"]) == (42, 40, 10)
    assert facts["unparsable"][0] == {"row": 1, "name": "mol0", "smiles": "not a molecule"}
    assert facts["split"].startswith("scaffold")
    assert len(task.train) + len(task.valid) + len(task.test) == 40


def test_features_are_computed_once(tmp_path, trusted, monkeypatch):
    official.bbbp(tmp_path)
    first = data.load("bbbp", root=trusted("bbbp"))
    (kept,) = (tmp_path / molecules.CACHE).iterdir()
    with np.load(kept, allow_pickle=False) as content:
        assert len(content["parsed"]) == 40
    monkeypatch.setattr(molecules, "featurize", lambda _: pytest.fail("featurized again"))
    again = data.load("bbbp", root=tmp_path)
    a, b = (task.train.inputs(torch.arange(8)) for task in (first, again))
    assert torch.equal(a.atoms, b.atoms)
    assert torch.equal(a.slot, b.slot)


@pytest.mark.parametrize("damage", [lambda c: c[: len(c) // 2], lambda c: b"", lambda c: b"PK" + c[::-1]])
def test_a_damaged_cache_is_replaced(tmp_path, trusted, damage):
    official.bbbp(tmp_path)
    data.load("bbbp", root=trusted("bbbp"))
    (kept,) = (tmp_path / molecules.CACHE).iterdir()
    whole = kept.read_bytes()
    kept.write_bytes(damage(whole))
    assert len(data.load("bbbp", root=tmp_path).train) == 32
    assert molecules._kept(kept, 42) is not None


def test_a_cache_of_another_file_is_not_used(tmp_path, trusted):
    official.bbbp(tmp_path)
    data.load("bbbp", root=trusted("bbbp"))
    official.bbbp(tmp_path, smiles=["CCO", "CCN", "CCC", "CCCl"] * 10, bad=())
    task = data.load("bbbp", root=trusted("bbbp"))
    assert task.describe()["distinct_molecules"] == 4


def test_the_cache_has_the_permissions_of_the_data(tmp_path, trusted):
    official.bbbp(tmp_path)
    data.load("bbbp", root=trusted("bbbp"))
    (kept,) = (tmp_path / molecules.CACHE).iterdir()
    (tmp_path / "plain").touch()
    assert kept.stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_warning_if_the_cache_cannot_be_written(tmp_path, trusted):
    official.bbbp(tmp_path)
    (tmp_path / molecules.CACHE).touch()
    with pytest.warns(UserWarning, match="cannot be written .*features are computed again each time"):
        assert len(data.load("bbbp", root=trusted("bbbp")).train) == 32


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"num,name,p_np\n1,a,1\n", "row 1 has no column 'smiles'"),
        (b"num,name,p_np,smiles\n1,a,yes,C\n", "row 1 has p_np='yes', but it should be 0 or 1"),
        (b"num,name,p_np,smiles\n", "has no rows"),
        (b"\xff\xfe\x00", "not UTF-8"),
        (b'num,name,p_np,smiles\n1,"a,1,C\n', "not a CSV file"),
        (b"num,name,p_np,smiles\n1,a,1,xyz\n", "none of 1 SMILES can be parsed; the first is 'xyz'"),
    ],
)
def test_broken_tables(tmp_path, trusted, content, text):
    (tmp_path / "BBBP.csv").write_bytes(content)
    with pytest.raises(data.DataError, match=text):
        data.load("bbbp", root=trusted("bbbp"))


def test_without_rdkit_the_error_names_the_extra(tmp_path, trusted, monkeypatch):
    official.bbbp(tmp_path)
    monkeypatch.setitem(sys.modules, "rdkit", None)
    with pytest.raises(data.DataError, match=r"pip install 'semaopt\[molecules\]'"):
        data.load("bbbp", root=trusted("bbbp"))


def test_rdkit_raises_no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert featurize.featurize(["[Na+].[Cl-]", "CCO"]) is not None
