"""Param groups of two roles: variables that are averaged and scaled, and variables that take projected steps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.nn import Module
from torch.optim.optimizer import ParamsT

from semaopt import projections
from semaopt._validation import require
from semaopt._variables import declared_projection, declared_role


@dataclass(frozen=True)
class Roles:
    """Names of the two roles and the options of their groups.

    Groups of the first role have the options in the optimizer's ``defaults``, except those in ``renamed``. Groups of
    the second role have the options in ``renamed``, under the names given there, and ``beta=None``: they are not
    averaged, so a schedule changes only their lr.

    Attributes:
        first: role of the variables that ASA steps.
        second: role of the variables that are projected.
        kind: kind of optimizer, for error messages.
        part: noun phrase for a role, such as "side of min max", for error messages.
        renamed: name in ``defaults`` -> name in a group of the second role.
    """

    first: str
    second: str
    kind: str
    part: str
    renamed: Mapping[str, str]

    @property
    def names(self) -> tuple[str, str]:
        """Return both roles."""
        return self.first, self.second

    def groups(self, first: ParamsT, second: ParamsT | None, project: Any = None) -> list[dict[str, Any]]:
        """Return param groups with roles.

        Args:
            first: variables of the first role or, without ``second``, one list of groups with a ``role`` each.
            second: variables of the second role.
            project: the default projection; without one, variables take the projection that their loss has declared.
        """
        if second is None:
            groups = self._groups_of_one_list(first)
        else:
            groups = [*_groups(first, self.first), *_groups(second, self.second)]
        if project is None:
            groups = [part for group in groups for part in self._with_declared_projections(group)]
        return _named(groups)

    def _groups_of_one_list(self, given: Any) -> list[dict[str, Any]]:
        first, second = self.names
        groups = [] if isinstance(given, (Tensor, Mapping)) or not isinstance(given, Iterable) else [*given]
        if not groups or not all(isinstance(group, dict) for group in groups):
            raise TypeError(
                f"{second}= is missing: pass {first}= and {second}=, or one list of param groups that have a role, "
                f"[{{'params': ..., 'role': {first!r}}}, {{'params': ..., 'role': {second!r}}}]"
            )
        for role in self.names:
            found = any(group.get("role") == role for group in groups)
            remedy = f"add a group {{'params': ..., 'role': {role!r}}}"
            require(found, "role", role, "no group of the list has this role", remedy)
        for group in groups:
            self.validate(group)
        groups = [{**group, "params": _listed(group["params"])} for group in groups]
        for role in self.names:
            _validate_declared_roles([group for group in groups if group["role"] == role], role)
        return groups

    def _with_declared_projections(self, group: dict[str, Any]) -> list[dict[str, Any]]:
        """Split a dual or lower group so that each part has a single projection, declared by the loss."""
        params = group["params"]
        if group["role"] == self.first or "project" in group or not isinstance(params, list) or not params:
            return [group]
        parts: list[tuple[Any, list[Any]]] = []
        for x in params:
            projection = declared_projection(_tensor_of(x))
            if not parts or parts[-1][0] != projection:
                parts.append((projection, []))
            parts[-1][1].append(x)
        return [{**group, "params": own, **({"project": project} if project else {})} for project, own in parts]

    def validate(self, group: Mapping[str, Any]) -> None:
        """Raise unless the group has one of the roles."""
        role = group.get("role")
        remedy = f"say which {self.part} it is: {{'params': ..., 'role': {self.first!r}}} or {self.second!r}"
        require(role in self.names, "role", role, f"a param group of a {self.kind} optimizer must have one", remedy)

    def options(self, role: str, defaults: Mapping[str, Any], shared: Sequence[str]) -> dict[str, Any]:
        """Return the options that a group of this role starts from.

        Args:
            role: one of the names.
            defaults: the optimizer's.
            shared: names in ``defaults`` that are the same in all groups of both roles.
        """
        if role == self.first:
            return {name: value for name, value in defaults.items() if name not in self.renamed}
        own = {name: defaults[key] for key, name in self.renamed.items()}
        return {**{name: defaults[name] for name in shared}, "beta": None, **own}

    def complete(
        self, group: dict[str, Any], options: dict[str, Any], shared: Mapping[str, Any], owner: str
    ) -> dict[str, Any]:
        """Return the group with the options that it does not set itself.

        Args:
            group: the user's.
            options: what :meth:`options` returned for its role.
            shared: the options that all groups share, with their current values.
            owner: name of the optimizer's class, for error messages.
        """
        role = group["role"]
        for name in shared:
            if name in group:
                raise ValueError(f"{name}={group[name]!r}: all groups share this option; pass it to the optimizer")
        complete = {**options, **shared, **group}
        if options["beta"] is None:
            rule = f"the {role} variables of {owner} are not averaged"
            require(complete["beta"] is None, "beta", complete["beta"], rule, "leave beta out")
        if role == self.second:
            projections.validate(complete["project"])
        return complete

    def validate_saved(self, saved: list[dict[str, Any]], live: list[dict[str, Any]]) -> None:
        """Raise unless the groups of a checkpoint have the roles of the optimizer's groups, in the same order."""
        remedy = f"construct the optimizer with the same {self.first}= and {self.second}= groups in the same order"
        for k, (given, group) in enumerate(zip(saved, live, strict=False)):
            role, here = given.get("role"), group["role"]
            require(role == here, "role", role, f"group {k} of this optimizer is {here}", remedy)


def _groups(params: ParamsT, role: str) -> list[dict[str, Any]]:
    """Return parameters, named parameters or dicts of them as param groups of that role."""
    if isinstance(params, Tensor):
        raise TypeError(f"{role}: got one tensor; pass a list, {role}=[tensor]")
    if isinstance(params, Module) or not isinstance(params, Iterable):
        raise TypeError(f"{role}: got {type(params).__name__}; pass parameters, such as model.parameters()")
    given: list[Any] = [*params]
    require(bool(given), role, given, "must hold at least one parameter", "a generator is empty after its first use")
    groups: list[dict[str, Any]] = given if isinstance(given[0], dict) else [{"params": given}]
    for group in groups:
        named = group.get("role", role)
        require(
            named == role, "role", named, f"the group is passed as {role}=", f"pass it as {named}=, or drop the role"
        )
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


def _tensor_of(x: Any) -> Any:
    return x[1] if isinstance(x, tuple) else x


def _listed(params: Any) -> Any:
    return params if isinstance(params, (Tensor, set)) else list(params)


def _named(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """If the parameters of one group have names, name all parameters, since torch wants names for all or none."""
    named = [
        isinstance(group["params"], list) and isinstance(next(iter(group["params"]), None), tuple) for group in groups
    ]
    if any(named):
        for group, has_names in zip(groups, named, strict=True):
            if isinstance(group["params"], list) and not has_names:
                group["params"] = [(f"{group['role']}.{i}", x) for i, x in enumerate(group["params"])]
    return groups
