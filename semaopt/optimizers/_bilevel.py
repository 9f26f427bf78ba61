"""The base class of the bilevel optimizers: upper and lower param groups, hypergradient, projected descent."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from semaopt import projections
from semaopt._validation import DivergenceError, require, validate_rate
from semaopt.estimator import Rate, scalar
from semaopt.hypergradient import inverses
from semaopt.hypergradient.closures import EXPLOSION, SMALLER, Closure, Oracles
from semaopt.hypergradient.inverses import Inverse, Memory, NoInverse
from semaopt.hypergradient.linalg import Vector, norm
from semaopt.kernels import StepRule, dispatch
from semaopt.kernels.loop import increment_
from semaopt.optimizers._base import SemaOptimizer, rule_of, validate_rates, validate_state
from semaopt.optimizers._nonfinite import Rollback, require_finite
from semaopt.optimizers._roles import Roles
from semaopt.optimizers._state import zero_state

ROLES = Roles(
    "upper",
    "lower",
    "bilevel",
    "level",
    {"lower_lr": "lr", "lower_weight_decay": "weight_decay", "project": "project", "inverse": "inverse"},
)


class BilevelOptimizer(SemaOptimizer):
    r"""Base class for :math:`\min_x f(x, y^*(x))`, :math:`y^*(x) = \arg\min_{y\in Y} g(x, y)`.

    "upper" groups hold x, "lower" groups hold y. The algorithm state has ``t`` (the number of steps taken), ``bound``
    (the current curvature bound of the inverse), ``first_loss`` (the outer loss of the first step) and ``first_norm``
    (the norm of y before the first step).
    """

    roles: ClassVar[Roles] = ROLES
    initial: ClassVar[dict[str, Any]] = {"t": 0, "bound": None, "first_loss": None, "first_norm": None}
    #: Names of the tensors that the method itself, not its inverse, keeps per lower parameter.
    lower_buffers: ClassVar[tuple[str, ...]] = ()
    #: Names of the tensors that the method keeps per upper parameter, apart from averages.
    upper_buffers: ClassVar[tuple[str, ...]] = ()
    #: The inverse that ``inverse=None`` stands for.
    default_inverse: ClassVar[type[Any]] = inverses.TrackedSystem

    def __init__(
        self,
        upper: ParamsT,
        lower: ParamsT | None,
        defaults: dict[str, Any],
        *,
        process_group: Any = None,
        on_nonfinite: str | None = None,
    ) -> None:
        validate_rate("lower_lr", defaults["lower_lr"], "keep it below 2/|g_yy|; try 0.1")
        validate_rate("lower_weight_decay", defaults["lower_weight_decay"], "0.0 turns it off")
        defaults["inverse"] = self._resolved(defaults["inverse"])
        groups = self.roles.groups(upper, lower, defaults["project"])
        super().__init__(groups, defaults, on_nonfinite=on_nonfinite, process_group=process_group)

    # ---- param groups -----------------------------------------------------------------------------------------------

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group with its ``role``, "upper" or "lower"; nothing changes if any of it is invalid."""
        super().add_param_group(param_group)
        if any(x.is_complex() for x in self.param_groups[-1]["params"]):
            self.param_groups.pop()
            raise TypeError("complex parameters are unsupported here: pass torch.view_as_real(x)")

    def _options(self, role: str | None) -> dict[str, Any]:
        options = super()._options(role)
        if role == "lower" and self._of("lower"):  # a checkpoint may have brought another one
            options["inverse"] = self.inverse
        return options

    def _complete(self, param_group: dict[str, Any]) -> dict[str, Any]:
        group = super()._complete(param_group)
        if group["role"] == "lower":
            same = group["inverse"] == self._options("lower")["inverse"]
            require(same, "inverse", group["inverse"], "all lower groups share one inverse", "pass it to the optimizer")
        elif group.get("maximize"):
            raise ValueError("maximize=True: return the negative loss from outer() instead")
        return group

    def _of(self, role: str) -> list[dict[str, Any]]:
        return [group for group in self.param_groups if group["role"] == role]

    @property
    def inverse(self) -> Inverse:
        """The object that applies [g_yy]^{-1}; it may be replaced between steps."""
        inverse: Inverse = self._of("lower")[0]["inverse"]
        return inverse

    @inverse.setter
    def inverse(self, inverse: Inverse | None) -> None:
        chosen = self._resolved(inverse)
        if type(chosen) is not type(self.inverse):
            self.algorithm_state["bound"] = None  # each class of inverse defines its own bound
        self.defaults["inverse"] = chosen
        for group in self._of("lower"):
            group["inverse"] = chosen

    def _resolved(self, inverse: Inverse | None) -> Inverse:
        """Return the inverse, or the default one for None; raise if this method cannot use it."""
        if self.default_inverse is NoInverse and not isinstance(inverse, NoInverse | None):
            raise TypeError(f"inverse={inverse!r}: {type(self).__name__} does not use an inverse. Leave it out.")
        return inverses.resolve(self.default_inverse() if inverse is None else inverse)

    def _restored_groups(self, packed: list[dict[str, Any]]) -> list[dict[str, Any]]:
        groups = super()._restored_groups(packed)
        for group in groups:
            if group["role"] == "lower":
                group["inverse"] = self._resolved(group["inverse"])
        return groups

    # ---- a step -----------------------------------------------------------------------------------------------------

    def _validate_step(self) -> list[tuple[dict[str, Any], list[Tensor], list[Tensor]]]:
        for k, group in enumerate(self.param_groups):
            validate_rates(group)
            if "scaling" in group:
                validate_state(group, self._first_state(group["params"]), k)
        return []  # the gradients in .grad are those of the last step

    def _oracles(self, outer: Closure, inner: Closure) -> Oracles:
        self._validate_step()
        for name, closure in (("outer", outer), ("inner", inner)):
            if not callable(closure):
                raise TypeError(f"{name}={closure!r}: step(outer, inner) takes two functions that return a loss")
        if self.algorithm_state["t"] == 0:
            for state in self.state.values():  # zeros that torch.distributed.checkpoint asked for
                if state["step"] == 0:
                    state.clear()
        upper: list[Tensor] = []
        lower: list[Tensor] = []
        decay: list[float] = []
        for group in self.param_groups:
            if group["role"] == "upper":
                upper += group["params"]
            else:
                lower += group["params"]
                decay += [group["weight_decay"]] * len(group["params"])
        watch = None if self.on_nonfinite is None else require_finite
        return Oracles(
            outer,
            inner,
            upper,
            lower,
            decay=decay,
            process_group=self._process_group,
            watch=watch,
            first_loss=self.algorithm_state["first_loss"],
            lower_norm=self._refuse_explosion(lower),
        )

    def _refuse_explosion(self, ys: list[Tensor], first: float | None = None) -> float:
        """Return the norm of y; raise if it is NaN or 1e8 times the first one. A bounded outer() would not show it."""
        known, now = self.algorithm_state["first_norm"], norm(ys)
        first = first if known is None else known
        if first is not None and not now <= EXPLOSION * max(1.0, first):  # true for NaN too
            raise DivergenceError(
                f"the lower variable diverges: its norm is {now:g}, and it was {first:g} before the first step; "
                f"nothing was changed. {SMALLER}"
            )
        return now

    def _rollback(self, *, moves: bool = False, always: bool = False) -> Rollback:
        """Return a context that undoes a step that ends before x moves.

        It restores what the inverse and the averages keep, and y if it ``moves`` before the hypergradient is taken.
        If y moves last, all validation precedes the writes, and without ``on_nonfinite`` there is nothing to undo.
        """
        enabled = moves or always or self.on_nonfinite is not None
        ys = [y for group in self._of("lower") for y in group["params"]] if enabled else []
        return Rollback(self, self._nonfinite, ys, values=moves, enabled=enabled)

    def _started_with(self, group: dict[str, Any]) -> list[dict[str, Any]]:
        return [group]  # a lower parameter gets its state from the inverse; its .grad does not count

    def _init_state(self, group: dict[str, Any], i: int, x: Tensor) -> None:
        super()._init_state(group, i, x)
        lower = (*getattr(self.inverse, "buffers", ()), *self.lower_buffers)
        self.state[x].update(zero_state(x, lower if group["role"] == "lower" else self.upper_buffers))

    def _memory(self) -> Memory:
        memory = Memory(self.algorithm_state, projected=True)
        for group in self._of("lower"):
            rate, project = float(group["lr"]), group["project"]
            memory.projected = memory.projected and project is not None
            for y in group["params"]:
                if y.requires_grad:
                    memory.states.append(self.state[y])
                    memory.rates.append(rate)
                    memory.projections.append(project)
        return memory

    def _hypergradient(self, oracles: Oracles) -> tuple[list[Tensor | None], Vector]:
        """Return the estimate f_x - g_xy w of the gradient of F, and g_y, both at the current x and y."""
        with torch.enable_grad():
            _, f_x, f_y = oracles.f()
            g_y, implicit = self.inverse(oracles, f_y, self._memory())
        return [subtract(f, g) for f, g in zip(f_x, implicit, strict=True)], g_y

    def _move_upper(
        self, oracles: Oracles, estimate: list[Tensor | None], rollback: Rollback, *, factor: float = 1.0
    ) -> None:
        """Take a step of ASA, or of SGD in a group without a scaling, on the hypergradient, which stays in ``x.grad``.

        From here on nothing is rolled back: a projection may still raise, and then x has moved and y has not.

        Args:
            oracles: which upper parameters are trained.
            estimate: the hypergradient.
            rollback: the context of this step.
            factor: multiplies the step size.
        """
        if self.on_nonfinite is not None:
            require_finite(
                [(f"the estimate for upper parameter {i}", g) for i, g in enumerate(estimate) if g is not None]
            )
        if rollback.values:  # y has moved since the step began
            self._refuse_explosion([y for group in self._of("lower") for y in group["params"]], oracles.lower_norm)
        rollback.keep()
        if self.algorithm_state["first_norm"] is None:
            self.algorithm_state["first_norm"] = oracles.lower_norm
        groups = self._of("upper")
        for group in groups:
            for x in group["params"]:
                x.grad = None  # a frozen parameter has no estimate; the estimate of the last step must not move it
        for x, g in zip(oracles.upper, estimate, strict=True):
            x.grad = g if g is None or g.dtype == x.dtype else g.to(x.dtype)
        for group in groups:
            xs: list[Tensor] = []
            gs: list[Tensor] = []
            self._init_group(group, xs, gs)
            if xs:
                dispatch.run(self._upper_rule(group, factor), xs, gs, [self.state[x] for x in xs])

    def _upper_rule(self, group: dict[str, Any], factor: float) -> StepRule:
        """Return the rule for the hypergradient of an upper group, with its step size times ``factor``."""
        if "scaling" not in group:
            return StepRule.sgd(group["lr"] * factor)
        rule = rule_of(group)
        return rule if factor == 1.0 else replace(rule, eta=rule.eta * factor)

    def _move_lower(self, g_y: Vector, factor: float = 1.0) -> None:
        """Compute ``y <- Proj_Y[y - factor lr g_y]``. The paper adds g_y, although y minimizes g."""
        found = iter(g_y)
        for group in self._of("lower"):
            for y in group["params"]:
                if y.requires_grad:
                    descend_(y, next(found), group["lr"] * factor)
                    projections.apply_(group["project"], y)

    def _descend_lower(self, oracles: Oracles, factor: float = 1.0) -> None:
        """Take one step on y alone, with one sample of g."""
        with torch.enable_grad():
            g_y = oracles.lower_gradient()
        self._move_lower(g_y, factor)

    def _count(self, loss: Tensor) -> None:
        """Count a step, for every lower parameter too, and keep the loss of the first one."""
        if self.algorithm_state["t"] == 0:
            self.algorithm_state["first_loss"] = loss.item()
        self.algorithm_state["t"] += 1
        for group in self._of("lower"):
            for y in group["params"]:
                state = self.state[y]
                if "step" not in state:
                    state.update(zero_state(y, ()))  # torch.distributed.checkpoint wants a state for every parameter
                increment_(state["step"])


def subtract(f: Tensor | None, g: Tensor | None) -> Tensor | None:
    """Return ``f - g``, where None stands for zero."""
    if f is None or g is None:
        return f if g is None else -g
    return f - g


def descend_(y: Tensor, g: Tensor, eta: Rate) -> None:
    """Compute ``y <- y - eta g`` in place."""
    if isinstance(eta, Tensor):
        y.sub_(g * scalar(eta, g))
    else:
        y.sub_(g, alpha=eta)
