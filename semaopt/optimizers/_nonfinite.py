"""NaN and Inf before a step: what an optimizer's ``on_nonfinite`` makes of them, while nothing has moved yet.

The decision is one for all parameters, and one for all ranks: DDP has averaged the gradients already, so every rank
sees the same; shards (FSDP2) and the optimizers with a ``process_group`` agree on it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._compile import _disable_dynamo
from torch.optim import Optimizer

from semaopt._validation import NonFiniteError, require
from semaopt.estimator import real

POLICIES = (None, "error", "skip")
_REMEDY = (
    "take a smaller lr, clip the gradients (torch.nn.utils.clip_grad_norm_), find the operation "
    "with torch.autograd.set_detect_anomaly(True), or leave such steps out by on_nonfinite='skip'"
)
_SMALL = 2048  # elements

#: What an error calls a tensor, and the tensor.
Named = tuple[str, Tensor]


class Watchful(Optimizer):
    """An optimizer whose ``on_nonfinite`` may look at gradients before they move anything; None does not look.

    ``skipped_steps`` counts the steps left out by ``on_nonfinite="skip"``. Both belong to this object: copies and
    pickles have them, a state dict does not, so what is loaded changes neither.
    """

    skipped_steps: int

    def __init__(self, params: Any, defaults: dict[str, Any]) -> None:
        policy = defaults.get("on_nonfinite")
        check(policy)
        self._on_nonfinite = policy
        self.skipped_steps = 0
        super().__init__(params, {name: value for name, value in defaults.items() if name != "on_nonfinite"})

    @property
    def on_nonfinite(self) -> str | None:
        """What happens to a step with NaN or Inf: None (it is taken), "error" or "skip"."""
        return self._on_nonfinite

    def __getstate__(self) -> dict[str, Any]:
        """Torch's, and what its list of names leaves out."""
        own = {"_on_nonfinite": self._on_nonfinite, "skipped_steps": self.skipped_steps}
        return {**super().__getstate__(), **own}

    def _leaves_out(self, more: Sequence[Named] = (), process_group: Any = None) -> bool:
        """Whether this step is left out, for its gradients or ``more``; raises if that is what on_nonfinite says."""
        if self._on_nonfinite is None:
            return False
        if torch.compiler.is_compiling():  # no part of the graph: what happens next depends on the values
            return bool(_outside_the_graph(self, more, process_group))
        return self._decide(more, process_group)

    def _decide(self, more: Sequence[Named], process_group: Any) -> bool:
        named = [(name, x.grad) for name, x in self._named_parameters() if x.grad is not None]
        xs = [x for group in self.param_groups for x in group["params"]]
        groups = sharing(xs) + ([] if process_group is None else [process_group])
        try:
            refuse([*named, *more], groups, device=xs[0].device if xs else None)
        except NonFiniteError as error:
            self._skip(error)
            return True
        return False

    def _named_parameters(self) -> Iterable[Named]:
        for k, group in enumerate(self.param_groups):
            names = group.get("param_names")
            for i, x in enumerate(group["params"]):
                name = f" ({names[i]!r})" if names else ""
                yield f"the gradient of parameter {i}{name} of group {k}", x

    def _skip(self, error: NonFiniteError) -> None:
        """Count a step that is left out, and say so the first time; raise if such a step is an error."""
        if self._on_nonfinite != "skip":
            raise error
        if self.skipped_steps == 0:
            logging.getLogger("semaopt").warning("semaopt: the first step left out: %s", error)
        self.skipped_steps += 1


def kept(optimizer: Optimizer, xs: Iterable[Tensor], *, moved: bool = False) -> Callable[[], None]:
    """What puts the states of ``xs`` back as they are now, and, if they may have moved, their values."""
    states = [(x, _copied(optimizer.state[x]) if x in optimizer.state else None) for x in xs]
    values = [(x, x.detach().clone()) for x, _ in states] if moved else []

    def put_back() -> None:
        for x, state in states:
            if state is None:
                optimizer.state.pop(x, None)
            else:
                optimizer.state[x] = state
        with torch.no_grad():
            for x, value in values:
                x.copy_(value)

    return put_back


