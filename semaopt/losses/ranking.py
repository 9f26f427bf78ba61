r"""Ranking losses side by side: average precision, partial AUC and NDCG, each a pair (g, f) on :mod:`.tracked`.

>>> loss = semaopt.losses.AveragePrecision(size=1000)                       # state in buffers
>>> model = torch.nn.Linear(5, 1)
>>> optimizer = torch.optim.AdamW(model.parameters())                       # any optimizer
>>> a, b, index = torch.randn(8, 5), torch.arange(8) % 2, torch.arange(8)   # index: positions in the training set
>>> loss(model(a), b, index).backward()
>>> optimizer.step()

All compare pairs by the squared hinge :math:`\ell_{ij} = \max(0, m - (h_i - h_j))^2`, small if i scores at least m
higher than j.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from semaopt._validation import as_tensor_of, is_real, require, validate_integer
from semaopt.kernels import gains as gains_kernel
from semaopt.kernels import ranking as kernel
from semaopt.losses._labels import is_positive, is_present
from semaopt.losses._scores import SCORES, validate_score
from semaopt.losses.tracked import KnownGradient, Rows, Tracked, log_mean_exp, without_autocast


def squared_hinge(above: Tensor, below: Tensor, margin: float) -> Tensor:
    """Return max(0, margin - (above - below))^2."""
    return (margin - above + below).clamp_min(0).square()


#: Maps pairwise losses and the rows of their positives to a value and its derivatives.
Derivation = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


class Ranked(NamedTuple):
    """Scores (n,) or (n, C), which labels are positive and which are present (None: all), rows of the averages."""

    h: Tensor
    w: Tensor
    present: Tensor | None
    rows: Tensor


class RankingLoss(Tracked):
    """Options and inputs that the ranking losses share.

    Args:
        size: number of training examples; None for a loss without averages.
        shape: shape of the inner value of one example.
        score: ``"sigmoid"`` or ``"linear"``, applied to the raw output of the model.
        margin: m > 0 of the squared hinge.
        validate: check the labels of every batch.
        options: ``inner_beta``, ``process_group`` and ``device`` as in :class:`~semaopt.losses.tracked.Tracked`.
    """

    #: Whether C computes the closed form; not for several labels.
    compiled: bool = True

    def __init__(
        self,
        size: int | None,
        shape: tuple[int, ...],
        *,
        score: str = "sigmoid",
        margin: float = 1.0,
        validate: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(size, shape, **options)
        ok = is_real(margin) and 0 < margin < math.inf
        require(ok, "margin", margin, "must be a finite number > 0", "Try margin=1.0.")
        self.score, self.margin, self.validate = validate_score(score), float(margin), validate

    def _scores(self, scores: Tensor) -> Tensor:
        precision = self._precision(scores.device)  # float64 if the averages are logarithms
        return SCORES[self.score](scores.to(torch.promote_types(scores.dtype, precision)))

    def _labelled(self, scores: Tensor, labels: Tensor, index: Tensor | None, columns: int = 1) -> Ranked:
        """Return the validated inputs, gathered from all ranks of a process group; vectors if there is one label."""
        _validate_shapes(scores, labels, columns)
        shape = (-1,) if columns == 1 else (-1, columns)
        b, rows = labels.reshape(shape), self.rows(index, len(scores))
        if self.process_group is not None:
            scores, b, rows = self.gather(scores.reshape(shape), b, rows)
        w = is_positive(b, torch.bool, validate=self.validate and not torch.compiler.is_compiling())
        return Ranked(self._scores(scores.reshape(shape)), w, is_present(b), rows)

    def _kernel_options(self, kind: str, **options: Any) -> kernel.Options:
        sigmoid, gamma = self.score == "sigmoid", 1 - self.inner_beta
        return kernel.Options(kind, self.margin, sigmoid, gamma, validate=self.validate, **options)

    def _compiled(self, scores: Tensor, labels: Tensor, index: Tensor | None, options: kernel.Options) -> Tensor | None:
        """Return the loss computed in C, or None if C does not support these inputs or found an invalid one."""
        _validate_shapes(scores, labels, 1)
        if not (self.compiled and isinstance(index, Tensor) and index.numel() == scores.numel()):
            return None
        assert self.z is not None
        averages = self.z, getattr(self, "w", None)
        found = kernel.ranking(scores.detach(), labels, index, averages, options)
        return None if found is None else self._found(scores, found)

    @staticmethod
    def _found(scores: Tensor, found: kernel.Ranking) -> Tensor | None:
        """Return the value that C computed, with its gradient, or None if an input was invalid."""
        if found.status != kernel.OK:
            return None
        value: Tensor = KnownGradient.apply(scores, found.value, found.by_scores)  # type: ignore[no-untyped-call]
        return value

    def _with_gradient(self, scores: Tensor, batch: Ranked, others: Tensor | None, derive: Derivation) -> Tensor:
        """Return the loss with its gradient, without a graph over the pairs.

        Args:
            scores: raw scores of a binary problem, which get the gradient.
            batch: computed from them, without a graph.
            others: the examples j of the pairs (i, j), i positive; None for all.
            derive: maps the pairwise losses to the value and its derivatives with respect to them.
        """
        with torch.no_grad():
            h, i = batch.h, batch.w.nonzero().squeeze(1)
            j = None if others is None else others.nonzero().squeeze(1)
            below = h if j is None else h[j]
            distance = (below - h[i].unsqueeze(1)).add_(self.margin).clamp_min_(0)
            value, gradient = h.new_zeros(()), torch.zeros_like(h)
            if distance.numel() > 0:
                value, slope = derive(distance.square(), batch.rows[i])
                slope = slope.mul_(distance)
                gradient = slope.sum(0) if j is None else gradient.index_copy_(0, j, slope.sum(0))
                gradient = gradient.index_add_(0, i, slope.sum(1), alpha=-1).mul_(2)
                if self.score == "sigmoid":
                    gradient = gradient * h * (1 - h)
        found: Tensor = KnownGradient.apply(scores, value, gradient.reshape(scores.shape))  # type: ignore[no-untyped-call]
        return found

    def extra_repr(self) -> str:
        """Return the options."""
        size = None if self.z is None else len(self.z)
        return f"size={size}, inner_beta={self.inner_beta:g}, score={self.score!r}, margin={self.margin:g}"


def _validate_shapes(scores: Tensor, labels: Tensor, columns: int) -> None:
    if not isinstance(labels, Tensor):
        raise TypeError(
            f"labels of type {type(labels).__name__}: must be a tensor; try torch.tensor(numpy.asarray(labels))"
        )
    n = scores.shape[0] if scores.dim() else 0
    fits = n >= 1 and scores.numel() == n * columns == labels.numel() and scores.dim() <= 2
    if not fits or (columns > 1 and scores.shape != labels.shape):
        expected = "(n,) or (n, 1)" if columns == 1 else f"(n, {columns})"
        two = columns == 1 and scores.dim() == 2 and scores.shape[1] == 2
        remedy = "pass one score per example, e.g. logits[:, 1] - logits[:, 0]" if two else "pass one label per score"
        raise ValueError(
            f"scores of shape {tuple(scores.shape)} and labels of shape {tuple(labels.shape)}: both must be {expected} "
            f"with n >= 1; {remedy}"
        )


def _validate_prior(prior: Any) -> None:
    ok = prior is None or (is_real(prior) and 0 < prior < 1)
    require(ok, "prior", prior, "must lie in (0, 1)", "Pass the share of positives in the data, or None.")


class MeanAveragePrecision(RankingLoss):
    r"""Smooth mean average precision of a multi-label problem: :class:`AveragePrecision`, averaged over the labels.

    Args:
        size: number of training examples.
        num_labels: number C of columns; scores and labels are (n, C). NaN marks a missing label.
        prior: share of positives in the data, one number or one per label; None takes the share in each batch.
        options: as in :class:`AveragePrecision`.

    >>> loss = semaopt.losses.MeanAveragePrecision(size=100, num_labels=3)
    >>> loss(torch.zeros(4, 3), torch.eye(4)[:, :3], torch.arange(4))
    tensor(0.7500)
    """

    prior: Tensor | None

    def __init__(
        self,
        size: int | None,
        num_labels: int,
        *,
        prior: float | Sequence[float] | Tensor | None = None,
        **options: Any,
    ) -> None:
        columns = validate_integer("num_labels", num_labels, "Pass the number of columns of the labels.")
        super().__init__(size, (2,) if columns == 1 else (columns, 2), **options)
        self.num_labels = columns
        p = None
        if prior is not None:
            p = torch.as_tensor(prior, dtype=torch.float32, device=options.get("device")).detach().reshape(-1)
            ok = p.numel() in (1, columns) and bool(((p > 0) & (p < 1)).all())
            require(ok, "prior", prior, "must lie in (0, 1)", "Pass the share of positives in the data, or None.")
            p = p.expand(columns).clone()
        self.register_buffer("prior", p, persistent=False)

    def forward(self, scores: Tensor, labels: Tensor, index: Tensor | None = None) -> Tensor:
        """Return 1 minus the smooth average precision.

        A batch without positives gives 0 and no gradient. If the prior is given, so does one without negatives, which
        leaves the precision unknown. Of several labels, such a label is left out.
        """
        self._refuse_overwritten()
        closed = self.num_labels == 1 and self._uses_closed_form()
        if closed and (found := self._compiled(scores, labels, index, self._options())) is not None:
            return found
        with without_autocast(scores):
            if closed:
                batch = self._comparable(self._labelled(scores.detach(), labels, index))
                return self._with_gradient(scores, batch, batch.present, functools.partial(self._derive, batch))
            batch = self._comparable(self._labelled(scores, labels, index, self.num_labels))
            g, i, c = self._inner(batch)
            rows = batch.rows[i]
            z = self.average(g, rows if self.num_labels == 1 else (rows, c))
            return self.joint(self._outer(z, c))

    def extra_repr(self) -> str:
        """Return the options."""
        columns = f", num_labels={self.num_labels}" if self.num_labels > 1 else ""
        return super().extra_repr() + columns

    def _options(self) -> kernel.Options:
        prior = math.nan if self.prior is None else float(self.prior)
        return self._kernel_options("average_precision", prior=prior)

    def _comparable(self, batch: Ranked) -> Ranked:
        """Drop the positives of labels without negatives if the prior is given."""
        if self.prior is None:
            return batch
        negative = ~batch.w if batch.present is None else batch.present & ~batch.w
        return batch._replace(w=batch.w & negative.any(0))

    def _inner(self, batch: Ranked) -> tuple[Tensor, Tensor, Tensor]:
        """Return g = (a, a + (1-p) E[l_ij | j negative]), a = p E[l_ij | j positive]; also i and the column."""
        h, w = (x.reshape(len(x), -1) for x in batch[:2])
        present = torch.ones_like(w) if batch.present is None else batch.present.reshape(w.shape)
        i, c = w.nonzero(as_tuple=True)
        loss = squared_hinge(h[i, c, None], h.T[c], self.margin)  # (rows, n)
        positive, known = w.T[c].to(h.dtype), present.T[c].to(h.dtype)
        if self.prior is None:
            share = known / known.sum(1, keepdim=True)
            weights = torch.stack([positive * share, share], -1)
        else:
            p = self.prior.to(h)[c, None]
            first = positive * (p / positive.sum(1, keepdim=True))
            negative = known - positive
            weights = torch.stack(
                [first, first + negative * ((1 - p) / negative.sum(1, keepdim=True).clamp_min(1))], -1
            )
        return torch.einsum("kn,knv->kv", loss, weights), i, c

    def _derive(self, batch: Ranked, loss: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the value and its derivatives with respect to the pairwise losses of a binary problem."""
        assert self.z is not None
        w = (batch.w if batch.present is None else batch.w[batch.present]).to(loss.dtype)
        positives, n = loss.shape
        p = positives / n if self.prior is None else float(self.prior)
        first, second = p / positives, (1 - p) / max(n - positives, 1)  # weights of a positive and of a negative j
        base, slope = torch.tensor([[[0.0], [second]], [[first], [first - second]]], dtype=w.dtype, device=w.device)
        weights = torch.addcmul(base, slope, w)
        z = self.update(self.z, loss @ weights.T, rows)
        inverse = z[:, 1].reciprocal()
        precision = z[:, 0] * inverse
        inverse = inverse / positives
        return 1 - precision.mean(), torch.stack([-inverse, precision * inverse], 1) @ weights

    def _outer(self, z: Tensor, c: Tensor) -> Tensor:
        """Return f(z), the mean of 1 - z1/z2 over the rows of each label, then over the labels with rows."""
        count = torch.bincount(c, minlength=self.num_labels).to(z)
        weight = 1 / (count[c] * (count > 0).sum().clamp_min(1))
        return ((1 - z[:, 0] / z[:, 1]) * weight).sum()


