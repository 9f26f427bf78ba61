"""Optimizers of two kinds of variables: one is averaged and scaled, the other takes plain projected steps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from torch import Tensor
from torch.optim.optimizer import ParamsT

from semaopt import projections, scalings
from semaopt._validation import require
from semaopt._variables import declared_projection, declared_role
from semaopt.estimator import Rate
from semaopt.optimizers._base import OPTIONS, SemaOptimizer
from semaopt.optimizers._state import zero_state
from semaopt.optimizers.asa import step_group

#: A group with these over its own options takes a step of stochastic gradient descent: gamma = 1, s = 1.
SGD: dict[str, Any] = {
    "beta": 0.0,
    "scaling": scalings.SHB(),
    "bias_correction": False,
    "clip_scaling": None,
    "decoupled_weight_decay": False,
}


class TwoSided(SemaOptimizer):
    """Param groups of two ``roles``, the first for what ASA steps, the second for what is projected.

    ``defaults`` holds what a group of the first role starts from, and those of :attr:`second`, from which a group of
    the second role starts, under the names given there. It is not averaged: its ``beta`` is None, so a schedule
    moves its lr alone.
    """

    roles: ClassVar[tuple[str, str]]
    #: What the optimizer is called in errors, and what its sides are.
    kind: ClassVar[tuple[str, str]]
    #: Names in ``defaults`` of what a group of the second role has, and their names there; None: no group has it.
    second: ClassVar[Mapping[str, str | None]]
    #: Names in ``defaults`` of what is the same in all groups of both roles.
    shared: ClassVar[tuple[str, ...]] = ()

    def __init__(self, first: ParamsT, second: ParamsT, defaults: dict[str, Any]) -> None:
        scaled, projected = _groups(first, self.roles[0]), _groups(second, self.roles[1])
        if defaults.get("project") is None:
            projected = _with_declared_projections(projected)
        groups = _named([*scaled, *projected])
        super().__init__(groups, {"maximize": False, "differentiable": False, "weight_decay": 0.0, **defaults})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group with its ``role``; nothing changes if any of it is wrong."""
        if isinstance(param_group, dict):
            role, (kind, sides), (first, second) = param_group.get("role"), self.kind, self.roles
            remedy = f"say which {sides} it is on: {{'params': ..., 'role': {first!r}}} or {second!r}"
            require(role in self.roles, "role", role, f"a param group of a {kind} optimizer must have one", remedy)
        super().add_param_group(param_group)

    def _options(self, role: str) -> dict[str, Any]:
        """What a group of that role starts from."""
        if role == self.roles[0]:
            return {name: value for name, value in self.defaults.items() if name not in self.second}
        shared = {name: self.defaults[name] for name in self.shared}
        own = {name: self.defaults[key] for key, name in self.second.items() if name is not None}
        return {**shared, "beta": None, **own}

    def _complete(self, param_group: dict[str, Any]) -> dict[str, Any]:
        role = param_group["role"]
        options = self._options(role)
        for name in self.shared:
            if name in param_group:
                raise ValueError(f"{name}={param_group[name]!r}: all groups share one; give it to the optimizer")
        group = {**options, **param_group}
        if self.param_groups:  # a group added later joins where the others are
            group.update({name: self.param_groups[0][name] for name in self.shared})
        for name in (self.defaults.keys() | OPTIONS) & param_group.keys() - options.keys():
            a = "an" if role[0] in "aeiou" else "a"
            raise ValueError(
                f"{name}={param_group[name]!r}: {a} {role} group has no such option; it has "
                f"{', '.join(sorted(options))}"
            )
        if options["beta"] is None:
            rule = f"the {role} variables of {type(self).__name__} are not averaged"
            require(group["beta"] is None, "beta", group["beta"], rule, "leave it out")
        if role == self.roles[1]:
            projections.validate(group["project"])
        return group

    def _of(self, role: str) -> list[dict[str, Any]]:
        return [group for group in self.param_groups if group["role"] == role]

    def _buffers(self, group: dict[str, Any]) -> tuple[str, ...]:
        if "scaling" in group:
            return super()._buffers(group)
        return ("v",) if group["role"] == self.roles[0] else ()

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
                if "step" not in self.state[x]:
                    self.state[x].update(zero_state(x, buffers))

    def _descend(self, group: dict[str, Any], xs: list[Tensor], gs: list[Tensor], eta: Rate) -> None:
        """``x <- x - eta g``, by the same code as every other first-side step of the library."""
        step_group({**group, **SGD, "lr": eta}, xs, gs, [self.state[x] for x in xs])

    def state_dict(self) -> dict[str, Any]:
        """Torch's state dict with scalings and projections as plain values."""
        packed = super().state_dict()
        for group in packed["param_groups"]:
            if "project" in group:
                group["project"] = projections.describe(group["project"])
        return packed

    def _saved(self, live: dict[str, Any]) -> set[str]:
        return {*self._options(live["role"])}

    def _restored_groups(self, packed: list[dict[str, Any]]) -> list[dict[str, Any]]:
        for k, (given, live) in enumerate(zip(packed, self.param_groups, strict=False)):
            role, here, (first, second) = given.get("role"), live["role"], self.roles
            remedy = f"construct the optimizer with the same {first}= and {second}= groups in the same order"
            require(role == here, "role", role, f"group {k} of this optimizer is {here}", remedy)
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
    groups = [{**group, "params": _listed(group["params"]), "role": role} for group in groups]
    _validate_declared_roles(groups, role)
    return groups


def _validate_declared_roles(groups: list[dict[str, Any]], role: str) -> None:
    """Raise for a variable that its loss has declared to be of the other role."""
    for group in groups:
        for x in group["params"] if isinstance(group["params"], list) else ():
            declared = declared_role(_tensor_of(x))
            if declared is not None and declared != role:
                done = {"dual": "maximized over", "primal": "minimized over"}[declared]
                raise ValueError(
                    f"{role}= holds a {declared} variable of a min-max loss, which must be {done}. Pass "
                    "primal=[*model.parameters(), *loss.primal_parameters()] and dual=loss.dual_parameters()."
                )


def _with_declared_projections(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Split each group by the projections that losses have declared for their variables."""
    found: list[dict[str, Any]] = []
    for group in groups:
        params = group["params"]
        if "project" in group or not isinstance(params, list) or not params:
            found.append(group)
            continue
        parts: list[tuple[Any, list[Any]]] = []
        for x in params:
            projection = declared_projection(_tensor_of(x))
            if not parts or parts[-1][0] != projection:
                parts.append((projection, []))
            parts[-1][1].append(x)
        for projection, own in parts:
            found.append({**group, "params": own, **({} if projection is None else {"project": projection})})
    return found


def _tensor_of(x: Any) -> Any:
    return x[1] if isinstance(x, tuple) else x


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
