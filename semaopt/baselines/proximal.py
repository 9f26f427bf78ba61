r"""Epoch-SGDA, PES-SGDA and PES-AdaGrad: proximal stages, restarted at their averages.

Stage k takes :math:`T_k` steps on :math:`f(x, y) + (\gamma_p/2)|x - x_0^k|^2`; then x and y are set to the averages of
the points at which the stage took its gradients. The methods differ in the step sizes of a stage and in the step.
``average=False`` starts the next stage at the last point instead, to measure what the averages contribute.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor
from torch._compile import _disable_dynamo
from torch.optim.optimizer import ParamsT

from semaopt import projections
from semaopt._validation import is_real, require, validate_integer, validate_rate
from semaopt.estimator import Rate, real, track_
from semaopt.kernels import StepRule
from semaopt.optimizers._hooks import lean_hooks
from semaopt.optimizers._minmax import MinMaxOptimizer, evaluate
from semaopt.optimizers._state import zero_state
from semaopt.projections import Projection
from semaopt.scalings import Seen

GROWTHS = ("linear", "constant", "inverse")
_SHARED = ("stage_length", "growth", "factor", "average")
_INITIAL = {"stage": 0, "taken": 0}


# ---- stages ---------------------------------------------------------------------------------------------------------


class StageRule(NamedTuple):
    """Step sizes and lengths of the stages; ``factor=None`` stands for step sizes eta/(k+1)."""

    stage_length: int
    growth: str
    factor: float | None
    average: bool = True

    def decay(self, k: int) -> float:
        """Return the factor of both step sizes in stage k: factor^k, or 1/(k+1) without a factor."""
        return 1 / (k + 1) if self.factor is None else self.factor**k

    def length(self, k: int) -> int:
        """Return T_k, the number of steps of stage k."""
        inverse = k + 1 if self.factor is None else 1 / self.decay(k)  # 1/(1/49) is more than 49
        growth = {"linear": k + 1, "constant": 1, "inverse": inverse}[self.growth]
        return math.ceil(self.stage_length * growth)


def stage_options(stage_length: Any, growth: Any, factor: Any, proximal: Any, average: Any) -> dict[str, Any]:
    """Return the options that all three methods have, validated."""
    length = validate_integer("stage_length", stage_length, "count steps: epochs * len(train)")
    require(growth in GROWTHS, "growth", growth, f"must be one of {', '.join(GROWTHS)}", "try 'linear'")
    ok = factor is None or (is_real(factor) and 0 < factor <= 1)
    require(ok, "factor", factor, "must lie in (0, 1]", "step sizes may only shrink; try 0.2")
    validate_rate("proximal", proximal, "0.0 turns the proximal term off")
    require(isinstance(average, bool), "average", average, "must be True or False", "the methods use True")
    stages = {"stage_length": length, "growth": growth, "factor": factor, "average": average}
    return {"beta": None, **stages, "proximal": proximal}


class InnerStep(Protocol):
    """The step of a method inside a stage."""

    @property
    def buffers(self) -> tuple[str, ...]:
        """Names of the tensors that the step keeps per dual parameter; a primal parameter has ``"v"`` as well."""

    def descend(self, optimizer: MinMaxOptimizer, rule: StepRule, xs: list[Tensor], gs: list[Tensor]) -> None:
        """Take a step on primal variables."""

    def ascend(
        self, optimizer: MinMaxOptimizer, group: dict[str, Any], ys: list[Tensor], gs: list[Tensor], eta: Rate
    ) -> None:
        """Take a projected step on dual variables."""


class PlainStep:
    """Gradient descent ascent."""

    buffers: tuple[str, ...] = ()

    def descend(self, optimizer: MinMaxOptimizer, rule: StepRule, xs: list[Tensor], gs: list[Tensor]) -> None:
        optimizer._descend(rule, xs, gs)

    def ascend(
        self, optimizer: MinMaxOptimizer, group: dict[str, Any], ys: list[Tensor], gs: list[Tensor], eta: Rate
    ) -> None:
        optimizer._ascend(group, ys, gs, eta)


@dataclass(frozen=True)
class SumOfSquares:
    """u = sum of g^2 over the steps so far (:class:`semaopt.scalings.AdaFom` has the mean)."""

    g0: float
    buffers: ClassVar[tuple[str, ...]] = ("u_sum",)

    def update_(self, m: Mapping[str, Tensor], seen: Seen) -> Tensor:
        return m["u_sum"].add_(seen.g.square())


@dataclass(frozen=True)
class AdaGradStep:
    """AdaGrad on both sides."""

    delta: float
    buffers: ClassVar[tuple[str, ...]] = ("v", "u_sum")

    def descend(self, optimizer: MinMaxOptimizer, rule: StepRule, xs: list[Tensor], gs: list[Tensor]) -> None:
        optimizer._descend(replace(rule, scaling=SumOfSquares(self.delta)), xs, gs)

    def ascend(
        self, optimizer: MinMaxOptimizer, group: dict[str, Any], ys: list[Tensor], gs: list[Tensor], eta: Rate
    ) -> None:
        optimizer._descend(StepRule(eta, 1.0, SumOfSquares(self.delta), maximize=True), ys, gs)
        for y in ys:
            projections.apply_(group["project"], y)


def stage_rule(optimizer: MinMaxOptimizer) -> StageRule:
    """Return the stages of an optimizer, from the options that all its groups share."""
    return StageRule(*(optimizer.param_groups[0][name] for name in _SHARED))


def stage_buffers(group: dict[str, Any], inner: InnerStep) -> tuple[str, ...]:
    """Return the names of the tensors kept for each parameter of the group."""
    first = ("v", "reference") if group["role"] == "primal" else ()
    return tuple(dict.fromkeys((*first, *inner.buffers, "average")))


def stage_step(optimizer: MinMaxOptimizer, inner: InnerStep, closure: Callable[[], Any] | None) -> Any:
    """Take one step of the current stage, and restart at the averages after its last step; return the loss."""
    loss = evaluate(closure)
    optimizer._validate_step()
    if optimizer._skips():
        return loss
    now, stages = optimizer.algorithm_state, stage_rule(optimizer)
    for group in optimizer.param_groups:
        for x in group["params"]:
            if x.requires_grad or x.grad is not None or x in optimizer.state:
                _average(optimizer, group, x, now["taken"])
    for group, zs, gs in optimizer._each():
        eta = group["lr"] * stages.decay(now["stage"])
        if group["role"] == "primal":
            pulls = [x - optimizer.state[x]["reference"] for x in zs]
            pulled = [g.add(pull, alpha=group["proximal"]) for g, pull in zip(gs, pulls, strict=True)]
            inner.descend(optimizer, StepRule.sgd(eta, group["weight_decay"]), zs, pulled)
        else:
            inner.ascend(optimizer, group, zs, gs, eta)
    now["taken"] += 1
    if now["taken"] == stages.length(now["stage"]):
        for group in optimizer.param_groups:
            for x in group["params"]:
                _restart(optimizer, group, x, stages.average)
        now["stage"], now["taken"] = now["stage"] + 1, 0
    return loss


def _average(optimizer: MinMaxOptimizer, group: dict[str, Any], x: Tensor, taken: int) -> None:
    """Add x_t to the average of the stage, even if x has no gradient; in the first step x_t is the reference."""
    state = optimizer.state[x]
    new = not state
    if new:
        state.update(zero_state(x, optimizer._buffers(group)))
    for name in ("reference", "average"):
        if name in state and (new or taken == 0):
            state[name].copy_(x)
    track_(real(state["average"]), real(x.to(state["average"].dtype)), 1 / (taken + 1))


def _restart(optimizer: MinMaxOptimizer, group: dict[str, Any], x: Tensor, average: bool) -> None:
    """End a stage: set x to the average of the points x_0, ..., x_{T_k - 1} at which it took its gradients."""
    if not x.requires_grad:
        optimizer.state.pop(x, None)  # a frozen parameter stays where it is, and starts over once it is unfrozen
        return
    state = optimizer.state.get(x)
    if state is None:
        return
    if average:
        x.copy_(state["average"])
        if group["role"] == "dual":  # rounding may move a mean of points of Y out of Y
            projections.apply_(group["project"], x)
    if "u_sum" in state:
        state["u_sum"].zero_()


# ---- the methods ----------------------------------------------------------------------------------------------------


class EpochSGDA(MinMaxOptimizer):
    r"""Stages k = 0, 1, ... of SGDA with a proximal term, step sizes :math:`\eta/(k+1)`, restarted at their averages.

    .. math::
        x_{t+1} &= x_t - \tfrac{\eta_x}{k+1}\,(O_x(x_t, y_t) + \gamma_p (x_t - x_0^k)), \qquad
        y_{t+1} = \Pi_Y[y_t + \tfrac{\eta_y}{k+1}\, O_y(x_t, y_t)] \\
        (x_0^{k+1}, y_0^{k+1}) &= \tfrac{1}{T_k}\sum_{t<T_k} (x_t, y_t)

    Args:
        primal, dual, lr, dual_lr, project: as in :class:`semaopt.PDAda`; ``group["lr"]`` holds eta unchanged.
        stage_length: T_0 in steps.
        growth: ``"linear"``: T_k = (k+1) T_0 (also ``"inverse"``: T_k = T_0 eta_0/eta_k, the same here), or
            ``"constant"``: T_k = T_0.
        proximal: gamma_p, at least the weak convexity of f in x.
        average: whether a stage starts at the average of the last one; False starts it at the last point (a control).
        weight_decay: factor of x that is added to the primal gradient.
        on_nonfinite: ``"error"`` or ``"skip"`` for gradients with NaN or Inf, as in :class:`semaopt.PDAda`.

    Reference: Yan, Xu, Lin, Liu and Yang, "Optimal Epoch Stochastic Gradient Descent Ascent Methods for Min-Max
    Optimization", NeurIPS 2020.

    >>> x, y = torch.nn.Parameter(torch.tensor([1.0])), torch.nn.Parameter(torch.tensor([0.0]))
    >>> optimizer = semaopt.baselines.EpochSGDA(primal=[x], dual=[y], lr=0.1, dual_lr=0.5, stage_length=1)
    >>> (x.square() / 2 + x * y - y.square() / 2).sum().backward()
    >>> optimizer.step()                     # stage 0 is over; its average is x_0
    >>> x.data, optimizer.algorithm_state["stage"], optimizer.stages.length(1)
    (tensor([1.]), 1, 2)
    """

    shared: ClassVar[tuple[str, ...]] = _SHARED
    initial: ClassVar[dict[str, Any]] = _INITIAL

    def __init__(
        self,
        primal: ParamsT,
        dual: ParamsT | None = None,
        lr: Rate = 1e-3,
        dual_lr: Rate = 1e-2,
        *,
        project: Projection | None = None,
        stage_length: int = 1000,
        growth: str = "linear",
        proximal: float = 2e-3,
        average: bool = True,
        weight_decay: float = 0.0,
        on_nonfinite: str | None = None,
    ) -> None:
        stages = stage_options(stage_length, growth, None, proximal, average)
        defaults = dict(stages, lr=lr, dual_lr=dual_lr, project=project, weight_decay=weight_decay)
        super().__init__(primal, dual, defaults, on_nonfinite=on_nonfinite)

    @property
    def stages(self) -> StageRule:
        """Step sizes and lengths of the stages."""
        return stage_rule(self)

    def _buffers(self, group: dict[str, Any]) -> tuple[str, ...]:
        return stage_buffers(group, PlainStep())

    @lean_hooks
    @_disable_dynamo  # new step counts would recompile every graph; torch.compiler.disable takes 2 s to import
    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step.

        Args:
            closure: computes the loss and the gradients; its value is returned. Optional.
        """
        return stage_step(self, PlainStep(), closure)


