r"""Train several models of one architecture as one: stacked parameters, one forward and one backward pass.

For small models most of the time of a training step goes into launching operations, a cost that M members then share.
Every member has its own parameters, and so its own param group with its own rates, scaling and state. Up to rounding,
it ends where it would have ended alone.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Sequence
from itertools import accumulate, zip_longest
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.utils import swap_tensors

from semaopt._validation import require, validate_integer


class Ensemble:
    r"""Combine models of one architecture into one vectorized model (:func:`torch.func.vmap`).

    The parameters of the members are rows of stacked tensors: an optimizer that updates ``ensemble.parameters_of(m)``
    in place updates member m, without a copy.

    Args:
        models: at least one. They must agree in the names, shapes, dtypes and devices of their parameters and buffers,
            and in which parameters are frozen. Their values are copied; the models themselves do not change.
        group_sizes: numbers of consecutive members that share their rates, e.g. ``[2, 3]`` for five members. Each
            parameter then has one tensor per group, ``parameters_of(group)``, which an optimizer updates at once. By
            default every member is a group of its own.

    >>> ensemble = semaopt.ensemble.Ensemble([torch.nn.Linear(3, 1) for _ in range(4)])
    >>> rates = [0.1, 0.03, 0.01, 0.003]
    >>> groups = [{"params": ensemble.parameters_of(m), "lr": lr} for m, lr in enumerate(rates)]
    >>> optimizer = semaopt.ASA(groups, scaling="adam")
    >>> a, b = torch.ones(8, 3), torch.ones(8, 1)
    >>> losses = (ensemble(a, shared=True) - b).square().mean((1, 2))  # one loss per member
    >>> ensemble.backward(losses)
    >>> optimizer.step()
    >>> losses.shape, ensemble.member(2).weight.shape
    (torch.Size([4]), torch.Size([1, 3]))

    A frozen parameter gets no gradient, so no optimizer moves it. ``requires_grad_`` on the result of
    :meth:`parameters_of` freezes or unfreezes it for that member (or group) from the next call of the ensemble on.

    ``copy.deepcopy``, ``pickle`` and ``torch.save`` make an independent ensemble. As with torch's modules, gradients
    are not copied. Copy an optimizer together with the ensemble, ``copy.deepcopy((ensemble, optimizer))``, or create a
    new one for the copy. The dtype and the device are those of the models: convert the models first.

    Dropout draws independently for each member; the numbers differ from those that the member would draw alone.
    Modules that change their buffers in training, such as batch normalization with running statistics, are not
    supported: vmap cannot write them. Scalings and projections that combine coordinates, such as ``"adam+"``, need
    groups of one member.
    """

    def __init__(
        self,
        models: Sequence[nn.Module],
        group_sizes: Sequence[int] | None = None,
        *,
        alike: Sequence[int] | None = None,
    ) -> None:
        if alike is not None:
            warnings.warn("Ensemble(alike=) is deprecated; use group_sizes=.", DeprecationWarning, stacklevel=2)
            group_sizes = alike
        models = list(models)
        require(len(models) > 0, "models", models, "must not be empty", "Pass one model per member.")
        _refuse_different(models)
        _refuse_partly_frozen(models)
        _refuse_running_statistics(models[0])
        self._skeleton = copy.deepcopy(models[0])  # its values are never used
        stacks = {name: torch.stack(rows).detach() for name, rows in _rows(models, "named_parameters")}
        self._stacked = {
            name: stack.requires_grad_(stack.is_floating_point() or stack.is_complex())
            for name, stack in stacks.items()
        }
        self._buffers = {name: torch.stack(rows).detach() for name, rows in _rows(models, "named_buffers")}
        self._size = len(models)
        self._sizes = None if group_sizes is None else _validated_sizes(group_sizes, len(models))
        self._rows: list[int | slice] = list(range(len(models))) if self._sizes is None else _slices(self._sizes)
        self._group_of = [k for k, size in enumerate(self._sizes or [1] * len(models)) for _ in range(size)]
        self._own = [
            [
                self._view(stack, k, first.requires_grad)
                for stack, first in zip(self._stacked.values(), models[0].parameters(), strict=True)
            ]
            for k in range(len(self._rows))
        ]

    def _view(self, stack: Tensor, k: int, requires_grad: bool) -> nn.Parameter:
        """Return the rows of group k as a parameter that records how many members it holds."""
        x = nn.Parameter(stack.detach()[self._rows[k]], requires_grad)
        x.ensemble_members = 1 if self._sizes is None else self._sizes[k]  # type: ignore[attr-defined]
        return x

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Turn the parameters of a copied or unpickled ensemble back into views of the stacked tensors.

        They are swapped in place because an optimizer that was copied along refers to them. Setting ``.data`` would
        hide their updates from autograd's check that nothing changed between a forward and its backward pass.
        """
        self.__dict__.update(state)
        for k, own in enumerate(self._own):
            for x, stack in zip(own, self._stacked.values(), strict=True):
                swap_tensors(x, self._view(stack, k, x.requires_grad))  # type: ignore[no-untyped-call]

    def __copy__(self) -> Ensemble:
        """Return a shallow copy, which shares all tensors."""
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__)
        return made

    def __len__(self) -> int:
        """Return the number of members."""
        return self._size

    def parameters_of(self, m: int) -> list[nn.Parameter]:
        """Return the parameters of member m (or of group m), in the order of the model's parameters."""
        return self._own[m]

    def __call__(self, *inputs: Any, shared: bool = False) -> Any:
        """Return the outputs of all members, stacked along a new first dimension.

        Args:
            inputs: the inputs of the model; the first dimension of every tensor has one entry per member.
            shared: pass the same inputs, without that dimension, to all members.
        """
        if not shared:
            self._refuse_other_sizes(inputs)

        def one(parameters: dict[str, Tensor], buffers: dict[str, Tensor], *given: Any) -> Any:
            return functional_call(self._skeleton, (parameters, buffers), given)

        dims = (0, 0, *((None if shared else 0) for _ in inputs))
        moved = {
            name: stack if any(own[k].requires_grad for own in self._own) else stack.detach()
            for k, (name, stack) in enumerate(self._stacked.items())
        }
        return vmap(one, in_dims=dims, randomness="different")(moved, self._buffers, *inputs)

    def backward(self, losses: Tensor) -> None:
        """Add the gradient of its own loss to each member's ``.grad``, as ``loss.backward()`` would.

        Args:
            losses: one loss per member. No loss depends on another member, so the rows of the gradient of their sum are
                the gradients of the members.
        """
        shape = tuple(losses.shape)
        require(shape == (len(self),), "losses", shape, f"must have shape ({len(self)},)", "Pass one loss per member.")
        for k, stack in enumerate(self._stacked.values()):
            stack.grad = self._gathered(k)
        torch.autograd.backward(losses.sum())
        for k, stack in enumerate(self._stacked.values()):
            for rows, own in zip(self._rows, self._own, strict=True):
                if own[k].requires_grad:
                    own[k].grad = None if stack.grad is None else stack.grad[rows]
            stack.grad = None

    def _gathered(self, k: int) -> Tensor | None:
        """Return the members' gradients of parameter k, stacked; None if no member has one."""
        own = [parameters[k] for parameters in self._own]
        if all(x.grad is None for x in own):
            return None
        found = [torch.zeros_like(x) if x.grad is None else x.grad for x in own]
        return torch.stack(found) if isinstance(self._rows[0], int) else torch.cat(found)

    def zero_grad(self) -> None:
        """Clear all gradients; an optimizer's ``zero_grad`` clears those of the members that it updates."""
        for own in self._own:
            for x in own:
                x.grad = None

    def train(self, mode: bool = True) -> Ensemble:
        """Set training mode, like :meth:`torch.nn.Module.train`."""
        self._skeleton.train(mode)
        return self

    def eval(self) -> Ensemble:
        """Set evaluation mode, like :meth:`torch.nn.Module.eval`."""
        return self.train(False)

    def member(self, m: int) -> nn.Module:
        """Return member m as a separate model, with copies of its tensors and the same parameters frozen."""
        model = copy.deepcopy(self._skeleton)
        model.load_state_dict(self.state_dict_of(m), strict=False)
        with torch.no_grad():
            for name, buffer in model.named_buffers():
                buffer.copy_(self._buffers[name][m])  # including those that are not in the state dict
        for x, own in zip(model.parameters(), self._own[self._group_of[m]], strict=True):
            x.requires_grad_(own.requires_grad)
        return model

    def state_dict_of(self, m: int) -> dict[str, Tensor]:
        """Return ``member(m).state_dict()``; it can be loaded into any model of this architecture."""
        parts = {**self._stacked, **self._buffers}
        return {name: parts[name].detach()[m].clone() for name in self._names()}

    def load_state_dict_of(self, m: int, state: dict[str, Tensor]) -> None:
        """Set the parameters and buffers of member m; nothing changes if a name or a shape does not match."""
        parts = {**self._stacked, **self._buffers}
        names = set(self._names())
        wrong = sorted(set(state) ^ names)
        require(not wrong, "state", wrong, "these names are missing or unknown", "See state_dict_of(m).")
        for name, value in state.items():
            expected = tuple(parts[name].shape[1:])
            ok = tuple(value.shape) == expected
            require(ok, f"state[{name!r}]", tuple(value.shape), f"must have shape {expected}", "See state_dict_of(m).")
        with torch.no_grad():
            for name, value in state.items():
                parts[name].detach()[m].copy_(value)

    def _names(self) -> Iterator[str]:
        """Return the names in the state dict; tied parameters appear once, under their first name."""
        return (name for name in self._skeleton.state_dict() if name in self._stacked or name in self._buffers)

    def _refuse_other_sizes(self, inputs: tuple[Any, ...]) -> None:
        for x in inputs:
            if isinstance(x, Tensor):
                ok = x.dim() > 0 and len(x) == len(self)
                rule = f"must have a first dimension of {len(self)}, one entry per member"
                require(ok, "inputs", tuple(x.shape), rule, "Pass shared=True to give all members the same inputs.")


