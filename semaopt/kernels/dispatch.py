"""The one place that decides which path takes a step of a param group.

=========  ==================================================================================================
c          plain CPU tensors in float32, float64 or bf16 that fill their memory, a scaling of Table 2
foreach    the same scalings on any device and in any real dtype, and inside torch.compile
loop       everything else: complex numbers, tensor subclasses (DTensor), differentiable steps, a user's scalings
=========  ==================================================================================================

``implementation="auto"`` takes the first that serves, parameter by parameter; naming one that cannot serve is an error.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from semaopt._validation import require
from semaopt.estimator import COUNTERS, state_dtype
from semaopt.kernels import compiled
from semaopt.kernels.foreach import SCALINGS, foreach_group
from semaopt.kernels.layout import PLAIN, is_dense, same_layout
from semaopt.kernels.loader import available, library
from semaopt.scalings import AdamPlus

IMPLEMENTATIONS = ("auto", "c", "foreach", "loop")
Step = Callable[[dict[str, Any], list[Tensor], list[Tensor], list[dict[str, Any]]], None]


def run(group: dict[str, Any], xs: list[Tensor], gs: list[Tensor], states: list[dict[str, Any]], loop: Step) -> None:
    """One step of a param group on the paths that serve it; ``loop`` is the readable one."""
    wish = group.get("implementation", "auto")
    if (
        wish in ("auto", "c")
        and type(group["scaling"]) in SCALINGS
        and not (group["differentiable"] or torch.compiler.is_compiling())
        and compiled.step(group, xs, gs, states)
    ):
        return  # the usual case, without asking for reasons
    refuse_sparse(group, xs, gs)
    paths = [choose(group, *each) for each in zip(xs, gs, states, strict=True)]
    if isinstance(group["scaling"], AdamPlus) and len(set(paths)) > 1:
        # Its norm is over all parameters: one path for all, the one that serves most.
        paths = [max(paths, key=IMPLEMENTATIONS.index)] * len(paths)
    for path, step in (("c", _c_group), ("foreach", foreach_group), ("loop", loop)):
        part = [i for i, taken in enumerate(paths) if taken == path]
        if part:
            step(group, *([values[i] for i in part] for values in (xs, gs, states)))  # type: ignore[arg-type]


def choose(group: dict[str, Any], x: Tensor, g: Tensor, state: dict[str, Any]) -> str:
    """The path of one parameter."""
    wish: str = group.get("implementation", "auto")
    if wish != "auto":
        refuse(group, [x], [g], [state])
        return wish
    tracing = torch.compiler.is_compiling()
    if not tracing and library() is None and x.is_cpu:
        _say_once()
    fast = ("foreach",) if tracing else ("c", "foreach")
    return next((path for path in fast if why_not(path, group, x, g, state) is None), "loop")


def check(wish: Any) -> None:
    """The rule of the group option ``implementation``."""
    rule = f"must be one of {', '.join(map(repr, IMPLEMENTATIONS))}"
    require(wish in IMPLEMENTATIONS, "implementation", wish, rule, "'auto' takes the fastest that serves")


def refuse(group: dict[str, Any], xs: list[Tensor], gs: list[Tensor], states: list[dict[str, Any]]) -> None:
    """Raise if the group asks for a path that cannot serve one of its parameters."""
    wish = group.get("implementation", "auto")
    if wish in ("auto", "loop"):
        return
    for i, (x, g, state) in enumerate(zip(xs, gs, states, strict=True)):
        reason = why_not(wish, group, x, g, state)
        if reason is not None:
            raise ValueError(f"implementation={wish!r}: {reason} (parameter {i}, shape {tuple(x.shape)}); use 'auto'")


def refuse_sparse(group: dict[str, Any], xs: list[Tensor], gs: list[Tensor], number: int = 0) -> None:
    """Raise for the first sparse gradient of a group, the optimizer's first unless its number is given."""
    for x, g in zip(xs, gs, strict=True):
        if g.is_sparse:
            i = next(i for i, p in enumerate(group["params"]) if p is x)
            raise RuntimeError(
                f"semaopt does not support sparse gradients (group {number}, parameter {i}, shape {tuple(x.shape)}): "
                "its moving averages decay in every coordinate at every step; use nn.Embedding(sparse=False), or "
                "torch.optim.SparseAdam for that parameter"
            )


def why_not(path: str, group: dict[str, Any], x: Tensor, g: Tensor, state: dict[str, Any]) -> str | None:
    """Why a path ("c" or "foreach") cannot serve a parameter, its gradient and its state, or None.

    Before there are any, the parameter stands for its gradient and {} for its state.
    """
    return next(chain(_against_all(path, group), _against_one(path, group, x, g, state)), None)


def _against_all(path: str, group: dict[str, Any]) -> Iterator[str]:
    """What keeps a path from serving any parameter of the group."""
    scaling = type(group["scaling"])
    if scaling not in SCALINGS:
        yield f"the scaling {scaling.__name__} is not one of Table 2, which alone have fast paths"
    if group["differentiable"]:
        yield "differentiable=True needs the graph that only the loop records"
    if path == "c" and torch.compiler.is_compiling():
        yield "torch.compile cannot trace the C step"
    if path == "c" and library() is None:
        yield str(available())


def _against_one(path: str, group: dict[str, Any], x: Tensor, g: Tensor, state: dict[str, Any]) -> Iterator[str]:
    """What keeps a path from serving this parameter."""
    for tensor in (x, g):
        if type(tensor) not in PLAIN:
            yield f"{type(tensor).__name__} is a tensor subclass and may keep its values elsewhere"
    if x.is_complex():
        yield f"{x.dtype} is complex, and only the loop takes complex numbers as pairs"
    averages = [m for name, m in state.items() if name not in COUNTERS]
    expected = state_dtype(x, group.get("state_dtype"))
    if any(m.dtype != expected for m in averages):
        yield f"its averages are in {averages[0].dtype} and not, as for a parameter in {x.dtype}, in {expected}"
    if path == "foreach":
        return
    if not x.is_cpu:
        yield f"the C step needs memory of the CPU, and the parameter is on {x.device}"
    if x.dtype not in (torch.float32, torch.float64, torch.bfloat16):
        yield f"the C step computes in float32, float64 and bfloat16, and the parameter has {x.dtype}"
    if g.dtype != x.dtype or not g.is_cpu:
        yield f"the C step needs a gradient like its parameter in {x.dtype}, and this one has {g.dtype} on {g.device}"
    if not is_dense(x) or not all(same_layout(m, x) for m in averages):
        yield "the C step needs tensors that fill their memory, all in the same order"


def _c_group(group: dict[str, Any], xs: list[Tensor], gs: list[Tensor], states: list[dict[str, Any]]) -> None:
    """The C step after a copy of every gradient that lies otherwise than its parameter."""
    copies = [
        g if same_layout(g, x) and not g.is_neg() else torch.empty_like(x).copy_(g) for x, g in zip(xs, gs, strict=True)
    ]
    if not compiled.step(group, xs, copies, states):
        what = [(tuple(x.shape), x.dtype, x.stride()) for x in xs]
        raise RuntimeError(
            f"the C step refused what it should serve, {what}: use implementation='loop' and report this"
        )


@functools.cache
def _say_once() -> None:
    logging.getLogger("semaopt").warning("semaopt: %s. Until then steps on the CPU take longer", available())
