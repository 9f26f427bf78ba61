"""AUC maximization as a min-max problem (``sec:app_auc_formulation``)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import Parameter

from semaopt._validation import as_tensor_of, is_real, require
from semaopt._variables import declare
from semaopt.losses._auc_objective import (
    ClosedForm,
    is_eager,
    objective,
    objective_of_columns,
    objective_on_device,
)
from semaopt.losses._labels import count_priors, is_positive, is_present, one_hot, refuse_one_class
from semaopt.losses._monitors import Batch, FirstBatches, warn
from semaopt.losses._scores import SCORES, validate_score
from semaopt.projections import Box

SURROGATES = ("square", "squared_hinge")


class Saddle(NamedTuple):
    """The variables of the loss at their optimum for fixed scores."""

    s: Tensor
    """Mean score of the positive examples."""
    r: Tensor
    """Mean score of the negative examples."""
    y: Tensor
    """The maximizer: mean negative minus mean positive score if the prior is that of the batch."""


def _tensor(name: str, value: Any, kind: dict[str, Any]) -> Tensor:
    try:
        if hasattr(value, "__array__"):
            value = as_tensor_of(value, name)
        return torch.as_tensor(value, **kind).detach()
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{name}={value!r}: must be a number, a sequence of them or a tensor ({error})") from error


_EXACT: dict[str, Any] = {"device": "cpu", "dtype": torch.float64}


class AUCMinMax(nn.Module):
    r"""Min-max form of AUC maximization (``auc_min-max-1``).

    For scores h, labels b, the prior p = P(b = 1) and a margin m, the mean over the batch of

    .. math::
        (1-p)(h-s)^2 [b=1] + p(h-r)^2 [b=-1] + 2(m+y)(p\,h\,[b=-1] - (1-p)\,h\,[b=1]) - p(1-p)y^2

    is minimized over the model and s, r and maximized over y. The saddle value over s, r, y, plus
    :math:`p(1-p)m^2`, equals :math:`p(1-p)\,E[(m-h(a)+h(a'))^2 \mid b=1, b'=-1]`. No pairs are formed, and a batch may
    hold any number of positives, including none.

    Args:
        prior: p in (0, 1), the share of positives among the examples *in the batches*. Under uniform sampling this is
            the share in the training set; with a sampler that draws as many positives as negatives it is 0.5. With a
            wrong p the objective is smallest where all scores are equal. A sequence defines one problem per class (see
            Shapes). :meth:`from_labels` counts the share, :meth:`from_sampler` asks a sampler.
        s, r: initial values, one number or one per class. None starts at the score of a zero output: 0.5 for the
            sigmoid, 0 for a linear score. From 0, the squares would first pull every sigmoid to 0, and the scores of a
            rare class may stay there.
        y: initial value, one number or one per class.
        score: ``"sigmoid"`` ranks by the sigmoid of the model's raw output, ``"linear"`` by the output itself.
            A linear score is unbounded: it can diverge at step sizes that the sigmoid tolerates.
        margin: m > 0, the desired distance between the scores of the two classes.
        surrogate: ``"square"``, or ``"squared_hinge"`` for the AUC-margin loss, which adds the constraint
            y >= -m (alpha = m + y >= 0) and so does not penalize class means that are farther apart than m.
        validate: check the labels of every batch. This costs one reduction, which waits for a GPU. The first batches
            are also compared with the prior, and the moves of s, r and y with what a min-max optimizer would do; a
            warning is raised if they disagree, or if the objective becomes infinite or NaN. Compiled or transformed
            code (:mod:`torch.func`) is never checked.
        device, dtype: device and dtype of s, r, y and the prior. The prior has at least the precision of float32.

    Shapes: scores (n,) or (n, 1) with labels (n,) or (n, 1). With C priors: scores (n, C) with labels (n, C)
    (multi-label), or with integer class numbers (n,) (each class against the rest); the loss is the mean over classes.
    Labels are {0, 1}, {-1, 1} or booleans. NaN marks a missing label: it is left out of the mean of its column, and a
    column without any label in the batch is left out of the mean over columns. Half-precision scores are computed in
    float32.

    The optimizer reads the constraint of y from ``dual_parameters()``; no ``project=`` is needed.

    Processes that train one model together must average the gradients of s, r, y like those of the model: wrap
    :class:`semaopt.losses.WithLoss` (model, auc) in DDP or FSDP2, not the model alone.

    >>> auc = semaopt.losses.AUCMinMax(prior=0.25, score="linear")
    >>> scores = torch.tensor([2.0, 0.0, -1.0, 0.0], requires_grad=True)
    >>> auc(scores, torch.tensor([1, 0, 0, 0])).item()
    -0.0625
    >>> auc.saddle(scores, torch.tensor([1, -1, -1, -1]))
    Saddle(s=tensor([2.]), r=tensor([-0.3333]), y=tensor([-2.3333]))

    References: Ying, Wen and Lyu, "Stochastic Online AUC Maximization", NeurIPS 2016 (square); Yuan, Yan, Sonka and
    Yang, "Large-scale Robust Deep AUC Maximization", ICCV 2021 (squared hinge).
    """

    prior: Tensor

    def __init__(
        self,
        prior: float | Sequence[float] | Tensor,
        s: float | Sequence[float] | Tensor | None = None,
        r: float | Sequence[float] | Tensor | None = None,
        y: float | Sequence[float] | Tensor = 0.0,
        *,
        score: str = "sigmoid",
        margin: float = 1.0,
        surrogate: str = "square",
        validate: bool = True,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        p = _tensor("prior", prior, {"device": device}).reshape(-1)
        kind: dict[str, Any] = {"device": p.device, "dtype": dtype or torch.get_default_dtype()}
        wide = torch.promote_types(kind["dtype"], torch.float32)
        exact = prior.detach().cpu() if isinstance(prior, Tensor) else _tensor("prior", prior, _EXACT)
        self._exact_prior = exact.reshape(-1).to(torch.float64, copy=True)
        rounded = self._exact_prior.to(wide)
        ok = p.numel() > 0 and bool(((rounded > 0) & (rounded < 1)).all())
        remedy = "It is the share of positive labels; AUCMinMax.from_labels(labels) counts them."
        require(ok, "prior", prior, "must lie in (0, 1)", remedy)
        self.register_buffer("prior", rounded.to(p.device, copy=True))
        self.score = validate_score(score)
        ok = is_real(margin) and 0 < margin < math.inf
        require(ok, "margin", margin, "must be a finite number > 0", "Try margin=1.0.")
        known = ", ".join(map(repr, SURROGATES))
        require(surrogate in SURROGATES, "surrogate", surrogate, f"must be one of {known}", "Try surrogate='square'.")
        self.margin, self.surrogate = float(margin), surrogate
        # One-element vectors, not scalars: FSDP2 shards along the first dimension.
        center = 0.5 if self.score == "sigmoid" else 0.0
        s, r = (center if start is None else start for start in (s, r))
        starts = {name: _tensor(name, start, kind) for name, start in (("s", s), ("r", r), ("y", y))}
        for name, start in starts.items():
            fits = start.numel() == 1 or start.shape == p.shape
            rule = f"must be one number or have the shape of the prior, {tuple(p.shape)}"
            require(fits, name, tuple(start.shape), rule, "Pass one number per class.")
            values = [] if start.is_meta else start.reshape(-1).tolist()
            require(all(map(math.isfinite, values)), name, values, "must be finite", "Leave it out for the default.")
        self.s, self.r, self.y = (Parameter(start.reshape(-1).expand(len(p)).clone()) for start in starts.values())
        self.validate = validate
        self._labelled: Tensor | None = None  # columns that had a label in the last batch; None: all
        self._rank_offset: Tensor | None = None  # share of positives in the batches of this process minus the prior
        self._first_batches: FirstBatches | None = None
        self._watching = True
        self._diverged = False

    @classmethod
    def from_labels(cls, labels: Any, num_classes: int | None = None, **options: Any) -> AUCMinMax:
        """Create the loss with the prior counted in the training labels.

        Args:
            labels: (n,), (n, C) with NaN for missing labels, or class numbers (n,) with ``num_classes``: a tensor, an
                array, a series, a data frame or lists. A column without any label gets the prior 0.5, which is never
                used.
            num_classes: the number of classes if ``labels`` are class numbers.
            options: the other arguments of :class:`AUCMinMax`.

        >>> semaopt.losses.AUCMinMax.from_labels([1, 0, 0, 0])
        AUCMinMax(prior=0.25, score='sigmoid', margin=1, surrogate='square')
        >>> semaopt.losses.AUCMinMax.from_labels([2, 0, 1, 0], num_classes=3).prior
        tensor([0.5000, 0.2500, 0.2500])
        """
        b = as_tensor_of(labels, "labels")
        require(b.dim() > 0, "labels", labels, "must be a vector or a matrix", "Pass those of the training set.")
        if num_classes is not None:
            b = one_hot(b, num_classes, validate=True)
        require(b.numel() > 0, "labels", tuple(b.shape), "must not be empty", "Pass those of the training set.")
        return cls(count_priors(b), **options)

    @classmethod
    def from_sampler(cls, sampler: Any, **options: Any) -> AUCMinMax:
        """Create the loss with the share of positives that a sampler draws, its attribute ``prior``.

        A column in which the sampler draws one class only is refused, as in :meth:`from_labels`.

        >>> sampler = semaopt.samplers.ClassBalanced([1, 0, 0, 0, 0, 0, 0, 0], batch_size=4, positives=0.25)
        >>> semaopt.losses.AUCMinMax.from_sampler(sampler).prior
        tensor([0.2500])
        """
        if not hasattr(sampler, "prior"):
            raise TypeError(
                f"sampler of type {type(sampler).__name__}: has no attribute prior; pass a semaopt.samplers."
                "ClassBalanced, or AUCMinMax(prior=...) with the share of positives in its batches"
            )
        draws: Tensor | None = getattr(sampler, "draws", None)
        if draws is not None:
            positives, labels = draws.sum(0)
            refuse_one_class(positives, labels, "labels that the sampler draws in an epoch")
        auc = cls(sampler.prior, **options)
        if draws is not None and len(draws) > 1:
            positives, labels = draws[sampler.rank]
            auc._rank_offset = positives / labels.clamp_min(1e-300) - sampler.prior
        return auc

    def _apply(self, fn: Any, recurse: bool = True) -> AUCMinMax:
        """Move or cast the module; the prior keeps at least float32, since 0.999 would become 1 in bfloat16."""
        old = self.prior
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if old.is_meta and not self.prior.is_meta:  # a meta tensor has no values to move
            self.prior = self._exact_prior.to(self.prior)
        elif self.prior.dtype != old.dtype and not old.is_meta:
            device, dtype = self.prior.device, torch.promote_types(self.prior.dtype, torch.float32)
            self.prior = self._precise(old, dtype).to(device)
        self._first_batches = self._labelled = None
        return self

    def _precise(self, prior: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the prior in this dtype, with all its digits where it has not been loaded or set since."""
        if prior.dtype == dtype:
            return prior
        exact = self._exact_prior.to(prior.device, dtype)
        return torch.where(self._exact_prior.to(prior) == prior, exact, prior.to(dtype))

    @property
    def projection(self) -> Box | None:
        """The feasible set of y: y >= -margin for the squared hinge, None (all numbers) for the square."""
        return Box(-self.margin, math.inf) if self.surrogate == "squared_hinge" else None

    def primal_parameters(self) -> list[Parameter]:
        """Return s and r, which are minimized over together with the model."""
        return [declare(self.s, "primal"), declare(self.r, "primal")]

    def dual_parameters(self) -> list[Parameter]:
        """Return y, which is maximized over; the optimizer reads its constraint from it."""
        return [declare(self.y, "dual", self.projection)]

    def forward(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Return the mean of the objective over the batch and over the classes.

        Args:
            scores: the raw output of the model; ``score`` is applied here.
            labels: as under Shapes of the class.
        """
        self._validate_shapes(scores, labels)
        eager = is_eager()
        validate = self.validate and eager and not scores.is_meta
        if validate and self._watching and self.training and torch.is_grad_enabled():
            self._watch(scores, labels)
        variables: tuple[Tensor, ...] = scores, self.prior, self.s, self.r, self.y
        dtype = scores.dtype if scores.dtype == torch.float64 else torch.float32
        if not scores.dtype == dtype == variables[1].dtype:
            variables = scores.to(dtype), self._precise(self.prior, dtype), *(z.to(dtype) for z in variables[2:])
        h, p, s, r, y = variables
        rest = p, self.margin, self.score, validate
        value: Tensor | None = None
        if len(p) == 1 and eager and h.is_cpu and labels.is_cpu:
            value = ClosedForm.apply(h, s, r, y, labels, *rest)  # type: ignore[no-untyped-call]
        elif len(p) == 1 and eager and h.is_cuda and labels.is_cuda:
            value = objective_on_device(h, s, r, y, labels, *rest)
        if value is None:
            h, labels = h.reshape(-1, len(p)), self._columns(labels, validate)
            if eager:
                value, self._labelled = objective_of_columns(h, s, r, y, labels, *rest)
            else:
                w = is_positive(labels, dtype, validate=validate)
                value = objective(SCORES[self.score](h), w, is_present(labels), p, s, r, y, self.margin)
        assert value is not None
        if validate and not self._diverged and self.training and not math.isfinite(value.detach().item()):
            self._diverged = True  # set first, because a filter may turn the warning into an error
            warn(self._divergence_text(value.item()))
        return value

    def value_for_display(self, loss: float | Tensor) -> Tensor:
        """Return the estimate of E[(m - h(a) + h(a'))^2] over pairs that ``loss`` implies; it is never negative.

        ``loss`` is what the module returned, or that value as a number.

        The min-max objective itself is negative for a good model. This value is about m^2 for equal scores and 0 for
        scores that are m apart. While y lags behind the model, the estimate is too small. It is cut off at 0. Columns
        without any label in the last batch are left out, as in the loss; compiled code does not record them.

        >>> auc = semaopt.losses.AUCMinMax(prior=0.5)
        >>> auc.value_for_display(torch.tensor(-0.1))
        tensor(0.6000)
        """
        remedy = "Pass what the loss returned, or its item()."
        require(isinstance(loss, Tensor) or is_real(loss), "loss", loss, "must be a number or a tensor", remedy)
        loss = loss.detach() if isinstance(loss, Tensor) else self.prior.new_tensor(loss)
        spread = self.prior * (1 - self.prior)
        if self._labelled is not None:
            kept = self._labelled | ~self._labelled.any()  # all if none has a label: the loss is then 0
            spread = torch.where(kept, spread, 0.0).sum() / kept.sum()
        value: Tensor = (loss / spread.mean() + self.margin**2).clamp_min(0)
        return value

    @torch.no_grad()
    def saddle(self, scores: Tensor, labels: Tensor) -> Saddle:
        """Return the s, r that minimize and the y that maximizes the objective for these raw scores.

        A class that is absent keeps its s or r, a column without labels also its y. The distance of ``auc.y`` from
        this y on a large batch shows whether the dual variable keeps up with the model.
        """
        self._validate_shapes(scores, labels)
        dtype = torch.promote_types(scores.dtype, torch.float32)
        h, p = SCORES[self.score](scores.reshape(-1, len(self.prior)).to(dtype)), self._precise(self.prior, dtype)
        w, present = self._weights(labels, dtype, self.validate and is_eager())
        known = torch.ones_like(w) if present is None else present.to(dtype)
        positive, negative = w.sum(0), (known - w).sum(0)
        s = torch.where(positive > 0, (w * h).sum(0) / positive.clamp_min(1), self.s.to(p))
        r = torch.where(negative > 0, ((known - w) * h).sum(0) / negative.clamp_min(1), self.r.to(p))
        count = known.sum(0)
        best = (known * (p - w) * h).sum(0) / count.clamp_min(1) / (p * (1 - p))
        y = torch.where(count > 0, best, self.y.to(p))
        return Saddle(s, r, y if self.projection is None else self.projection(y))

    def extra_repr(self) -> str:
        """Return the options."""
        prior = [f"{p:g}" for p in self.prior.tolist()]
        text = prior[0] if len(prior) == 1 else f"[{', '.join(prior)}]"
        return f"prior={text}, score={self.score!r}, margin={self.margin:g}, surrogate={self.surrogate!r}"

    def _watch(self, scores: Tensor, labels: Tensor) -> None:
        if self._first_batches is None:
            self._first_batches = FirstBatches(self.s, self.r, self.y)
        raw = scores.detach().reshape(-1, len(self.prior)).to(self.prior.dtype)
        batch = Batch(raw, SCORES[self.score](raw), *self._weights(labels, raw.dtype, True))
        texts = self._first_batches.see(batch, self.prior, self._expected_share(), self.s, self.r, self.y)
        if self._first_batches.done:
            self._first_batches, self._watching = None, False
        for text in texts:
            warn(text)

    def _expected_share(self) -> Tensor | None:
        """Return the share of positives in the batches of this process, or None if it is not known.

        With several labels the processes may have different shares, which the sampler knows.
        """
        if self._rank_offset is not None:
            return (self.prior + self._rank_offset.to(self.prior)).clamp(0, 1)
        distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
        alone = not distributed or torch.distributed.get_world_size() == 1
        return self.prior if alone or len(self.prior) == 1 else None

    def _divergence_text(self, value: float) -> str:
        if self.score == "linear":
            remedy = "use score='sigmoid', which is bounded, or a smaller lr and dual_lr"
        else:
            remedy = "check the inputs of the model for NaN and use a smaller lr"
        return f"the AUC objective is {value}: the training has diverged; {remedy}"

    def _validate_shapes(self, scores: Tensor, labels: Tensor) -> None:
        if not isinstance(labels, Tensor):
            raise TypeError(f"labels of type {type(labels).__name__}: must be a tensor; try torch.as_tensor(labels)")
        n, classes = scores.shape[0] if scores.dim() else 0, self.prior.shape[0]
        if classes == 1:
            fits = n == scores.numel() == labels.numel() and scores.dim() <= 2
        else:
            fits = scores.shape == (n, classes) and labels.shape in ((n, classes), (n,))
        if not fits or n == 0:
            expected = "(n,) or (n, 1)" if classes == 1 else f"(n, {classes})"
            if classes == 1 and scores.dim() == 2 and scores.shape[1] == 2 and labels.numel() == n:
                remedy = "pass one score per example, e.g. logits[:, 1] - logits[:, 0]"
            elif classes == 1 and scores.dim() == 2 and scores.shape == labels.shape:
                remedy = "for a multi-label problem pass one prior per column: AUCMinMax.from_labels(labels)"
            else:
                remedy = "pass one score and one label per example" + (" and class" if classes > 1 else "")
            raise ValueError(
                f"scores of shape {tuple(scores.shape)} and labels of shape {tuple(labels.shape)}: with {classes} "
                f"prior{'s' if classes > 1 else ''} the scores must be {expected}, n >= 1, and the labels must match; "
                f"{remedy}"
            )

    def _columns(self, labels: Tensor, validate: bool) -> Tensor:
        """Return labels (n, C); class numbers become one boolean column per class."""
        classes = len(self.prior)
        if classes > 1 and labels.dim() == 1:
            return one_hot(labels, classes, validate=validate)
        return labels.reshape(-1, classes)

    def _weights(self, labels: Tensor, dtype: torch.dtype, validate: bool) -> tuple[Tensor, Tensor | None]:
        """Return (n, C) tensors: 1 for a positive example, else 0; and which labels are present (None: all)."""
        labels = self._columns(labels, validate)
        return is_positive(labels, dtype, validate=validate), is_present(labels)
