"""Batches of molecules, gathered from flat arrays by index arithmetic."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from semaopt.experiments.data.featurize import Flat, bond_kinds
from semaopt.experiments.data.task import Device, Kind

#: For attention, this many molecules of similar size are padded to the largest of them.
GROUP = 8


@dataclass(frozen=True)
class Group:
    """Consecutive molecules of a batch that are padded to ``width`` atoms.

    Attributes:
        places: (atoms,), the row of each atom among molecules x width rows.
        mask: (molecules, width), True where there is an atom.
    """

    width: int
    places: Tensor
    mask: Tensor


@dataclass(frozen=True)
class MoleculeBatch:
    """A batch of molecules, smallest first. An edge is a bond in one direction; self loops are not listed.

    A slot is a pair of an atom and a kind of incoming bond. The edges of a slot share a kernel, so their states are
    summed before it is applied. There are fewer slots than edges; they are sorted by kind.

    Attributes:
        atoms: (atoms, 29).
        kinds: (kinds of bonds + 1, 7), the features of each kind; the last row is the self loop.
        source: (edges,), the atom that an edge starts at.
        slot: (edges,), the slot that it ends in.
        slot_target: (slots,), the atom of a slot.
        slot_counts: the number of slots of each kind.
        molecule: (atoms,), the molecule of each atom.
        sizes: (molecules,), the number of atoms of each molecule.
        order: (molecules,), the position of each molecule in the request: result[order] = result of the batch.
        groups: the padded groups for attention.
    """

    atoms: Tensor
    kinds: Tensor
    source: Tensor
    slot: Tensor
    slot_target: Tensor
    slot_counts: list[int]
    molecule: Tensor
    sizes: Tensor
    order: Tensor
    groups: list[Group]

    def __len__(self) -> int:
        return len(self.sizes)

    def to(self, device: Device | None = None, dtype: torch.dtype | None = None) -> MoleculeBatch:
        """Return the batch on another device, with features of another dtype."""
        groups = [replace(g, places=g.places.to(device), mask=g.mask.to(device)) for g in self.groups]
        moved: dict[str, Any] = {"groups": groups}
        for one in fields(self):
            value = getattr(self, one.name)
            if isinstance(value, Tensor):
                moved[one.name] = value.to(device, dtype if value.is_floating_point() else None)
        return replace(self, **moved)

    def edges(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return all edges and self loops: source, target and features (edges + atoms, 7)."""
        counts = torch.tensor(self.slot_counts, device=self.slot.device)
        kind = torch.repeat_interleave(torch.arange(len(counts), device=counts.device), counts)
        loops = torch.arange(len(self.atoms), device=self.slot.device)
        features = torch.cat([self.kinds[kind[self.slot]], self.kinds[-1:].expand(len(loops), -1)])
        return torch.cat([self.source, loops]), torch.cat([self.slot_target[self.slot], loops]), features


class Molecules:
    """The molecules of a data set, from which batches are taken."""

    kind: Kind = "molecules"
    shape: tuple[int, ...] = ()

    def __init__(self, flat: Flat) -> None:
        self.atoms = torch.from_numpy(flat.atoms)
        self.atom_start = torch.from_numpy(flat.atom_start)
        self.edge_start = torch.from_numpy(flat.bond_start)
        present, kind = np.unique(flat.bonds[:, 2], return_inverse=True)
        self.kinds = torch.from_numpy(bond_kinds()[[*present, -1]]).float()
        owner = np.repeat(np.arange(len(flat.parsed)), np.diff(flat.bond_start))
        # Edges are sorted by target atom and kind, so a new slot starts where one of these changes.
        keys = np.stack([owner, flat.bonds[:, 1], kind], axis=1)
        new = np.ones(len(keys), bool)
        new[1:] = (keys[1:] != keys[:-1]).any(axis=1)
        slots = keys[new]
        start = np.searchsorted(slots[:, 0], np.arange(len(flat.parsed) + 1))
        self.slot_start = torch.from_numpy(start)
        self.slot_target, self.slot_kind = (torch.from_numpy(slots[:, i].copy()) for i in (1, 2))
        self.source = torch.from_numpy(flat.bonds[:, 0].astype(np.int64))
        self.slot = torch.from_numpy(np.cumsum(new) - 1 - start[owner])

    def fitted(self, _: Tensor) -> Molecules:
        """Return itself: features are already 0 or 1."""
        return self

    def take(self, rows: Tensor, device: Device, dtype: torch.dtype) -> MoleculeBatch:
        """Return these molecules as a batch."""
        sizes, order = torch.sort(self.atom_start[rows + 1] - self.atom_start[rows], stable=True)
        rows = rows[order]
        atoms, molecule, atom_base = _ranges(self.atom_start, rows)
        edges, edge_owner, _ = _ranges(self.edge_start, rows)
        slots, slot_owner, slot_base = _ranges(self.slot_start, rows)
        kind, by_kind = torch.sort(self.slot_kind[slots], stable=True)
        rank = torch.empty_like(by_kind)
        rank[by_kind] = torch.arange(len(by_kind))
        batch = MoleculeBatch(
            atoms=self.atoms[atoms].to(dtype),
            kinds=self.kinds.to(dtype),
            source=self.source[edges] + atom_base[edge_owner],
            slot=rank[self.slot[edges] + slot_base[edge_owner]],
            slot_target=(self.slot_target[slots] + atom_base[slot_owner])[by_kind],
            slot_counts=torch.bincount(kind, minlength=len(self.kinds) - 1).tolist(),
            molecule=molecule,
            sizes=sizes,
            order=order,
            groups=_groups(sizes, molecule, atom_base),
        )
        return batch if torch.device(device).type == "cpu" else batch.to(device)


def _ranges(start: Tensor, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Concatenate the elements of these rows; return their indices, their rows, and where each row now starts."""
    first, counts = start[rows], start[rows + 1] - start[rows]
    base = counts.cumsum(0) - counts
    owner = torch.repeat_interleave(torch.arange(len(rows)), counts)
    return torch.arange(len(owner)) + (first - base)[owner], owner, base


def _groups(sizes: Tensor, molecule: Tensor, base: Tensor) -> list[Group]:
    within = torch.arange(len(molecule)) - base[molecule]
    ends = [*base.tolist(), len(molecule)]
    groups = []
    for first in range(0, len(sizes), GROUP):
        own = sizes[first : first + GROUP]
        width = int(own[-1])
        atoms = slice(ends[first], ends[first + len(own)])
        places = (molecule[atoms] - first) * width + within[atoms]
        groups.append(Group(width, places, torch.arange(width) < own[:, None]))
    return groups
