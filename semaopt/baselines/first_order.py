"""F2SA and BOME: bilevel methods that use gradients only, no second derivatives."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from semaopt import projections
from semaopt._validation import is_real, require, validate_integer, validate_rate
from semaopt.estimator import Rate
from semaopt.hypergradient.closures import Closure, combine
from semaopt.hypergradient.inverses import NoInverse
from semaopt.hypergradient.linalg import Vector, axpy, dot
from semaopt.optimizers._bilevel import BilevelOptimizer
from semaopt.optimizers._hooks import lean_hooks
from semaopt.projections import Projection


def descended(groups: list[dict[str, Any]], ys: Vector, gradient: Vector, factor: float = 1.0) -> Vector:
    """Return ``Proj_Y[y - factor lr gradient]`` as new tensors, with the lr of the lower groups."""
    found, pairs = [], iter(zip(ys, gradient, strict=True))
    for group in groups:
        for y in group["params"]:
            if y.requires_grad:
                value, g = next(pairs)
                found.append(value - g.to(value.dtype) * (float(group["lr"]) * factor))
                projections.apply_(group["project"], found[-1])
    return found


class F2SA(BilevelOptimizer):
    r"""Fully first-order stochastic approximation: the penalty :math:`f + \lambda_t(g - \min_y g)`.

    .. math::
        z_{t+1} &= \Pi_Y[z_t - \eta_y\, O_{gy}(x_t, z_t)] \\
        y_{t+1} &= \Pi_Y\Bigl[y_t - \frac{\eta_y}{1+\lambda_t}\,(O_{fy} + \lambda_t O_{gy})(x_t, y_t)\Bigr] \\
        x_{t+1} &= x_t - \eta_x\,\bigl((O_{fx} + \lambda_tO_{gx})(x_t, y_{t+1}) - \lambda_tO_{gx}(x_t, z_{t+1})\bigr)

    with :math:`\lambda_t = \lambda_0 + \delta t`.

    z is the lower variable and minimizes g; y minimizes the penalized objective and is kept in the state. The first two
    lines are repeated ``lower_steps`` times. The estimate of the hypergradient has a bias of order 1/lambda. The paper
    leaves the step size of y free; here it is scaled such that y and z take equal steps on g for large lambda.

    **Pass closures that use one batch per step**: O_gx at y and at z come from two calls of ``inner``, and with a
    fresh batch per call lambda multiplies the noise of their difference.

    Args:
        upper, lower, lr, lower_lr, lower_weight_decay, project, process_group, on_nonfinite: as in
            :class:`semaopt.SMB`.
        penalty: lambda_0.
        penalty_growth: delta.
        lower_steps: the steps on z and y per step on x.

    Reference: Kwon, Kwon, Wright and Nowak, "A fully first-order method for stochastic bilevel optimization", ICML
    2023.

    >>> x, y = torch.nn.Parameter(torch.tensor([1.0])), torch.nn.Parameter(torch.tensor([1.0]))
    >>> optimizer = semaopt.baselines.F2SA(upper=[x], lower=[y], lr=0.1, lower_lr=1.0, penalty=99.0)
    >>> optimizer.step(lambda: y.square().sum() / 2, lambda: (y - x).square().sum() / 2)    # F(x) = x^2/2
    tensor(0.4901)
    >>> x.data
    tensor([0.9010])
    """

    shared: ClassVar[tuple[str, ...]] = ("penalty", "penalty_growth", "lower_steps")
    default_inverse: ClassVar[type[Any]] = NoInverse
    lower_buffers: ClassVar[tuple[str, ...]] = ("penalized",)

    def __init__(
        self,
        upper: ParamsT,
        lower: ParamsT | None = None,
        lr: Rate = 1e-2,
        lower_lr: Rate = 1e-1,
        *,
        penalty: float = 10.0,
        penalty_growth: float = 0.0,
        lower_steps: int = 1,
        lower_weight_decay: float = 0.0,
        project: Projection | None = None,
        process_group: Any = None,
        on_nonfinite: str | None = None,
    ) -> None:
        require(is_real(penalty) and penalty > 0, "penalty", penalty, "must be a number > 0", "try 10.0")
        validate_rate("penalty_growth", penalty_growth, "0.0 keeps the penalty constant")
        defaults = dict(
            lr=lr,
            lower_lr=lower_lr,
            beta=None,
            inverse=None,
            penalty=float(penalty),
            penalty_growth=float(penalty_growth),
            lower_steps=validate_integer("lower_steps", lower_steps, "try 1"),
            lower_weight_decay=lower_weight_decay,
            project=project,
        )
        super().__init__(upper, lower, defaults, process_group=process_group, on_nonfinite=on_nonfinite)

    @lean_hooks
    @torch.no_grad()
    def step(self, outer: Closure, inner: Closure) -> Tensor:  # type: ignore[override]
        """Take one step and return the loss of ``outer`` at the penalized y."""
        oracles, options = self._oracles(outer, inner), self.param_groups[0]
        penalty = options["penalty"] + options["penalty_growth"] * self.algorithm_state["t"]
        with self._rollback(moves=True) as rollback:
            states = [self.state[y] for y in oracles.lower]
            ys = [state.get("penalized", y.detach().clone()) for state, y in zip(states, oracles.lower, strict=True)]
            for _ in range(options["lower_steps"]):
                self._descend_lower(oracles)
                with torch.enable_grad(), oracles.lower_at(ys):
                    _, _, f_y = oracles.f()
                    g_y = oracles.lower_gradient()
                ys = descended(self._of("lower"), ys, axpy(penalty, g_y, f_y), 1 / (1 + penalty))
            self._refuse_explosion(ys, oracles.lower_norm)
            with torch.enable_grad():
                g_at_z, _ = oracles.g()
                with oracles.lower_at(ys):
                    _, f_x, _ = oracles.f()
                    g_at_y, _ = oracles.g()
            estimate = [
                combine([(1.0, f), (penalty, a), (-penalty, b)]) for f, a, b in zip(f_x, g_at_y, g_at_z, strict=True)
            ]
            for state, y in zip(states, ys, strict=True):
                state["penalized"] = y
            self._move_upper(oracles, estimate, rollback)
            self._count(oracles.loss)
        return oracles.loss


class BOME(BilevelOptimizer):
    r"""Bilevel optimization made easy: a dynamic barrier on :math:`q(x, y) = g(x, y) - g(x, y^T)`.

    .. math::
        y^{s+1} &= \Pi_Y[y^s - \eta_y\, O_{gy}(x_t, y^s)], \qquad y^0 = y_t, \quad s = 0, \dots, T-1 \\
        \lambda_t &= \max\Bigl\{0,\ \kappa - \frac{\langle\nabla f, \nabla q\rangle}{|\nabla q|^2}\Bigr\}, \qquad
            \nabla q = \bigl(O_{gx}(x_t, y_t) - O_{gx}(x_t, y^T),\ O_{gy}(x_t, y_t)\bigr) \\
        x_{t+1} &= x_t - \eta_x(\nabla_xf + \lambda_t\nabla_xq), \qquad
            y_{t+1} = \Pi_Y[y_t - \eta_y(\nabla_yf + \lambda_t\nabla_yq)]

    In the paper eta_x and eta_y in the last line are equal.

    **Pass closures that use one batch per step**: O_gx at y_t and at y^T come from two calls of ``inner``, and with a
    fresh batch per call grad q is mostly noise once y_t is near y^T.

    Args:
        upper, lower, lr, lower_lr, lower_weight_decay, project, process_group, on_nonfinite: as in
            :class:`semaopt.SMB`.
        control: kappa, the share of |grad q|^2 by which q must fall (eta in the paper).
        lower_steps: T.

    Reference: Ye, Liu, Wright, Stone and Liu, "BOME! Bilevel optimization made easy: a simple first-order approach",
    NeurIPS 2022.

    >>> x, y = torch.nn.Parameter(torch.tensor([1.0])), torch.nn.Parameter(torch.tensor([1.0]))
    >>> optimizer = semaopt.baselines.BOME(upper=[x], lower=[y], lr=0.1, lower_lr=1.0)
    >>> optimizer.step(lambda: y.square().sum() / 2, lambda: (y - x).square().sum() / 2)    # y = y*(x): grad q = 0
    tensor(0.5000)
    >>> x.data, y.data
    (tensor([1.]), tensor([0.]))
    """

    shared: ClassVar[tuple[str, ...]] = ("control", "lower_steps")
    default_inverse: ClassVar[type[Any]] = NoInverse

    def __init__(
        self,
        upper: ParamsT,
        lower: ParamsT | None = None,
        lr: Rate = 1e-2,
        lower_lr: Rate = 1e-1,
        *,
        control: float = 0.5,
        lower_steps: int = 10,
        lower_weight_decay: float = 0.0,
        project: Projection | None = None,
        process_group: Any = None,
        on_nonfinite: str | None = None,
    ) -> None:
        validate_rate("control", control, "try 0.5")
        defaults = dict(
            lr=lr,
            lower_lr=lower_lr,
            beta=None,
            inverse=None,
            control=float(control),
            lower_steps=validate_integer("lower_steps", lower_steps, "try 10"),
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
            with torch.enable_grad():
                _, f_x, f_y = oracles.f()
                g_x, g_y = oracles.g()
            ys = [y.detach().clone() for y in oracles.lower]
            for _ in range(options["lower_steps"]):
                with torch.enable_grad(), oracles.lower_at(ys):
                    g = oracles.lower_gradient()
                ys = descended(self._of("lower"), ys, g)
            self._refuse_explosion(ys, oracles.lower_norm)
            with torch.enable_grad(), oracles.lower_at(ys):
                g_best, _ = oracles.g()
            q_x = [combine([(1.0, a), (-1.0, b)]) for a, b in zip(g_x, g_best, strict=True)]
            pairs = [(f, q) for f, q in zip(f_x, q_x, strict=True) if f is not None and q is not None]
            along = dot(f_y, g_y) + (dot([f for f, _ in pairs], [q for _, q in pairs]) if pairs else 0.0)
            known = [q for q in q_x if q is not None]
            square = dot(g_y, g_y) + (dot(known, known) if known else 0.0)
            weight = max(0.0, options["control"] - along / square) if square > 0 else 0.0
            estimate = [combine([(1.0, f), (weight, q)]) for f, q in zip(f_x, q_x, strict=True)]
            self._move_upper(oracles, estimate, rollback)
            self._move_lower(axpy(weight, g_y, f_y))
            self._count(oracles.loss)
        return oracles.loss
