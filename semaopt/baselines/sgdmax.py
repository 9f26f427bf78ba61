"""SGDMax: maximize over y, then one descent step in x."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch.optim.optimizer import ParamsT

from semaopt._validation import validate_integer, validate_rate
from semaopt.estimator import Rate, group_norm
from semaopt.kernels import StepRule
from semaopt.optimizers._hooks import lean_hooks
from semaopt.optimizers._minmax import MinMaxOptimizer, evaluate
from semaopt.optimizers._nonfinite import Rollback
from semaopt.projections import Projection


class SGDMax(MinMaxOptimizer):
    r"""Gradient ascent in y until it stops moving, then one step of gradient descent in x.

    .. math::
        y &\leftarrow \Pi_Y[y + \eta_y O_y(x_t, y)] \quad\text{until}\quad |y_+ - y|/\eta_y \le \text{tolerance} \\
        x_{t+1} &= x_t - \eta_x O_x(x_t, y)

    Args:
        primal, dual, lr, dual_lr, project: as in :class:`semaopt.PDAda`.
        tolerance: bound of the gradient mapping :math:`|\Pi_Y[y + \eta_y g] - y|/\eta_y` over all dual variables.
        max_ascents: maximum number of ascent steps; a stochastic gradient may never meet the tolerance.
        weight_decay: factor of x that is added to the primal gradient.
        on_nonfinite: ``"error"`` or ``"skip"`` for gradients with NaN or Inf in any call, as in
            :class:`semaopt.PDAda`; y is restored.

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
        dual: ParamsT | None = None,
        lr: Rate = 1e-3,
        dual_lr: Rate = 1e-2,
        *,
        project: Projection | None = None,
        tolerance: float = 1e-3,
        max_ascents: int = 100,
        weight_decay: float = 0.0,
        on_nonfinite: str | None = None,
    ) -> None:
        validate_rate("tolerance", tolerance, "0.0 takes max_ascents steps each time")
        defaults = dict(
            lr=lr,
            dual_lr=dual_lr,
            beta=None,
            project=project,
            tolerance=tolerance,
            max_ascents=validate_integer("max_ascents", max_ascents, "try 100"),
            weight_decay=weight_decay,
        )
        super().__init__(primal, dual, defaults, on_nonfinite=on_nonfinite)

    @lean_hooks
    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Maximize over y, take one step in x, and return the loss at (x_t, y).

        Args:
            closure: computes the loss and the gradients; called several times.
        """
        if closure is None:
            raise TypeError(
                "SGDMax.step() needs a closure: it evaluates the gradient many times while y ascends; "
                "call optimizer.step(closure) with a closure that computes the loss, calls backward() and returns it"
            )
        tolerance, max_ascents = (self.param_groups[0][name] for name in ("tolerance", "max_ascents"))
        zs = [z for group in self.param_groups for z in group["params"]]
        loss = None
        with Rollback(self, self._nonfinite, zs, values=True, enabled=self.on_nonfinite is not None) as rollback:
            for ascents in range(max_ascents + 1):
                self.zero_grad()
                loss = evaluate(closure)
                self._validate_step()
                if self._skips():
                    rollback.undo()
                    return loss
                if ascents == max_ascents or not self._improve(tolerance):
                    break
            for group, xs, gs in self._each():
                if group["role"] == "primal":
                    self._descend(StepRule.sgd(group["lr"], group["weight_decay"]), xs, gs)
        return loss

    def _improve(self, tolerance: float) -> bool:
        """Take an ascent step and return True, unless y would move by less than the tolerance.

        In that case y does not change, and the current gradients are the ones at y.
        """
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
