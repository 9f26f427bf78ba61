"""Steps inside the backward pass: each parameter moves when its gradient arrives, and the gradient is freed.

A training step then holds one gradient at a time instead of all of them.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from semaopt.kernels import dispatch
from semaopt.optimizers._base import require_dense, rule_of, validate_rates, validate_state
from semaopt.optimizers._nonfinite import require_finite, shard_groups
from semaopt.optimizers.asa import ASA
from semaopt.scalings import BY_NAME, AdamPlus, Scaling, Seen


class InBackward:
    """The result of :func:`step_in_backward`; ``optimizer`` holds its param groups and state as usual."""

    def __init__(self, optimizer: ASA) -> None:
        self.optimizer = optimizer
        self._handles: list[RemovableHandle] = []
        self._hooked, self._removed, self._stepped = 0, False, False
        for k, group in enumerate(optimizer.param_groups):
            _validate_group(group, k)
        for group in optimizer.param_groups:
            self._register(group)

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes without the hooks, which belong to the original parameters."""
        return {**self.__dict__, "_handles": [], "_hooked": 0}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a copy or a pickle, and let it step the copied parameters."""
        self.__dict__.update(state)
        for group in () if self._removed else self.optimizer.param_groups:
            self._register(group)

    def add_param_group(self, group: dict[str, Any]) -> None:
        """Add a param group, whose parameters are stepped from the next backward pass on.

        Args:
            group: ``"params"`` and its own options.
        """
        if self._removed:
            raise RuntimeError("the steps were removed from the backward pass; call optimizer.add_param_group")
        self._validate()
        self.optimizer.add_param_group(group)
        try:
            _validate_group(self.optimizer.param_groups[-1], self._hooked)
        except ValueError:
            self.optimizer.param_groups.pop()
            raise
        self._register(self.optimizer.param_groups[-1])

    def _register(self, group: dict[str, Any]) -> None:
        for i, x in enumerate(group["params"]):
            if x.requires_grad or _can_be_unfrozen(x):
                self._handles.append(_register(x, self._hook(self._hooked, i)))
        self._hooked += 1

    def _validate(self) -> None:
        """Raise if the optimizer has groups or hooks that a step in the backward pass would ignore."""
        found = len(self.optimizer.param_groups)
        if found != self._hooked:
            raise RuntimeError(
                f"the optimizer has {found} param groups, and {self._hooked} of them are stepped in backward: call "
                "add_param_group of the object that step_in_backward returned, not that of its optimizer"
            )
        if self.optimizer._optimizer_step_pre_hooks or self.optimizer._optimizer_step_post_hooks:
            raise RuntimeError(
                "the optimizer has hooks on its step(), which is never called when backward takes the step: Iterates, "
                "Stages and Monitor would see nothing; remove them, or step after backward"
            )

    def _hook(self, k: int, i: int) -> Callable[[Tensor], None]:
        def arrived(x: Tensor) -> None:
            if not x.requires_grad:  # frozen since the forward pass: there is no new gradient
                return
            try:
                self._validate()
                if not self._stepped:
                    _refuse_grad_scaler()
                    self._stepped = True
                group = self.optimizer.param_groups[k]  # load_state_dict replaces the groups
                _step_one(self.optimizer, group, k, i, x)
            finally:
                x.grad = None  # even after an error, so that the next backward pass does not add to it
            self.optimizer.__dict__["_opt_called"] = True  # otherwise torch's schedulers warn that no step was taken

        return arrived

    def remove(self) -> None:
        """Take no more steps in the backward pass; ``optimizer`` becomes an ordinary one."""
        for handle in self._handles:
            handle.remove()
        self._removed = True

    def state_dict(self) -> dict[str, Any]:
        """Return the optimizer's state dict, which an ordinary optimizer can load."""
        return self.optimizer.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state dict of this object or of an ordinary optimizer."""
        self.optimizer.load_state_dict(state_dict)


def step_in_backward(model: nn.Module, factory: Callable[[Iterable[Tensor]], ASA]) -> InBackward:
    """Let every ``backward()`` of ``model`` take the optimizer's step.

    The result equals that of ``backward(); optimizer.step(); optimizer.zero_grad()``. Only one gradient exists at a
    time, so nothing can use all of them: no clipping by the global norm, no accumulation over several ``backward()``,
    no Adam+ (its u is a norm over the group). ``optimizer.step`` is never called, so hooks on it are refused, and with
    them Iterates, Stages and Monitor. Schedules change ``optimizer.param_groups`` as usual. With
    ``on_nonfinite="error"`` a gradient with NaN or Inf raises when it arrives, after parameters with earlier gradients
    have moved; ``"skip"`` is refused, since a step that has begun cannot be skipped. A ``GradScaler`` is refused in
    the first step, since gradients arrive scaled.

    Args:
        model: the module to train. A frozen parameter stays where it is; once unfrozen it is stepped again.
        factory: makes the optimizer from the parameters, for example ``lambda params: semaopt.ASA(params, lr=1e-3)``.

    >>> model = torch.nn.Linear(2, 1)
    >>> training = semaopt.step_in_backward(model, lambda params: semaopt.ASA(params, lr=0.1))
    >>> before = model.weight.clone()
    >>> model(torch.ones(3, 2)).sum().backward()
    >>> model.weight.grad is None, bool((model.weight != before).all())
    (True, True)
    """
    if isinstance(model, nn.parallel.DistributedDataParallel):
        raise ValueError(
            "step_in_backward cannot step a DistributedDataParallel model: a gradient arrives before it is averaged "
            "over the ranks, so the ranks would diverge; use FSDP2 (fully_shard), or step after backward"
        )
    optimizer = factory(model.parameters())
    if not isinstance(optimizer, ASA):
        raise TypeError(
            f"factory must return a semaopt.ASA, got {type(optimizer).__name__}: only its step can be taken one "
            "parameter at a time; write lambda params: semaopt.ASA(params, lr=1e-3)"
        )
    if optimizer.on_nonfinite == "skip":
        raise ValueError(
            "on_nonfinite='skip': when a gradient with NaN or Inf arrives, other parameters have moved already, so the "
            "step cannot be skipped; use 'error', or step after backward"
        )
    return InBackward(optimizer)


def _validate_group(group: dict[str, Any], k: int) -> None:
    """Raise for options that need all gradients, or a graph."""
    if isinstance(group["scaling"], AdamPlus):
        raise ValueError(
            f"scaling='adam+' (group {k}): its u is the norm over all parameters of the group, which exists only "
            "after the backward pass; choose another scaling, or step after backward"
        )
    if group["differentiable"]:
        raise ValueError(f"differentiable=True (group {k}): a step inside backward leaves no graph; set it to False")


def _refuse_grad_scaler() -> None:
    """Raise if a GradScaler has scaled a loss: its gradients are too large until ``scaler.step()`` unscales them."""
    for found in gc.get_objects():
        if (
            type(found) in (torch.amp.GradScaler, torch.cuda.amp.GradScaler)
            and getattr(found, "_scale", None) is not None
        ):
            raise RuntimeError(
                "a GradScaler is in use: the step inside backward would use the scaled gradients; use autocast with "
                "bfloat16, which needs no GradScaler, or step after backward"
            )


def _can_be_unfrozen(x: Tensor) -> bool:
    """Return whether x can require a gradient: integers and tensors made in inference mode cannot."""
    return (x.is_floating_point() or x.is_complex()) and not x.is_inference()


def _register(x: Tensor, hook: Callable[[Tensor], None]) -> RemovableHandle:
    """Register a hook, even on a frozen parameter: torch needs ``requires_grad`` only while registering."""
    required = x.requires_grad
    x.requires_grad_()
    try:
        handle: RemovableHandle = x.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
    finally:
        x.requires_grad_(required)
    return handle


@torch.no_grad()
def _step_one(optimizer: ASA, group: dict[str, Any], k: int, i: int, x: Tensor) -> None:
    """Take the optimizer's step for parameter i of group k only."""
    g = x.grad
    assert g is not None
    validate_rates(group)
    validate_state(group, optimizer.state.get(x), k)
    rule = rule_of(group)
    require_dense(group, [x], [g], k)
    dispatch.validate(rule, [x], [g], [optimizer.state.get(x, {})])
    if optimizer.on_nonfinite is not None:
        moved = "parameters whose gradients came before it have moved"
        require_finite([(f"the gradient of parameter {i} of group {k}", g)], shard_groups([x]), moved, x.device)
    if not optimizer.state[x]:
        optimizer._init_state(group, i, x)
    if type(rule.scaling) not in BY_NAME.values():
        rule = replace(rule, scaling=_WithoutNorm(rule.scaling))
    dispatch.run(rule, [x], [g], [optimizer.state[x]])


class _WithoutNorm:
    """A custom scaling that may not ask for the norm of the group: the group's other gradients do not exist."""

    def __init__(self, scaling: Scaling) -> None:
        self.scaling, self.g0, self.buffers = scaling, scaling.g0, scaling.buffers

    def update_(self, m: Mapping[str, Tensor], seen: Seen) -> Tensor | float:
        return self.scaling.update_(m, seen._replace(norm=self._norm))

    def _norm(self) -> Tensor:
        raise RuntimeError(
            f"scaling={self.scaling!r}: it asks for seen.norm(), the norm over all parameters of the group, which "
            "exists only after the backward pass; parameters with earlier gradients have moved: step after backward"
        )
