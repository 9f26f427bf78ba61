"""SCMA: SEMA on the inner value and on the gradient of a composition of expectations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from semaopt._validation import require, validate_beta, validate_flag, validate_integer
from semaopt.estimator import Rate, state_dtype, track_
from semaopt.hypergradient.closures import Partial, scalar, vjp
from semaopt.hypergradient.linalg import average
from semaopt.kernels import dispatch
from semaopt.optimizers._base import FIXED, SemaOptimizer, require_dense, rule_of
from semaopt.optimizers._hooks import lean_hooks
from semaopt.scalings import Scaling


class SCMA(SemaOptimizer):
    r"""Stochastic compositional moving average for :math:`\min_x f(E[g(x;\xi)])`, single loop.

    .. math::
        z_{t+1} &= (1-\gamma_g) z_t + \gamma_g\, g(x_t;\xi_t), \qquad z_0 = g(x_0;\xi_0) \\
        v_{t+1} &= \beta v_t + (1-\beta)\, J_g(x_t;\xi'_t)^\top \nabla f(z_{t+1}) \\
        x_{t+1} &= x_t - \eta_t\, v_{t+1}/(\sqrt{u_{t+1}} + G_0)

    :math:`\nabla f` of an average is not the average of :math:`\nabla f`, so a mini-batch in place of
    :math:`E[g]` minimizes something else. Here z tracks :math:`E[g(x)]` and v tracks the gradient
    (``lem:sema_mengdi``).

    With ``blocks=n`` there is one z_i for each of n samples or blocks, the finite-sum coupled form
    :math:`\frac1n\sum_i f_i(E[g_i(x;\xi)])`: ``step(inner, outer, index=i)`` updates the z_i of a mini-batch.

    Args:
        params: parameters, named parameters, or dicts with ``params`` and their own hyper-parameters.
        lr, beta, scaling, weight_decay, decoupled_weight_decay, maximize, clip_scaling: as in :class:`semaopt.ASA`.
        inner_beta: momentum of z in [0, 1); gamma_g = 1 - inner_beta. A schedule that changes gamma changes gamma_g by
            the same factor.
        blocks: n, or None for one z.
        fresh: whether J_g has its own sample xi', from a second call of ``inner``. With False it uses the sample of z,
            which saves a pass and correlates the two factors by O(gamma_g).
        bias_correction: for v and u, as in :class:`semaopt.ASA`; z always starts at its first sample.
        process_group: ranks over which g and the gradient are averaged, so that ranks with their own batches take the
            step of one process on the joint batch. With blocks each rank keeps the z_i of its own blocks.
        on_nonfinite: ``"error"`` or ``"skip"`` for NaN or Inf in z or in the gradient, as in :class:`semaopt.ASA`.

    SCGD (Wang, Fang and Liu, "Stochastic compositional gradient descent", Mathematical Programming 2017) is
    ``beta=0.0, scaling="shb", fresh=False``.

    >>> x = torch.nn.Parameter(torch.tensor([2.0]))
    >>> optimizer = semaopt.SCMA([x], lr=0.1, beta=0.0, inner_beta=0.0, scaling="shb")
    >>> optimizer.step(lambda: 3 * x, lambda z: z.square().sum() / 2)             # f(g(x)) = 9 x^2/2
    tensor(18.)
    >>> x.data
    tensor([0.2000])
    """

    # z and, with blocks, 1 for each block that has had a sample
    initial: ClassVar[dict[str, Any]] = {"z": None, "z_seen": None}

    def __init__(
        self,
        params: ParamsT,
        lr: Rate = 1e-3,
        beta: Rate = 0.9,
        inner_beta: Rate = 0.9,
        scaling: str | Scaling = "adam",
        *,
        blocks: int | None = None,
        fresh: bool = True,
        weight_decay: float = 0.0,
        decoupled_weight_decay: bool = False,
        maximize: bool = False,
        bias_correction: bool = True,
        clip_scaling: tuple[float, float] | None = None,
        process_group: Any = None,
        on_nonfinite: str | None = None,
    ) -> None:
        validate_beta("inner_beta", inner_beta)
        validate_flag("fresh", fresh)
        if blocks is not None:
            blocks = validate_integer("blocks", blocks, "pass the number of samples or blocks, or None")
        defaults = dict(
            FIXED,
            lr=lr,
            beta=beta,
            inner_beta=inner_beta,
            scaling=scaling,
            blocks=blocks,
            fresh=fresh,
            weight_decay=weight_decay,
            decoupled_weight_decay=decoupled_weight_decay,
            maximize=maximize,
            bias_correction=bias_correction,
            clip_scaling=clip_scaling,
        )
        super().__init__(params, defaults, on_nonfinite=on_nonfinite, process_group=process_group)

    def _complete(self, param_group: dict[str, Any]) -> dict[str, Any]:
        group = super()._complete(param_group)
        for name in ("inner_beta", "blocks", "fresh"):
            same = group[name] == self.defaults[name]
            require(same, name, group[name], "all groups share one z", f"pass {name} to the optimizer")
        return group

    @property
    def z(self) -> Tensor | None:
        """The average that tracks E[g(x)], one row per block; None before the first step."""
        z: Tensor | None = self.algorithm_state["z"]
        return z

    @lean_hooks
    @torch.no_grad()
    def step(  # type: ignore[override]
        self, inner: Callable[[], Tensor], outer: Callable[[Tensor], Tensor], index: Any = None
    ) -> Tensor:
        """Take one step and return the loss that ``outer`` computed.

        Args:
            inner: () -> g(x), on a fresh sample at each call; with ``index`` one row for each block in it.
            outer: z -> f(z), one number; it may depend on x as well.
            index: the blocks of the rows that ``inner`` returns, each at most once; needs ``blocks=n``.
        """
        self._validate_step()
        xs = [x for group in self.param_groups for x in group["params"] if x.requires_grad]
        rows, ranks = self._rows(index), self._process_group
        with torch.enable_grad():
            g = validate_inner(inner())
            joint = g.detach() if rows is not None else average([g.detach()], ranks)[0]
            z = self._tracked(joint, rows).requires_grad_()
            loss = scalar("outer", outer(z))
            weights, *direct = vjp([loss], [z, *xs], [torch.ones_like(loss)], False, False)
            if weights is None:
                raise RuntimeError("outer(z) does not depend on z; compute f from its argument")
            if self.param_groups[0]["fresh"]:
                g = validate_inner(inner())
            through = vjp([g], xs, [weights.to(g.dtype)], False, False)
        self._set_gradients(xs, direct, through)
        if self._nonfinite.skips(self.param_groups, [("z, the average of inner()", z.detach())], ranks):
            return loss.detach()
        ready = list(self._ready())  # raises before anything changes
        for k, (group, moved, gs, _) in enumerate(ready):
            require_dense(group, moved, gs, k)
        self._write(z.detach(), rows)
        for group, moved, gs, states in ready:
            dispatch.run(rule_of(group), moved, gs, states)
        return loss.detach()

    def _set_gradients(self, xs: list[Tensor], direct: Partial, through: Sequence[Tensor | None]) -> None:
        gs = [b if a is None else a if b is None else a + b for a, b in zip(direct, through, strict=True)]
        if self._process_group is not None:
            filled = [torch.zeros_like(x) if g is None else g for x, g in zip(xs, gs, strict=True)]
            gs = [*average(filled, self._process_group)]
        for group in self.param_groups:
            for x in group["params"]:
                x.grad = None  # the gradient of the last step must not move a frozen parameter
        for x, g in zip(xs, gs, strict=True):
            x.grad = g

    def _rows(self, index: Any) -> Tensor | None:
        """Return the blocks of this step, validated, or None if there is one z."""
        blocks = self.param_groups[0]["blocks"]
        if index is None:
            remedy = "pass the blocks of the rows that inner() returns"
            require(blocks is None, "index", index, f"this optimizer has {blocks} blocks", remedy)
            return None
        require(blocks is not None, "index", index, "this optimizer has one z", "construct it with blocks=n")
        # torch.as_tensor would move a tensor to the default device.
        rows = index if isinstance(index, Tensor) else torch.as_tensor(index, device="cpu")
        ok = rows.dim() == 1 and (rows.numel() == 0 or rows.dtype in (torch.int64, torch.int32))
        remedy = "pass the blocks of the rows that inner() returns"
        require(ok, "index", index, "must be a vector of whole numbers", remedy)
        inside = rows.numel() == 0 or (int(rows.min()) >= 0 and int(rows.max()) < blocks)
        require(inside, "index", index, f"must lie in 0..{blocks - 1}", "blocks=n is their number")
        once = len(set(rows.tolist())) == rows.numel()
        require(once, "index", index, "must hold each block at most once", "drop repeated samples from the batch")
        return rows.long()

    def _tracked(self, g: Tensor, rows: Tensor | None) -> Tensor:
        """Return the next z, or its rows of this step if there are blocks; nothing is written."""
        g, group, state = g.to(state_dtype(g)), self.param_groups[0], self.algorithm_state
        if rows is not None:
            ok = g.dim() >= 1 and len(g) == len(rows)
            require(ok, "inner()", tuple(g.shape), f"must have {len(rows)} rows", "return one row per block of index")
        if state["z"] is None:
            return g.clone()
        gamma = 1 - group["inner_beta"]
        if group.get("initial_gamma"):
            gamma = min(1.0, gamma * ((1 - group["beta"]) / group["initial_gamma"]))  # the factor of the schedule
        z: Tensor = state["z"] if rows is None else state["z"][rows]
        require(
            z.shape == g.shape, "inner()", tuple(g.shape), f"it had shape {tuple(z.shape)} before", "keep its shape"
        )
        if rows is None:
            return track_(z.clone(), g, gamma)
        seen: Tensor = state["z_seen"][rows]
        newest = gamma.reshape(()).to(seen) if isinstance(gamma, Tensor) else gamma
        weight = torch.ones_like(seen).masked_fill(seen > 0, newest)
        return torch.lerp(z, g, weight.view(-1, *[1] * (g.dim() - 1)))

    def _write(self, z: Tensor, rows: Tensor | None) -> None:
        state, blocks = self.algorithm_state, self.param_groups[0]["blocks"]
        if rows is None:
            state["z"] = z
            return
        if state["z"] is None:
            state["z"], state["z_seen"] = z.new_zeros(blocks, *z.shape[1:]), z.new_zeros(blocks)
        state["z"][rows] = z
        state["z_seen"][rows] = 1.0


def validate_inner(g: Any) -> Tensor:
    """Return the value of ``inner()``; raise unless it is a tensor with a graph."""
    if not isinstance(g, Tensor):
        raise TypeError(f"inner() returned {type(g).__name__}; return the tensor g(x)")
    if not g.requires_grad:
        raise RuntimeError("inner() returned a tensor without a graph; compute it without no_grad() or detach()")
    return g