def _validated_sizes(group_sizes: Sequence[int], members: int) -> list[int]:
    sizes = [validate_integer("group_sizes", size, "Each entry counts members.") for size in group_sizes]
    rule = f"must add up to {members}, the number of models"
    require(sum(sizes) == members, "group_sizes", list(group_sizes), rule, "Each entry counts members.")
    return sizes


def _slices(sizes: Sequence[int]) -> list[int | slice]:
    """Return the rows of each group."""
    return [slice(end - n, end) for end, n in zip(accumulate(sizes), sizes, strict=True)]


def _rows(models: list[nn.Module], kind: str) -> Iterator[tuple[str, list[Tensor]]]:
    """Yield each parameter or buffer with its values in all models."""
    found = [dict(getattr(model, kind)()) for model in models]
    for name in found[0]:
        yield name, [tensors[name] for tensors in found]


def _described(model: nn.Module) -> list[Any]:
    tensors = [*model.named_parameters(), *model.named_buffers()]
    return [type(model), *((name, tuple(x.shape), x.dtype, x.device) for name, x in tensors)]


def _refuse_different(models: list[nn.Module]) -> None:
    first = _described(models[0])
    for m, model in enumerate(models[1:], 1):
        pairs = zip_longest(first, _described(model))
        differs = next((f"{a} against {b}" for a, b in pairs if a != b), None)
        if differs is not None:
            raise ValueError(
                f"models[{m}] differs from models[0] ({differs}). An ensemble stacks models that differ only in their "
                "values. Make one ensemble per architecture."
            )


def _refuse_partly_frozen(models: list[nn.Module]) -> None:
    for name, rows in _rows(models, "named_parameters"):
        for m, x in enumerate(rows):
            rule = f"must be {rows[0].requires_grad} as in models[0], because the members are stacked"
            remedy = "Freeze it in all models or in none; ensemble.parameters_of(m) can be frozen per member."
            ok = x.requires_grad == rows[0].requires_grad
            require(ok, f"models[{m}]: requires_grad of {name!r}", x.requires_grad, rule, remedy)


def _refuse_running_statistics(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if getattr(module, "track_running_stats", False) and getattr(module, "running_mean", None) is not None:
            raise ValueError(
                f"{type(module).__name__} at {name!r} writes running statistics in training, which a vectorized model "
                "cannot. Use GroupNorm or track_running_stats=False, or train the models one by one."
            )
