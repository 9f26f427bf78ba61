"""What every optimizer of the library shares: groups that are checked, state that survives a checkpoint."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from semaopt import scalings
from semaopt._serialization import plain
from semaopt._validation import require, validate_beta, validate_bounds, validate_flag, validate_rate
from semaopt.kernels import dispatch
from semaopt.kernels.rounding import check_state_dtype, first_key
from semaopt.optimizers._nonfinite import Watchful
from semaopt.optimizers._state import counter, refuse_other, restored, zero_state

_CHECKS: dict[str, Callable[[Any], None]] = {
    "lr": lambda value: validate_rate("lr", value, "try 1e-3"),
    "beta": lambda value: validate_beta("beta", value),
    "weight_decay": lambda value: validate_rate("weight_decay", value, "0.0 turns it off"),
    "decoupled_weight_decay": lambda value: validate_flag("decoupled_weight_decay", value),
    "maximize": lambda value: validate_flag("maximize", value),
    "bias_correction": lambda value: validate_flag("bias_correction", value),
    "differentiable": lambda value: validate_flag("differentiable", value),
    "implementation": dispatch.check,
    "rounding_seed": lambda value: require(
        type(value) is int, "rounding_seed", value, "must be a whole number", "it seeds the rounding of bf16 states"
    ),
    "clip_scaling": lambda value: None if value is None else validate_bounds("clip_scaling", value),
}

#: The options that a group of some optimizer has: one that lacks it refuses it.
OPTIONS = {*_CHECKS, "scaling"}


#: A group, its parameters that have a gradient, these gradients, and their states.
Ready = tuple[dict[str, Any], list[Tensor], list[Tensor], list[dict[str, Any]]]
#: Group options that a checkpoint does not bring.
_LOCAL = ("implementation", "state_dtype")


_VARIABLES = ("self", "__class__", "params", "primal", "dual", "upper", "lower")


def options_of(scope: Mapping[str, Any]) -> dict[str, Any]:
    """The options among a constructor's arguments: its ``locals()`` on the first line, without the variables."""
    return {name: value for name, value in scope.items() if name not in _VARIABLES}


def check_group(group: Mapping[str, Any]) -> None:
    """Raise for the first hyper-parameter of a param group that breaks its rule.

    ``beta`` may be None in a group without a scaling: it holds variables that are not averaged.
    """
    averaged = group.get("scaling") is not None or group.get("beta") is not None
    for name, check in _CHECKS.items():
        if name in group and (averaged or name != "beta"):
            check(group[name])


def check_rates(group: Mapping[str, Any]) -> None:
    """What a schedule moves, in every step and therefore cheaply."""
    lr, beta = group["lr"], group["beta"]
    if type(lr) is type(beta) is float and 0 <= lr < math.inf and 0 <= beta < 1:
        return
    averaged = beta is not None or group.get("scaling") is not None
    for value, top in ((lr, math.inf), (beta if averaged else 0.0, 1)):
        # A tensor is not read: that would wait for its device.
        if not (0 <= value < top if type(value) is float else isinstance(value, Tensor)):
            check_group(group)