class AveragePrecision(MeanAveragePrecision):
    r"""Smooth average precision, the area under the precision-recall curve.

    .. math::
        1 - AP \approx \frac1{n_+}\sum_{i:\,b_i=1} \Bigl(1 - \frac{g_i^1}{g_i^2}\Bigr), \qquad
        g_i^1 = p\,E[\ell_{ij}\mid b_j=1], \quad g_i^2 = g_i^1 + (1-p)\,E[\ell_{ij}\mid b_j\ne1]

    :math:`g_i^1/g_i^2` is the precision at the threshold :math:`h_i`, with :math:`\ell_{ij}` for "j is ranked above i".
    A ratio of means is not the mean of the ratios of batches, so each positive i keeps averages of both.

    Args:
        size: number of training examples; None for use with :class:`semaopt.SCMA`, see :meth:`inner`.
        prior: p, the share of positives in the data. Batches may then hold a larger share, as from
            :class:`semaopt.samplers.ClassBalanced`; None takes the share in each batch.
        score: ``"sigmoid"`` or ``"linear"``. The loss is a ratio, so linear scores of a network can grow without bound.
        margin: m of the squared hinge.
        inner_beta: momentum of the averages.
        process_group, device, validate: as in :class:`~semaopt.losses.tracked.Tracked` and
            :class:`semaopt.losses.AUCMinMax`.

    Labels are {0, 1} or {-1, 1}; NaN marks a missing label.

    Reference: Qi, Luo, Xu, Ji and Yang, "Stochastic optimization of areas under precision-recall curves with provable
    convergence", NeurIPS 2021.

    >>> loss = semaopt.losses.AveragePrecision(size=3, score="linear")
    >>> loss(torch.tensor([2.0, -2.0, 0.0]), torch.tensor([1, 0, 0]), torch.arange(3))  # a perfect ranking
    tensor(0.)
    """

    def __init__(self, size: int | None = None, *, prior: float | None = None, **options: Any) -> None:
        super().__init__(size, 1, prior=prior, **options)

    def inner(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Return a row (g^1, g^2) for each positive example of the batch, for ``SCMA.step(inner, outer, index)``."""
        with without_autocast(scores):
            _validate_shapes(scores, labels, 1)
            w = is_positive(labels.reshape(-1), torch.bool, validate=self.validate)
            present = is_present(labels.reshape(-1))
            batch = Ranked(self._scores(scores.reshape(-1)), w, present, torch.empty(0, dtype=torch.long))
            return self._inner(batch)[0]

    def outer(self, z: Tensor) -> Tensor:
        """Return 1 minus the mean precision of the rows."""
        return self._outer(z, torch.zeros(len(z), dtype=torch.long, device=z.device))


class PartialAUC(RankingLoss):
    r"""Partial AUC: positives against the negatives that score highest.

    One-way, for positives i and negatives j:

    .. math::
        \text{kl: } \frac1{n_+}\sum_i \lambda \log E_j\, e^{\ell_{ij}/\lambda}, \qquad
        \text{cvar: } \frac1{n_+}\sum_i \min_{s_i}\; s_i + \frac1a E_j (\ell_{ij} - s_i)_+

    ``"cvar"`` is the mean loss of the share a = max_fpr of negatives with the largest loss, which are those that score
    highest. ``"kl"`` weighs all negatives by :math:`e^{\ell/\lambda}`: a small temperature counts only the worst
    negative, a large one all of them alike. With ``min_tpr`` the positives that score lowest are treated in the same
    way (two-way):

    .. math::
        \text{kl: } \lambda' \log E_i \bigl(E_j\, e^{\ell_{ij}/\lambda}\bigr)^{\lambda/\lambda'}, \qquad
        \text{cvar: } \min_s\; s + \frac1{1-b} E_i (c_i - s)_+

    with b = min_tpr, :math:`\lambda'` = positive_temperature and the one-way value :math:`c_i` of each positive.
    ``"cvar"`` has rates and no temperatures, ``"kl"`` temperatures and no rates. Since ``"kl"`` is the default,
    ``max_fpr=0.05`` alone raises a warning.

    Args:
        size: number of training examples.
        max_fpr: a in (0, 1], the largest false positive rate of ``"cvar"``.
        min_tpr: b in (0, 1), the smallest true positive rate of the two-way ``"cvar"``; None for one-way. Any number
            makes ``"kl"`` two-way, with ``positive_temperature`` instead of the rate.
        method: ``"kl"`` or ``"cvar"``. The quantiles :math:`s_i` and s of ``"cvar"`` are moving averages of the
            quantiles of the batches.
        temperature: lambda of ``"kl"``.
        positive_temperature: lambda' of the two-way ``"kl"``; None takes ``temperature``.
        prior: accepted for uniformity with the other losses; the objective does not depend on it.
        score, margin, inner_beta, process_group, device, validate: as in :class:`AveragePrecision`.

    References: Zhu, Li, Wang, Wu and Yang, "When AUC meets DRO: optimizing partial AUC for deep learning with
    non-convex convergence guarantee", ICML 2022.

    >>> loss = semaopt.losses.PartialAUC(size=4, max_fpr=0.5, method="cvar", score="linear")
    >>> loss(torch.tensor([2.0, 0.0, 1.5, -1.0]), torch.tensor([1, 0, 0, 0]), torch.arange(4))  # 2/3 of max(0, .5)^2
    tensor(0.1667)
    """

    w: Tensor
    averages = ("z", "w")

    def __init__(
        self,
        size: int | None,
        max_fpr: float = 0.3,
        min_tpr: float | None = None,
        method: str = "kl",
        temperature: float = 1.0,
        *,
        positive_temperature: float | None = None,
        prior: float | None = None,
        **options: Any,
    ) -> None:
        ok = method in ("kl", "cvar")
        require(ok, "method", method, "must be 'kl' or 'cvar'", "Try method='kl'.")
        both = method == "cvar" and min_tpr is not None
        super().__init__(size, (2,) if both else (1,), logarithms=method == "kl", **options)
        ok = is_real(max_fpr) and 0 < max_fpr <= 1
        require(ok, "max_fpr", max_fpr, "must lie in (0, 1]", "Try max_fpr=0.3.")
        ok = min_tpr is None or (is_real(min_tpr) and 0 < min_tpr < 1)
        require(ok, "min_tpr", min_tpr, "must lie in (0, 1)", "Try min_tpr=0.5, or None for one-way.")
        self.max_fpr, self.min_tpr, self.method = float(max_fpr), min_tpr, method
        positive = temperature if positive_temperature is None else positive_temperature
        for name, value in (("temperature", temperature), ("positive_temperature", positive)):
            require(is_real(value) and 0 < value < math.inf, name, value, "must be a finite number > 0", "Try 1.0.")
        _validate_prior(prior)
        self.temperature, self.positive_temperature = float(temperature), float(positive)
        if method == "kl" and max_fpr != 0.3:  # the default does not count
            warnings.warn(
                f"max_fpr={max_fpr!r} is ignored by method='kl'. Pass method='cvar' to bound the false positive rate, "
                "or leave max_fpr out and set temperature=.",
                UserWarning,
                stacklevel=2,
            )
        if min_tpr is not None and self.z is not None:
            self.register_buffer("w", torch.full_like(self.z[0, :1], math.nan))

    def forward(self, scores: Tensor, labels: Tensor, index: Tensor | None = None) -> Tensor:
        """Return the loss; a batch that lacks positives or negatives gives 0 and no gradient."""
        self._refuse_overwritten()
        closed = self._uses_closed_form()
        if closed and (found := self._compiled(scores, labels, index, self._options())) is not None:
            return found
        with without_autocast(scores):
            closed = closed and self.method == "kl"
            batch = self._labelled(scores.detach() if closed else scores, labels, index)
            positive, negative = batch.w, ~batch.w if batch.present is None else batch.present & ~batch.w
            if closed:
                return self._with_gradient(scores, batch, negative, self._derive_kl)
            loss = squared_hinge(batch.h[positive, None], batch.h[negative], self.margin)  # (positives, negatives)
            if loss.numel() == 0:
                value = (batch.h * 0).sum()
            else:
                rows = batch.rows[positive]
                value = self.joint(self._kl(loss, rows) if self.method == "kl" else self._cvar(loss, rows))
            return value.to(torch.promote_types(scores.dtype, torch.float32))

    def _options(self) -> kernel.Options:
        kind, outer = self.method, self.positive_temperature
        if self.min_tpr is not None:
            kind, outer = f"two_way_{kind}", outer if kind == "kl" else 1 - self.min_tpr
        return self._kernel_options(kind, temperature=self.temperature, outer=outer, share=self.max_fpr)

    def extra_repr(self) -> str:
        """Return the options."""
        own = f"max_fpr={self.max_fpr:g}, min_tpr={self.min_tpr}, method={self.method!r}, temperature="
        return f"{super().extra_repr()}, {own}{self.temperature:g}"

    def _kl(self, loss: Tensor, rows: Tensor) -> Tensor:
        lam, outer = self.temperature, self.positive_temperature
        log_z = self.average_log(log_mean_exp(loss / lam, 1), rows)
        if self.min_tpr is None:
            return lam * log_z.mean()
        log_w = log_mean_exp(log_z * (lam / outer), 0).squeeze(0)
        return outer * self.average_log(log_w, slice(None), "w").squeeze(0)

    def _derive_kl(self, loss: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the value of :meth:`_kl` and its derivatives with respect to the pairwise losses."""
        assert self.z is not None
        lam, outer = self.temperature, self.positive_temperature
        x = loss / lam
        log_z = self.update_log(self.z, log_mean_exp(x, 1), rows)
        slope = (x - log_z).exp() / loss.numel()  # lambda times the derivative of the mean of log z
        if self.min_tpr is None:
            return lam * log_z.mean(), slope
        log_u = log_z * (lam / outer)
        log_w = self.update_log(self.w, log_mean_exp(log_u, 0).squeeze(0), slice(None))
        return outer * log_w.squeeze(0), slope * (log_u - log_w).exp()

    def _cvar(self, loss: Tensor, rows: Tensor) -> Tensor:
        c = self._worst_share(loss, self.max_fpr, (rows, torch.zeros_like(rows)), "z")
        if self.min_tpr is None:
            return c.mean()
        c = self.average(c, (rows, torch.ones_like(rows)))
        return self._worst_share(c[None], 1 - self.min_tpr, slice(None), "w").squeeze(0)

    def _worst_share(self, values: Tensor, share: float, rows: Rows, name: str) -> Tensor:
        """Return s + E (x - s)_+ / share for each row of values x, with its tracked upper quantile s.

        Its derivative in a value above s is 1/(share n). The values equal to the quantile of the batch have equal parts
        of what is missing to the sum 1, but no derivative is negative.
        """
        x = values.detach()
        quantile = upper_quantile(x, share)
        s = self.average(quantile, rows, name)
        larger, tied = x > s[:, None], x == quantile[:, None]
        scale = share * x.shape[1]
        rest = (scale - larger.sum(1, dtype=x.dtype)) / tied.sum(1)
        weights = (larger + rest[:, None] * tied).clamp_min(0) / scale
        c = s + (x - s[:, None]).clamp_min(0).mean(1) / share
        return c + (weights * (values - x)).sum(1)


