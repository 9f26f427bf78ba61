"""The Triton step of a param group: tables of addresses on the device, and the launch of the kernels.

The slow twin is :func:`semaopt.kernels.loop.loop_group`; ``compiled.py`` does the same for the C step. Kernels are
compiled when they are first needed, before anything has changed. If that fails, the reason is kept, and
``implementation="auto"`` takes the foreach path from then on.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import math
import os
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from semaopt import scalings
from semaopt.estimator import arithmetic_dtype
from semaopt.kernels.averaging import Average
from semaopt.kernels.compiled import MOST_TABLES
from semaopt.kernels.layout import PLAIN, is_dense, same_strides
from semaopt.kernels.rows import Counters, advance_, count, counters_of, row_of
from semaopt.kernels.rule import StepRule

#: Environment variable of Triton; with 1 its interpreter runs the kernels on CPU tensors, for tests.
INTERPRETER = "TRITON_INTERPRET"
#: Supported storage dtypes of x and v.
KINDS = {
    (torch.float32, torch.float32),
    (torch.float64, torch.float64),
    (torch.bfloat16, torch.float32),
    (torch.float16, torch.float32),
    (torch.float32, torch.bfloat16),
    (torch.bfloat16, torch.bfloat16),
}
_INF = math.inf
_ALIGNMENT = 16  # bytes of a 128-bit load


class Numbers(NamedTuple):
    """The numbers of one launch: options of the group and coefficients of this step, as in step.h."""

    eta: float
    gamma: float
    gamma_u: float
    weight_u: float
    g0: float
    u_lo: float
    u_hi: float
    inverse_lo: float
    inverse_hi: float
    decay: float
    shrink: float
    sign: float
    mean_weight: float
    steps: int


# ---- availability ---------------------------------------------------------------------------------------------------

_failures: dict[str, str] = {}


def interpreted() -> bool:
    """Return whether Triton's interpreter runs the kernels."""
    return os.environ.get(INTERPRETER, "0") not in ("", "0")


@functools.cache
def _installed() -> bool:
    return importlib.util.find_spec("triton") is not None


def why_unavailable(device: torch.device) -> str | None:
    """Return why the Triton step cannot run on a device, or None if nothing is known against it.

    A kernel that failed to compile counts against the type of its device until the process ends.
    """
    if not _installed():
        return "Triton is not installed; install it with pip install triton (Linux)"
    if device.type != "cuda" and not (device.type == "cpu" and interpreted()):
        return f"the Triton step needs a CUDA tensor, and the parameter is on {device}"
    return _failures.get(device.type)


def compiles(kernel: Any, arguments: Sequence[Any], constants: dict[str, Any], device: torch.device) -> bool:
    """Compile a kernel for these constants if that was not done before; return whether it works."""
    if interpreted():
        return True
    try:
        with torch.cuda.device(device):
            kernel.warmup(*arguments, grid=(1,), **constants)
    except Exception as error:  # Triton raises errors of many types, including those of subprocesses
        _fail(device, error)
        return False
    return True


def _fail(device: torch.device, error: Exception) -> None:
    first = str(error).strip().splitlines()[:1] or ["no details"]
    _failures[device.type] = f"the Triton step did not compile on {device} ({type(error).__name__}: {first[0]})"


def kernels_for(device: torch.device, module: str = "triton_step") -> Any:
    """Return the module of the kernels, or None if they are unavailable on this device.

    An installation of Triton that cannot be imported counts as a kernel that does not compile.
    """
    if why_unavailable(device) is not None:
        return None
    try:
        return importlib.import_module(f"semaopt.kernels.{module}")
    except Exception as error:
        _fail(device, error)
        return None


# ---- tables ---------------------------------------------------------------------------------------------------------


class Part(NamedTuple):
    """Parameters that one launch moves: equal device, dtypes, alignment and counters."""

    members: list[int]
    device: torch.device
    constants: dict[str, Any]
    tensors: Tensor
    """One row per parameter: the addresses of its tensors (0 if absent), its key and its size."""
    chunks: Tensor
    """One row per program: the position in ``tensors``, and the number of the chunk in that tensor."""


