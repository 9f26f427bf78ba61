"""Molecules as flat arrays of atoms and bonds, by RDKit.

The features are those of the Keras example on message passing (A. Kensert, 2021,
https://keras.io/examples/graph/mpnn-molecular-graphs/). An atom has 29: one-hot symbol, total valence, hydrogens and
hybridization. A bond has 7: one-hot type, whether it is conjugated, and one that marks an atom's loop to itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from semaopt.experiments.data.errors import DataError

#: Part of the name of a cached file: a change of what is computed here must change it.
VERSION = 1

SYMBOLS = ("B", "Br", "C", "Ca", "Cl", "F", "H", "I", "N", "Na", "O", "P", "S")
VALENCES, HYDROGENS = range(7), range(5)
HYBRIDIZATIONS = ("S", "SP", "SP2", "SP3")
BONDS = ("SINGLE", "DOUBLE", "TRIPLE", "AROMATIC")
ATOM_FEATURES = len(SYMBOLS) + len(VALENCES) + len(HYDROGENS) + len(HYBRIDIZATIONS)
BOND_FEATURES = len(BONDS) + 2 + 1


def bond_kinds() -> NDArray[np.uint8]:
    """The features of all kinds of bonds there can be: (type, conjugated) by rows, and the loop last.

    A type other than the four has none of their features.
    """
    kinds = np.zeros((2 * (len(BONDS) + 1) + 1, BOND_FEATURES), np.uint8)
    for row in range(len(kinds) - 1):
        kind, conjugated = divmod(row, 2)
        if kind < len(BONDS):
            kinds[row, kind] = 1
        kinds[row, len(BONDS) + conjugated] = 1
    kinds[-1, -1] = 1
    return kinds


@dataclass(frozen=True)
class Flat:
    """Molecules one after the other.

    Attributes:
        parsed: which of the SMILES they are.
        atoms: (all atoms, 29), 0 or 1.
        atom_start: where each molecule's atoms begin, and at the end how many there are.
        bonds: (all bonds in both directions, 3): from and to (counted within the molecule) and the row of
            :func:`bond_kinds`.
        bond_start: where each molecule's bonds begin, and at the end how many there are.
        scaffolds: the SMILES of each molecule's Bemis-Murcko scaffold.
        canonical: the canonical SMILES of each molecule.
    """

    parsed: NDArray[np.int64]
    atoms: NDArray[np.uint8]
    atom_start: NDArray[np.int64]
    bonds: NDArray[np.int16]
    bond_start: NDArray[np.int64]
    scaffolds: NDArray[np.str_]
    canonical: NDArray[np.str_]


def featurize(smiles: Sequence[str]) -> Flat:
    """Read SMILES; those that RDKit refuses are left out, and it does not print about it."""
    chem, scaffold, base = _rdkit()
    parsed, atoms, bonds, scaffolds, canonical = [], [], [], [], []
    with base.BlockLogs():
        for row, text in enumerate(smiles):
            molecule = chem.MolFromSmiles(text)
            if molecule is None or molecule.GetNumAtoms() == 0:
                continue
            parsed.append(row)
            atoms.append(np.array([_atom(atom) for atom in molecule.GetAtoms()], np.uint8))
            bonds.append(_bonds(molecule))
            scaffolds.append(scaffold.MurckoScaffoldSmiles(mol=molecule, includeChirality=False))
            canonical.append(chem.MolToSmiles(molecule))
    return Flat(
        np.array(parsed, np.int64),
        np.concatenate([np.zeros((0, ATOM_FEATURES), np.uint8), *atoms]),
        np.cumsum([0, *map(len, atoms)], dtype=np.int64),
        np.concatenate([np.zeros((0, 3), np.int16), *bonds]),
        np.cumsum([0, *map(len, bonds)], dtype=np.int64),
        np.array(scaffolds, np.str_),
        np.array(canonical, np.str_),
    )


def _rdkit() -> tuple[Any, Any, Any]:
    try:
        from rdkit import Chem, rdBase
        from rdkit.Chem.Scaffolds import MurckoScaffold
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] != "rdkit":
            raise
        raise DataError("molecules need the extra [molecules]: pip install 'semaopt[molecules]'") from missing
    return Chem, MurckoScaffold, rdBase


def _atom(atom: Any) -> list[bool]:
    values = (
        (atom.GetSymbol(), SYMBOLS),
        (atom.GetTotalValence(), VALENCES),
        (atom.GetTotalNumHs(), HYDROGENS),
        (atom.GetHybridization().name, HYBRIDIZATIONS),
    )
    return [value == one for value, known in values for one in known]


def _bonds(molecule: Any) -> NDArray[np.int16]:
    """Both directions, in the order of the atoms that they go to."""
    rows = []
    for bond in molecule.GetBonds():
        name = bond.GetBondType().name
        kind = 2 * (BONDS.index(name) if name in BONDS else len(BONDS)) + bond.GetIsConjugated()
        a, b = bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()
        rows += [(a, b, kind), (b, a, kind)]
    return np.array(sorted(rows, key=lambda row: (row[1], row[2], row[0])), np.int16).reshape(-1, 3)
