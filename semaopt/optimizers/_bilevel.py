"""What the bilevel optimizers share: upper and lower param groups, the hypergradient, projected descent."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from semaopt import projections
from semaopt._validation import NonFiniteError, require, validate_rate
from semaopt.estimator import Rate, scalar
from semaopt.hypergradient import inverses
from semaopt.hypergradient.closures import Closure, Oracles
from semaopt.hypergradient.inverses import Inverse, Memory
from semaopt.hypergradient.linalg import Vector
from semaopt.optimizers._base import check_rates
from semaopt.optimizers._nonfinite import kept, refuse
from semaopt.optimizers._roles import SGD, TwoSided
from semaopt.optimizers._state import zero_state
from semaopt.optimizers.asa import step_group


class BilevelOptimizer(TwoSided):
    r"""For :math:`\min_x f(x, y^*(x))`, :math:`y^*(x) = \arg\min_{y\in Y} g(x, y)`: groups of role "upper" and "lower".

    A lower group also has ``t``, the steps taken, and ``bound``, the curvature bound of the inverse as it is now.
    """

    roles: ClassVar[tuple[str, str]] = ("upper", "lower")
    kind: ClassVar[tuple[str, str]] = ("bilevel", "level")
    second: ClassVar[dict[str, str | None]] = {
        "lower_lr": "lr",
        "lower_weight_decay": "weight_decay",
        "project": "project",
        "inverse": "inverse",
        "process_group": None,
    }

    #: What applies [g_yy]^{-1} if nothing else is said.
    usual: ClassVar[type[Any]] = inverses.TrackedSystem
    _upper_moves = False  # whether this step has come to that

    def __init__(self, upper: ParamsT, lower: ParamsT, defaults: dict[str, Any]) -> None:
        validate_rate("lower_lr", defaults["lower_lr"], "below 2/|g_yy|; try 0.1")
        validate_rate("lower_weight_decay", defaults["lower_weight_decay"], "0.0 turns it off")
        super().__init__(upper, lower, {**defaults, "inverse": self._resolved(defaults["inverse"])})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group with its ``role``, "upper" or "lower"; nothing changes if any of it is wrong."""
        super().add_param_group(param_group)
        if any(x.is_complex() for x in self.param_groups[-1]["params"]):
            self.param_groups.pop()
            raise TypeError("complex parameters have no hypergradient here: pass torch.view_as_real(x), pairs of reals")

    def _options(self, role: str) -> dict[str, Any]:
        options = super()._options(role)
        if role == "lower":
            options.update(t=0, bound=None)
            if self._of("lower"):  # a checkpoint may have brought another
                options["inverse"] = self.inverse
        return options

    def _complete(self, param_group: dict[str, Any]) -> dict[str, Any]:
        group = super()._complete(param_group)
        if group["role"] == "lower":
            same = group["inverse"] == self._options("lower")["inverse"]
            require(same, "inverse", group["inverse"], "all lower groups share one inverse", "give it to the optimizer")
        elif group["maximize"]:
            raise ValueError("maximize=True: return the negative loss from outer() instead")
        return group

    @property
    def inverse(self) -> Inverse:
        """How [g_yy]^{-1} is applied; may be set between steps."""
        inverse: Inverse = self._of("lower")[0]["inverse"]
        return inverse

    @inverse.setter
    def inverse(self, inverse: Inverse | None) -> None:
        chosen = self._resolved(inverse)
        other = type(chosen) is not type(self.inverse)
        self.defaults["inverse"] = chosen
        for group in self._of("lower"):
            group["inverse"] = chosen
            if other:
                group["bound"] = None  # each kind has its own idea of it

    def _resolved(self, inverse: Inverse | None) -> Inverse:
        """The inverse, if this method can take it; the usual one for None."""
        return inverses.resolve(self.usual() if inverse is None else inverse)

    def _check_step(self) -> None:
        for group in self.param_groups:
            check_rates(group)  # what is in .grad is of the step before

    def _oracles(self, outer: Closure, inner: Closure) -> Oracles:
        self._check_step()
        for name, closure in (("outer", outer), ("inner", inner)):
            if not callable(closure):
                raise TypeError(f"{name}={closure!r}: step(outer, inner) takes two functions that return a loss")
        xs: dict[str, list[Tensor]] = {"upper": [], "lower": []}
        decay: list[float] = []
        for group in self.param_groups:
            xs[group["role"]] += group["params"]
            if group["role"] == "lower":
                decay += [group["weight_decay"]] * len(group["params"])
        ranks, watch = self.defaults["process_group"], None if self.on_nonfinite is None else refuse
        return Oracles(outer, inner, xs["upper"], xs["lower"], decay=decay, process_group=ranks, watch=watch)

    def _all_or_nothing(self, *, moved: bool = False) -> AbstractContextManager[None]:
        """Around what a step does: what ends it before x moves takes back all that it has written until then.

        That is what the inverse and the averages keep, and y if it has ``moved`` before the hypergradient is taken.
        NaN or Inf ends it as ``on_nonfinite`` says. Where that is None and y moves last, the checks come before the
        writes, and there is nothing to take back.
        """
        return self._taken_back(moved) if moved or self.on_nonfinite is not None else nullcontext()

    @contextmanager
    def _taken_back(self, moved: bool) -> Iterator[None]:
        groups = self._of("lower")
        numbers = [(group, group["bound"]) for group in groups]
        put_back = kept(self, [y for group in groups for y in group["params"]], moved=moved)
        self._upper_moves = False
        try:
            yield
        except BaseException as error:  # a check, a closure or Ctrl-C
            if self._upper_moves:  # a projection of the user's: half a step is taken, not half of it taken back
                raise
            for group, bound in numbers:
                group["bound"] = bound
            put_back()
            if not isinstance(error, NonFiniteError):
                raise
            self._skip(error)

    def _memory(self) -> Memory:
        groups = self._of("lower")
        pairs = [(y, float(group["lr"])) for group in groups for y in group["params"] if y.requires_grad]
        return Memory(groups[0], [self.state[y] for y, _ in pairs], [rho for _, rho in pairs])

    def _hypergradient(self, oracles: Oracles) -> tuple[Tensor, list[Tensor | None], Vector]:
        """The loss, the estimate f_x - g_xy w of the gradient of F, and g_y, all at the present x and y."""
        with torch.enable_grad():
            loss, f_x, f_y = oracles.f()
            g_y, implicit = self.inverse(oracles, f_y, self._memory())
        return loss, [subtract(f, g) for f, g in zip(f_x, implicit, strict=True)], g_y

    def _move_upper(self, oracles: Oracles, estimate: list[Tensor | None], factor: float = 1.0, **over: Any) -> None:
        """One step of ASA, or of SGD in a group without a scaling, on the hypergradient, which stays in ``x.grad``.

        ``factor`` multiplies the step size; ``over`` replaces options of the groups.
        """
        if self.on_nonfinite is not None:
            refuse([(f"the estimate for upper parameter {i}", g) for i, g in enumerate(estimate) if g is not None])
        self._upper_moves = True
        for group in self._of("upper"):
            for x in group["params"]:
                x.grad = None  # what is frozen now has no estimate, and must not move by that of the step before
        for x, g in zip(oracles.upper, estimate, strict=True):
            x.grad = None if g is None else g.to(x.dtype)
        for group in self._of("upper"):
            xs: list[Tensor] = []
            gs: list[Tensor] = []
            self._init_group(group, xs, gs)
            if xs:
                options = {**group, **over, "lr": group["lr"] * factor} if factor != 1.0 or over else group
                if "scaling" not in group:
                    options = {**options, **SGD}
                step_group(options, xs, gs, [self.state[x] for x in xs])

    def _move_lower(self, g_y: Vector, factor: float = 1.0) -> None:
        """``y <- Proj_Y[y - factor lr g_y]``. The paper adds, although y minimizes g."""
        found = iter(g_y)
        for group in self._of("lower"):
            for y in group["params"]:
                if y.requires_grad:
                    descend_(y, next(found), group["lr"] * factor)
                    projections.apply_(group["project"], y)

    def _descend_lower(self, oracles: Oracles, factor: float = 1.0) -> None:
        """One step on y alone, with one sample of g."""
        with torch.enable_grad():
            g_y = oracles.lower_gradient()
        self._move_lower(g_y, factor)

    @property
    def _t(self) -> int:
        t: int = self._of("lower")[0]["t"]
        return t

    def _count(self) -> None:
        for group in self._of("lower"):
            group["t"] += 1
            for y in group["params"]:
                state = self.state[y]
                if "step" not in state:
                    state.update(zero_state(y, ()))  # torch.distributed.checkpoint wants a state for every parameter
                state["step"] += 1

    def state_dict(self) -> dict[str, Any]:
        """Torch's state dict with scalings, projections and the inverse as plain values."""
        packed = super().state_dict()
        for group in packed["param_groups"]:
            if group["role"] == "lower":
                group["inverse"] = inverses.describe(group["inverse"])
        return packed

    def _restored_groups(self, packed: list[dict[str, Any]]) -> list[dict[str, Any]]:
        groups = super()._restored_groups(packed)
        for group, live in zip(groups, self.param_groups, strict=False):
            if live["role"] == "lower":
                group["inverse"] = self._resolved(inverses.restore(group["inverse"], live["inverse"]))
        return groups


def subtract(f: Tensor | None, g: Tensor | None) -> Tensor | None:
    """``f - g``, where None stands for zero."""
    if f is None or g is None:
        return f if g is None else -g
    return f - g


def descend_(y: Tensor, g: Tensor, eta: Rate) -> None:
    """``y <- y - eta g``, in place."""
    if isinstance(eta, Tensor):
        y.sub_(g * scalar(eta, g))
    else:
        y.sub_(g, alpha=eta)
