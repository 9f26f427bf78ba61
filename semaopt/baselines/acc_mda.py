"""AccMDA: accelerated momentum descent ascent, with the STORM estimator on both sides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from semaopt import projections
from semaopt._validation import require, validate_rate
from semaopt.estimator import Rate, group_norm
from semaopt.kernels import StepRule
from semaopt.kernels.ascend import ascend_
from semaopt.kernels.loop import increment_
from semaopt.optimizers._hooks import lean_hooks
from semaopt.optimizers._minmax import MinMaxOptimizer, evaluate
from semaopt.projections import Projection

Closure = Callable[[], Any]


class AccMDA(MinMaxOptimizer):
    r"""Descent and ascent along STORM estimates, corrected by the change of the gradient on one sample.

    With z = (x, y), :math:`\eta_t = k/(m+t)^{1/3}` and :math:`a_{t+1} = c\,\eta_t^2`, t = 1, 2, ...:

    .. math::
        v_t &= O(z_t; \xi_t) + (1-a_t)\,(v_{t-1} - O(z_{t-1}; \xi_t)), \qquad v_1 = O(z_1; \xi_1) \\
        x_{t+1} &= x_t - \eta_t\, \text{lr}\; v_{x,t}, \qquad
        y_{t+1} = y_t + \eta_t\,(\Pi_Y[y_t + \text{dual\_lr}\; v_{y,t}] - y_t)

    **The closure contract.** ``step(closure)`` calls the closure twice, at :math:`z_{t-1}` and at :math:`z_t`, and both
    calls must use the same sample: draw the batch before ``step``, not in the closure. The closure computes the loss
    and calls ``backward()``; gradients are cleared before each call. Torch's random numbers (dropout) are replayed in
    the second call. The first step calls the closure twice at :math:`z_1` and raises if the two gradients differ.

    Args:
        primal, dual, lr, dual_lr, project: as in :class:`semaopt.PDAda`.
        k, m: parameters of eta_t; m must be at least max(2, k^3, (c_x k)^3, (c_y k)^3), so that eta_t and a_t are at
            most 1.
        c_x, c_y: parameter c of a_t, on the primal and on the dual side.
        on_nonfinite: ``"error"`` or ``"skip"`` for gradients with NaN or Inf at either point, as in
            :class:`semaopt.PDAda`.

    Reference: Huang, Gao, Pei and Huang, "Accelerated Zeroth-Order and First-Order Momentum Methods from Mini to
    Minimax Optimization", JMLR 2022.

    >>> x, y = torch.nn.Parameter(torch.tensor([1.0])), torch.nn.Parameter(torch.tensor([0.0]))
    >>> optimizer = semaopt.baselines.AccMDA(primal=[x], dual=[y], lr=0.1, dual_lr=0.5, k=2.0, m=63.0)
    >>> def closure():
    ...     loss = (x.square() / 2 + x * y - y.square() / 2).sum()
    ...     loss.backward()
    ...     return loss.item()
    >>> optimizer.step(closure)                    # eta_1 = 2/64^(1/3) = 1/2
    0.5
    >>> x.data, y.data
    (tensor([0.9500]), tensor([0.2500]))
    """

    shared: ClassVar[tuple[str, ...]] = ("k", "m", "c_x", "c_y")
    initial: ClassVar[dict[str, Any]] = {"taken": 0}

    def __init__(
        self,
        primal: ParamsT,
        dual: ParamsT | None = None,
        lr: Rate = 1e-3,
        dual_lr: Rate = 1e-2,
        *,
        project: Projection | None = None,
        k: float = 1.0,
        m: float = 8.0,
        c_x: float = 1.0,
        c_y: float = 1.0,
        on_nonfinite: str | None = None,
    ) -> None:
        for name, value in (("k", k), ("m", m), ("c_x", c_x), ("c_y", c_y)):
            validate_rate(name, value, "see the formulas of eta_t and a_t")
        least = max(2.0, k**3, (c_x * k) ** 3, (c_y * k) ** 3)
        rule = f"must be at least max(2, k^3, (c_x k)^3, (c_y k)^3) = {least:g}"
        require(m >= least, "m", m, rule, "raise m or lower k: eta_t and a_t may not exceed 1")
        defaults = dict(lr=lr, dual_lr=dual_lr, beta=None, project=project, k=k, m=m, c_x=c_x, c_y=c_y)
        super().__init__(primal, dual, defaults, on_nonfinite=on_nonfinite)

    def _buffers(self, group: dict[str, Any]) -> tuple[str, ...]:
        return ("v", "previous")

    @lean_hooks
    @torch.no_grad()
    def step(self, closure: Closure | None = None) -> Any:
        """Take one step with two gradients on the closure's sample, and return the loss at (x_t, y_t)."""
        if closure is None:
            raise TypeError(
                "AccMDA.step() needs a closure: it takes two gradients on one sample, at the last point and at this "
                "one; draw the batch, then call optimizer.step(closure) with a closure that computes the loss on that "
                "batch and calls backward()"
            )
        loss, before = self._two_gradients(closure)
        self._validate_step()
        last = [(f"a gradient at the last point (number {i})", g) for i, g in enumerate(before.values())]
        if self._nonfinite.skips(self.param_groups, last):
            return loss
        for group, zs, gs in self._each():
            c = group["c_x"] if group["role"] == "primal" else group["c_y"]
            eta, a = self._eta(group, 0), c * self._eta(group, -1) ** 2
            vs = [self._storm(z, g, before.get(z), a) for z, g in zip(zs, gs, strict=True)]
            for z in zs:
                self.state[z]["previous"].copy_(z)
            if group["role"] == "primal":
                self._descend(StepRule.sgd(eta * group["lr"]), zs, vs)
            else:
                self._move_dual(group, zs, vs, eta)
        self.algorithm_state["taken"] += 1
        for group in self.param_groups:
            for z in group["params"]:
                if z.grad is None:  # frozen or unused: v is outdated, so it starts over once z has a gradient
                    self.state.pop(z, None)
        return loss

    def _eta(self, group: dict[str, Any], shift: int) -> float:
        """Return eta_{t + shift}; the first step is t = 1."""
        eta: float = group["k"] / (group["m"] + self.algorithm_state["taken"] + 1 + shift) ** (1 / 3)
        return eta

    def _storm(self, z: Tensor, g: Tensor, g_before: Tensor | None, a: float) -> Tensor:
        """Compute ``v <- g(z_t) + (1 - a)(v - g(z_{t-1}))``, or ``v <- g`` in a first step, and return v."""
        v: Tensor = self.state[z]["v"]
        if g_before is None:
            return v.copy_(g)
        return v.sub_(g_before).mul_(1 - a).add_(g)

    def _move_dual(self, group: dict[str, Any], ys: list[Tensor], vs: list[Tensor], eta: float) -> None:
        """Move y towards its projected ascent step, by the fraction eta."""
        for y, v in zip(ys, vs, strict=True):
            target = y.clone()
            ascend_(target, v.to(y.dtype), group["lr"], group["project"])
            y.lerp_(target, eta)
            projections.apply_(group["project"], y)  # rounding may move a point between two points of Y out of Y
            increment_(self.state[y]["step"])

    def _two_gradients(self, closure: Closure) -> tuple[Any, dict[Tensor, Tensor]]:
        """Return the loss at z_t, whose gradients stay in ``.grad``, and the gradients at z_{t-1} by parameter."""
        zs = [z for group in self.param_groups for z in group["params"]]
        known = [z for z in zs if self.state.get(z) and self.state[z]["step"] > 0]
        here = [z.clone() for z in known]
        devices = sorted({z.device.index for z in zs if z.is_cuda})
        for z in known:
            z.copy_(self.state[z]["previous"])
        try:
            self.zero_grad()
            with torch.random.fork_rng(devices):  # the second call draws the same numbers
                evaluate(closure)
        finally:
            for z, was in zip(known, here, strict=True):
                z.copy_(was)
        # Copies: gradients may live in buffers that the next backward fills again (DDP's buckets).
        before = {z: z.grad.clone() for z in zs if z.grad is not None}
        self.zero_grad()
        loss = evaluate(closure)
        if not known:
            _refuse_other_sample([(before[z], z.grad) for z in before if z.grad is not None])
        return loss, {z: before[z] for z in known if z in before}  # a parameter that joins now has no z_{t-1}


def _refuse_other_sample(pairs: list[tuple[Tensor, Tensor]]) -> None:
    """Raise if two gradients at one point differ by more than a device's order of summation can explain."""
    if not pairs:
        return
    size = group_norm([first for first, _ in pairs]).item()
    difference = group_norm([first - second for first, second in pairs]).item()
    if difference > 1e-2 * size:
        raise RuntimeError(
            f"AccMDA: two calls of the closure at the same point gave gradients that differ by {difference:g} (their "
            f"norm is {size:g}), so they used different samples; draw the batch before optimizer.step(closure), not "
            "inside the closure"
        )
