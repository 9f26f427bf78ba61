"""PES-AdaGrad: the stages of PES-SGDA with AdaGrad inside each."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor
from torch.optim.optimizer import ParamsT

from semaopt import projections
from semaopt._validation import is_real, require
from semaopt.baselines._stages import ProximalStages
from semaopt.estimator import Rate
from semaopt.optimizers._base import options_of
from semaopt.optimizers._roles import SGD
from semaopt.optimizers.asa import step_group
from semaopt.projections import Projection
from semaopt.scalings import Seen


@dataclass(frozen=True)
class SumOfSquares:
    """u = sum of g^2 over the steps so far (:class:`semaopt.scalings.AdaFom` has the mean)."""

    g0: float
    buffers: ClassVar[tuple[str, ...]] = ("u_sum",)

    def update_(self, m: Mapping[str, Tensor], seen: Seen) -> Tensor:
        return m["u_sum"].add_(seen.g.square())


class PESAdaGrad(ProximalStages):
    r""":class:`semaopt.baselines.PESSGDA` with AdaGrad on both sides, its sums restarted with each stage.

    .. math::
        g_t &= O_x(x_t, y_t) + \gamma_p (x_t - x_0^k), \qquad
        x_{t+1} = x_t - \eta_{x,k}\, g_t / (\delta + \sqrt{\textstyle\sum_{j\le t} g_j^2}) \\
        y_{t+1} &= \Pi_Y[y_t + \eta_{y,k}\, O_y(x_t, y_t)/(\delta + \sqrt{\textstyle\sum_{j\le t} O_y(x_j, y_j)^2})]

    Guo et al. write the dual-averaging form of AdaGrad on (x, y); this is its gradient-step form. The projection is
    the Euclidean one (the same for a Box).

    Args:
        primal, dual, lr, dual_lr, project, stage_length, growth, factor, proximal, weight_decay, on_nonfinite: as in
            :class:`semaopt.baselines.PESSGDA`.
        delta: added to the root of the sum.

    >>> x, y = torch.nn.Parameter(torch.tensor([1.0])), torch.nn.Parameter(torch.tensor([0.0]))
    >>> optimizer = semaopt.baselines.PESAdaGrad(primal=[x], dual=[y], lr=0.1, dual_lr=0.5)
    >>> (x.square() + x * y - y.square() / 2).sum().backward()
    >>> optimizer.step()                     # the first step of AdaGrad is eta times a sign
    >>> x.data, y.data
    (tensor([0.9000]), tensor([0.5000]))
    """

    shared: ClassVar[tuple[str, ...]] = (*ProximalStages.shared, "delta")

    def __init__(
        self,
        primal: ParamsT,
        dual: ParamsT,
        lr: Rate = 1e-3,
        dual_lr: Rate = 1e-2,
        *,
        project: Projection | None = None,
        stage_length: int = 1000,
        growth: str = "linear",
        factor: float = 0.2,
        proximal: float = 2e-3,
        delta: float = 1e-7,
        weight_decay: float = 0.0,
        on_nonfinite: str | None = None,
    ) -> None:
        given = options_of(locals())
        ok = is_real(delta) and 1e-30 <= delta < math.inf
        require(ok, "delta", delta, "must be finite and at least 1e-30 (smaller vanishes in float32)", "try 1e-7")
        super().__init__(primal, dual, given)

    def _buffers(self, group: dict[str, Any]) -> tuple[str, ...]:
        sides = {"primal": ("v", "u_sum", "reference", "average"), "dual": ("v", "u_sum", "average")}
        return sides[group["role"]]

    def _descend(self, group: dict[str, Any], xs: list[Tensor], gs: list[Tensor], eta: Rate) -> None:
        rule = {**group, **SGD, "lr": eta, "scaling": SumOfSquares(group["delta"])}
        step_group(rule, xs, gs, [self.state[x] for x in xs])

    def _ascend(self, group: dict[str, Any], ys: list[Tensor], gs: list[Tensor], eta: Rate) -> None:
        ascent = {**group, "maximize": True, "weight_decay": 0.0, "differentiable": False}
        self._descend(ascent, ys, gs, eta)
        for y in ys:
            projections.apply_(group["project"], y)

    def _restart(self, group: dict[str, Any], x: Tensor) -> None:
        super()._restart(group, x)
        self.state[x]["u_sum"].zero_()
