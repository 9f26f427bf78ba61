r"""Three implementations of the messages of an edge network, :math:`m_i = \sum_{e: j \to i} A(f_e)^\top h_j`.

The kernel :math:`A(f) = \sum_k f_k W_k + b` is linear in the features f of an edge (Gilmer et al., 2017,
https://arxiv.org/abs/1704.01212), so states can be summed before a kernel is applied. A kernel of 64x64 numbers for
each edge is then never created. PyTorch Geometric's ``NNConv`` creates one per edge; it is the plain implementation
here, which the others are tested against.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from semaopt.experiments.data.errors import DataError
from semaopt.experiments.data.molecule_batches import MoleculeBatch

#: Returns the messages of one step from the states; everything that is equal in all steps is computed once.
Step = Callable[[Tensor], Tensor]


def by_kind(batch: MoleculeBatch, edge: nn.Linear) -> Step:
    """Sum the states of each slot (an atom and a kind of bond), and apply the kernel of each kind to its slots.

    There are six kinds of bonds, but an atom has only 1.3 kinds on average. One product for all pairs of an atom and a
    kind would take twice as long.
    """
    units = round(edge.out_features**0.5)
    *kernels, loop = edge(batch.kinds).view(-1, units, units).unbind()

    def step(h: Tensor) -> Tensor:
        sums = h.new_zeros(len(batch.slot_target), units).index_add(0, batch.slot, h.index_select(0, batch.source))
        pairs = zip(torch.split(sums, batch.slot_counts), kernels, strict=True)
        parts = [part @ kernel for part, kernel in pairs if len(part)]
        own: Tensor = h @ loop
        return own.index_add(0, batch.slot_target, torch.cat(parts)) if parts else own

    return step


def by_feature(batch: MoleculeBatch, edge: nn.Linear) -> Step:
    """Sum the states of each atom weighted by each feature; works for any edge features."""
    units = round(edge.out_features**0.5)
    source, target, features = batch.edges()
    weights = torch.cat([features, torch.ones_like(features[:, :1])], dim=1)  # the bias is a feature that is always 1
    kernel = torch.cat([edge.weight.T, edge.bias[None]]).view(-1, units)

    def step(h: Tensor) -> Tensor:
        sent = weights[:, :, None] * h.index_select(0, source)[:, None, :]
        sums = h.new_zeros(len(h), *sent.shape[1:]).index_add(0, target, sent)
        return sums.flatten(1) @ kernel

    return step


def by_edge(batch: MoleculeBatch, edge: nn.Linear) -> Step:
    """Create a kernel for each edge in each step, as ``NNConv`` and the Keras example do."""
    units = round(edge.out_features**0.5)
    source, target, features = batch.edges()
    # NNConv would initialize a module again, so it gets the function.
    conv = _nnconv()(units, units, edge.forward, aggr="add", root_weight=False, bias=False)
    index = torch.stack([source, target])

    def step(h: Tensor) -> Tensor:
        messages: Tensor = conv(h, index, features)
        return messages

    return step


def _nnconv() -> Any:
    try:
        from torch_geometric.nn import NNConv
    except ModuleNotFoundError as missing:
        if missing.name != "torch_geometric":
            raise
        raise DataError(
            "implementation='plain' needs PyTorch Geometric. Install the extra: pip install 'semaopt[molecules]'"
        ) from missing
    return NNConv
