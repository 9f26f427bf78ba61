r"""Average precision (the area under the precision-recall curve) as a composition, for :class:`semaopt.SCMA`."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from semaopt._validation import is_real, require


class AveragePrecision:
    r"""The smooth average precision of scores h, one inner map for each positive example i.

    .. math::
        1 - AP \approx \frac1{n_+}\sum_{i:\,b_i=1} \Bigl(1 - \frac{g_i^1}{g_i^2}\Bigr), \qquad
        g_i^1 = p\,E[\ell_{ij}\mid b_j=1], \quad g_i^2 = g_i^1 + (1-p)\,E[\ell_{ij}\mid b_j\ne1], \quad
        \ell_{ij} = \max(0, m + h_j - h_i)^2

    :math:`g_i^1/g_i^2` is the precision at the threshold :math:`h_i`, with :math:`\ell` for "j is ranked above i". A
    ratio of means is not the mean of the ratios of batches, so each i keeps its own moving average of
    :math:`g_i`: ``SCMA(..., blocks=n)`` with ``index`` the positive examples of the batch.

    Args:
        prior: p, the share of positives in the data. Batches may then hold a larger share; give each a dozen
            positives or more, since the pair of i with itself weighs 1/k among k. None takes the share in each batch.
        margin: m of the squared hinge.

    Labels are positive if > 0, so {0, 1} and {-1, 1} both do. A batch without positives gives no rows and no
    gradient.

    Reference: Qi, Luo, Xu, Ji and Yang, "Stochastic optimization of areas under precision-recall curves with provable
    convergence", NeurIPS 2021.

    >>> ap = semaopt.losses.AveragePrecision()
    >>> scores, labels = torch.tensor([2.0, -2.0, 0.0]), torch.tensor([1, 0, 0])
    >>> ap.inner(scores, labels)                              # the positive is above by more than the margin
    tensor([[0.3333, 0.3333]])
    >>> ap.outer(ap.inner(scores, labels))
    tensor(0.)
    """

    def __init__(self, prior: float | None = None, margin: float = 1.0) -> None:
        ok = prior is None or (is_real(prior) and 0 < prior < 1)
        require(ok, "prior", prior, "must lie in (0, 1)", "the share of positives in the data, or None")
        ok = is_real(margin) and 0 < margin < math.inf
        require(ok, "margin", margin, "must be a finite number > 0", "try 1.0")
        self.prior, self.margin = prior, margin

    def inner(self, scores: Tensor, labels: Tensor) -> Tensor:
        """A row (g^1, g^2) for each positive example of the batch, in its order."""
        h = scores.flatten()
        same = h.shape == labels.flatten().shape
        require(
            same, "labels", tuple(labels.shape), f"must match the scores, {tuple(scores.shape)}", "one label a score"
        )
        missing = labels.is_floating_point() and bool(labels.isnan().any())
        require(
            not missing, "labels", "nan", "must be numbers, > 0 for a positive", "leave out examples without a label"
        )
        positive = labels.flatten() > 0
        above = (self.margin + h - h[positive, None]).clamp_min(0).square()
        n, share = max(1, len(h)), positive.to(h.dtype)
        if self.prior is None:
            weights = torch.stack([share / n, torch.full_like(share, 1 / n)], 1)
        else:
            g1 = share * (self.prior / share.sum().clamp_min(1))
            weights = torch.stack([g1, g1 + (1 - share) * ((1 - self.prior) / (1 - share).sum().clamp_min(1))], 1)
        return above @ weights

    def outer(self, z: Tensor) -> Tensor:
        """1 minus the mean precision of the rows."""
        return (1 - z[:, 0] / z[:, 1]).sum() / max(1, len(z))
