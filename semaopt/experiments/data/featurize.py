"""Features of molecules as flat arrays of atoms and bonds, computed by RDKit.

The features are those of the Keras example on message passing (A. Kensert, 2021,
https://keras.io/examples/graph/mpnn-molecular-graphs/). An atom has 29: one-hot symbol, total valence, hydrogens and
hybridization. A bond has 7: one-hot type, whether it is conjugated, and a mark for the self loop of an atom.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from semaopt.experiments.data.errors import DataError

#: Part of the name of cached files; increase it when the features change.
VERSION = 1

SYMBOLS = ("B", "Br", "C", "Ca", "Cl", "F", "H", "I", "N", "Na", "O", "P", "S")
VALENCES, HYDROGENS = range(7), range(5)
HYBRIDIZATIONS = ("S", "SP", "SP2", "SP3")
BONDS = ("SINGLE", "DOUBLE", "TRIPLE", "AROMATIC")
ATOM_FEATURES = len(SYMBOLS) + len(VALENCES) + len(HYDROGENS) + len(HYBRIDIZATIONS)
BOND_FEATURES = len(BONDS) + 2 + 1


def bond_kinds() -> NDArray[np.uint8]:
    """Return the features of all kinds of bonds, one row per (type, conjugated), the self loop last.

    A bond of another type has no type feature.
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
    """The atoms and bonds of all molecules, concatenated.

    Attributes:
        parsed: the indices of the SMILES that RDKit could parse.
        atoms: (all atoms, 29), 0 or 1.
        atom_start: the first atom of each molecule, and at the end the number of atoms.
        bonds: (all bonds in both directions, 3): source and target (within the molecule) and the row of
            :func:`bond_kinds`.
        bond_start: the first bond of each molecule, and at the end the number of bonds.
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
    """Compute the features of SMILES; those that RDKit cannot parse are skipped silently."""
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
        raise DataError("molecules need RDKit. Install the extra: pip install 'semaopt[molecules]'") from missing
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
    """Return the bonds in both directions, sorted by target atom."""
    rows = []
    for bond in molecule.GetBonds():
        name = bond.GetBondType().name
        kind = 2 * (BONDS.index(name) if name in BONDS else len(BONDS)) + bond.GetIsConjugated()
        a, b = bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()
        rows += [(a, b, kind), (b, a, kind)]
    return np.array(sorted(rows, key=lambda row: (row[1], row[2], row[0])), np.int16).reshape(-1, 3)
