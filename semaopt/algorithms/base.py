"""What every optimizer of the library shares: groups that are checked, state that survives a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from semaopt import scalings
from semaopt._check import check_beta, check_bounds, check_flag, check_rate
from semaopt.estimator import COUNTERS, state_dtype

_CHECKS: dict[str, Callable[[Any], None]] = {
    "lr": lambda value: check_rate("lr", value, "try 1e-3"),
    "beta": lambda value: check_beta("beta", value),
    "weight_decay": lambda value: check_rate("weight_decay", value, "0.0 turns it off"),
    "decoupled_weight_decay": lambda value: check_flag("decoupled_weight_decay", value),
    "maximize": lambda value: check_flag("maximize", value),
    "bias_correction": lambda value: check_flag("bias_correction", value),
    "differentiable": lambda value: check_flag("differentiable", value),
    "clip_scaling": lambda value: None if value is None else check_bounds("clip_scaling", value),
}

#: The options that a group of some optimizer has: one that lacks it refuses it.
OPTIONS = {*_CHECKS, "scaling"}


def check_group(group: Mapping[str, Any]) -> None:
    """Raise for the first hyper-parameter of a param group that breaks its rule.

    ``beta`` may be None in a group without a scaling: it holds variables that are not averaged.
    """
    averaged = group.get("scaling") is not None or group.get("beta") is not None
    for name, check in _CHECKS.items():
        if name in group and (averaged or name != "beta"):
            check(group[name])


def counter(name: str, value: float | Tensor = 0.0) -> Tensor:
    """One of :data:`COUNTERS`, on the CPU as torch keeps its step: reading it must not wait for a device.

    It is 0-dimensional: what has a dimension, torch.distributed.checkpoint expects on the parameters' device.
    """
    dtype = torch.float32 if name == "step" else torch.float64
    return torch.as_tensor(value, dtype=dtype, device="cpu").clone()


def zero_state(x: Tensor, buffers: Sequence[str], *, weights: bool = False) -> dict[str, Tensor]:
    """The state of ``x`` before its first step: a counter, zero buffers, and, if asked for, the averages' weights."""
    state, dtype = {"step": counter("step")}, state_dtype(x)
    for name in buffers:
        state[name] = torch.zeros_like(x, dtype=dtype, memory_format=torch.preserve_format)
        weight = f"{name}_weight"
        if weights and weight in COUNTERS:
            state[weight] = counter(weight)
    return state


class SemaOptimizer(Optimizer):
    """A :class:`torch.optim.Optimizer` whose groups carry ``lr``, ``beta`` and a ``scaling``."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group with its own hyper-parameters; nothing changes if any of it is wrong."""
        if not isinstance(param_group, dict):
            raise TypeError(f"param_group must be a dict with 'params', got {type(param_group).__name__}")
        group = self._complete(param_group)
        check_group(group)
        if isinstance(group["params"], Tensor):
            group["params"] = [group["params"]]
        elif not isinstance(group["params"], set):  # torch refuses a set, and says why
            group["params"] = list(group["params"])
        if "scaling" in group:
            group["scaling"] = scalings.resolve(group["scaling"])
        self._refuse_twice(group["params"])
        names = {*group, "param_names"}
        super().add_param_group(group)
        for name in self.defaults.keys() - names:  # torch gives every group every default
            del group[name]

    def _complete(self, param_group: dict[str, Any]) -> dict[str, Any]:
        """The group with the defaults that apply to it."""
        return {**self.defaults, **param_group}

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

    def _init_group(self, group: dict[str, Any], xs: list[Tensor], gs: list[Tensor]) -> None:
        """Fill ``xs`` and ``gs`` with the parameters that have a gradient, and give each its zero state.

        The name and the list arguments are those torch.compile knows: it runs this method outside its graph.
        """
        for x in group["params"]:
            if x.grad is None:
                continue
            xs.append(x)
            gs.append(x.grad)
            state = self.state[x]
            if "step" not in state:
                buffers = ("v", *group["scaling"].buffers)
                state.update(zero_state(x, buffers, weights=group["bias_correction"]))

    def _check_step(self) -> None:
        """Refuse a step that cannot be taken, before anything has moved."""
        for k, group in enumerate(self.param_groups):
            for i, x in enumerate(group["params"]):
                if x.grad is not None and x.grad.is_sparse:
                    raise RuntimeError(
                        f"{type(self).__name__} does not support sparse gradients (group {k}, parameter {i}, shape "
                        f"{tuple(x.shape)}): its moving averages decay in every coordinate at every step; use "
                        "nn.Embedding(sparse=False), or torch.optim.SparseAdam for that parameter"
                    )
            if not torch.compiler.is_compiling():
                for name in ("lr", "beta"):
                    if isinstance(group[name], float):
                        _CHECKS[name](group[name])

    def state_dict(self) -> dict[str, Any]:
        """Torch's state dict with each scaling as plain values, so ``torch.load(weights_only=True)`` reads it."""
        packed: dict[str, Any] = super().state_dict()
        for group in packed["param_groups"]:
            if "scaling" in group:
                group["scaling"] = scalings.describe(group["scaling"])
        return packed

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state dict to the bit; nothing changes if any of it does not fit.

        Torch casts every state tensor to its parameter's dtype and may share it with ``state_dict``. Here the
        averages keep :func:`state_dtype`, the counters (plain numbers will do) their own, and all are copies.
        """
        seen: dict[str, Any] = {}

        def before(_: Optimizer, given: dict[str, Any]) -> dict[str, Any]:
            seen.update(given, param_groups=self._restored_groups(given["param_groups"]))
            return seen

        def after(_: Optimizer) -> None:
            ids = chain.from_iterable(group["params"] for group in seen["param_groups"])
            xs = chain.from_iterable(group["params"] for group in self.param_groups)
            for key, x in zip(ids, xs, strict=True):
                for name, value in seen["state"].get(key, {}).items():
                    if name in COUNTERS:
                        self.state[x][name] = counter(name, value)
                    elif isinstance(value, Tensor):
                        self.state[x][name] = value.to(x.device, state_dtype(x), copy=True)

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

    def _restored_groups(self, packed: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The groups of a state dict, checked, with their scalings as objects again."""
        groups = []
        # A different number of groups is torch's to refuse.
        for given, live in zip(packed, self.param_groups, strict=False):
            check_group(given)
            group = dict(given)
            if isinstance(group.get("scaling"), dict):
                group["scaling"] = scalings.restore(group["scaling"], live["scaling"])
            groups.append(group)
        return groups + packed[len(groups) :]
