"""The readout of a molecule: a transformer encoder on its atoms, then the mean."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from semaopt.experiments.data.molecule_batches import MoleculeBatch


class Readout(nn.Module):
    """A transformer encoder with post-layer-norm, and the mean over the atoms.

    Layers that act on single atoms use the flat array. Only attention is padded, in groups of molecules of similar
    size. With ``plain`` the whole batch is padded to its largest molecule and attention is written out.
    """

    def __init__(self, units: int, heads: int, key: int, wide: int, plain: bool = False) -> None:
        super().__init__()
        self.heads, self.key, self.plain = heads, key, plain
        self.qkv = nn.Linear(units, 3 * heads * key)
        self.mix = nn.Linear(heads * key, units)
        self.norm1, self.norm2 = nn.LayerNorm(units, eps=1e-3), nn.LayerNorm(units, eps=1e-3)  # the epsilon of Keras
        self.feed = nn.Sequential(nn.Linear(units, wide), nn.ReLU(), nn.Linear(wide, units))

    def forward(self, h: Tensor, batch: MoleculeBatch) -> Tensor:
        """Map (atoms, units) to (molecules, units), in the order of the batch."""
        attend = self._whole if self.plain else self._grouped
        x = self.norm1(h + self.mix(attend(self.qkv(h), batch)))
        x = self.norm2(x + self.feed(x))
        total: Tensor = x.new_zeros(len(batch), x.shape[1]).index_add(0, batch.molecule, x)
        return total / batch.sizes[:, None]

    def _grouped(self, qkv: Tensor, batch: MoleculeBatch) -> Tensor:
        done = []
        for group, rows in zip(batch.groups, torch.split(qkv, [len(g.places) for g in batch.groups]), strict=True):
            count = len(group.mask)
            padded = qkv.new_zeros(count * group.width, qkv.shape[1]).index_copy(0, group.places, rows)
            q, k, v = padded.view(count, group.width, 3, self.heads, self.key).permute(2, 0, 3, 1, 4)
            seen = scaled_dot_product_attention(q, k, v, attn_mask=group.mask[:, None, None, :])
            done.append(seen.transpose(1, 2).reshape(count * group.width, -1).index_select(0, group.places))
        return torch.cat(done)

    def _whole(self, qkv: Tensor, batch: MoleculeBatch) -> Tensor:
        mask = torch.arange(int(batch.sizes.max()), device=qkv.device) < batch.sizes[:, None]
        padded = qkv.new_zeros(*mask.shape, qkv.shape[1])
        padded[mask] = qkv
        q, k, v = padded.view(*mask.shape, 3, self.heads, self.key).unbind(2)
        scores = torch.einsum("mihd,mjhd->mhij", q, k) / self.key**0.5
        weights = scores.masked_fill(~mask[:, None, None, :], -torch.inf).softmax(-1)
        return torch.einsum("mhij,mjhd->mihd", weights, v)[mask].flatten(1)
