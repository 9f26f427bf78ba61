"""AmIGO: amortized implicit gradient optimization, with warm-started loops on y and on the linear system."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from semaopt._validation import validate_integer
from semaopt.estimator import Rate
from semaopt.hypergradient.closures import Closure
from semaopt.hypergradient.inverses import NoInverse, validate_positive
from semaopt.hypergradient.linalg import axpy
from semaopt.optimizers._bilevel import BilevelOptimizer, subtract
from semaopt.optimizers._hooks import lean_hooks
from semaopt.projections import Projection


class AmIGO(BilevelOptimizer):
    r"""Several warm-started steps on y and on the linear system, then one step on x.

    .. math::
        y^{s+1} &= \Pi_Y[y^s - \eta_y\, O_{gy}(x_t, y^s)], \qquad s = 0, \dots, S-1 \\
        w^{r+1} &= w^r - \rho\,(O_{gyy} w^r - O_{fy})(x_t, y^S), \qquad r = 0, \dots, R-1 \\
        x_{t+1} &= x_t - \eta_x\, (O_{fx} - O_{gxy} w^R)(x_t, y^S)

    Both loops start where the last step ended; before the first step, w is 0. They use one sample of f and a fresh
    sample of g for every product.

    Args:
        upper, lower, lr, lower_lr, lower_weight_decay, project, process_group, on_nonfinite: as in
            :class:`semaopt.SMB`.
        lower_steps: S.
        system_steps: R.
        system_lr: rho; None stands for the ``lr`` of the lower group.

    Reference: Arbel and Mairal, "Amortized implicit differentiation for stochastic bilevel optimization", ICLR 2022.

    >>> x, y = torch.nn.Parameter(torch.tensor([1.0])), torch.nn.Parameter(torch.tensor([0.0]))
    >>> optimizer = semaopt.baselines.AmIGO(upper=[x], lower=[y], lr=0.1, lower_lr=1.0, lower_steps=1, system_steps=1)
    >>> optimizer.step(lambda: y.square().sum() / 2, lambda: (y - x).square().sum() / 2)    # F(x) = x^2/2
    tensor(0.5000)
    >>> x.data, y.data
    (tensor([0.9000]), tensor([1.]))
    """

    shared: ClassVar[tuple[str, ...]] = ("lower_steps", "system_steps", "system_lr")
    default_inverse: ClassVar[type[Any]] = NoInverse

    lower_buffers: ClassVar[tuple[str, ...]] = ("w",)

    def __init__(
        self,
        upper: ParamsT,
        lower: ParamsT | None = None,
        lr: Rate = 1e-2,
        lower_lr: Rate = 1e-1,
        *,
        lower_steps: int = 10,
        system_steps: int = 10,
        system_lr: float | None = None,
        lower_weight_decay: float = 0.0,
        project: Projection | None = None,
        process_group: Any = None,
        on_nonfinite: str | None = None,
    ) -> None:
        validate_positive("system_lr", system_lr, "pass a number below 2/|g_yy|, or None for the lr of the lower group")
        defaults = dict(
            lr=lr,
            lower_lr=lower_lr,
            beta=None,
            inverse=None,
            lower_steps=validate_integer("lower_steps", lower_steps, "try 10"),
            system_steps=validate_integer("system_steps", system_steps, "try 10"),
            system_lr=system_lr,
            lower_weight_decay=lower_weight_decay,
            project=project,
        )
        super().__init__(upper, lower, defaults, process_group=process_group, on_nonfinite=on_nonfinite)

    @lean_hooks
    @torch.no_grad()
    def step(self, outer: Closure, inner: Closure) -> Tensor:  # type: ignore[override]
        """Take one step and return the loss of ``outer``."""
        oracles, options = self._oracles(outer, inner), self.param_groups[0]
        with self._rollback(moves=True) as rollback:
            for _ in range(options["lower_steps"]):
                self._descend_lower(oracles)
            memory, rho = self._memory(), options["system_lr"]
            rates = memory.rates if rho is None else [rho] * len(memory.states)
            with torch.enable_grad():
                _, f_x, f_y = oracles.f()
                w = [state.get("w", torch.zeros_like(f)) for state, f in zip(memory.states, f_y, strict=True)]
                for _ in range(options["system_steps"]):
                    residual = axpy(-1.0, f_y, oracles.draw().hessian(w))
                    w = [part.sub(r, alpha=rate) for part, r, rate in zip(w, residual, rates, strict=True)]
                implicit = oracles.draw(mixed=True).mixed(w)
            for state, part in zip(memory.states, w, strict=True):
                state["w"] = part
            estimate = [subtract(f, g) for f, g in zip(f_x, implicit, strict=True)]
            self._move_upper(oracles, estimate, rollback)
            self._count(oracles.loss)
        return oracles.loss
