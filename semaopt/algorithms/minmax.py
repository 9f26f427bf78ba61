"""What the min-max optimizers share: primal and dual param groups, projected ascent, plain descent."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from semaopt import kernels, projections, scalings
from semaopt._check import check_rate, require
from semaopt.algorithms.asa import step_group
from semaopt.algorithms.base import SemaOptimizer, zero_state
from semaopt.estimator import Rate, scalar

ROLES = ("primal", "dual")

#: A group with these over its own options takes a step of stochastic gradient descent: gamma = 1, s = 1.
SGD: dict[str, Any] = {
    "beta": 0.0,
    "scaling": scalings.SHB(),
    "bias_correction": False,
    "clip_scaling": None,
    "decoupled_weight_decay": False,
}

_EVERYWHERE = projections.Box(-math.inf, math.inf)


def ascend_(y: Tensor, g: Tensor, eta: Rate, project: projections.Projection | None) -> None:
    """``y <- Proj_Y[y + eta g]``, in place."""
    y.add_(g * (scalar(eta, g.real) if isinstance(eta, Tensor) else eta))
    projections.apply_(project, y)


class MinMaxOptimizer(SemaOptimizer):
    r"""For :math:`\min_x \max_{y\in Y} f(x, y)`: groups of role "primal" hold x, those of role "dual" hold y.

    ``defaults`` holds what a primal group starts from, and ``dual_lr`` and ``project``, which become the ``lr`` and
    the ``project`` of a dual group. A dual group is not averaged: its ``beta`` is None, so a schedule moves its
    lr alone.
    """

    #: Options of ``defaults`` that groups of both roles have.
    shared: ClassVar[tuple[str, ...]] = ()

    def __init__(self, primal: ParamsT, dual: ParamsT, defaults: dict[str, Any]) -> None:
        check_rate("dual_lr", defaults["dual_lr"], "try ten times lr")
        groups = _named([*_groups(primal, "primal"), *_groups(dual, "dual")])
        super().__init__(groups, {"maximize": False, "differentiable": False, "weight_decay": 0.0, **defaults})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group with its ``role``, "primal" or "dual"; nothing changes if any of it is wrong."""
        if isinstance(param_group, dict):
            role = param_group.get("role")
            remedy = "say which side of min max it is on: {'params': ..., 'role': 'primal'} or 'dual'"
            require(role in ROLES, "role", role, "a param group of a min-max optimizer must have one", remedy)
        super().add_param_group(param_group)

    def _options(self, role: str) -> dict[str, Any]:
        """What a group of that role starts from."""
        if role == "primal":
            return {name: value for name, value in self.defaults.items() if name not in ("dual_lr", "project")}
        shared = {name: self.defaults[name] for name in self.shared}
        return {**shared, "lr": self.defaults["dual_lr"], "beta": None, "project": self.defaults["project"]}

    def _complete(self, param_group: dict[str, Any]) -> dict[str, Any]:
        role = param_group["role"]
        options = self._options(role)
        group = {**options, **param_group}
        for name in self.defaults.keys() & param_group.keys() - options.keys():
            raise ValueError(
                f"{name}={param_group[name]!r}: a {role} group has no such option; it has {', '.join(sorted(options))}"
            )
        if options["beta"] is None:
            rule = f"the {role} variables of {type(self).__name__} are not averaged"
            require(group["beta"] is None, "beta", group["beta"], rule, "leave it out")
        if role == "dual":
            projections.check(group["project"])
        elif group["maximize"]:
            raise ValueError("maximize=True: x is minimized and y maximized; pass what is to be maximized as dual=")
        return group

    def _buffers(self, group: dict[str, Any]) -> tuple[str, ...]:
        """The names of the tensors kept for each parameter of a group without a scaling."""
        return ("v",) if group["role"] == "primal" else ()

    def _init_group(self, group: dict[str, Any], xs: list[Tensor], gs: list[Tensor]) -> None:
        if "scaling" in group:
            super()._init_group(group, xs, gs)
            return
        buffers = self._buffers(group)
        for x in group["params"]:
            if x.grad is not None:
                xs.append(x)
                gs.append(x.grad)
                # Where there are no buffers there is a counter: torch.distributed.checkpoint wants a state for
                # every parameter.
                if not self.state[x]:
                    self.state[x].update(zero_state(x, buffers))

    def _each(self) -> Iterator[tuple[dict[str, Any], list[Tensor], list[Tensor]]]:
        """Every group with its parameters that have a gradient, and the gradients."""
        for group in self.param_groups:
            xs: list[Tensor] = []
            gs: list[Tensor] = []
            self._init_group(group, xs, gs)
            if xs:
                yield group, xs, gs

    def _check_step(self) -> None:
        super()._check_step()
        moved = dict.fromkeys(ROLES, False)
        trained = dict(moved)
        for group in self.param_groups:
            role = group["role"]
            moved[role] |= any(x.grad is not None for x in group["params"])
            trained[role] |= any(x.requires_grad for x in group["params"])
        for role, other in (ROLES, ROLES[::-1]):
            if moved[other] and trained[role] and not moved[role]:
                raise RuntimeError(
                    f"{type(self).__name__}: the {other} parameters have gradients and the {role} parameters have "
                    f"none, so they would never move; call backward() on the one loss f(x, y) that both enter "
                    f"(auc(model(a), b).backward()), or freeze the {role} side with requires_grad_(False)"
                )

    def _descend(self, group: dict[str, Any], xs: list[Tensor], gs: list[Tensor], eta: Rate) -> None:
        """``x <- x - eta g``, by the same code as every other primal step of the library."""
        step_group({**group, **SGD, "lr": eta}, xs, gs, [self.state[x] for x in xs])

    def _ascend(self, group: dict[str, Any], ys: list[Tensor], gs: list[Tensor], eta: Rate) -> None:
        """``y <- Proj_Y[y + eta g]`` for the variables of one dual group."""
        box = group["project"] or _EVERYWHERE
        if type(box) is projections.Box and not any(y.is_complex() for y in ys):
            kernels.ascend_box_(ys, gs, eta, box.lo, box.hi)
        else:
            for y, g in zip(ys, gs, strict=True):
                ascend_(y, g, eta, group["project"])
        for y in ys:
            self.state[y]["step"] += 1

    def state_dict(self) -> dict[str, Any]:
        """Torch's state dict with scalings and projections as plain values."""
        packed = super().state_dict()
        for group in packed["param_groups"]:
            if "project" in group:
                group["project"] = projections.describe(group["project"])
        return packed

    def _restored_groups(self, packed: list[dict[str, Any]]) -> list[dict[str, Any]]:
        for k, (given, live) in enumerate(zip(packed, self.param_groups, strict=False)):
            role, here = given.get("role"), live["role"]
            remedy = "construct the optimizer with the same primal= and dual= groups in the same order"
            require(role == here, "role", role, f"group {k} of this optimizer is {here}", remedy)
            missing = sorted(self._options(here).keys() - given.keys())
            rule = f"group {k} of the checkpoint lacks options of {type(self).__name__}"
            require(not missing, "options", missing, rule, "load it into the kind of optimizer that wrote it")
        groups = super()._restored_groups(packed)
        for group, live in zip(groups, self.param_groups, strict=False):
            if "project" in live:
                group["project"] = projections.restore(group["project"], live["project"])
        return groups


