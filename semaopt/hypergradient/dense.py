"""Second derivatives of g as matrices, for small lower problems."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from semaopt._validation import require
from semaopt.estimator import state_dtype
from semaopt.hypergradient.closures import Sample
from semaopt.hypergradient.vectors import Vector, flat, unflat

CHUNK = 256  # rows computed at once


def hessian_matrix(sample: Sample, limit: int) -> Tensor:
    """g_yy of one sample."""
    d = sum(y.numel() for y in sample.oracles.lower)
    require(d <= limit, "lower parameters", d, f"a dense Hessian is for at most {limit}", "use CG or TrackedSystem")
    rows, start = _rows(sample, sample.oracles.lower), 0
    for lam, y in zip(sample.oracles.decay, sample.oracles.lower, strict=False):
        rows.diagonal()[start : start + y.numel()] += lam
        start += y.numel()
    return rows


def mixed_matrix(sample: Sample) -> Tensor:
    """g_xy of one sample: a row for each entry of x, a column for each of y."""
    return _rows(sample, sample.oracles.upper).T


def _rows(sample: Sample, inputs: Sequence[Tensor]) -> Tensor:
    """The derivative of g_y in ``inputs``: a row for each entry of y."""
    lower, found = sample.oracles.lower, []
    d = sum(y.numel() for y in lower)
    for units in torch.split(torch.eye(d, dtype=lower[0].dtype, device=lower[0].device), CHUNK):
        split = torch.split(units, [y.numel() for y in lower], dim=1)
        vectors = [split[i].reshape(-1, *lower[i].shape).to(lower[i].dtype) for i in sample.curved]
        blocks = torch.autograd.grad(
            sample.outputs, inputs, vectors, retain_graph=True, is_grads_batched=True, allow_unused=True
        )
        n = len(units)
        full = [units.new_zeros(n, x.numel()) if g is None else g for g, x in zip(blocks, inputs, strict=True)]
        found.append(torch.cat([block.reshape(n, -1) for block in full if block.numel()], 1))
    rows = torch.cat(found)
    return sample.oracles.seen(sample.oracles.average([rows.to(state_dtype(rows))]), "inner")[0]


def solve(matrix: Tensor, f_y: Vector) -> Vector:
    """matrix^{-1} f_y."""
    w, info = torch.linalg.solve_ex(matrix, flat(f_y))
    if info.item() != 0 or not torch.isfinite(w).all():
        raise RuntimeError("the Hessian of inner() in the lower parameters is singular; add a regularizer to inner()")
    return unflat(w, f_y)
