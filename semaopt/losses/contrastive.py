"""Global contrastive losses: each example against the whole data set instead of its batch."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from semaopt._validation import is_real, require
from semaopt.kernels import contrast as kernel
from semaopt.kernels.ranking import OK
from semaopt.losses.tracked import KnownGradient, Tracked, full_precision, log_mean_exp, without_autocast

FORMS = ("pairs", "views")
#: Shorter features are divided by this length.
NORM = 1e-12
#: Largest batch that C computes; torch's parallel operations are better for larger ones.
LARGEST = 256


class GlobalContrastive(Tracked):
    r"""Contrastive loss with negatives from the whole data set, for image-text pairs or two views of one image.

    .. math::
        \frac1n\sum_i \tau\log(\varepsilon + g_i), \qquad g_i = E_{j\ne i}\, e^{(s_{ij} - s_{ii})/\tau}

    for cosine similarities s, averaged over the two directions. The usual contrastive loss replaces the expectation
    by the negatives of a batch, so it needs large batches; here each example keeps a moving average of :math:`g_i` in
    each direction.

    Args:
        size: number of training examples.
        temperature: tau > 0.
        form: ``"pairs"``: :math:`s_{ij}` compares the first feature of i with the second of j (image and text), and the
            reverse. ``"views"``: both features are views of one example (self-supervised), and the negatives of
            a view are both views of the other examples.
        eps: epsilon >= 0.
        inner_beta, process_group, device: as in :class:`~semaopt.losses.tracked.Tracked`.

    Reference: Yuan, Wu, Qiu, Du, Zhang, Zhou and Yang, "Provable stochastic optimization for global contrastive
    learning: small batch does not harm performance", ICML 2022.

    >>> loss = semaopt.losses.GlobalContrastive(size=100, temperature=0.5)
    >>> images, texts = torch.eye(4), torch.eye(4)
    >>> loss(images, texts, torch.arange(4))                      # tau log exp((0 - 1)/tau)
    tensor(-1.)
    """

    def __init__(
        self, size: int | None, temperature: float = 0.1, *, form: str = "pairs", eps: float = 1e-14, **options: Any
    ) -> None:
        super().__init__(size, (2,), logarithms=True, **options)
        ok = is_real(temperature) and 0 < temperature < math.inf
        require(ok, "temperature", temperature, "must be a finite number > 0", "Try 0.1.")
        require(form in FORMS, "form", form, "must be 'pairs' or 'views'", "Use 'pairs' for image and text.")
        require(is_real(eps) and 0 <= eps < math.inf, "eps", eps, "must be a finite number >= 0", "Try 1e-14.")
        self.temperature, self.form, self.eps = float(temperature), form, float(eps)

    def forward(self, first: Tensor, second: Tensor, index: Tensor | None = None) -> Tensor:
        """Return the loss of features (n, d) of the same n examples; they are normalized here.

        Copies of an example in the batch, which have the same index, are not negatives of each other. A batch of one
        example has no negatives: it gives 0 and no gradient.
        """
        self._refuse_overwritten()
        shapes = tuple(first.shape), tuple(second.shape)
        ok = first.dim() == 2 and shapes[0] == shapes[1]
        require(ok, "features", shapes, "must both have the shape (n, d)", "Flatten the features of an example.")
        with without_autocast(first):
            if self._uses_closed_form() and (found := self._compiled(first, second, index)) is not None:
                return found
            a, b = (normalize(x, dim=1, eps=NORM) for x in full_precision(first, second))
            dtypes = first.dtype, second.dtype
            require(a.dtype == b.dtype, "features", dtypes, "must have one dtype", "Try second.to(first.dtype).")
            a, b, rows = self.gather(a, b, self.rows(index, len(a)))
            if index is None:  # in evaluation mode
                rows = torch.arange(len(a))
            rows = torch.as_tensor(rows, device=a.device).reshape(-1)
            own = rows[:, None] == rows
            if len(a) < 2 or (not torch.compiler.is_compiling() and own.all()):
                return (a * 0).sum() + (b * 0).sum()
            log_g = torch.stack([self._log_inner(a, b, own), self._log_inner(b, a, own)], 1)
            log_z = self.average_log(log_g, rows)
            if self.eps > 0:
                log_z = torch.logaddexp(log_z, log_z.new_tensor(math.log(self.eps)))
            return self.joint(self.temperature * log_z.mean()).to(a.dtype)

    def _compiled(self, first: Tensor, second: Tensor, index: Tensor | None) -> Tensor | None:
        """Return the loss with its gradient, computed in C, or None if C does not support these inputs."""
        n = len(first)
        fits = 1 < n <= LARGEST and isinstance(index, Tensor) and index.numel() == n
        if not (fits and first.is_cpu and second.is_cpu and first.dtype == second.dtype):
            return None
        assert self.z is not None
        assert isinstance(index, Tensor)
        features = torch.cat([first, second])
        with torch.no_grad():
            raw = full_precision(features)[0]
            length = torch.linalg.vector_norm(raw, dim=1, keepdim=True).clamp_min_(NORM)
            x = raw / length
            views = self.form == "views"
            similarities = x @ x.T if views else x[:n] @ x[n:].T
            options = kernel.Options(self.temperature, self.eps, 1 - self.inner_beta)
            found = kernel.contrast(similarities, index.reshape(-1), self.z, options)
            if found is None or found.status != OK:
                return None
            by_s = found.by_scores
            by_x = by_s @ x if views else torch.cat([by_s @ x[n:], by_s.T @ x[:n]])
            along = (by_x * x).sum(1, keepdim=True)  # a feature keeps its length; one of length 0 has x = 0
            gradient = by_x.addcmul_(x, along, value=-1).div_(length)
        value: Tensor = KnownGradient.apply(features, found.value, gradient)  # type: ignore[no-untyped-call]
        return value

    def _log_inner(self, a: Tensor, b: Tensor, own: Tensor) -> Tensor:
        """Return log g, with g the mean over the negatives of exp((s_ij - s_ii)/tau); ``own`` pairs do not count."""
        similarities = cross = a @ b.T
        if self.form == "views":
            similarities, own = torch.cat([cross, a @ a.T], 1), torch.cat([own, own], 1)
        x = (similarities - cross.diagonal()[:, None]) / self.temperature
        return log_mean_exp(x.masked_fill(own, -math.inf), 1, excluded=own).squeeze(1)

    def extra_repr(self) -> str:
        """Return the options."""
        size = None if self.z is None else len(self.z)
        return f"size={size}, temperature={self.temperature:g}, form={self.form!r}, inner_beta={self.inner_beta:g}"
