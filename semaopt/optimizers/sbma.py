"""SBMA, the alternative of ``section:sbo_alter``: a moving average of every piece of the hypergradient."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from semaopt._validation import is_real, require
from semaopt.estimator import Rate, state_dtype, track_
from semaopt.hypergradient.closures import Closure, Oracles
from semaopt.hypergradient.inverses import Exact, Inverse, Neumann, uniform
from semaopt.hypergradient.linalg import (
    contracted_matrix,
    flat,
    full_precision,
    hessian_matrix,
    mixed_matrix,
    refuse_flat,
    require_convex,
    unflat,
)
from semaopt.kernels import StepRule
from semaopt.optimizers._base import FIXED
from semaopt.optimizers._bilevel import BilevelOptimizer
from semaopt.optimizers._hooks import lean_hooks
from semaopt.projections import Ball, Projection, SpectralBall
from semaopt.scalings import Scaling


class SBMA(BilevelOptimizer):
    r"""Stochastic bilevel moving average: SEMA on each piece of the hypergradient (``eqn:sbo_proj``).

    .. math::
        u_{t+1} &= \beta u_t + (1-\beta) O_{fx}, \qquad
        v_{t+1} = \Pi_{C_{fy}}[\beta v_t + (1-\beta) O_{fy}] \\
        V_{t+1} &= \Pi_{C_{gxy}}[\beta V_t + (1-\beta) O_{gxy}] \\
        H_{t+1} &= \Pi_{1/\lambda}[\beta H_t + (1-\beta) h_{t+1}], \qquad
        h_{t+1} = \frac{k}{C}\prod_{i=1}^{p}\Bigl(I - \frac1C O_{gyy,i}\Bigr) \\
        x_{t+1} &= x_t - \eta_x (u_{t+1} - V_{t+1}H_{t+1}v_{t+1}), \qquad
        y_{t+1} = \Pi_Y[y_t - \eta_y O_{gy}]

    with p uniform on 0..k-1 and projections that clip singular values. As in SMB, h is bounded by k/C only if every
    sample of g_yy lies between 0 and C. Every step tests at least one sample: a negative eigenvalue is an error
    before anything moves, and so is one above 2C in a factor. V and H are matrices: O(d_x d_y + d_y^2) memory and
    O(d_y^3) time per step, for small lower problems.

    Args:
        upper, lower, lr, lower_lr, scaling, lower_weight_decay, project, process_group, on_nonfinite: as in
            :class:`semaopt.SMB`.
        beta: momentum of the four averages.
        inverse: ``Neumann(terms, bound)``: k, C and the seed of p. Without a bound C is the largest spectral norm of
            the samples of g_yy so far.
        lam: lambda, the strong convexity of g in y; the singular values of H are clipped to 1/lambda.
        c_fy: C_fy, a bound of the norm of f_y; v is clipped to it.
        c_gxy: C_gxy, a bound of the spectral norm of g_xy; the singular values of V are clipped to it.
        bias_correction: divide the weights of the averages by their sum, so that the first sample has no more weight
            than the others; as in :class:`semaopt.ASA`. False is the paper's start at the first sample.

    The theorem (``thm:6``) needs all three bounds; None does not clip. A step calls ``outer()`` once and ``inner()``
    p + 1 times: for each of the p factors, and for g_xy and g_y.

    >>> x, y = torch.nn.Parameter(torch.tensor([1.0])), torch.nn.Parameter(torch.tensor([1.0]))
    >>> optimizer = semaopt.SBMA(upper=[x], lower=[y], lr=0.1, lower_lr=0.5, lam=1.0,
    ...                          inverse=semaopt.hypergradient.Neumann(terms=1, bound=1.0))
    >>> optimizer.step(lambda: y.square().sum() / 2, lambda: (y - x).square().sum() / 2)    # F(x) = x^2/2
    tensor(0.5000)
    >>> x.data
    tensor([0.9000])
    """

    #: There is no sample of the whole hypergradient to measure: x.grad holds the estimate.
    samples_gradient = False

    shared: ClassVar[tuple[str, ...]] = ("lam", "c_fy", "c_gxy")
    # The averages are named after what they average, since u and v name the averages of a parameter in its state.
    initial: ClassVar[dict[str, Any]] = {
        **BilevelOptimizer.initial,
        "weight": 0.0,
        "f_x": None,
        "f_y": None,
        "g_xy": None,
        "h": None,
    }
    default_inverse: ClassVar[type[Any]] = Neumann

    def __init__(
        self,
        upper: ParamsT,
        lower: ParamsT | None = None,
        lr: Rate = 1e-2,
        lower_lr: Rate = 1e-1,
        beta: Rate = 0.9,
        *,
        lam: float | None = None,
        c_fy: float | None = None,
        c_gxy: float | None = None,
        scaling: str | Scaling = "shb",
        inverse: Inverse | None = None,
        lower_weight_decay: float = 0.0,
        project: Projection | None = None,
        bias_correction: bool = True,
        process_group: Any = None,
        on_nonfinite: str | None = None,
    ) -> None:
        for name, value in (("lam", lam), ("c_fy", c_fy), ("c_gxy", c_gxy)):
            ok = value is None or (is_real(value) and 0 < value < math.inf)
            require(ok, name, value, "must be a number > 0", "None does not clip")
        defaults = dict(
            FIXED,
            lr=lr,
            lower_lr=lower_lr,
            beta=beta,
            lam=lam,
            c_fy=c_fy,
            c_gxy=c_gxy,
            scaling=scaling,
            inverse=inverse,
            lower_weight_decay=lower_weight_decay,
            project=project,
            weight_decay=0.0,
            decoupled_weight_decay=False,
            bias_correction=bias_correction,
            clip_scaling=None,
        )
        super().__init__(upper, lower, defaults, process_group=process_group, on_nonfinite=on_nonfinite)

    def _resolved(self, inverse: Inverse | None) -> Inverse:
        return validate_neumann(super()._resolved(inverse))

    def _complete(self, param_group: dict[str, Any]) -> dict[str, Any]:
        group = super()._complete(param_group)
        if group["role"] == "upper":
            same = float(group["beta"]) == float(self.defaults["beta"])
            require(same, "beta", group["beta"], "all pieces are averaged with one beta", "pass it to the optimizer")
            name, value = "bias_correction", group["bias_correction"]
            same = value == self.defaults[name]
            require(same, name, value, "all pieces start in the same way", "pass it to the optimizer")
        return group

    def _validate_parameters(self, group: dict[str, Any]) -> None:
        super()._validate_parameters(group)
        given = [p[1] if isinstance(p, tuple) else p for p in group["params"]]
        others = [x for each in self.param_groups for x in each["params"]]
        dtypes = {state_dtype(x) for x in (*others, *given) if isinstance(x, Tensor)}
        if len(dtypes) > 1:
            names = ", ".join(sorted(map(str, dtypes)))
            raise TypeError(f"SBMA multiplies averages of all parameters, which must have one dtype; got {names}")

    @lean_hooks
    @torch.no_grad()
    def step(self, outer: Closure, inner: Closure) -> Tensor:  # type: ignore[override]
        """Take one step and return the loss that ``outer`` computed."""
        oracles = self._oracles(outer, inner)
        with self._rollback(always=True) as rollback:  # the averages are written one by one, and each may be refused
            with torch.enable_grad():
                _, f_x, f_y = oracles.f()
                h, p = self._inverse_sample(oracles)
                sample = oracles.draw(mixed=True)
                if p == 0:  # no factor has shown whether g is convex
                    require_convex(hessian_matrix(sample, Exact().limit))
                g_xy, g_y = mixed_matrix(sample), sample.g_y
            lam, c_fy, c_gxy = (self.param_groups[0][name] for name in ("lam", "c_fy", "c_gxy"))
            known = [torch.zeros_like(x) if f is None else f for f, x in zip(f_x, oracles.upper, strict=True)]
            gamma = self._newest_weight()
            with full_precision(h):
                u = self._track("f_x", gamma, flat(known))
                v = self._track("f_y", gamma, flat(f_y), c_fy and Ball(c_fy))
                # The paper clips V to L_gxy and writes 1/L_gxy below; its proof uses C_gxy.
                V = self._track("g_xy", gamma, g_xy, c_gxy and SpectralBall(c_gxy))
                H = self._track("h", gamma, h, lam and SpectralBall(1 / lam))
                estimate = u - V @ (H @ v)
            self._move_upper(oracles, [*unflat(estimate, oracles.upper)], rollback)
            self._move_lower(g_y)
            self._count(oracles.loss)
        return oracles.loss

    def _upper_rule(self, group: dict[str, Any], factor: float) -> StepRule:
        # The pieces are averaged already, so the step takes their product as it is.
        return replace(super()._upper_rule(group, factor), gamma=1.0)

    def _inverse_sample(self, oracles: Oracles) -> tuple[Tensor, int]:
        """Return ``h = (k/C) prod_{i<=p} (I - O_gyy,i/C)`` as a matrix and p, with a fresh sample for each factor."""
        state, chosen = self.algorithm_state, validate_neumann(self.inverse)
        p = uniform(chosen.terms, chosen.seed, state["t"])
        unknown = chosen.bound is None and state["bound"] is None
        factors = [hessian_matrix(oracles.draw(), Exact().limit) for _ in range(max(p, 1) if unknown else p)]
        if chosen.bound is not None:
            state["bound"] = float(chosen.bound)
        else:
            seen = [torch.linalg.matrix_norm(factor, 2).item() for factor in factors]
            state["bound"] = max([state["bound"] or 0.0, *seen])
            refuse_flat(state["bound"])
        C, d = state["bound"], sum(y.numel() for y in oracles.lower)
        eye = torch.eye(d, dtype=state_dtype(oracles.lower[0]), device=oracles.lower[0].device)
        return contracted_matrix(eye * (chosen.terms / C), factors[:p], C), p

    def _newest_weight(self) -> Rate:
        """Return the weight of this step's samples in the averages.

        With bias correction it is gamma/w, where w is the same average of the constant 1: then the averages hold
        corrected estimates, and these are clipped.
        """
        state, group = self.algorithm_state, self._of("upper")[0]
        gamma = 1 - group["beta"]
        if not group["bias_correction"]:
            return 1.0 if state["t"] == 0 else gamma
        state["weight"] += float(gamma) * (1.0 - state["weight"])
        return float(gamma) / float(state["weight"])

    def _track(self, key: str, gamma: Rate, sample: Tensor, clip: Projection | None = None) -> Tensor:
        """Update the average ``key`` of the algorithm state with a sample, clip it, and return it."""
        state = self.algorithm_state
        if state[key] is None:
            state[key] = sample.clone()
        average: Tensor = state[key]
        same, before = average.shape == sample.shape, tuple(average.shape)
        remedy = "no parameter may be added or frozen after the first step"
        require(same, key, tuple(sample.shape), f"it had shape {before} before", remedy)
        track_(average, sample, gamma)
        if clip is not None:
            clip(average)
        return average


def validate_neumann(inverse: Inverse) -> Neumann:
    """Return the inverse; raise unless it is ``Neumann``, whose samples of h can be averaged."""
    if not isinstance(inverse, Neumann):
        raise TypeError(f"inverse={inverse!r}: SBMA averages samples of h; pass Neumann(terms, bound)")
    return inverse
