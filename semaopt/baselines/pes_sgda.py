"""PES-SGDA: proximal stages of SGDA with geometrically decayed step sizes."""

from __future__ import annotations

from torch.optim.optimizer import ParamsT

from semaopt.baselines._stages import ProximalStages
from semaopt.estimator import Rate
from semaopt.optimizers._base import options_of
from semaopt.projections import Projection


class PESSGDA(ProximalStages):
    r"""The stages of :class:`EpochSGDA` with step sizes :math:`\eta\,\text{factor}^k`.

    .. math::
        x_{t+1} &= x_t - \eta_{x,k}\,(O_x(x_t, y_t) + \gamma_p (x_t - x_0^k)), \qquad
        y_{t+1} = \Pi_Y[y_t + \eta_{y,k}\, O_y(x_t, y_t)] \\
        (x_0^{k+1}, y_0^{k+1}) &= \tfrac{1}{T_k}\sum_{t<T_k} (x_t, y_t)

    Args:
        primal, dual, lr, dual_lr, project: as in :class:`semaopt.PDAda`; ``group["lr"]`` stays eta_0.
        stage_length: T_0 in steps.
        growth: ``"linear"``: T_k = (k+1) T_0; ``"constant"``: T_k = T_0 (the paper's experiments); ``"inverse"``:
            T_k = T_0 eta_0/eta_k (the theorems of Guo et al.).
        factor: of the step sizes from stage to stage, in (0, 1].
        proximal: gamma_p, at least the weak convexity of f in x.
        weight_decay: adds ``weight_decay * x`` to the primal gradient.
        on_nonfinite: ``"error"`` or ``"skip"`` for gradients with NaN or Inf, as in :class:`semaopt.PDAda`.

    Reference: Guo, Yan, Yuan and Yang, "Fast Objective & Duality Gap Convergence for Non-Convex Strongly-Concave
    Min-Max Problems with PL Condition", JMLR 2023.

    >>> x, y = torch.nn.Parameter(torch.tensor([1.0])), torch.nn.Parameter(torch.tensor([0.0]))
    >>> optimizer = semaopt.baselines.PESSGDA(primal=[x], dual=[y], stage_length=100, factor=0.5, growth="inverse")
    >>> [optimizer.length(k) for k in range(3)]
    [100, 200, 400]
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
        factor: float = 0.2,
        proximal: float = 2e-3,
        weight_decay: float = 0.0,
        on_nonfinite: str | None = None,
    ) -> None:
        given = options_of(locals())
        super().__init__(primal, dual, given)
