"""AccMDA: accelerated momentum descent ascent, the STORM estimator on both sides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from semaopt import projections
from semaopt._validation import require, validate_rate
from semaopt.estimator import Rate, group_norm
from semaopt.optimizers._base import options_of
from semaopt.optimizers._minmax import MinMaxOptimizer, ascend_, evaluate
from semaopt.projections import Projection

Closure = Callable[[], Any]


class AccMDA(MinMaxOptimizer):
    r"""Descent and ascent along estimates that are corrected by the gradient's change on one sample.

    With z = (x, y), :math:`\eta_t = k/(m+t)^{1/3}` and :math:`a_{t+1} = c\,\eta_t^2`, t = 1, 2, ...:

    .. math::
        v_t &= O(z_t; \xi_t) + (1-a_t)\,(v_{t-1} - O(z_{t-1}; \xi_t)), \qquad v_1 = O(z_1; \xi_1) \\
        x_{t+1} &= x_t - \eta_t\, \text{lr}\; v_{x,t}, \qquad
        y_{t+1} = y_t + \eta_t\,(\Pi_Y[y_t + \text{dual\_lr}\; v_{y,t}] - y_t)

    **The closure contract.** ``step(closure)`` calls the closure twice, at :math:`z_{t-1}` and at :math:`z_t`, and both
    calls must use the SAME sample: draw the batch before ``step``, not in the closure. The closure computes the loss
    and calls ``backward()``; gradients are cleared before each call. Torch's random numbers (dropout) are replayed for
    the second call. The first step calls it twice at :math:`z_1`, and refuses a closure whose gradients differ.

    Args:
        primal, dual, lr, dual_lr, project: as in :class:`semaopt.PDAda`.
        k, m: of eta_t; m at least max(2, k^3, (c_x k)^3, (c_y k)^3), so that every eta_t and a_t is at most 1.
        c_x, c_y: of a_t, on the primal and on the dual side.
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

    shared: ClassVar[tuple[str, ...]] = ("k", "m", "c_x", "c_y", "taken")

    def __init__(
        self,
        primal: ParamsT,
        dual: ParamsT,
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
        given = options_of(locals())
        for name, value in (("k", k), ("m", m), ("c_x", c_x), ("c_y", c_y)):
            validate_rate(name, value, "see the formulas of eta_t and a_t")
        least = max(2.0, k**3, (c_x * k) ** 3, (c_y * k) ** 3)
        rule = f"must be at least max(2, k^3, (c_x k)^3, (c_y k)^3) = {least:g}"
        require(m >= least, "m", m, rule, "raise m or lower k: eta_t and a_t may not exceed 1")
        super().__init__(primal, dual, {**given, "beta": None, "taken": 0})

    def _buffers(self, group: dict[str, Any]) -> tuple[str, ...]:
        return ("v", "previous")

    @torch.no_grad()
    def step(self, closure: Closure | None = None) -> Any:
        """One step with two gradients on the closure's sample; returns the loss at (x_t, y_t)."""
        if closure is None:
            raise TypeError(
                "AccMDA.step() needs a closure: it takes two gradients on one sample, at the last point and at this "
                "one; draw the batch, then call optimizer.step(closure) with a closure that computes the loss on that "
                "batch and calls backward()"
            )
        loss, before = self._two_gradients(closure)
        self._check_step()
        if self._leaves_out([(f"a gradient at the last point (number {i})", g) for i, g in enumerate(before.values())]):
            return loss
        for group, zs, gs in self._each():
            c = group["c_x"] if group["role"] == "primal" else group["c_y"]
            eta, a = self._eta(group, 0), c * self._eta(group, -1) ** 2
            vs = [self._storm(z, g, before.get(z), a) for z, g in zip(zs, gs, strict=True)]
            for z in zs:
                self.state[z]["previous"].copy_(z)
            if group["role"] == "primal":
                self._descend(group, zs, vs, eta * group["lr"])
            else:
                self._ascend(group, zs, vs, eta)
        for group in self.param_groups:
            group["taken"] += 1
            for z in group["params"]:
                if z.grad is None:  # frozen or unused: its v is not of this step, so it begins anew when it comes back
                    self.state.pop(z, None)
        return loss

    def _eta(self, group: dict[str, Any], shift: int) -> float:
        """eta_{t + shift}; the first step is t = 1."""
        eta: float = group["k"] / (group["m"] + group["taken"] + 1 + shift) ** (1 / 3)
        return eta

    def _storm(self, z: Tensor, g: Tensor, g_before: Tensor | None, a: float) -> Tensor:
        """``v <- g(z_t) + (1 - a)(v - g(z_{t-1}))``, both gradients on one sample; in a first step v <- g."""
        v: Tensor = self.state[z]["v"]
        if g_before is None:
            return v.copy_(g)
        return v.sub_(g_before).mul_(1 - a).add_(g)

    def _ascend(self, group: dict[str, Any], ys: list[Tensor], gs: list[Tensor], eta: Rate) -> None:
        for y, v in zip(ys, gs, strict=True):
            target = y.clone()
            ascend_(target, v.to(y.dtype), group["lr"], group["project"])
            y.lerp_(target, eta)
            projections.apply_(group["project"], y)  # between two points of Y, up to rounding
            self.state[y]["step"] += 1

    def _two_gradients(self, closure: Closure) -> tuple[Any, dict[Tensor, Tensor]]:
        """The loss at z_t, whose gradients stay in ``.grad``, and the gradients at z_{t-1} by parameter."""
        zs = [z for group in self.param_groups for z in group["params"]]
        known = [z for z in zs if self.state.get(z)]
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
    """Two calls at one point differ by no more than a device's order of summation."""
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
