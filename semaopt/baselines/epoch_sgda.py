"""Epoch-SGDA: proximal stages of SGDA with step sizes eta/(k+1)."""

from __future__ import annotations

from torch.optim.optimizer import ParamsT

from semaopt.baselines._stages import ProximalStages
from semaopt.estimator import Rate
from semaopt.optimizers._base import options_of
from semaopt.projections import Projection


class EpochSGDA(ProximalStages):
    r"""Stages k = 0, 1, ... of SGDA with a proximal term, step sizes :math:`\eta/(k+1)`, restarted at their averages.

    .. math::
        x_{t+1} &= x_t - \tfrac{\eta_x}{k+1}\,(O_x(x_t, y_t) + \gamma_p (x_t - x_0^k)), \qquad
        y_{t+1} = \Pi_Y[y_t + \tfrac{\eta_y}{k+1}\, O_y(x_t, y_t)] \\
        (x_0^{k+1}, y_0^{k+1}) &= \tfrac{1}{T_k}\sum_{t<T_k} (x_t, y_t)

    Args:
        primal, dual, lr, dual_lr, project: as in :class:`semaopt.PDAda`; ``group["lr"]`` stays eta.
        stage_length: T_0 in steps.
        growth: ``"linear"``: T_k = (k+1) T_0 (also ``"inverse"``: T_k = T_0 eta_0/eta_k, the same here), or
            ``"constant"``: T_k = T_0.
        proximal: gamma_p, at least the weak convexity of f in x.
        weight_decay: adds ``weight_decay * x`` to the primal gradient.
        on_nonfinite: ``"error"`` or ``"skip"`` for gradients with NaN or Inf, as in :class:`semaopt.PDAda`.

    Reference: Yan, Xu, Lin, Liu and Yang, "Optimal Epoch Stochastic Gradient Descent Ascent Methods for Min-Max
    Optimization", NeurIPS 2020.

    >>> x, y = torch.nn.Parameter(torch.tensor([1.0])), torch.nn.Parameter(torch.tensor([0.0]))
    >>> optimizer = semaopt.baselines.EpochSGDA(primal=[x], dual=[y], lr=0.1, dual_lr=0.5, stage_length=1)
    >>> (x.square() / 2 + x * y - y.square() / 2).sum().backward()
    >>> optimizer.step()                     # stage 0 is over; its average is x_0
    >>> x.data, optimizer.param_groups[0]["stage"], optimizer.length(1)
    (tensor([1.]), 1, 2)
    """

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
        proximal: float = 2e-3,
        weight_decay: float = 0.0,
        on_nonfinite: str | None = None,
    ) -> None:
        given = options_of(locals())
        super().__init__(primal, dual, {**given, "factor": None})
