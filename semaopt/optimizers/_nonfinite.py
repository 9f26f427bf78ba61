"""NaN and Inf in the input of a step, found before anything has changed.

There is one decision for all parameters and all ranks. DDP averages the gradients before the step, so every rank
finds the same NaN and Inf. Shards (FSDP2) and optimizers with a ``process_group`` exchange what they found.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any

import torch
from torch import Tensor
from torch._compile import _disable_dynamo
from torch.optim import Optimizer

from semaopt._validation import NonFiniteError, require
from semaopt.estimator import real

POLICIES = (None, "error", "skip")
_REMEDY = (
    "use a smaller lr, clip the gradients (torch.nn.utils.clip_grad_norm_), find the operation with "
    "torch.autograd.set_detect_anomaly(True)"
)
_OR_SKIP = ", or skip such steps with on_nonfinite='skip'"
_SMALL = 2048  # elements

#: The name of a tensor in an error message, and the tensor.
Named = tuple[str, Tensor]


class NonFiniteGuard:
    """Apply an optimizer's ``on_nonfinite`` policy and count the steps that it skips."""

    def __init__(self, policy: Any) -> None:
        rule = "must be None, 'error' or 'skip'"
        remedy = "use None to skip the search for NaN and Inf"
        require(policy in POLICIES, "on_nonfinite", policy, rule, remedy)
        self.policy: str | None = policy
        self.skipped = 0

    def skips(self, groups: list[dict[str, Any]], more: Sequence[Named] = (), process_group: Any = None) -> bool:
        """Return whether to skip this step because a gradient in ``groups``, or ``more``, is not finite.

        Raises:
            NonFiniteError: if the policy is "error".
        """
        if self.policy is None:
            return False
        if torch.compiler.is_compiling():  # the decision depends on values, so it cannot be compiled
            return bool(_outside_the_graph(self, groups, more, process_group))
        return self._decide(groups, more, process_group)

    def _decide(self, groups: list[dict[str, Any]], more: Sequence[Named], process_group: Any) -> bool:
        named = [(name, x.grad) for name, x in _named_parameters(groups) if x.grad is not None]
        xs = [x for group in groups for x in group["params"]]
        ranks = shard_groups(xs) + ([] if process_group is None else [process_group])
        try:
            require_finite([*named, *more], ranks, device=xs[0].device if xs else None)
        except NonFiniteError as error:
            self.skip(error)
            return True
        return False

    def skip(self, error: NonFiniteError) -> None:
        """Count a skipped step, and log the first one; raise ``error`` if the policy is "error"."""
        if self.policy != "skip":
            raise error
        if self.skipped == 0:
            text = str(error).removesuffix(_OR_SKIP)
            logging.getLogger("semaopt").warning("semaopt: skipped a step for the first time: %s", text)
        self.skipped += 1


@_disable_dynamo
def _outside_the_graph(
    guard: NonFiniteGuard, groups: list[dict[str, Any]], more: Sequence[Named], process_group: Any
) -> bool:
    return guard._decide(groups, more, process_group)


def _named_parameters(groups: list[dict[str, Any]]) -> Iterable[Named]:
    for k, group in enumerate(groups):
        names = group.get("param_names")
        for i, x in enumerate(group["params"]):
            name = f" ({names[i]!r})" if names else ""
            yield f"the gradient of parameter {i}{name} of group {k}", x


class Rollback:
    """A context that restores the state of some parameters if the block inside raises.

    After :meth:`keep` nothing is restored. A ``NonFiniteError`` is handled by the guard: with the policy
    "skip" it ends the block and is not raised.

    Args:
        optimizer: owner of ``state`` and ``param_groups``.
        guard: the optimizer's policy.
        params: parameters whose state is restored, together with the algorithm state.
        values: whether to restore the values of the parameters too.
        enabled: with False the context does nothing.
    """

    def __init__(
        self, optimizer: Optimizer, guard: NonFiniteGuard, params: Iterable[Tensor], *, values: bool, enabled: bool
    ) -> None:
        self._optimizer, self._guard, self._enabled = optimizer, guard, enabled
        self.values = values
        if not enabled:
            return
        self._states = [(x, _copied(optimizer.state[x]) if x in optimizer.state else None) for x in params]
        self._values = [(x, x.detach().clone()) for x, _ in self._states] if values else []
        self._algorithm = _copied(optimizer.param_groups[0].get("algorithm", {}))

    def keep(self) -> None:
        """Restore nothing from here on, even if the block raises."""
        self._enabled = False

    def undo(self) -> None:
        """Restore states, values and algorithm state."""
        if not self._enabled:
            return
        for x, state in self._states:
            if state is None:
                self._optimizer.state.pop(x, None)
            else:
                self._optimizer.state[x] = state
        if self._algorithm:
            self._optimizer.param_groups[0]["algorithm"] = self._algorithm
        with torch.no_grad():
            for x, value in self._values:
                x.copy_(value)

    def __enter__(self) -> Rollback:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if error is None or not self._enabled:
            return False
        self.undo()  # even after an error in a closure, or Ctrl-C
        if not isinstance(error, NonFiniteError):
            return False
        self._guard.skip(error)
        return True