def upper_quantile(values: Tensor, share: float) -> Tensor:
    """Return, for each row, a value that at most ``share`` of the entries exceed; it minimizes the CVaR.

    >>> upper_quantile(torch.tensor([[1.0, 4.0, 2.0, 3.0]]), 0.5)
    tensor([2.])
    """
    n = values.shape[1]
    above = min(math.floor(share * n * (1 + 1e-9)), n - 1)
    return values.sort(1, descending=True).values[:, above]


class NDCG(RankingLoss):
    r"""Smooth normalized discounted cumulative gain over the queries of the training set.

    .. math::
        1 - \frac1Q\sum_q \frac1{Z_q} \sum_{i\in q} \frac{2^{rel_i}-1}{\log_2(1 + r_i)}, \qquad
        r_i = \sum_{j\in q} \ell_{ji}, \quad \ell_{ji} = \max(0, m + h_j - h_i)^2

    The smooth rank :math:`r_i = N_q\, g_i`, with the number of items :math:`N_q` of the query and the mean
    :math:`g_i` of :math:`\ell_{ji}` over its items in the batch, which is tracked. With ``top_k`` each item is also
    weighted by the gate :math:`\sigma((h_i - t_q)/\tau)`, about 1 above and 0 below the threshold :math:`t_q` between
    the K-th and the next score of its query. The thresholds are moving averages as well.

    Args:
        relevance: (n,) of the whole training set, such as grades 0..4; it determines the ideal gains :math:`Z_q`. Its
            entries are >= 0, and their gains 2^relevance finite in float32.
        query: (n,) integers, the query of each example; None for one query.
        top_k: K, or None for all ranks.
        gate_temperature: tau of the gate.
        prior: accepted for uniformity with the other losses; the objective does not depend on it.
        score, margin, inner_beta, process_group, device, validate: as in :class:`AveragePrecision`.

    Call it with the relevance and the index of the examples of a batch; items of the same query must be in one batch.
    The relevance of a batch must be ``relevance[index]``. This is not checked: other values would not match
    :math:`Z_q`.

    Reference: Qiu, Hu, Zhong, Zhang and Yang, "Large-scale stochastic optimization of NDCG surrogates for deep learning
    with provable convergence", ICML 2022.

    >>> relevance = torch.tensor([2.0, 0.0, 1.0, 0.0])
    >>> loss = semaopt.losses.NDCG(relevance, query=torch.tensor([0, 0, 1, 1]), score="linear")
    >>> value = loss(torch.tensor([1.0, -1.0, 1.0, -1.0]), relevance, torch.arange(4))      # a perfect ranking
    >>> abs(value.item()) < 1e-6
    True
    """

    query: Tensor
    counts: Tensor
    ideal: Tensor
    scale: Tensor
    thresholds: Tensor
    averages = ("z", "thresholds")
    _size_remedy = "Construct the loss with the relevance of the whole training set."

    def __init__(
        self,
        relevance: Any,
        query: Any = None,
        *,
        top_k: int | None = None,
        gate_temperature: float = 0.05,
        prior: float | None = None,
        device: Any = None,
        **options: Any,
    ) -> None:
        _validate_prior(prior)
        remedy = "Pass those of the whole training set"
        rel = as_tensor_of(relevance, "relevance").to(device)
        require(rel.dim() > 0, "relevance", relevance, "must have one entry per example, and is not a size", remedy)
        rel = rel.reshape(-1)
        ok = rel.numel() > 0 and bool((rel >= 0).all())
        require(ok, "relevance", tuple(rel.shape), "must be numbers >= 0", remedy)
        super().__init__(len(rel), (), device=rel.device, **options)
        ids = torch.zeros(len(rel), dtype=torch.long, device=rel.device)
        if query is not None:
            given = as_tensor_of(query, "query").to(rel.device).reshape(-1)
            require(len(given) == len(rel), "query", len(given), f"must have {len(rel)} entries", "One per example.")
            ids = torch.unique(given, return_inverse=True)[1]
        if top_k is not None:
            top_k = validate_integer("top_k", top_k, "Pass the number of ranks that count, or None.")
        ok = is_real(gate_temperature) and 0 < gate_temperature < math.inf
        require(ok, "gate_temperature", gate_temperature, "must be a finite number > 0", "Try 0.05.")
        self.top_k, self.gate_temperature = top_k, float(gate_temperature)
        counts = torch.bincount(ids)
        self.register_buffer("query", ids.to(torch.int32), persistent=False)
        self.register_buffer("counts", counts, persistent=False)
        ideal = ideal_gains(rel, ids, counts, top_k)
        ok, rule = bool(ideal.isfinite().all()), "must have a finite gain: 2^relevance overflows"
        require(ok, "relevance", float(rel.max()), rule, "Pass grades such as 0..4, or log2(1 + count).")
        self.register_buffer("ideal", ideal, persistent=False)
        self.register_buffer("scale", torch.where(ideal > 0, counts / ideal, 0.0), persistent=False)
        if top_k is not None:
            self.register_buffer("thresholds", torch.full((len(counts),), math.nan, device=rel.device))

    def forward(self, scores: Tensor, relevance: Tensor, index: Tensor) -> Tensor:
        """Return 1 minus the smooth NDCG of the queries of the batch; queries without relevant items are ignored."""
        self._refuse_overwritten()
        with without_autocast(scores):
            _validate_shapes(scores, relevance, 1)
            require(isinstance(index, Tensor), "index", index, "must be a tensor", "It also determines the queries.")
            if self._uses_closed_form() and (found := self._compiled_gains(scores, relevance, index)) is not None:
                return found
            scores, rel, index = self.gather(scores.reshape(-1), relevance.reshape(-1), index.reshape(-1))
            h, rows = self._scores(scores), self.rows(index, len(scores))
            batch = self._queries(rows, rel.to(h.dtype))
            g = (squared_hinge(h[:, None], h, self.margin) * batch.same).sum(1) / batch.sizes
            gain = batch.gains / torch.log2(1 + batch.counts * self.average(g, rows))
            if self.top_k is not None:
                cut = self._cuts(h, batch.query)
                levels = (h[cut.last] + h[cut.after] - cut.whole.to(h.dtype)) / 2
                thresholds = self.average(levels, cut.queries, "thresholds")
                gain = gain * torch.sigmoid((h - thresholds[cut.inverse]) / self.gate_temperature)
            return self.joint(batch.best - gain.sum())

    @torch.no_grad()
    def _queries(self, rows: Tensor, relevance: Tensor) -> Queries:
        q = self.query[rows]
        same = (q.unsqueeze(1) == q).to(relevance.dtype)
        sizes, scale = same.sum(1), self.scale[q].to(relevance.dtype)
        number = ((scale > 0) / sizes).sum().round()  # of queries with relevant items
        gains = torch.exp2(relevance).sub_(1).mul_(scale).div_(sizes * number.clamp_min(1))
        return Queries(q, same, sizes, self.counts[q], gains, number.clamp_max(1))

    @torch.no_grad()
    def _cuts(self, h: Tensor, query: Tensor) -> Cuts:
        """Return the items before and after the threshold of each query; their scores determine it."""
        assert self.top_k is not None
        queries, inverse, sizes = torch.unique(query, return_inverse=True, return_counts=True)
        order = h.argsort(descending=True)
        order = order[inverse[order].argsort(stable=True)]  # by query, then by score
        share = (self.top_k / self.counts[queries].double()).clamp_max_(1)
        count = torch.minimum((share * sizes).round_().long().clamp_min_(1), sizes)
        last = sizes.cumsum(0).sub_(sizes).add_(count).sub_(1)
        whole = count == sizes  # the threshold is then 1/2 below the last item
        return Cuts(queries.long(), inverse, order[last], order[last + ~whole], whole)

    def _compiled_gains(self, scores: Tensor, relevance: Tensor, index: Tensor) -> Tensor | None:
        """Return the loss computed in C, or None if C does not support these inputs or found an invalid index."""
        if not (self.compiled and index.numel() == scores.numel()):
            return None
        assert self.z is not None
        averages = self.z, None if self.top_k is None else self.thresholds
        lists = gains_kernel.Lists(self.query, self.counts, self.scale)
        options = gains_kernel.Options(
            self.margin, self.score == "sigmoid", 1 - self.inner_beta, self.top_k or 0, self.gate_temperature
        )
        found = gains_kernel.gains(scores.detach(), relevance, index, averages, lists, options)
        return None if found is None else self._found(scores, found)


