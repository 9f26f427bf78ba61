"""Steps inside the backward pass: each parameter moves when its gradient arrives, and the gradient is freed.

A training step then holds one gradient at a time instead of all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from semaopt.kernels import dispatch
from semaopt.optimizers._base import check_rates
from semaopt.optimizers._nonfinite import refuse, sharing
from semaopt.optimizers.asa import ASA, step_group
from semaopt.scalings import BY_NAME, AdamPlus, Scaling, Seen


class InBackward:
    """What :func:`step_in_backward` returns. Its ``optimizer`` holds groups and state as an ordinary one does."""

    def __init__(self, optimizer: ASA) -> None:
        self.optimizer = optimizer
        self._handles: list[RemovableHandle] = []
        self._hooked, self._removed = 0, False
        for k, group in enumerate(optimizer.param_groups):
            _refuse(group, k)
        for group in optimizer.param_groups:
            self._register(group)

    def add_param_group(self, group: dict[str, Any]) -> None:
        """As :meth:`torch.optim.Optimizer.add_param_group`; the new parameters are stepped from the next backward on.

        Args:
            group: ``"params"`` and its own options.
        """
        if self._removed:
            raise RuntimeError("the steps were removed from the backward pass; call optimizer.add_param_group")
        self._refuse_what_would_not_happen()
        self.optimizer.add_param_group(group)
        try:
            _refuse(self.optimizer.param_groups[-1], self._hooked)
        except ValueError:
            self.optimizer.param_groups.pop()
            raise
        self._register(self.optimizer.param_groups[-1])

    def _register(self, group: dict[str, Any]) -> None:
        for i, x in enumerate(group["params"]):
            if x.requires_grad or _can_be_unfrozen(x):
                self._handles.append(_register(x, self._hook(self._hooked, i)))
        self._hooked += 1

    def _refuse_what_would_not_happen(self) -> None:
        found = len(self.optimizer.param_groups)
        if found != self._hooked:
            raise RuntimeError(
                f"the optimizer has {found} param groups, and {self._hooked} of them are stepped in backward: call "
                "add_param_group of what step_in_backward returned, not that of its optimizer"
            )
        if self.optimizer._optimizer_step_pre_hooks or self.optimizer._optimizer_step_post_hooks:
            raise RuntimeError(
                "the optimizer has hooks on its step(), which is never called where backward takes the step: Iterates, "
                "Stages and Monitor would see nothing; remove them, or step after backward"
            )

    def _hook(self, k: int, i: int) -> Callable[[Tensor], None]:
        def arrived(x: Tensor) -> None:
            if not x.requires_grad:  # frozen since the forward pass: torch calls us, but with no new gradient
                return
            try:
                self._refuse_what_would_not_happen()
                group = self.optimizer.param_groups[k]  # load_state_dict makes new ones
                _step_one(self.optimizer, group, k, i, x)
            finally:
                x.grad = None  # also what is refused: the next backward would add to it
            self.optimizer.__dict__["_opt_called"] = True  # torch's schedulers ask whether a step came before theirs

        return arrived

    def remove(self) -> None:
        """Take the steps out of the backward pass; ``optimizer`` goes on as an ordinary one."""
        for handle in self._handles:
            handle.remove()
        self._removed = True

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's: it can be loaded by one that steps after the backward pass, and the other way round."""
        return self.optimizer.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from what :meth:`state_dict` gave."""
        self.optimizer.load_state_dict(state_dict)


def step_in_backward(model: nn.Module, factory: Callable[[Iterable[Tensor]], ASA]) -> InBackward:
    """Let every ``backward()`` of ``model`` take the optimizer's step.

    The result equals that of ``backward(); optimizer.step(); optimizer.zero_grad()``. Only one gradient exists at a
    time, so nothing can look at all of them: no clipping by the global norm, no accumulation over several
    ``backward()``, no Adam+ (its u is a norm over the group). ``optimizer.step`` is never called, so hooks on it are
    refused, and with them Iterates, Stages and Monitor. Schedules move ``optimizer.param_groups`` as always. With
    ``on_nonfinite="error"`` a gradient with NaN or Inf is refused when it arrives, and the parameters whose gradients
    came before it have moved; ``"skip"`` is refused, since a step cannot be left out after it has begun.

    Args:
        model: its parameters are stepped while they require a gradient: a layer that is frozen stays where it is, and
            one that is unfrozen later is stepped from then on.
        factory: makes the optimizer from the parameters, like ``lambda params: semaopt.ASA(params, lr=1e-3)``.

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
            "over the ranks, and each rank would go its own way; use FSDP2 (fully_shard), or step after backward"
        )
    optimizer = factory(model.parameters())
    if not isinstance(optimizer, ASA):
        raise TypeError(
            f"factory must return a semaopt.ASA, got {type(optimizer).__name__}: only its step can be taken one "
            "parameter at a time; write lambda params: semaopt.ASA(params, lr=1e-3)"
        )
    if optimizer.on_nonfinite == "skip":
        raise ValueError(
            "on_nonfinite='skip': when a gradient with NaN or Inf arrives, the parameters before it have moved already "
            "and the step cannot be left out; use 'error', or step after backward"
        )
    return InBackward(optimizer)