class PESSGDA(MinMaxOptimizer):
    r"""The stages of :class:`EpochSGDA` with step sizes :math:`\eta\,\text{factor}^k`.

    .. math::
        x_{t+1} &= x_t - \eta_{x,k}\,(O_x(x_t, y_t) + \gamma_p (x_t - x_0^k)), \qquad
        y_{t+1} = \Pi_Y[y_t + \eta_{y,k}\, O_y(x_t, y_t)] \\
        (x_0^{k+1}, y_0^{k+1}) &= \tfrac{1}{T_k}\sum_{t<T_k} (x_t, y_t)

    Args:
        primal, dual, lr, dual_lr, project: as in :class:`semaopt.PDAda`; ``group["lr"]`` holds eta_0 unchanged.
        stage_length: T_0 in steps.
        growth: ``"linear"``: T_k = (k+1) T_0; ``"constant"``: T_k = T_0 (the paper's experiments); ``"inverse"``:
            T_k = T_0 eta_0/eta_k (the theorems of Guo et al.).
        factor: ratio of the step sizes of consecutive stages, in (0, 1].
        proximal: gamma_p, at least the weak convexity of f in x.
        average: whether a stage starts at the average of the last one; False starts it at the last point (a control).
        weight_decay: factor of x that is added to the primal gradient.
        on_nonfinite: ``"error"`` or ``"skip"`` for gradients with NaN or Inf, as in :class:`semaopt.PDAda`.

    Reference: Guo, Yan, Yuan and Yang, "Fast Objective & Duality Gap Convergence for Non-Convex Strongly-Concave
    Min-Max Problems with PL Condition", JMLR 2023.

    >>> x, y = torch.nn.Parameter(torch.tensor([1.0])), torch.nn.Parameter(torch.tensor([0.0]))
    >>> optimizer = semaopt.baselines.PESSGDA(primal=[x], dual=[y], stage_length=100, factor=0.5, growth="inverse")
    >>> [optimizer.stages.length(k) for k in range(3)]
    [100, 200, 400]
    """

    shared: ClassVar[tuple[str, ...]] = _SHARED
    initial: ClassVar[dict[str, Any]] = _INITIAL

    def __init__(
        self,
        primal: ParamsT,
        dual: ParamsT | None = None,
        lr: Rate = 1e-3,
        dual_lr: Rate = 1e-2,
        *,
        project: Projection | None = None,
        stage_length: int = 1000,
        growth: str = "linear",
        factor: float = 0.2,
        proximal: float = 2e-3,
        average: bool = True,
        weight_decay: float = 0.0,
        on_nonfinite: str | None = None,
    ) -> None:
        stages = stage_options(stage_length, growth, factor, proximal, average)
        defaults = dict(stages, lr=lr, dual_lr=dual_lr, project=project, weight_decay=weight_decay)
        super().__init__(primal, dual, defaults, on_nonfinite=on_nonfinite)

    @property
    def stages(self) -> StageRule:
        """Step sizes and lengths of the stages."""
        return stage_rule(self)

    def _buffers(self, group: dict[str, Any]) -> tuple[str, ...]:
        return stage_buffers(group, PlainStep())

    @lean_hooks
    @_disable_dynamo
    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step.

        Args:
            closure: computes the loss and the gradients; its value is returned. Optional.
        """
        return stage_step(self, PlainStep(), closure)


class PESAdaGrad(MinMaxOptimizer):
    r""":class:`PESSGDA` with AdaGrad on both sides; its sums restart at each stage.

    .. math::
        g_t &= O_x(x_t, y_t) + \gamma_p (x_t - x_0^k), \qquad
        x_{t+1} = x_t - \eta_{x,k}\, g_t / (\delta + \sqrt{\textstyle\sum_{j\le t} g_j^2}) \\
        y_{t+1} &= \Pi_Y[y_t + \eta_{y,k}\, O_y(x_t, y_t)/(\delta + \sqrt{\textstyle\sum_{j\le t} O_y(x_j, y_j)^2})]

    Guo et al. write the dual-averaging form of AdaGrad on (x, y); this is its gradient-step form. The projection is
    the Euclidean one (the same for a Box).

    Args:
        primal, dual, lr, dual_lr, project, stage_length, growth, factor, proximal, average, weight_decay,
            on_nonfinite: as in :class:`PESSGDA`.
        delta: added to the root of the sum.

    >>> x, y = torch.nn.Parameter(torch.tensor([1.0])), torch.nn.Parameter(torch.tensor([0.0]))
    >>> optimizer = semaopt.baselines.PESAdaGrad(primal=[x], dual=[y], lr=0.1, dual_lr=0.5)
    >>> (x.square() + x * y - y.square() / 2).sum().backward()
    >>> optimizer.step()                     # the first step of AdaGrad is eta times a sign
    >>> x.data, y.data
    (tensor([0.9000]), tensor([0.5000]))
    """

    shared: ClassVar[tuple[str, ...]] = (*_SHARED, "delta")
    initial: ClassVar[dict[str, Any]] = _INITIAL

    def __init__(
        self,
        primal: ParamsT,
        dual: ParamsT | None = None,
        lr: Rate = 1e-3,
        dual_lr: Rate = 1e-2,
        *,
        project: Projection | None = None,
        stage_length: int = 1000,
        growth: str = "linear",
        factor: float = 0.2,
        proximal: float = 2e-3,
        delta: float = 1e-7,
        average: bool = True,
        weight_decay: float = 0.0,
        on_nonfinite: str | None = None,
    ) -> None:
        ok = is_real(delta) and 1e-30 <= delta < math.inf
        require(ok, "delta", delta, "must be finite and at least 1e-30 (smaller vanishes in float32)", "try 1e-7")
        stages = stage_options(stage_length, growth, factor, proximal, average)
        defaults = dict(stages, lr=lr, dual_lr=dual_lr, project=project, weight_decay=weight_decay, delta=delta)
        super().__init__(primal, dual, defaults, on_nonfinite=on_nonfinite)

    @property
    def stages(self) -> StageRule:
        """Step sizes and lengths of the stages."""
        return stage_rule(self)

    @property
    def _inner(self) -> AdaGradStep:
        return AdaGradStep(self.param_groups[0]["delta"])

    def _buffers(self, group: dict[str, Any]) -> tuple[str, ...]:
        return stage_buffers(group, self._inner)

    @lean_hooks
    @_disable_dynamo
    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step.

        Args:
            closure: computes the loss and the gradients; its value is returned. Optional.
        """
        return stage_step(self, self._inner, closure)
