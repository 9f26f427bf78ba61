r"""Several models of one architecture trained as one: stacked parameters, one forward and one backward pass for all.

For small models most of a training step is the cost of starting operations, which M members then share. Every member
keeps its own parameters, so each has its own param group with its own rates, scaling and state, and ends where it would
have ended alone, to rounding.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from itertools import accumulate, zip_longest
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.utils import swap_tensors

from semaopt._validation import require


class Ensemble:
    r"""``models`` of one architecture as one vectorised model (:func:`torch.func.vmap`).

    The parameters of the members are the rows of stacked tensors: an optimizer that moves
    ``ensemble.parameters_of(m)`` in place moves member m, without a copy.

    Args:
        models: at least one; they must agree in the names, shapes, dtypes and devices of their parameters and buffers.
            Their values are copied, the models themselves are left alone. What is frozen must be so in all of them.
        alike: numbers of consecutive members that share their rates; each such part has one tensor for a parameter of
            all its members, ``parameters_of(part)``, which an optimizer moves in one go. By default each member is its
            own part.

    >>> ensemble = semaopt.ensemble.Ensemble([torch.nn.Linear(3, 1) for _ in range(4)])
    >>> rates = [0.1, 0.03, 0.01, 0.003]
    >>> groups = [{"params": ensemble.parameters_of(m), "lr": lr} for m, lr in enumerate(rates)]
    >>> optimizer = semaopt.ASA(groups, scaling="adam")
    >>> a, b = torch.ones(8, 3), torch.ones(8, 1)
    >>> losses = (ensemble(a, shared=True) - b).square().mean((1, 2))  # one for each member
    >>> ensemble.backward(losses)
    >>> optimizer.step()
    >>> losses.shape, ensemble.member(2).weight.shape
    (torch.Size([4]), torch.Size([1, 3]))

    A frozen parameter gets no gradient, so no optimizer moves it. ``requires_grad_`` on what :meth:`parameters_of`
    gives freezes or unfreezes it later, for that member (or part) alone, from the next call of the ensemble on.

    ``copy.deepcopy``, ``pickle`` and ``torch.save`` give an ensemble of its own. As with torch's modules the gradients
    are left behind, and an optimizer must be copied together with it, ``copy.deepcopy((ensemble, optimizer))``, or made
    anew for the copy's parameters. The dtype and the device are those of the models: convert these before.

    Dropout draws for each member anew, and not what it would have drawn alone. A module that changes its buffers in
    training, as batch normalisation with running statistics does, is refused: vmap cannot write them.
    """

    def __init__(self, models: Sequence[nn.Module], alike: Sequence[int] | None = None) -> None:
        models = list(models)
        require(len(models) > 0, "models", models, "must not be empty", "each of them is one member")
        _refuse_unlike(models)
        _refuse_partly_frozen(models)
        _refuse_running_statistics(models[0])
        self._skeleton = copy.deepcopy(models[0])  # its values are never used
        stacks = {name: torch.stack(rows).detach() for name, rows in _rows(models, "named_parameters")}
        self._stacked = {
            name: stack.requires_grad_(stack.is_floating_point() or stack.is_complex())
            for name, stack in stacks.items()
        }
        self._buffers = {name: torch.stack(rows).detach() for name, rows in _rows(models, "named_buffers")}
        self._members = len(models)
        self._rows: list[int | slice] = list(range(len(models))) if alike is None else _slices(alike, len(models))
        self._part_of = [
            k for k, count in enumerate([1] * len(models) if alike is None else alike) for _ in range(count)
        ]
        self._own = [
            [
                nn.Parameter(stack.detach()[rows], first.requires_grad)
                for stack, first in zip(self._stacked.values(), models[0].parameters(), strict=True)
            ]
            for rows in self._rows
        ]

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Make the parameters rows of the stacked ones again: copying and unpickling take every tensor by itself.

        They are swapped in place, since an optimizer that was copied along holds them; and not set by ``.data``, which
        would hide their steps from autograd's check that nothing moved between a forward and its backward pass.
        """
        self.__dict__.update(state)
        for rows, own in zip(self._rows, self._own, strict=True):
            for x, stack in zip(own, self._stacked.values(), strict=True):
                fresh = nn.Parameter(stack.detach()[rows], x.requires_grad)
                swap_tensors(x, fresh)  # type: ignore[no-untyped-call]

    def __copy__(self) -> Ensemble:
        """The same tensors, as a shallow copy has them: nothing to make anew."""
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__)
        return made

    def __len__(self) -> int:
        """How many members there are."""
        return self._members

    def parameters_of(self, m: int) -> list[nn.Parameter]:
        """The parameters of member m (or of part m), in the order of the model's own: rows of the stacked ones."""
        return self._own[m]

    def __call__(self, *inputs: Any, shared: bool = False) -> Any:
        """What the members answer, stacked along a first dimension.

        Args:
            inputs: what the model takes; every tensor has a first dimension of one entry for each member.
            shared: all members are given the same inputs, which then lack that dimension.
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
        """Give every member the gradient of its own loss, added to what it has as ``loss.backward()`` would.

        Args:
            losses: one for each member. Nobody's loss depends on another member, so the gradient of their sum is, row
                by row, the gradient of each.
        """
        shape = tuple(losses.shape)
        require(shape == (len(self),), "losses", shape, f"must have shape ({len(self)},)", "one loss for each member")
        for k, stack in enumerate(self._stacked.values()):
            stack.grad = self._gathered(k)
        torch.autograd.backward(losses.sum())
        for k, stack in enumerate(self._stacked.values()):
            for rows, own in zip(self._rows, self._own, strict=True):
                if own[k].requires_grad:
                    own[k].grad = None if stack.grad is None else stack.grad[rows]
            stack.grad = None

    def _gathered(self, k: int) -> Tensor | None:
        """The gradients that the members have of parameter k, stacked; None if nobody has one."""
        own = [parameters[k] for parameters in self._own]
        if all(x.grad is None for x in own):
            return None
        found = [torch.zeros_like(x) if x.grad is None else x.grad for x in own]
        return torch.stack(found) if isinstance(self._rows[0], int) else torch.cat(found)

    def zero_grad(self) -> None:
        """Forget all gradients; an optimizer's ``zero_grad`` does so for the members that it moves."""
        for own in self._own:
            for x in own:
                x.grad = None

    def train(self, mode: bool = True) -> Ensemble:
        """As :meth:`torch.nn.Module.train`."""
        self._skeleton.train(mode)
        return self

    def eval(self) -> Ensemble:
        """As :meth:`torch.nn.Module.eval`."""
        return self.train(False)

    def member(self, m: int) -> nn.Module:
        """Member m as a model of its own, with copies of its parameters and buffers, frozen where it is."""
        model = copy.deepcopy(self._skeleton)
        model.load_state_dict(self.state_dict_of(m), strict=False)
        with torch.no_grad():
            for name, buffer in model.named_buffers():
                buffer.copy_(self._buffers[name][m])  # also those that a state dict leaves out
        for x, own in zip(model.parameters(), self._own[self._part_of[m]], strict=True):
            x.requires_grad_(own.requires_grad)
        return model

    def state_dict_of(self, m: int) -> dict[str, Tensor]:
        """What ``member(m).state_dict()`` would hold; loading it into another model of the kind continues member m."""
        parts = {**self._stacked, **self._buffers}
        return {name: parts[name].detach()[m].clone() for name in self._names()}

    def load_state_dict_of(self, m: int, state: dict[str, Tensor]) -> None:
        """Set the parameters and buffers of member m; nothing changes if a name or a shape does not fit."""
        parts = {**self._stacked, **self._buffers}
        names = set(self._names())
        wrong = sorted(set(state) ^ names)
        require(not wrong, "state", wrong, "are missing, or are no names of the model", "see state_dict_of")
        for name, value in state.items():
            expected = tuple(parts[name].shape[1:])
            ok = tuple(value.shape) == expected
            require(ok, f"state[{name!r}]", tuple(value.shape), f"must have shape {expected}", "see state_dict_of")
        with torch.no_grad():
            for name, value in state.items():
                parts[name].detach()[m].copy_(value)

    def _names(self) -> Iterator[str]:
        """Of the state dict; tied parameters are there once, under their first name."""
        return (name for name in self._skeleton.state_dict() if name in self._stacked or name in self._buffers)

    def _refuse_other_sizes(self, inputs: tuple[Any, ...]) -> None:
        for x in inputs:
            if isinstance(x, Tensor):
                ok = x.dim() > 0 and len(x) == len(self)
                rule = f"must have a first dimension of {len(self)}, one entry for each member"
                require(ok, "inputs", tuple(x.shape), rule, "shared=True gives all members the same inputs")