class Table(NamedTuple):
    """The parts of a param group, and the description of the tensors that they were made from."""

    described: tuple[Any, ...]
    parts: list[Part]


_tables: OrderedDict[tuple[int, bool], Table] = OrderedDict()


def chunks_of(sizes: Iterable[int], block: int) -> Tensor:
    """Return (position, number of the chunk) for every chunk of ``block`` elements of tensors of these sizes.

    >>> chunks_of([3, 0, 1], 2).tolist()
    [[0, 0], [0, 1], [2, 0]]
    """
    counts = torch.tensor([-(-n // block) for n in sizes], dtype=torch.int64, device="cpu")
    tensor = torch.repeat_interleave(torch.arange(len(counts), device="cpu"), counts)
    first = (counts.cumsum(0) - counts)[tensor]
    return torch.stack([tensor, torch.arange(len(tensor), device="cpu") - first], 1)


def _describe(t: Tensor | None) -> tuple[Any, ...] | None:
    return None if t is None else (t.data_ptr(), t.dtype, t.device, t.shape, t.stride())


def _fits(x: Tensor, g: Tensor, averages: list[Tensor], mean: Tensor | None) -> bool:
    """Return whether the kernels support the tensors of a parameter."""
    dtypes = {m.dtype for m in averages} or {arithmetic_dtype(x)}
    others = [g, *averages] if mean is None else [g, *averages, mean]
    return (
        len(dtypes) == 1
        and (x.dtype, *dtypes) in KINDS
        and g.dtype == x.dtype
        and (mean is None or mean.dtype == arithmetic_dtype(x))
        and is_dense(x)
        and all(m.device == x.device and m.layout == torch.strided and same_strides(m, x) for m in others)
    )


def _table(rows: list[list[Tensor | None]], keys: list[int], labels: tuple[Any, ...]) -> Table | None:
    """Return the table of parameters whose tensors are these, in the order x, g, v, u, u_max, mean.

    The table made last for a group that starts with the same parameter is reused if no tensor has moved. Return None
    if a tensor does not fit.
    """
    described = (labels, *keys, *(_describe(t) for row in rows for t in row))
    owner = (id(rows[0][0]), rows[0][2] is None)
    table = _tables.get(owner)
    if table is not None and table.described == described:
        return table
    found: dict[tuple[Any, ...], list[int]] = {}
    for i, (row, label) in enumerate(zip(rows, labels, strict=True)):
        x, g, *averages, mean = row
        assert x is not None
        assert g is not None
        kept = [m for m in averages if m is not None]
        if not _fits(x, g, kept, mean):
            return None
        aligned = all(t.data_ptr() % _ALIGNMENT == 0 for t in row if t is not None)
        state = kept[0].dtype if kept else arithmetic_dtype(x)
        found.setdefault((x.device, x.dtype, state, aligned, label), []).append(i)
    parts = [_part(rows, keys, members, *key[:4]) for key, members in found.items()]
    _tables[owner] = table = Table(described, parts)
    _tables.move_to_end(owner)
    if len(_tables) > MOST_TABLES:
        _tables.popitem(last=False)
    return table


def _part(
    rows: list[list[Tensor | None]],
    keys: list[int],
    members: list[int],
    device: torch.device,
    x_dtype: torch.dtype,
    state: torch.dtype,
    aligned: bool,
) -> Part:
    import triton.language as tl

    from semaopt.kernels.triton_step import BLOCK

    sizes = [rows[i][0].numel() for i in members]  # type: ignore[union-attr]
    numbers = [
        [*(0 if t is None else t.data_ptr() for t in rows[i]), keys[i], n] for i, n in zip(members, sizes, strict=True)
    ]
    wide = torch.float64 if x_dtype == torch.float64 else torch.float32
    names = {name: getattr(tl, str(d).removeprefix("torch.")) for name, d in (("XT", x_dtype), ("AT", wide))}
    constants = {**names, "ST": getattr(tl, str(state).removeprefix("torch.")), "ALIGNED": aligned, "BLOCK": BLOCK}
    table = torch.tensor(numbers, dtype=torch.int64, device="cpu")  # pinned memory is on the CPU
    return Part(members, device, constants, _upload(table, device), _upload(chunks_of(sizes, BLOCK), device))


def _upload(numbers: Tensor, device: torch.device) -> Tensor:
    """Copy to the device without waiting for it."""
    return numbers if device.type == "cpu" else numbers.pin_memory().to(device, non_blocking=True)


# ---- launches -------------------------------------------------------------------------------------------------------


def compiler_options(warps: int) -> dict[str, Any]:
    """Return the options of Triton's compiler; its interpreter takes none.

    Without contraction the results are bitwise equal to those of the C step, which is compiled with -ffp-contract=off.
    """
    return {} if interpreted() else {"num_warps": warps, "enable_fp_fusion": False}


def launch(
    kernel: Any, programs: int, arguments: Sequence[Any], constants: dict[str, Any], device: torch.device
) -> None:
    """Run a kernel on a device."""
    if programs == 0:
        return
    with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
        kernel[programs,](*arguments, **constants)


def _launch(kernel: Any, part: Part, arguments: Sequence[Any], constants: dict[str, Any]) -> None:
    launch(kernel, len(part.chunks), (part.tensors, part.chunks, *arguments), constants, part.device)


def _constants(part: Part, **more: Any) -> dict[str, Any]:
    from semaopt.kernels.triton_step import WARPS

    return {**part.constants, **more, **compiler_options(WARPS)}


def step(
    rule: StepRule,
    xs: list[Tensor],
    gs: list[Tensor],
    states: list[dict[str, Any]],
    average: Average | None = None,
) -> bool:
    """Take one step under a rule whose scaling is one of Table 2, and update an average of iterates with it.

    Returns False, and changes nothing, if a tensor does not fit, a rate is on a device or a kernel does not compile.
    """
    if not xs or not PLAIN.issuperset(map(type, (*xs, *gs))) or any(map(Tensor.is_neg, gs)):
        return False
    kernels = kernels_for(xs[0].device)
    readable = rule.remote_rate is None and all(m["step"].is_cpu for m in states)
    if kernels is None or not readable or any(why_unavailable(x.device) is not None for x in xs):
        return False
    row = row_of(rule)
    names = ("v", row.u, row.u_max)
    means: Sequence[Tensor | None] = [None] * len(xs) if average is None else average.means
    rows: list[list[Tensor | None]] = [
        [x, g, *(None if name is None else m[name] for name in names), mean]
        for x, g, m, mean in zip(xs, gs, states, means, strict=True)
    ]
    counters = [counters_of(m) for m in states]
    keys = [0 if rule.state_dtype is None else int(m["rounding"]) for m in states]
    labels = tuple(map(counters.index, counters))
    table = _table(rows, keys, labels)
    if table is None:
        return False
    normed = isinstance(rule.scaling, scalings.AdamPlus)
    scaling = {3: 1, 4: 0}.get(row.number, row.number)  # AdaFom has the arithmetic of Adam, Adam+ that of SHB
    more = {"SCALING": scaling, "AVERAGED": average is not None, "NORMED": normed}
    launches = []
    for part in table.parts:
        numbers, weight = _numbers(rule, counters[part.members[0]], 0.0 if average is None else average.weight)
        launches.append((part, numbers, weight, _constants(part, **more)))
        square = torch.zeros((), dtype=torch.float64, device=part.device) if normed else part.tensors
        arguments = (part.tensors, part.chunks, square, *numbers)
        if not compiles(kernels.update, arguments, launches[-1][-1], part.device):
            return False
        if normed and not compiles(kernels.norm, *_norm(launches[-1], square), part.device):
            return False
    square = _square_of_norm(kernels.norm, launches) if normed else torch.zeros(0)
    for part, numbers, _, constants in launches:
        _launch(kernels.update, part, (square.to(part.device) if normed else part.tensors, *numbers), constants)
    for label in set(labels):
        members = [m for m, its in zip(states, labels, strict=True) if its == label]
        advance_(members, counters[label], count(rule, counters[label]))
    increment_version(xs)  # autograd must notice the change, as with torch's own in-place operations
    return True


_Launch = tuple[Part, Numbers, float, dict[str, Any]]


def _norm(launch: _Launch, partial: Tensor) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments and constants of the norm pass."""
    part, numbers, weight, constants = launch
    own = {k: c for k, c in constants.items() if k not in ("SCALING", "AVERAGED", "NORMED")}
    arguments = (partial, numbers.gamma, weight, numbers.decay, numbers.sign)
    return (part.tensors, part.chunks, *arguments), own


def _square_of_norm(kernel: Any, launches: list[_Launch]) -> Tensor:
    """Return the sum of squares of the corrected v_{t+1} over the group, on the device of the first part."""
    sums = []
    for launch in launches:
        part = launch[0]
        partial = torch.zeros(len(part.chunks), dtype=torch.float64, device=part.device)
        arguments, constants = _norm(launch, partial)
        _launch(kernel, part, arguments[2:], constants)
        sums.append(partial.sum().to(launches[0][0].device))
    return torch.stack(sums).sum()


def _numbers(rule: StepRule, counters: Counters, mean_weight: float) -> tuple[Numbers, float]:
    """Return the coefficients of this step, and 1/v_weight: count() of step.c."""
    eta, decay, now = float(rule.eta), float(rule.weight_decay), count(rule, counters)
    clip, decoupled = rule.clip_scaling, rule.decoupled_weight_decay
    _, g0, u_lo, u_hi = row_of(rule).numbers(rule.scaling)
    inverse_lo, inverse_hi = (-_INF, _INF) if clip is None else (1 / clip[1], 1 / clip[0])
    shrink, inverse_weight = 1 - eta * decay if decoupled else 1.0, 1.0 / now.v_weight
    eta *= inverse_weight
    if isinstance(rule.scaling, scalings.SHB):  # u = 1
        eta *= 1.0 / min(max(1.0 + g0, inverse_lo), inverse_hi)
    numbers = Numbers(
        eta, now.gamma, now.gamma_u, 1.0 / now.u_weight, g0, u_lo, u_hi, inverse_lo, inverse_hi,
        0.0 if decoupled else decay, shrink, -1.0 if rule.maximize else 1.0, mean_weight, int(counters.step),
    )  # fmt: skip
    return numbers, inverse_weight


def ascend_box_(ys: list[Tensor], gs: list[Tensor], eta: float, lo: float, hi: float) -> bool:
    """Compute ``y <- clip(y + eta g, lo, hi)``; return False, and change nothing, if a tensor does not fit."""
    if not ys or not PLAIN.issuperset(map(type, (*ys, *gs))) or any(map(Tensor.is_neg, gs)):
        return False
    kernels = kernels_for(ys[0].device)
    if kernels is None or any(why_unavailable(y.device) is not None for y in ys):
        return False
    rows: list[list[Tensor | None]] = [[y, g, None, None, None, None] for y, g in zip(ys, gs, strict=True)]
    table = _table(rows, [0] * len(ys), (0,) * len(ys))
    if table is None:
        return False
    launches = []
    for part in table.parts:
        constants = {k: c for k, c in _constants(part).items() if k != "ST"}
        if not compiles(kernels.ascend, (part.tensors, part.chunks, eta, lo, hi), constants, part.device):
            return False
        launches.append((part, constants))
    for part, constants in launches:
        _launch(kernels.ascend, part, (eta, lo, hi), constants)
    increment_version(ys)
    return True