class SemaOptimizer(Watchful):
    """A :class:`torch.optim.Optimizer` whose groups carry ``lr``, ``beta`` and a ``scaling``."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group with its own hyper-parameters; nothing changes if any of it is wrong."""
        if not isinstance(param_group, dict):
            raise TypeError(f"param_group must be a dict with 'params', got {type(param_group).__name__}")
        if "on_nonfinite" in param_group:
            given = param_group["on_nonfinite"]
            raise ValueError(f"on_nonfinite={given!r}: a step is left out as a whole; give it to the optimizer")
        group = self._complete(param_group)
        check_group(group)
        group.update({name: plain(value) for name, value in group.items() if name not in ("params", "param_names")})
        if isinstance(group["params"], Tensor):
            group["params"] = [group["params"]]
        elif not isinstance(group["params"], set):  # torch refuses a set, and says why
            group["params"] = list(group["params"])
        if "scaling" in group:
            group["scaling"] = scalings.resolve(group["scaling"])
        self._refuse_twice(group["params"])
        self._refuse_unserved(group)
        names = {*group, "param_names"}
        super().add_param_group(group)
        for name in self.defaults.keys() - names:  # torch gives every group every default
            del group[name]

    def _complete(self, param_group: dict[str, Any]) -> dict[str, Any]:
        """The group with the defaults that apply to it."""
        return {**self.defaults, **param_group}

    @staticmethod
    def _refuse_unserved(group: dict[str, Any]) -> None:
        """Refuse what the group's parameters make impossible."""
        tensors = [p[1] if isinstance(p, tuple) else p for p in group["params"]]
        if not all(isinstance(p, Tensor) for p in tensors):
            return  # torch's to refuse
        check_state_dtype(group.get("state_dtype"), tensors)
        if "scaling" in group:
            dispatch.refuse(group, tensors, tensors, [{}] * len(tensors))

    def _refuse_twice(self, params: list[Any]) -> None:
        tensors = [p[1] if isinstance(p, tuple) else p for p in params]
        seen = {
            id(p): f"group {k}, position {i}"
            for k, group in enumerate(self.param_groups)
            for i, p in enumerate(group["params"])
        }
        for i, p in enumerate(tensors):
            here = f"group {len(self.param_groups)}, position {i}"
            if id(p) in seen:
                raise ValueError(
                    f"parameter of shape {tuple(p.shape)} is given twice, at {seen[id(p)]} and at {here}: it "
                    "would be moved twice a step; list each parameter once (shared weights appear once in "
                    "model.parameters())"
                )
            seen[id(p)] = here

    def _ready(self) -> Iterator[Ready]:
        """``(group, xs, gs, states)`` of each group that has gradients, after every group was checked."""
        if torch.compiler.is_compiling():  # which knows _init_group and runs it outside its graph
            for group in self.param_groups:
                xs: list[Tensor] = []
                gs: list[Tensor] = []
                self._init_group(group, xs, gs)
                yield group, xs, gs, [self.state[x] for x in xs]
            return
        for group, xs, gs in self._checked():
            states = [self.state[x] for x in xs]
            if not all(states):
                self._init_group(group, [], [])
            if xs:
                yield group, xs, gs, states

    def _init_group(self, group: dict[str, Any], xs: list[Tensor], gs: list[Tensor]) -> None:
        """Fill ``xs`` and ``gs`` with the parameters that have a gradient, and give each its zero state.

        The name and the list arguments are those torch.compile knows: it runs this method outside its graph.
        """
        for i, x in enumerate(group["params"]):
            g = x.grad
            if g is None:
                continue
            xs.append(x)
            gs.append(g)
            if "step" not in self.state[x]:
                self._init_state(group, i, x)

    def _buffers(self, group: dict[str, Any]) -> tuple[str, ...]:
        """The names of the averages kept for each parameter of the group."""
        return ("v", *group["scaling"].buffers)

    def _init_state(self, group: dict[str, Any], i: int, x: Tensor) -> None:
        """The zero state of ``x``, parameter i of the group."""
        dtype, state = group.get("state_dtype"), self.state[x]
        state.update(zero_state(x, self._buffers(group), weights=group["bias_correction"], dtype=dtype))
        self._key_rounding(state, group, next(k for k, mine in enumerate(self.param_groups) if mine is group), i)

    @staticmethod
    def _key_rounding(state: dict[str, Any], group: dict[str, Any], k: int, i: int) -> None:
        """Give parameter i of group k its key for stochastic rounding, if it needs one and has none."""
        if group.get("state_dtype") is None:
            state.pop("rounding", None)
        elif "rounding" not in state:
            state["rounding"] = counter("rounding", first_key(group.get("rounding_seed", 0), k, i))

    def _check_step(self) -> None:
        """Refuse a step that cannot be taken, before anything has moved."""
        self._checked()

    def _checked(self) -> list[tuple[dict[str, Any], list[Tensor], list[Tensor]]]:
        """``(group, xs, gs)`` of each group, if all of them can take a step."""
        found = []
        for k, group in enumerate(self.param_groups):
            check_rates(group)
            xs: list[Tensor] = []
            gs: list[Tensor] = []
            for x in group["params"]:
                g = x.grad
                if g is not None:
                    xs.append(x)
                    gs.append(g)
            if len(self.param_groups) > 1:  # else the step refuses them before anything has moved
                dispatch.refuse_sparse(group, xs, gs, k)
            if group.get("implementation", "auto") in ("c", "foreach"):
                dispatch.refuse(group, xs, gs, [self.state.get(x, {}) for x in xs])
            found.append((group, xs, gs))
        return found

    def state_dict(self) -> dict[str, Any]:
        """Torch's state dict with each scaling as plain values, so ``torch.load(weights_only=True)`` reads it."""
        packed: dict[str, Any] = super().state_dict()
        packed["param_groups"] = [plain(group) for group in packed["param_groups"]]
        for group in packed["param_groups"]:
            if "scaling" in group:
                group["scaling"] = scalings.describe(group["scaling"])
        return packed

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state dict to the bit; nothing changes if any of it does not fit.

        Torch casts every state tensor to its parameter's dtype and may share it with ``state_dict``. Here the
        averages keep :func:`state_dtype` and lie in memory as their parameter does, the counters (plain numbers will
        do) keep their own dtype, and all are copies. ``implementation`` and ``state_dtype`` say how to compute on this
        machine, not what, so they stay as this optimizer was built.
        """
        seen: dict[str, Any] = {}

        def before(_: Optimizer, given: dict[str, Any]) -> dict[str, Any]:
            seen.update(given, param_groups=self._restored_groups(given["param_groups"]))
            for k, (packed, group) in enumerate(zip(seen["param_groups"], self.param_groups, strict=False)):
                names = self._buffers(packed)
                for i, (key, x) in enumerate(zip(packed["params"], group["params"], strict=False)):
                    refuse_other(seen["state"].get(key), x, names, f"parameter {i} of group {k}")
            return seen

        def after(_: Optimizer) -> None:
            for k, (given, group) in enumerate(zip(seen["param_groups"], self.param_groups, strict=True)):
                for i, (key, x) in enumerate(zip(given["params"], group["params"], strict=True)):
                    if seen["state"].get(key):
                        self.state[x].update(restored(seen["state"][key], x, group.get("state_dtype")))
                        self._key_rounding(self.state[x], group, k, i)

        # Ours runs after the user's own hooks on the way in, and before them on the way out.
        handles = [
            self.register_load_state_dict_pre_hook(before),
            self.register_load_state_dict_post_hook(after, prepend=True),
        ]
        try:
            super().load_state_dict(state_dict)
        finally:
            for handle in handles:
                handle.remove()

    def _saved(self, live: dict[str, Any]) -> set[str]:
        """The options that a checkpoint of this group must have."""
        return (self.defaults.keys() & live.keys()) - set(_LOCAL)

    def _restored_groups(self, packed: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The groups of a state dict, checked, with their scalings as objects again."""
        groups = []
        # A different number of groups is torch's to refuse.
        for k, (given, live) in enumerate(zip(packed, self.param_groups, strict=False)):
            missing = sorted(self._saved(live) - given.keys())
            rule = f"group {k} of the checkpoint lacks options of {type(self).__name__}"
            require(not missing, "options", missing, rule, "load it into the kind of optimizer that wrote it")
            check_group(given)
            group = {**given, **{name: live[name] for name in _LOCAL if name in live}}
            if isinstance(group.get("scaling"), dict):
                group["scaling"] = scalings.restore(group["scaling"], live["scaling"])
            groups.append(group)
        return groups + packed[len(groups) :]