def _refuse(group: dict[str, Any], k: int) -> None:
    if isinstance(group["scaling"], AdamPlus):
        raise ValueError(
            f"scaling='adam+' (group {k}): its u is the norm over all parameters of the group, which exists only "
            "after the backward pass; choose another scaling, or step after backward"
        )
    if group["differentiable"]:
        raise ValueError(f"differentiable=True (group {k}): a step inside backward leaves no graph; set it to False")


def _can_be_unfrozen(x: Tensor) -> bool:
    """Whole numbers, and what was made in inference mode, can never require a gradient."""
    return (x.is_floating_point() or x.is_complex()) and not x.is_inference()


def _register(x: Tensor, hook: Callable[[Tensor], None]) -> RemovableHandle:
    """Hook a frozen parameter too: torch takes a hook only where a gradient is required, and keeps it thereafter."""
    required = x.requires_grad
    x.requires_grad_()
    try:
        handle: RemovableHandle = x.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
    finally:
        x.requires_grad_(required)
    return handle


@torch.no_grad()
def _step_one(optimizer: ASA, group: dict[str, Any], k: int, i: int, x: Tensor) -> None:
    """The optimizer's step for parameter i of group k alone."""
    g = x.grad
    assert g is not None
    check_rates(group)
    dispatch.refuse_sparse(group, [x], [g], k)
    dispatch.refuse(group, [x], [g], [optimizer.state.get(x, {})])
    if optimizer.on_nonfinite is not None:
        moved = "parameters whose gradients came before it have moved"
        refuse([(f"the gradient of parameter {i} of group {k}", g)], sharing([x]), moved, x.device)
    if not optimizer.state[x]:
        optimizer._init_state(group, i, x)
    if type(group["scaling"]) not in BY_NAME.values():
        group = {**group, "scaling": _Alone(group["scaling"])}
    step_group(group, [x], [g], [optimizer.state[x]])


class _Alone:
    """A scaling of one's own, without the norm over a group whose other gradients are not there."""

    def __init__(self, scaling: Scaling) -> None:
        self.scaling, self.g0, self.buffers = scaling, scaling.g0, scaling.buffers

    def update_(self, m: dict[str, Tensor], seen: Seen) -> Tensor | float:
        return self.scaling.update_(m, seen._replace(norm=self._norm))

    def _norm(self) -> Tensor:
        raise RuntimeError(
            f"scaling={self.scaling!r}: it asks for seen.norm(), the norm over all parameters of the group, which "
            "exists only after the backward pass; parameters whose gradients came first have moved: step after backward"
        )
