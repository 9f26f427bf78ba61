"""Choose which implementation takes a step.

=========  ==================================================================================================
c          plain CPU tensors in float32, float64 or bf16 without gaps in memory, a scaling of Table 2
triton     plain CUDA tensors in float32, float64, bf16 or float16 without gaps in memory, a scaling of Table 2,
           rates on the host
foreach    the same scalings on any device and in any real dtype, and inside torch.compile
loop       everything else: complex numbers, tensor subclasses (DTensor), differentiable steps, custom scalings
=========  ==================================================================================================

``implementation="auto"`` takes the first one that supports the parameter. Any other choice raises if it is unsupported.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from semaopt._validation import require
from semaopt.estimator import COUNTERS, state_dtype
from semaopt.kernels import averaging, compiled, triton_launch
from semaopt.kernels.foreach import foreach_group
from semaopt.kernels.layout import PLAIN, is_dense, same_layout, same_strides
from semaopt.kernels.loader import available, library
from semaopt.kernels.loop import loop_group
from semaopt.kernels.rows import SCALINGS
from semaopt.kernels.rule import StepRule
from semaopt.scalings import AdamPlus

IMPLEMENTATIONS = ("auto", "c", "triton", "foreach", "loop")


class SparseGradientError(RuntimeError):
    """A gradient is sparse; raised before anything has changed."""


def run(rule: StepRule, xs: list[Tensor], gs: list[Tensor], states: list[dict[str, Any]]) -> None:
    """Take one step of the parameters of a group, each on a path that supports it."""
    if not xs:
        return
    average = averaging.take(xs) if averaging.pending else None
    if (
        type(rule.scaling) in SCALINGS
        and not (rule.differentiable or torch.compiler.is_compiling())
        and (
            (rule.implementation in ("auto", "c") and xs[0].is_cpu and compiled.step(rule, xs, gs, states, average))
            or (_may_launch(rule, xs) and triton_launch.step(rule, xs, gs, states, average))
        )
    ):
        return  # the usual case, without asking for reasons
    if average is not None:
        averaging.update_(xs, average)
    if any(g.is_sparse for g in gs):
        raise SparseGradientError("semaopt does not support sparse gradients")
    if _only_foreach(rule, xs, states) and _fits_foreach(rule, xs, gs, states):
        foreach_group(rule, xs, gs, states)
        return
    paths = [choose(rule, *each) for each in zip(xs, gs, states, strict=True)]
    if isinstance(rule.scaling, AdamPlus) and len(set(paths)) > 1:
        # The norm is over all parameters, so all of them take one path that supports each.
        paths = ["loop" if "loop" in paths else "foreach"] * len(paths)
    for path, step in (
        ("c", _compiled_group),
        ("triton", _triton_group),
        ("foreach", foreach_group),
        ("loop", loop_group),
    ):
        part = [i for i, taken in enumerate(paths) if taken == path]
        if part:
            step(rule, *([values[i] for i in part] for values in (xs, gs, states)))  # type: ignore[arg-type]


def on_cuda(x: Tensor) -> bool:
    """Return whether a tensor is on a device for which "auto" takes the Triton step."""
    return x.is_cuda


def _may_launch(rule: StepRule, xs: list[Tensor]) -> bool:
    """Return whether the Triton step is requested, or the automatic choice for the device of the first parameter."""
    return rule.implementation == "triton" or (rule.implementation == "auto" and on_cuda(xs[0]))


def _only_foreach(rule: StepRule, xs: list[Tensor], states: list[dict[str, Any]]) -> bool:
    """Return whether the foreach step is requested, or the only fast path for these devices."""
    if rule.implementation != "auto":
        return rule.implementation == "foreach"
    if torch.compiler.is_compiling() or not any(x.is_cpu or on_cuda(x) for x in xs):
        return True
    return not any(state["step"].is_cpu for state in states)


def _fits_foreach(rule: StepRule, xs: list[Tensor], gs: list[Tensor], states: list[dict[str, Any]]) -> bool:
    """Return whether the foreach step supports all parameters: a fast version of ``why_not`` without reasons."""
    if type(rule.scaling) not in SCALINGS or rule.differentiable or not PLAIN.issuperset(map(type, chain(xs, gs))):
        return False
    names = ("v", *rule.scaling.buffers)
    dtypes = {
        (x.dtype, state[name].dtype): x for x, state in zip(xs, states, strict=True) for name in names if name in state
    }
    stored = all(found == state_dtype(x, rule.state_dtype) for (_, found), x in dtypes.items())
    return stored and not any(map(Tensor.is_complex, xs))


def choose(rule: StepRule, x: Tensor, g: Tensor, state: dict[str, Any]) -> str:
    """Return the path of one parameter: "c", "triton", "foreach" or "loop"."""
    if rule.implementation != "auto":
        validate(rule, [x], [g], [state])
        return rule.implementation
    tracing = torch.compiler.is_compiling()
    if not tracing and library() is None and x.is_cpu:
        _warn_once()
    if not tracing and on_cuda(x) and state["step"].is_cpu and triton_launch.why_unavailable(x.device) is not None:
        _warn_once_about_triton(x.device)
    fast = ("foreach",) if tracing else ("triton", "foreach") if on_cuda(x) else ("c", "foreach")
    return next((path for path in fast if why_not(path, rule, x, g, state) is None), "loop")


def validate_implementation(name: Any) -> None:
    """Raise unless ``name`` is a value of the option ``implementation``."""
    rule = f"must be one of {', '.join(map(repr, IMPLEMENTATIONS))}"
    require(name in IMPLEMENTATIONS, "implementation", name, rule, "use 'auto', which takes the fastest supported path")


def validate(rule: StepRule, xs: list[Tensor], gs: list[Tensor], states: list[dict[str, Any]]) -> None:
    """Raise if the requested path does not support one of the parameters."""
    wanted = rule.implementation
    if wanted in ("auto", "loop") or (wanted == "foreach" and _fits_foreach(rule, xs, gs, states)):
        return
    for i, (x, g, state) in enumerate(zip(xs, gs, states, strict=True)):
        reason = why_not(wanted, rule, x, g, state)
        if reason is not None:
            raise ValueError(f"implementation={wanted!r}: {reason} (parameter {i}, shape {tuple(x.shape)}); use 'auto'")


def why_not(path: str, rule: StepRule, x: Tensor, g: Tensor, state: dict[str, Any]) -> str | None:
    """Return why a path ("c", "triton" or "foreach") does not support a parameter, or None if it does.

    Before there is a gradient or a state, pass the parameter as its gradient and {} as its state.
    """
    return next(chain(_obstacles(path, rule), _obstacles_of(path, rule, x, g, state)), None)


def _obstacles(path: str, rule: StepRule) -> Iterator[str]:
    """Yield the reasons why a path supports no parameter under this rule."""
    scaling = type(rule.scaling)
    if scaling not in SCALINGS:
        yield f"the scaling {scaling.__name__} is not one of Table 2, and only those have fast paths"
    if rule.differentiable:
        yield "differentiable=True needs the graph that only the loop records"
    if path == "c" and torch.compiler.is_compiling():
        yield "torch.compile cannot trace the C step"
    if path == "c" and library() is None:
        yield str(available())
    if path == "triton" and torch.compiler.is_compiling():
        yield "torch.compile traces the foreach path and makes its own Triton kernels from it"
    if path == "triton" and rule.remote_rate is not None:
        yield f"a rate is a tensor on {rule.remote_rate}, and the Triton step takes numbers, so it would wait for it"


def _obstacles_of(path: str, rule: StepRule, x: Tensor, g: Tensor, state: dict[str, Any]) -> Iterator[str]:
    """Yield the reasons why a path does not support this parameter."""
    for tensor in (x, g):
        if type(tensor) not in PLAIN:
            yield f"{type(tensor).__name__} is a tensor subclass and may keep its values elsewhere"
    if x.is_complex():
        yield f"{x.dtype} is complex, and only the loop supports complex numbers"
    averages = [m for name, m in state.items() if name not in COUNTERS]
    expected = state_dtype(x, rule.state_dtype)
    if any(m.dtype != expected for m in averages):
        yield f"its averages are in {averages[0].dtype}; those of a parameter in {x.dtype} should be in {expected}"
    if path in _OBSTACLES and "step" in state and not state["step"].is_cpu:
        yield f"its counters are on {state['step'].device} (device_counters=True), where the host does not read them"
    if path in _OBSTACLES:
        yield from _OBSTACLES[path](x, g, averages)


def _obstacles_of_c(x: Tensor, g: Tensor, averages: list[Tensor]) -> Iterator[str]:
    if not x.is_cpu:
        yield f"the C step needs CPU memory, and the parameter is on {x.device}"
    if x.dtype not in (torch.float32, torch.float64, torch.bfloat16):
        yield f"the C step computes in float32, float64 and bfloat16, and the parameter has {x.dtype}"
    if g.dtype != x.dtype or not g.is_cpu:
        yield f"the C step needs a gradient on the CPU in {x.dtype}, and this one has {g.dtype} on {g.device}"
    if not is_dense(x) or not all(same_layout(m, x) for m in averages):
        yield "the C step needs tensors without gaps in memory, all with the same strides"


def _obstacles_of_triton(x: Tensor, g: Tensor, averages: list[Tensor]) -> Iterator[str]:
    unavailable = triton_launch.why_unavailable(x.device)
    if unavailable is not None:
        yield unavailable
    if x.dtype not in {dtype for dtype, _ in triton_launch.KINDS}:
        yield f"the Triton step computes in float32, float64, bfloat16 and float16, and the parameter has {x.dtype}"
    if g.dtype != x.dtype or g.device != x.device:
        yield f"the Triton step needs a gradient on {x.device} in {x.dtype}, and this one has {g.dtype} on {g.device}"
    if not is_dense(x) or not all(m.device == x.device and same_strides(m, x) for m in averages):
        yield "the Triton step needs tensors without gaps in memory, all with the same strides"


_OBSTACLES = {"c": _obstacles_of_c, "triton": _obstacles_of_triton}


def _triton_group(rule: StepRule, xs: list[Tensor], gs: list[Tensor], states: list[dict[str, Any]]) -> None:
    """Take the Triton step, or the foreach step if "auto" chose it and it does not compile."""
    copies = [
        g if same_strides(g, x) and not g.is_neg() else torch.empty_like(x).copy_(g)
        for x, g in zip(xs, gs, strict=True)
    ]
    if triton_launch.step(rule, xs, copies, states):
        return
    reason = next(filter(None, (triton_launch.why_unavailable(x.device) for x in xs)), "it refused the parameters")
    if rule.implementation == "triton":
        raise RuntimeError(f"implementation='triton': {reason}; use 'auto', which falls back to foreach")
    _warn_once_about_triton(xs[0].device)
    foreach_group(rule, xs, gs, states)


def _compiled_group(rule: StepRule, xs: list[Tensor], gs: list[Tensor], states: list[dict[str, Any]]) -> None:
    """Take the C step after copying every gradient whose strides differ from its parameter's."""
    copies = [
        g if same_layout(g, x) and not g.is_neg() else torch.empty_like(x).copy_(g) for x, g in zip(xs, gs, strict=True)
    ]
    if not compiled.step(rule, xs, copies, states):
        what = [(tuple(x.shape), x.dtype, x.stride()) for x in xs]
        raise RuntimeError(
            f"the C step refused parameters that it should support, {what}: use implementation='loop' and report this"
        )


@functools.cache
def _warn_once() -> None:
    logging.getLogger("semaopt").warning("semaopt: %s. Until then steps on the CPU take longer", available())


@functools.cache
def _warn_once_about_triton(device: torch.device) -> None:
    reason = triton_launch.why_unavailable(device)
    logging.getLogger("semaopt").warning("semaopt: %s. Until then steps on %s take the foreach path", reason, device)