class Queries(NamedTuple):
    """The inputs of the gains of a batch other than the scores, one entry for each item."""

    query: Tensor
    same: Tensor
    """(n, n): 1 if two items have the same query."""
    sizes: Tensor
    """Number of items of the query in the batch."""
    counts: Tensor
    """Number of items of the query in the training set."""
    gains: Tensor
    """Weighted gain of rank 1."""
    best: Tensor
    """The value of a perfect ranking: 1, or 0 without relevant items."""


class Cuts(NamedTuple):
    """Where the lists of the queries of a batch are cut after their top items."""

    queries: Tensor
    inverse: Tensor
    """Position in ``queries`` of the query of each item."""
    last: Tensor
    """The last item above the threshold."""
    after: Tensor
    """The next item, or the last one if all are above."""
    whole: Tensor
    """Whether all items are above."""


def ideal_gains(relevance: Tensor, query: Tensor, counts: Tensor, top_k: int | None) -> Tensor:
    """Return Z_q, the discounted gain of the best order of each query.

    >>> ideal_gains(torch.tensor([0.0, 2.0, 1.0]), torch.zeros(3, dtype=torch.long), torch.tensor([3]), None)
    tensor([3.6309])
    """
    by_relevance = relevance.argsort(descending=True, stable=True)
    order = by_relevance[query[by_relevance].argsort(stable=True)]
    first = counts.cumsum(0) - counts
    rank = 1 + torch.arange(len(order), device=order.device) - first[query[order]]
    gain = (2 ** relevance[order].double() - 1) / torch.log2(1 + rank.double())
    if top_k is not None:
        gain = gain * (rank <= top_k)
    total = torch.zeros(len(counts), dtype=torch.float64, device=gain.device)
    return total.index_add_(0, query[order], gain).float()