def _groups(params: ParamsT, role: str) -> list[dict[str, Any]]:
    """Parameters, named parameters or dicts of them, as param groups of that role."""
    if isinstance(params, Tensor):
        raise TypeError(f"{role}: got one tensor; pass a list, {role}=[tensor]")
    if not isinstance(params, Iterable):
        raise TypeError(f"{role}: got {type(params).__name__}; pass parameters, such as model.parameters()")
    given: list[Any] = [*params]
    require(bool(given), role, given, "must hold at least one parameter", "a generator is empty after its first use")
    groups: list[dict[str, Any]] = given if isinstance(given[0], dict) else [{"params": given}]
    for group in groups:
        said = group.get("role", role)
        require(said == role, "role", said, f"given as {role}=", "leave the role out, or pass it as the other side")
    return [{**group, "params": _listed(group["params"]), "role": role} for group in groups]


def _listed(params: Any) -> Any:
    return params if isinstance(params, (Tensor, set)) else list(params)


def _named(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Torch wants names for all groups or for none: if some have them, the others get "dual.0" and the like."""
    named = [
        isinstance(group["params"], list) and isinstance(next(iter(group["params"]), None), tuple) for group in groups
    ]
    if any(named):
        for group, has_names in zip(groups, named, strict=True):
            if isinstance(group["params"], list) and not has_names:
                group["params"] = [(f"{group['role']}.{i}", x) for i, x in enumerate(group["params"])]
    return groups


def evaluate(closure: Callable[[], Any] | None) -> Any:
    """The loss from a closure that also computes the gradients, or None without one."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()
