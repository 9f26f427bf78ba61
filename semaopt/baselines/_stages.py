"""The proximal stages that EpochSGDA, PESSGDA and PESAdaGrad share."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch._compile import _disable_dynamo
from torch.optim.optimizer import ParamsT

from semaopt import projections
from semaopt._validation import is_real, require, validate_integer, validate_rate
from semaopt.estimator import real, track_
from semaopt.optimizers._minmax import MinMaxOptimizer, evaluate
from semaopt.optimizers._state import zero_state

GROWTHS = ("linear", "constant", "inverse")


class ProximalStages(MinMaxOptimizer):
    r"""Stages k of :math:`T_k` steps on :math:`f(x, y) + (\gamma_p/2)|x - x_0^k|^2`, restarted at their averages.

    The stage k and the steps taken in it are plain numbers in every param group, the reference :math:`x_0^k` and
    the averages are state: ``optimizer.step()`` is all there is to call, and a state dict resumes anywhere.
    """

    shared: ClassVar[tuple[str, ...]] = ("stage_length", "growth", "factor", "stage", "taken")

    def __init__(self, primal: ParamsT, dual: ParamsT, given: dict[str, Any]) -> None:
        growth, factor = given["growth"], given["factor"]
        length = validate_integer("stage_length", given["stage_length"], "count steps: epochs * len(train)")
        require(growth in GROWTHS, "growth", growth, f"must be one of {', '.join(GROWTHS)}", "try 'linear'")
        ok = factor is None or (is_real(factor) and 0 < factor <= 1)
        require(ok, "factor", factor, "must lie in (0, 1]", "step sizes may only shrink; try 0.2")
        validate_rate("proximal", given["proximal"], "0.0 turns the proximal term off")
        super().__init__(primal, dual, {**given, "stage_length": length, "beta": None, "stage": 0, "taken": 0})

    def decay(self, k: int) -> float:
        """What multiplies both step sizes in stage k: factor^k, or 1/(k+1) where there is no factor."""
        factor: float | None = self.param_groups[0]["factor"]
        return 1 / (k + 1) if factor is None else factor**k

    def length(self, k: int) -> int:
        """T_k, the number of steps of stage k."""
        first: int = self.param_groups[0]["stage_length"]
        inverse = k + 1 if self.param_groups[0]["factor"] is None else 1 / self.decay(k)  # 1/(1/49) is more than 49
        growth = {"linear": k + 1, "constant": 1, "inverse": inverse}[self.param_groups[0]["growth"]]
        return math.ceil(first * growth)

    def _buffers(self, group: dict[str, Any]) -> tuple[str, ...]:
        return ("average",) if group["role"] == "dual" else ("v", "reference", "average")

    # Not compiled: the numbers that count the steps would be new to every graph.
    @_disable_dynamo  # torch.compiler.disable would import the compiler with semaopt, some 2 s
    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step; ``closure``, if given, computes the loss and the gradients first and its value is returned."""
        loss = evaluate(closure)
        self._check_step()
        if self._leaves_out():
            return loss
        self._remember_all()
        for group, zs, gs in self._each():
            eta = group["lr"] * self.decay(group["stage"])
            if group["role"] == "primal":
                pulls = [x - self.state[x]["reference"] for x in zs]
                pulled = [g.add(pull, alpha=group["proximal"]) for g, pull in zip(gs, pulls, strict=True)]
                self._descend(group, zs, pulled, eta)
            else:
                self._ascend(group, zs, gs, eta)
        for group in self.param_groups:
            group["taken"] += 1
            if group["taken"] == self.length(group["stage"]):
                for x in group["params"]:
                    if x.requires_grad and x in self.state:
                        self._restart(group, x)
                    elif not x.requires_grad:
                        self.state.pop(x, None)  # it stays where it is, and begins anew when it is unfrozen
                group["stage"] += 1
                group["taken"] = 0
        return loss

    def _remember_all(self) -> None:
        for group in self.param_groups:
            for x in group["params"]:
                if x.requires_grad or x.grad is not None or x in self.state:
                    self._remember(group, x)

    def _remember(self, group: dict[str, Any], x: Tensor) -> None:
        """Add x_t to the stage's average, also where x has no gradient; at its start x_t is the reference."""
        state = self.state[x]
        new = not state
        if new:
            state.update(zero_state(x, self._buffers(group)))
        for name in ("reference", "average"):
            if name in state and (new or group["taken"] == 0):
                state[name].copy_(x)
        track_(real(state["average"]), real(x.to(state["average"].dtype)), 1 / (group["taken"] + 1))

    def _restart(self, group: dict[str, Any], x: Tensor) -> None:
        """Set x to the average of the points x_0, ..., x_{T_k - 1} at which the stage took its gradients."""
        x.copy_(self.state[x]["average"])
        if group["role"] == "dual":  # a mean of points of Y may leave it by rounding
            projections.apply_(group["project"], x)
