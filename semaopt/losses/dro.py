"""Distributionally robust optimization: the worst reweighting of samples or groups, as a min-max problem."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import Parameter

from semaopt._validation import is_real, require, validate_integer
from semaopt._variables import declare
from semaopt.projections import Simplex

REGULARIZERS = ("kl", "chi2")
_LOG_FLOOR = 1e-6  # relative to the frequencies: bounds the slope of the KL term, which is infinite at 0


class WorstCase(NamedTuple):
    """Weights and value of the maximum for fixed losses."""

    weights: Tensor
    value: Tensor


class DRO(nn.Module):
    r"""Distributionally robust loss: weights p on the simplex, one per sample or group, that follow the largest losses.

    .. math:: \min_x \max_{p\in\Delta} \sum_i p_i\, \ell_i(x) - \lambda D(p \| \pi)

    with frequencies :math:`\pi` and :math:`D = \sum_i p_i\log(p_i/\pi_i)` (``"kl"``) or
    :math:`D = \tfrac12\sum_i (p_i-\pi_i)^2/\pi_i` (``"chi2"``). A batch of samples drawn with the frequencies
    :math:`\pi` gives the unbiased estimate :math:`\frac1n\sum_j (p_{i_j}/\pi_{i_j})\,\ell_{i_j} - \lambda D(p\|\pi)`.
    A large lambda gives the mean loss, a small one the loss of the worst sample or group.

    Args:
        size: the number of weights, one per training sample or group.
        strength: lambda > 0.
        regularizer: ``"kl"`` or ``"chi2"``.
        frequencies: pi, the probability of each index in a batch; uniform by default.
        device, dtype: device and dtype of the weights and frequencies.

    The dual variable is :attr:`weights`; the optimizer reads its set, the simplex, from ``dual_parameters()``. The
    objective is strongly concave in p with modulus at least lambda (chi2: :math:`\lambda/\max\pi`), so start with a
    ``dual_lr`` near :math:`\min\pi/\lambda`. The KL term has the curvature :math:`\lambda/p_i`, which is large where
    a weight nearly vanishes: if losses differ by many lambda, use chi2 or a smaller ``dual_lr``.

    >>> dro = semaopt.losses.DRO(size=3, strength=1.0, regularizer="chi2")
    >>> model = torch.nn.Linear(2, 1)
    >>> optimizer = semaopt.PDAda(primal=model.parameters(), dual=dro.dual_parameters(), dual_lr=0.1)
    >>> losses = model(torch.ones(4, 2)).square().squeeze(1)           # one per sample
    >>> dro(losses, torch.tensor([0, 2, 1, 0])).backward()             # with the index of its weight
    >>> optimizer.step()

    Reference: Namkoong and Duchi, "Stochastic Gradient Methods for Distributionally Robust Optimization with
    f-divergences", NeurIPS 2016.
    """

    frequencies: Tensor

    def __init__(
        self,
        size: int,
        strength: float = 1.0,
        regularizer: str = "kl",
        frequencies: Sequence[float] | Tensor | None = None,
        *,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        size = validate_integer("size", size, "Pass the number of samples or groups.")
        ok = is_real(strength) and 0 < strength < math.inf
        require(
            ok, "strength", strength, "must be a finite number > 0", "It makes the objective strongly concave; try 1.0."
        )
        known = ", ".join(REGULARIZERS)
        require(regularizer in REGULARIZERS, "regularizer", regularizer, f"must be one of {known}", "Try 'kl'.")
        kind: dict[str, Any] = {"device": device, "dtype": dtype or torch.get_default_dtype()}
        if frequencies is None:
            pi = torch.full((size,), 1 / size, **kind)
        else:
            pi = torch.as_tensor(frequencies, **kind).detach().clone()
            ok = pi.shape == (size,) and bool((pi > 0).all()) and abs(pi.double().sum().item() - 1) < 1e-4
            require(
                ok,
                "frequencies",
                frequencies,
                f"must be {size} numbers > 0 with sum 1",
                "Divide the counts by their sum.",
            )
        self.strength, self.regularizer = float(strength), regularizer
        self.register_buffer("frequencies", pi)
        self.weights = Parameter(pi.clone())

    @property
    def projection(self) -> Simplex:
        """The feasible set of the weights."""
        return Simplex()

    def primal_parameters(self) -> list[Parameter]:
        """Return an empty list: only the model is minimized over."""
        return []

    def dual_parameters(self) -> list[Parameter]:
        """Return the weights p."""
        return [declare(self.weights, "dual", self.projection)]

    def forward(self, losses: Tensor, index: Tensor | None = None) -> Tensor:
        """Return the estimate of the objective.

        Args:
            losses: one loss per sample.
            index: the weight that each loss belongs to; None if ``losses`` has one entry per weight, in order.
        """
        dtype = torch.promote_types(losses.dtype, torch.float32)
        p, pi = self.weights.to(dtype), self.frequencies.to(dtype)
        if index is None:
            self._check_losses(losses, (self.weights.shape[0],))
            weighted = torch.dot(p, losses.to(dtype))
        else:
            ok = isinstance(index, Tensor) and index.dtype in (torch.int64, torch.int32)
            require(
                ok, "index", index, "must be a tensor of whole numbers", "Pass the index of the weight of each loss."
            )
            self._check_losses(losses, tuple(index.shape))
            try:
                mine = (p / pi).index_select(0, index)
            except IndexError as error:  # raised on the CPU; a GPU aborts instead
                rule = f"must lie in 0..{len(p) - 1}; there are {len(p)} weights"
                raise IndexError(f"index={index.tolist()}: {rule}") from error
            weighted = torch.dot(mine, losses.to(dtype)) / len(losses)
        return weighted - self.strength * self.divergence(p, pi)

    def _check_losses(self, losses: Tensor, shape: tuple[int, ...]) -> None:
        remedy = "Pass one loss per sample (reduction='none') and the index of each."
        ok = losses.dim() == 1 and tuple(losses.shape) == shape and len(losses) > 0
        require(ok, "losses", tuple(losses.shape), f"must be a vector of shape {shape}", remedy)

    def divergence(self, p: Tensor, pi: Tensor) -> Tensor:
        """Return D(p || pi)."""
        if self.regularizer == "kl":
            return torch.dot(p, (torch.maximum(p, _LOG_FLOOR * pi) / pi).log())
        return ((p - pi).square() / pi).sum() / 2

    @torch.no_grad()
    def worst_case(self, losses: Tensor) -> WorstCase:
        r"""Return the exact maximum over p for the losses of all ``size`` samples or groups.

        KL: :math:`p_i \propto \pi_i e^{\ell_i/\lambda}`. Chi-square: :math:`p_i = \pi_i\max(0, (\ell_i-\nu)/\lambda)`
        with the :math:`\nu` for which the weights sum to one.
        """
        self._check_losses(losses, (self.weights.shape[0],))
        loss, pi = losses.double(), self.frequencies.to(losses.device, torch.float64)
        pi = pi / pi.sum()  # exact in float64: lambda multiplies the rounding error
        if self.regularizer == "kl":
            p = torch.softmax(loss / self.strength + pi.log(), 0)
        else:
            largest, order = loss.sort(descending=True)
            mass = pi[order].cumsum(0)
            nu = ((pi[order] * largest).cumsum(0) - self.strength) / mass
            support = int((largest > nu).sum())
            p = pi * (loss - nu[support - 1]).clamp_min(0) / self.strength
        value = torch.dot(p, loss) - self.strength * self.divergence(p, pi)
        return WorstCase(p.to(losses.dtype), value.to(losses.dtype))

    def extra_repr(self) -> str:
        """Return the options."""
        return f"size={len(self.weights)}, strength={self.strength:g}, regularizer={self.regularizer!r}"