def _copied(state: dict[str, Any]) -> dict[str, Any]:
    return {name: value.clone() if isinstance(value, Tensor) else value for name, value in state.items()}


def shard_groups(xs: Iterable[Any]) -> list[Any]:
    """Return the process groups over which parameters are sharded (FSDP2)."""
    meshes = dict.fromkeys(x.device_mesh for x in xs if hasattr(x, "device_mesh"))
    return [ranks for mesh in meshes for ranks in mesh.get_all_groups()]


def require_finite(
    named: Sequence[Named],
    groups: Sequence[Any] = (),
    so_far: str = "nothing was changed",
    device: torch.device | None = None,
) -> None:
    """Raise :class:`NonFiniteError` if a tensor holds NaN or Inf, here or on any rank of the process groups.

    The ranks agree through a number on ``device``, by default the CPU. NCCL needs it on the GPU, even where this rank
    has no gradient.
    """
    tensors = [_local(t) for _, t in named]
    found = not all_finite(tensors)
    if not _on_any_rank(found, groups, device):
        return
    bad = [(name, t, local) for (name, t), local in zip(named, tensors, strict=True) if not all_finite([local])]
    if not bad:
        raise NonFiniteError(f"a gradient or shard on another rank has NaN or Inf; {so_far}: {_REMEDY}{_OR_SKIP}")
    name, tensor, local = bad[0]
    nans, infs = (int(test(local).sum()) for test in (torch.isnan, torch.isinf))
    others = (
        f" (and {len(bad) - 1} more {'tensor has' if len(bad) == 2 else 'tensors have'} some)" if len(bad) > 1 else ""
    )
    raise NonFiniteError(
        f"{name}, of shape {tuple(tensor.shape)}, has {nans} NaN and {infs} Inf in {local.numel()} elements{others}; "
        f"{so_far}: {_REMEDY}{_OR_SKIP}"
    )


def all_finite(tensors: Iterable[Tensor]) -> bool:
    """Return whether no tensor holds NaN or Inf.

    A finite sum has only finite terms, and a sum is the fastest pass over memory. A sum that is not finite may have
    overflowed, so a second pass decides.

    >>> from semaopt.optimizers._nonfinite import all_finite
    >>> all_finite([torch.tensor([3e38, 3e38])]), all_finite([torch.tensor([3e38, float("inf")])])
    (True, False)
    """
    # A sparse gradient is refused by the step itself.
    parts = [real(t) for t in tensors if t.numel() > 0 and t.layout == torch.strided]
    small, large = ([t for t in parts if _is_small(t) is wanted] for wanted in (True, False))
    sums = [t.sum(dtype=None if t.element_size() > 2 else torch.float32) for t in large]
    sums += torch._foreach_norm(small, 1) if small else []
    if not sums:
        return True
    if all(s.is_cpu for s in sums):
        quick = all(math.isfinite(s.item()) for s in sums)
    else:  # wait for the device once instead of once per tensor
        quick = bool(torch.stack([torch.isfinite(s).to(sums[-1].device) for s in sums]).all())
    return quick or all(bool(torch.isfinite(t).all()) for t in parts)


def _is_small(t: Tensor) -> bool:
    """Return whether the call overhead dominates, so that one torch._foreach_norm for many tensors is faster."""
    return t.numel() <= _SMALL or not t.is_cpu


def _local(t: Tensor) -> Tensor:
    """Return the shard of this rank, or ``t`` itself if it is not sharded."""
    local: Tensor = t.to_local() if hasattr(t, "to_local") else t
    return local


def _on_any_rank(found: bool, groups: Sequence[Any], device: torch.device | None) -> bool:
    """Return whether ``found`` is true on any rank of any of the process groups."""
    if not groups:
        return found
    import torch.distributed as dist

    flag = torch.tensor(float(found), device=device)
    for ranks in groups:
        dist.all_reduce(flag, op=dist.ReduceOp.MAX, group=ranks)
    return bool(flag.item())