def _slices(alike: Sequence[int], members: int) -> list[int | slice]:
    """The rows of each part."""
    ok = all(isinstance(n, int) and n > 0 for n in alike) and sum(alike) == members
    require(ok, "alike", list(alike), f"must be whole numbers > 0 that add up to {members}", "each counts members")
    ends = list(accumulate(alike))
    return [slice(end - n, end) for end, n in zip(ends, alike, strict=True)]


def _rows(models: list[nn.Module], kind: str) -> Iterator[tuple[str, list[Tensor]]]:
    """Each parameter or buffer with its values in all models."""
    found = [dict(getattr(model, kind)()) for model in models]
    for name in found[0]:
        yield name, [tensors[name] for tensors in found]


def _described(model: nn.Module) -> list[Any]:
    tensors = [*model.named_parameters(), *model.named_buffers()]
    return [type(model), *((name, tuple(x.shape), x.dtype, x.device) for name, x in tensors)]


def _refuse_unlike(models: list[nn.Module]) -> None:
    first = _described(models[0])
    for m, model in enumerate(models[1:], 1):
        pairs = zip_longest(first, _described(model))
        differs = next((f"{a} there, {b} here" for a, b in pairs if a != b), None)
        if differs is not None:
            raise ValueError(
                f"models[{m}] is not like models[0] ({differs}): an ensemble stacks models that differ in their values "
                "alone; make one ensemble for each architecture"
            )


def _refuse_partly_frozen(models: list[nn.Module]) -> None:
    for name, rows in _rows(models, "named_parameters"):
        for m, x in enumerate(rows):
            rule = f"must be {rows[0].requires_grad} as in models[0], since the members are stacked"
            remedy = "freeze it in all models or in none; ensemble.parameters_of(m) can be frozen member by member"
            ok = x.requires_grad == rows[0].requires_grad
            require(ok, f"models[{m}]: requires_grad of {name!r}", x.requires_grad, rule, remedy)


def _refuse_running_statistics(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if getattr(module, "track_running_stats", False) and getattr(module, "running_mean", None) is not None:
            raise ValueError(
                f"{type(module).__name__} at {name!r} writes running statistics in training, which a vectorised model "
                "cannot; use GroupNorm, or track_running_stats=False, or train its members one by one"
            )