def _copied(state: dict[str, Any]) -> dict[str, Any]:
    return {name: value.clone() if isinstance(value, Tensor) else value for name, value in state.items()}


@_disable_dynamo
def _outside_the_graph(optimizer: Watchful, more: Sequence[Named], process_group: Any) -> bool:
    return optimizer._decide(more, process_group)


def check(policy: Any) -> None:
    """The rule of the option ``on_nonfinite``."""
    rule = "must be None, 'error' or 'skip'"
    require(policy in POLICIES, "on_nonfinite", policy, rule, "None does not look for NaN and Inf, and costs nothing")


def sharing(xs: Iterable[Any]) -> list[Any]:
    """The process groups over which parameters are sharded (FSDP2)."""
    meshes = dict.fromkeys(x.device_mesh for x in xs if hasattr(x, "device_mesh"))
    return [ranks for mesh in meshes for ranks in mesh.get_all_groups()]


def refuse(
    named: Sequence[Named],
    groups: Sequence[Any] = (),
    so_far: str = "nothing was changed",
    device: torch.device | None = None,
) -> None:
    """Raise :class:`NonFiniteError` if a tensor holds NaN or Inf, here or on any rank of the process groups.

    The ranks agree by a number on ``device``, by default the CPU: NCCL takes none from there, even where this rank has
    no gradient.
    """
    tensors = [_local(t) for _, t in named]
    found = not all_finite(tensors)
    if not _anywhere(found, groups, device):
        return
    bad = [(name, t, local) for (name, t), local in zip(named, tensors, strict=True) if not all_finite([local])]
    if not bad:
        raise NonFiniteError(f"a gradient on another rank, or its shard, has NaN or Inf; {so_far}: {_REMEDY}")
    name, tensor, local = bad[0]
    nans, infs = (int(test(local).sum()) for test in (torch.isnan, torch.isinf))
    others = f" (and {len(bad) - 1} more like it)" if len(bad) > 1 else ""
    raise NonFiniteError(
        f"{name}, of shape {tuple(tensor.shape)}, has {nans} NaN and {infs} Inf in {local.numel()} elements{others}; "
        f"{so_far}: {_REMEDY}"
    )


def all_finite(tensors: Iterable[Tensor]) -> bool:
    """Whether no tensor holds NaN or Inf.

    A sum is finite only if all its terms are, and is the fastest pass over them; where it is not, it may merely have
    overflowed, and a second pass tells.

    >>> from semaopt.optimizers._nonfinite import all_finite
    >>> all_finite([torch.tensor([3e38, 3e38])]), all_finite([torch.tensor([3e38, float("inf")])])
    (True, False)
    """
    # A sparse gradient is refused by the step itself.
    parts = [real(t) for t in tensors if t.numel() > 0 and t.layout == torch.strided]
    few, many = ([t for t in parts if _few(t) is wanted] for wanted in (True, False))
    sums = [t.sum(dtype=None if t.element_size() > 2 else torch.float32) for t in many]
    sums += torch._foreach_norm(few, 1) if few else []
    if not sums:
        return True
    if all(s.is_cpu for s in sums):
        quick = all(math.isfinite(s.item()) for s in sums)
    else:  # one wait for the device instead of one for each tensor
        quick = bool(torch.stack([torch.isfinite(s).to(sums[-1].device) for s in sums]).all())
    return quick or all(bool(torch.isfinite(t).all()) for t in parts)


def _few(t: Tensor) -> bool:
    """Whether the call costs more than the work: torch._foreach_norm is one call for many tensors."""
    return t.numel() <= _SMALL or not t.is_cpu


def _local(t: Tensor) -> Tensor:
    """Of a tensor that has shards, the one on this rank."""
    local: Tensor = t.to_local() if hasattr(t, "to_local") else t
    return local


def _anywhere(found: bool, groups: Sequence[Any], device: torch.device | None) -> bool:
    """Whether it was found on any rank of any of the process groups; ``found`` without them."""
    if not groups:
        return found
    import torch.distributed as dist

    flag = torch.tensor(float(found), device=device)
    for ranks in groups:
        dist.all_reduce(flag, op=dist.ReduceOp.MAX, group=ranks)
    return bool(flag.item())
