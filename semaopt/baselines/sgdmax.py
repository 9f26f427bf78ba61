"""SGDMax: maximize over y, then one descent step in x."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch.optim.optimizer import ParamsT

from semaopt._validation import NonFiniteError, validate_integer, validate_rate
from semaopt.estimator import Rate, group_norm
from semaopt.optimizers._base import options_of
from semaopt.optimizers._minmax import MinMaxOptimizer, evaluate
from semaopt.optimizers._nonfinite import kept
from semaopt.projections import Projection


class SGDMax(MinMaxOptimizer):
    r"""Gradient ascent in y until it moves no more, then one step of gradient descent in x.

    .. math::
        y &\leftarrow \Pi_Y[y + \eta_y O_y(x_t, y)] \quad\text{until}\quad |y_+ - y|/\eta_y \le \text{tolerance} \\
        x_{t+1} &= x_t - \eta_x O_x(x_t, y)

    Args:
        primal, dual, lr, dual_lr, project: as in :class:`semaopt.PDAda`.
        tolerance: on the gradient mapping :math:`|\Pi_Y[y + \eta_y g] - y|/\eta_y` over all dual variables.
        max_ascents: the ascent ends after so many steps; a stochastic gradient may never meet the tolerance.
        weight_decay: adds ``weight_decay * x`` to the primal gradient.
        on_nonfinite: ``"error"`` or ``"skip"`` for gradients with NaN or Inf in any call, as in
            :class:`semaopt.PDAda`; y is then where it began.

    ``step(closure)`` calls the closure ``1 + ascents`` times. It must compute the loss and call ``backward()``,
    on a fresh sample or on the same one; gradients are cleared before each call.

    Reference: Lin, Jin and Jordan, "On Gradient Descent Ascent for Nonconvex-Concave Minimax Problems", ICML 2020.

    >>> x, y = torch.nn.Parameter(torch.tensor([1.0])), torch.nn.Parameter(torch.tensor([0.0]))
    >>> optimizer = semaopt.baselines.SGDMax(primal=[x], dual=[y], lr=0.1, dual_lr=1.0)
    >>> def closure():
    ...     loss = (x.square() / 2 + x * y - y.square() / 2).sum()
    ...     loss.backward()
    ...     return loss.item()
    >>> optimizer.step(closure)                    # F(x) = x^2
    1.0
    >>> x.data, y.data
    (tensor([0.8000]), tensor([1.]))
    """

    shared: ClassVar[tuple[str, ...]] = ("tolerance", "max_ascents")

    def __init__(
        self,
        primal: ParamsT,
        dual: ParamsT,
        lr: Rate = 1e-3,
        dual_lr: Rate = 1e-2,
        *,
        project: Projection | None = None,
        tolerance: float = 1e-3,
        max_ascents: int = 100,
        weight_decay: float = 0.0,
        on_nonfinite: str | None = None,
    ) -> None:
        given = options_of(locals())
        validate_rate("tolerance", tolerance, "0.0 takes max_ascents steps each time")
        given["max_ascents"] = validate_integer("max_ascents", max_ascents, "try 100")
        super().__init__(primal, dual, {**given, "beta": None})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One maximization over y and one step in x; returns the loss at (x_t, y)."""
        if closure is None:
            raise TypeError(
                "SGDMax.step() needs a closure: it evaluates the gradient many times while y ascends; "
                "call optimizer.step(closure) with a closure that computes the loss, calls backward() and returns it"
            )
        tolerance, max_ascents = (self.param_groups[0][name] for name in ("tolerance", "max_ascents"))
        put_back = self._kept()
        for ascents in range(max_ascents + 1):
            self.zero_grad()
            loss = evaluate(closure)
            self._check_step()
            try:
                if self._leaves_out():
                    put_back()
                    return loss
            except NonFiniteError:
                put_back()
                raise
            if ascents == max_ascents or not self._improve(tolerance):
                break
        for group, xs, gs in self._each():
            if group["role"] == "primal":
                self._descend(group, xs, gs, group["lr"])
        return loss

    def _kept(self) -> Callable[[], None]:
        """What undoes the ascent, if it may come to that."""
        if self.on_nonfinite is None:
            return lambda: None
        return kept(self, [z for group in self.param_groups for z in group["params"]], moved=True)

    def _improve(self, tolerance: float) -> bool:
        """One ascent step, unless it would move y by less than the tolerance: the gradients are then those at y."""
        groups = [each for each in self._each() if each[0]["role"] == "dual"]
        before = [y.clone() for _, ys, _ in groups for y in ys]
        for group, ys, gs in groups:
            self._ascend(group, ys, gs, group["lr"])
        after = [(y, group["lr"]) for group, ys, _ in groups for y in ys]
        mapping = [(y - was) / eta for (y, eta), was in zip(after, before, strict=True)]
        improved = bool(mapping) and group_norm(mapping).item() > tolerance
        if not improved:
            for (y, _), was in zip(after, before, strict=True):
                y.copy_(was)
        return improved
