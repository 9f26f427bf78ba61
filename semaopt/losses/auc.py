"""AUC maximization as a min-max problem (``sec:app_auc_formulation``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import Parameter

from semaopt._validation import require
from semaopt.losses._auc_objective import ClosedForm, objective, one_hot, positive, unseen
from semaopt.losses._prior import Drawn, warn


class Saddle(NamedTuple):
    """The inner variables at their optimum for fixed scores."""

    s: Tensor
    """Mean score of the positive examples."""
    r: Tensor
    """Mean score of the negative examples."""
    y: Tensor
    """The maximizer; mean negative minus mean positive score where the prior is that of the batch."""


def _numbers(name: str, value: Any, kind: dict[str, Any]) -> Tensor:
    try:
        return torch.as_tensor(value, **kind).detach()
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{name}={value!r}: must be a number, a sequence of them or a tensor ({error})") from error


_EXACT: dict[str, Any] = {"device": "cpu", "dtype": torch.float64}


class AUCMinMax(nn.Module):
    r"""The min-max form of AUC maximization with the square surrogate (``auc_min-max-1``).

    For scores h, labels b and the prior p = P(b = 1), the mean over the batch of

    .. math::
        (1-p)(h-s)^2 [b=1] + p(h-r)^2 [b=-1] + 2(1+y)(p\,h\,[b=-1] - (1-p)\,h\,[b=1]) - p(1-p)y^2 ,

    to be minimized over the model and s, r and maximized over y. Its saddle value over s, r, y, plus p(1-p), is
    :math:`p(1-p)\,E[(1-h(a)+h(a'))^2 \mid b=1, b'=-1]`: no pairs are formed, any batch will do, one with a single
    class too. Use the linear score of the model: a sigmoid saturates at s = r = 0.

    Args:
        prior: p in (0, 1), the share of positive examples among those drawn: that of the training set where batches
            are drawn evenly, 0.5 where a sampler draws as many positives as negatives. With another p the objective
            is smallest where all scores are one number. A sequence gives one problem per class, see below.
            :meth:`from_labels` counts it in the training set.
        s, r, y: where the variables start, a number or one per class.
        validate: check the labels of every batch; one reduction, which on a GPU waits for the device. In the first
            batches of a training the share of positives is compared with the prior as well, and a warning says if
            they differ by more than chance. Compiled code never checks.
        device, dtype: of s, r, y and the prior, which has at least float32.

    Shapes: scores (n,) or (n, 1) with labels (n,) or (n, 1), of any dtype. With C priors: scores (n, C) with labels
    (n, C) (multi-label) or integer class numbers (n,) (multi-class, each class against the rest); the value is the
    mean over classes. Half-precision scores are computed with in float32.

    Processes that train one model together must average the gradients of s, r, y like those of the model: wrap
    :class:`semaopt.losses.WithLoss` (model, auc) in DDP or FSDP2, not the model alone.

    >>> auc = semaopt.losses.AUCMinMax(prior=0.25)
    >>> scores = torch.tensor([2.0, 0.0, -1.0, 0.0], requires_grad=True)
    >>> auc(scores, torch.tensor([1, 0, 0, 0])).item()
    -0.0625
    >>> auc.saddle(scores, torch.tensor([1, -1, -1, -1]))
    Saddle(s=tensor([2.]), r=tensor([-0.3333]), y=tensor([-2.3333]))

    Reference: Ying, Wen and Lyu, "Stochastic Online AUC Maximization", NeurIPS 2016.
    """

    prior: Tensor

    def __init__(
        self,
        prior: float | Sequence[float] | Tensor,
        s: float | Sequence[float] | Tensor = 0.0,
        r: float | Sequence[float] | Tensor = 0.0,
        y: float | Sequence[float] | Tensor = 0.0,
        *,
        validate: bool = True,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        p = _numbers("prior", prior, {"device": device}).reshape(-1)
        kind: dict[str, Any] = {"device": p.device, "dtype": dtype or torch.get_default_dtype()}
        wide = torch.promote_types(kind["dtype"], torch.float32)
        exact = prior.detach().cpu() if isinstance(prior, Tensor) else _numbers("prior", prior, _EXACT)
        self._exact = exact.reshape(-1).to(torch.float64, copy=True)
        rounded = self._exact.to(wide)
        ok = p.numel() > 0 and bool(((rounded > 0) & (rounded < 1)).all())
        remedy = "it is the share of positive labels; AUCMinMax.from_labels(labels) counts them"
        require(ok, "prior", prior, "must lie in (0, 1)", remedy)
        self.register_buffer("prior", rounded.to(p.device, copy=True))
        # One-element vectors, not scalars: FSDP2 shards along the first dimension.
        starts = {name: _numbers(name, start, kind) for name, start in (("s", s), ("r", r), ("y", y))}
        for name, start in starts.items():
            fits = start.numel() == 1 or start.shape == p.shape
            require(fits, name, tuple(start.shape), f"must be one number or have shape {tuple(p.shape)}", "the prior's")
        self.s, self.r, self.y = (Parameter(start.reshape(-1).expand(len(p)).clone()) for start in starts.values())
        self.validate = validate
        self._drawn: Drawn | None = Drawn()

    @classmethod
    def from_labels(cls, labels: Any, num_classes: int | None = None, **options: Any) -> AUCMinMax:
        """With the prior counted in the training labels: (n,), (n, C), or class numbers (n,) with ``num_classes``.

        >>> semaopt.losses.AUCMinMax.from_labels([1, 0, 0, 0])
        AUCMinMax(prior=0.25)
        >>> semaopt.losses.AUCMinMax.from_labels([2, 0, 1, 0], num_classes=3).prior
        tensor([0.5000, 0.2500, 0.2500])
        """
        b = _numbers("labels", labels, {})
        require(b.dim() > 0, "labels", labels, "must be a vector or a matrix", "pass those of the training set")
        if num_classes is not None:
            b = one_hot(b, num_classes, validate=True)
        require(b.numel() > 0, "labels", tuple(b.shape), "must not be empty", "pass those of the training set")
        rows = b.reshape(len(b), -1)
        p = positive(rows, torch.float64, validate=True).mean(0)
        absent = ((p == 0) | (p == 1)).nonzero().flatten().tolist()
        rule = "has examples of one class alone, so there is no AUC"
        require(not absent, "labels", f"column {absent}" if len(p) > 1 else p.item(), rule, "leave it out, or add data")
        return cls(p, **options)

    def _apply(self, fn: Any, recurse: bool = True) -> AUCMinMax:
        """Move or cast the module; a prior cast to bf16 could be 1, so it stays at float32, and float64's is exact."""
        old = self.prior
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if old.is_meta and not self.prior.is_meta:  # it held no numbers
            self.prior = self._exact.to(self.prior)
        elif self.prior.dtype != old.dtype and not old.is_meta:
            known = torch.equal(self._exact.to(old), old)  # else it was set since
            dtype = torch.promote_types(self.prior.dtype, torch.float32)
            self.prior = (self._exact if known else old).to(self.prior.device, dtype)
        return self

    def primal_parameters(self) -> list[Parameter]:
        """The variables s and r, to be minimized over together with the model."""
        return [self.s, self.r]

    def dual_parameters(self) -> list[Parameter]:
        """The variable y, to be maximized over."""
        return [self.y]

    def forward(self, scores: Tensor, labels: Tensor) -> Tensor:
        """The mean over the batch (and over classes) of the min-max objective."""
        self._check_shapes(scores, labels)
        plain = unseen()
        if plain and self.validate and self._drawn is not None and self.training and torch.is_grad_enabled():
            self._watch(self._drawn, scores, labels)
        variables: tuple[Tensor, ...] = scores, self.prior, self.s, self.r, self.y
        dtype = scores.dtype if scores.dtype == torch.float64 else torch.float32
        if not scores.dtype == dtype == variables[1].dtype:
            variables = tuple(z.to(dtype) for z in variables)
        h, p, s, r, y = variables
        if p.shape[0] == 1 and h.is_cpu and labels.is_cpu and plain:
            value: Tensor = ClosedForm.apply(h, s, r, y, labels, p, self.validate)  # type: ignore[no-untyped-call]
            return value
        return objective(h.reshape(-1, len(p)), self._weights(labels, dtype), p, s=s, r=r, y=y)

    def _watch(self, drawn: Drawn, scores: Tensor, labels: Tensor) -> None:
        said = drawn.see(scores, self._weights(labels, torch.float32), self.prior)
        if said is not None:
            self._drawn = None  # first: a warning may be an error
            if said:
                warn(said)

    @torch.no_grad()
    def saddle(self, scores: Tensor, labels: Tensor) -> Saddle:
        """The s, r that minimize and the y that maximizes the objective for these scores.

        A class that is absent leaves its s or r as it is. How far ``auc.y`` is from this y on a large batch tells
        whether the dual variable keeps up with the model.
        """
        self._check_shapes(scores, labels)
        dtype = torch.promote_types(scores.dtype, torch.float32)
        h, p, w = scores.reshape(-1, len(self.prior)).to(dtype), self.prior.to(dtype), self._weights(labels, dtype)
        positive, negative = w.sum(0), (1 - w).sum(0)
        s = torch.where(positive > 0, (w * h).sum(0) / positive.clamp_min(1), self.s.to(p))
        r = torch.where(negative > 0, ((1 - w) * h).sum(0) / negative.clamp_min(1), self.r.to(p))
        y = ((p - w) * h).mean(0) / (p * (1 - p))
        return Saddle(s, r, y)

    def extra_repr(self) -> str:
        """The prior."""
        prior = [f"{p:g}" for p in self.prior.tolist()]
        return f"prior={prior[0]}" if len(prior) == 1 else f"prior=[{', '.join(prior)}]"

    def _check_shapes(self, scores: Tensor, labels: Tensor) -> None:
        if not isinstance(labels, Tensor):
            raise TypeError(f"labels of type {type(labels).__name__}: must be a tensor; try torch.as_tensor(labels)")
        n, classes = scores.shape[0] if scores.dim() else 0, self.prior.shape[0]
        if classes == 1:
            fits = n == scores.numel() == labels.numel() and scores.dim() <= 2
        else:
            fits = scores.shape == (n, classes) and labels.shape in ((n, classes), (n,))
        if not fits or n == 0:
            expected = "(n,) or (n, 1)" if classes == 1 else f"(n, {classes})"
            raise ValueError(
                f"scores of shape {tuple(scores.shape)} and labels of shape {tuple(labels.shape)}: with {classes} "
                f"prior(s) the scores must be {expected}, n >= 1, and the labels as many; flatten or squeeze them"
            )

    def _weights(self, labels: Tensor, dtype: torch.dtype) -> Tensor:
        """1 for a positive example, else 0, of shape (n, C)."""
        classes, validate = self.prior.shape[0], self.validate and not torch.compiler.is_compiling()
        if classes > 1 and labels.dim() == 1:
            labels = one_hot(labels, classes, validate=validate)
        return positive(labels, dtype, validate=validate).reshape(-1, classes)
