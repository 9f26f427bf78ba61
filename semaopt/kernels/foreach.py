r"""The step of a param group with ``torch._foreach_*``: any device, and few kernels under torch.compile.

The slow twin is :func:`semaopt.kernels.loop.loop_group`. Bias corrections cost no pass over memory: with the weights
:math:`w_v` and :math:`w_u` of the averages, line 5 is

.. math:: x \leftarrow x - \frac{\eta \sqrt{w_u}}{w_v} \frac{v}{\sqrt u + G_0 \sqrt{w_u}} .

On the CPU the tensors are processed in blocks that fit the caches, so that each pass but the first finds its data
there.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from semaopt import scalings
from semaopt.estimator import Rate, arithmetic_dtype, largest, one_or, scalar
from semaopt.kernels.layout import is_dense, same_strides
from semaopt.kernels.loop import on_host, scalar_rate
from semaopt.kernels.rounding import round_state_
from semaopt.kernels.rows import advance_, count, counters_of, row_of
from semaopt.kernels.rule import StepRule

Tensors = list[Tensor]
#: One number for all tensors of a bucket or, if their counters are not on the host, a list with a number for each.
Numbers = float | Tensor | Tensors
#: Elements per block and thread on the CPU.
BLOCK = 1 << 18


@dataclass
class Block:
    """Tensors that one pass of each operation covers, in the order of the bucket."""

    xs: Tensors
    gs: Tensors
    m: dict[str, Tensors]
    members: slice
    """The part of the bucket that these tensors are, or belong to."""

    def widen(self, rule: StepRule) -> None:
        """Convert everything to the dtype of the arithmetic, and apply the sign and the weight decay."""
        dtype, its = arithmetic_dtype(self.m["v"][0]), arithmetic_dtype(self.xs[0])
        # All parameters of a bucket have one dtype, and so have all averages; gradients may differ.
        self.ys = self.xs if its == self.xs[0].dtype else _in(its, self.xs)
        self.hs = _in(dtype, self.gs)
        same = dtype == self.m["v"][0].dtype
        self.wide = self.m if same else {name: _in(dtype, ms) for name, ms in self.m.items()}
        if rule.maximize:
            self.hs = list(torch._foreach_neg(self.hs))
        decay = _number(rule.weight_decay, self.ys[0])
        if isinstance(decay, float) and decay == 0:
            return
        eta = _number(rule.eta, self.ys[0])
        if rule.decoupled_weight_decay:
            torch._foreach_mul_(self.ys, 1 - eta * decay)
        elif isinstance(decay, float):
            self.hs = list(torch._foreach_add(self.hs, _in(dtype, self.ys), alpha=decay))
        else:
            penalties = torch._foreach_mul(_in(dtype, self.ys), decay)
            self.hs = list(torch._foreach_add(self.hs, penalties))

    def part(self, numbers: Numbers) -> Numbers:
        """Return the numbers that belong to these tensors."""
        return numbers[self.members] if isinstance(numbers, list) else numbers

    def lerp_(self, name: str, samples: Tensors, gamma: Numbers) -> None:
        """Take a step of the averages of this name, as :func:`semaopt.estimator.track_` does."""
        gamma = self.part(gamma)
        weights = [gamma] * len(samples) if isinstance(gamma, Tensor) else gamma
        torch._foreach_lerp_(self.wide[name], samples, weights)

    def squares(self) -> Tensors:
        """Return what :func:`semaopt.estimator.square` returns, for a list of tensors."""
        squares = list(torch._foreach_mul(self.hs, self.hs))
        torch._foreach_clamp_max_(squares, largest(self.hs[0]))
        return squares

    def narrow(self, states: list[dict[str, Any]]) -> None:
        """Write back into parameters and states that are stored in fewer bits."""
        if self.ys is not self.xs:
            torch._foreach_copy_(self.xs, self.ys)
        if "rounding" in states[0]:
            for i, state in enumerate(states[self.members]):
                round_state_(state, {name: averages[i] for name, averages in self.wide.items()})


class Bucket:
    """Parameters on one device with equal dtypes and, if their counters are on the host, equal counters.

    Args:
        rule: the rule of the group.
        xs, gs, states: the parameters, their gradients and their states.
    """

    def __init__(self, rule: StepRule, xs: Tensors, gs: Tensors, states: list[dict[str, Any]]) -> None:
        self.rule, self.xs, self.gs, self.states = rule, xs, gs, states
        self.names = ("v", *rule.scaling.buffers)
        (self._count_on_host if on_host(states[0]["step"]) else self._count_in_tensors)()

    def _count_on_host(self) -> None:
        """Count the step and compute its coefficients as numbers."""
        before = counters_of(self.states[0])
        after = count(self.rule, before)
        advance_(self.states, before, after)
        self.gamma: Numbers = after.gamma
        self.gamma_u: Numbers = after.gamma_u
        self.inverse_weight: Numbers = 1.0 / after.v_weight
        self.root: Numbers = math.sqrt(after.u_weight)

    def _count_in_tensors(self) -> None:
        """Count the step and compute its coefficients as tensors, in torch.compile or with counters on the device."""
        rule, row, v = self.rule, row_of(self.rule), self.states[0]["v"]
        like = v.new_empty((), dtype=arithmetic_dtype(v))
        gamma, gamma_u = scalar_rate(rule.gamma, like), row.numbers(rule.scaling)[0]
        steps = [state["step"] for state in self.states]
        before = [step.clone() for step in steps]
        # Through views: torch.compile loses what is written to a 0-dimensional float64 tensor.
        torch._foreach_add_([step.view(1) for step in steps], 1.0)
        self.gamma = scalar(gamma, like) if isinstance(gamma, Tensor) else gamma
        self.gamma_u, self.inverse_weight, self.root = gamma_u, 1.0, 1.0
        if rule.bias_correction:
            self.inverse_weight = [w.reciprocal() for w in self._weights("v_weight", gamma, like)]
            self.root = [w.sqrt() for w in self._weights("u_weight", gamma_u, like)] if row.weighs_u else 1.0
        else:
            self.gamma = [scalar(one_or(gamma, t, like), like) for t in before]
            self.gamma_u = [scalar(one_or(gamma_u, t, like), like) for t in before]
        if isinstance(rule.scaling, scalings.AdaFom):
            self.gamma_u = [(1 / (t + 1)).to(like) for t in before]

    def _weights(self, name: str, gamma: Rate, like: Tensor) -> Tensors:
        """Update the weights of an average and return them in the dtype and on the device of ``like``."""
        weights = [state[name].view(1) for state in self.states]
        gamma = gamma.to(weights[0]) if isinstance(gamma, Tensor) else gamma
        for w in weights:
            w.lerp_(torch.ones_like(w), gamma)
        return [scalar(w, like) for w in weights]

    def blocks(self) -> Iterator[Block]:
        """Yield all tensors in one block or, on the CPU, in blocks that fit the caches."""
        lists = [self.xs, self.gs, *([state[name] for state in self.states] for name in self.names)]
        in_blocks = self.xs[0].is_cpu and not torch.compiler.is_compiling()
        limit = BLOCK * torch.get_num_threads() if in_blocks else 0
        if not in_blocks or sum(map(Tensor.numel, self.xs)) <= limit:
            yield self._block(lists, slice(None))
            return
        first = total = 0
        for i, x in enumerate(self.xs):
            if total + x.numel() > limit and i > first:
                yield self._block([tensors[first:i] for tensors in lists], slice(first, i))
                first, total = i, 0
            total += x.numel()
            row = [tensors[i] for tensors in lists]
            if total > limit and "rounding" not in self.states[i] and _is_one_vector(row):
                for parts in zip(*(torch.split(_flat(t), limit) for t in row), strict=True):
                    yield self._block([[t] for t in parts], slice(i, i + 1))
                first, total = i + 1, 0
        if first < len(self.xs):
            yield self._block([tensors[first:] for tensors in lists], slice(first, None))

    def _block(self, lists: list[Tensors], members: slice) -> Block:
        xs, gs, *averages = lists
        return Block(xs, gs, dict(zip(self.names, averages, strict=True)), members)

    def track_(self, block: Block) -> None:
        """Compute line 3 of ``alg:adam``."""
        block.widen(self.rule)
        block.lerp_("v", block.hs, self.gamma)

    def move_(self, block: Block) -> None:
        """Compute lines 4 and 5 with one scaling s per coordinate."""
        rule, row = self.rule, row_of(self.rule)
        _, g0, u_lo, u_hi = row.numbers(rule.scaling)
        root, clip = block.part(self.root), rule.clip_scaling
        assert row.u is not None
        block.lerp_(row.u, block.squares(), self.gamma_u)
        u = block.wide[row.u]
        if row.u_max is not None:
            u = block.wide[row.u_max]
            torch._foreach_maximum_(u, block.wide[row.u])
        denominators = list(torch._foreach_sqrt(u))
        if u_lo > -math.inf:
            _clamp_(denominators, math.sqrt(u_lo), math.sqrt(u_hi), root)
        if g0 != 0:
            torch._foreach_add_(denominators, _times(root, g0))
        if clip is not None:
            _clamp_(denominators, 1 / clip[1], 1 / clip[0], root)
        eta = _times(block.part(self.inverse_weight), _number(rule.eta, block.ys[0]), root)
        if isinstance(eta, float):
            torch._foreach_addcdiv_(block.ys, block.wide["v"], denominators, value=-eta)
        else:
            torch._foreach_mul_(denominators, [-1 / e for e in eta] if isinstance(eta, list) else -1 / eta)
            torch._foreach_addcdiv_(block.ys, block.wide["v"], denominators)
        block.narrow(self.states)

    def move_by_one_number_(self, block: Block, inverse_s: float | Tensor) -> None:
        """Compute line 5 with a single scaling s for all coordinates."""
        eta = _times(block.part(self.inverse_weight), _number(self.rule.eta, block.ys[0]), 1 / inverse_s)
        if isinstance(eta, float):
            torch._foreach_add_(block.ys, block.wide["v"], alpha=-eta)
        else:
            torch._foreach_sub_(block.ys, torch._foreach_mul(block.wide["v"], eta))
        block.narrow(self.states)

    def norms(self, blocks: list[Block]) -> Tensors:
        """Return the norms of the corrected v."""
        wide = torch.float32 if self.xs[0].device.type == "mps" else torch.float64
        vs = [v for block in blocks for v in block.wide["v"]]
        norms = list(torch._foreach_norm(vs, 2, dtype=wide))
        numbers = self.inverse_weight
        torch._foreach_mul_(norms, [n.to(wide) for n in numbers] if isinstance(numbers, list) else numbers)
        return norms


def foreach_group(rule: StepRule, xs: Tensors, gs: Tensors, states: list[dict[str, Any]]) -> None:
    """Take one step under a rule whose scaling is in ``rows.SCALINGS``."""
    buckets = _buckets(rule, xs, gs, states)
    if isinstance(rule.scaling, scalings.AdamPlus):
        _step_by_norm(rule, buckets)
        return
    lo, hi = (1.0, 1.0) if rule.clip_scaling is None else rule.clip_scaling
    one = min(max(1.0, 1 / hi), 1 / lo)  # SHB's u is 1
    for bucket in buckets:
        for block in bucket.blocks():
            bucket.track_(block)
            if isinstance(rule.scaling, scalings.SHB):
                bucket.move_by_one_number_(block, one)
            else:
                bucket.move_(block)


def _step_by_norm(rule: StepRule, buckets: list[Bucket]) -> None:
    """Take a step of Adam+, whose u is the norm of v over all parameters."""
    found = [(bucket, list(bucket.blocks())) for bucket in buckets]
    norms: Tensors = []
    for bucket, blocks in found:
        for block in blocks:
            bucket.track_(block)
        norms += bucket.norms(blocks)
    u = torch.linalg.vector_norm(torch.stack([n.to(norms[0].device) for n in norms]))
    inverse_s = u.sqrt() + rule.scaling.g0
    if rule.clip_scaling is not None:
        inverse_s = inverse_s.clamp(1 / rule.clip_scaling[1], 1 / rule.clip_scaling[0])
    for bucket, blocks in found:
        for block in blocks:
            bucket.move_by_one_number_(block, _number(inverse_s.to(bucket.xs[0].device), block.ys[0]))


def _buckets(rule: StepRule, xs: Tensors, gs: Tensors, states: list[dict[str, Any]]) -> list[Bucket]:
    if len(xs) == 1:
        return [Bucket(rule, xs, gs, states)]
    readable = on_host(states[0]["step"])
    keys = [
        (x.device, x.dtype, state["v"].dtype, counters_of(state) if readable else None)
        for x, state in zip(xs, states, strict=True)
    ]
    found: dict[Any, list[int]] = {}
    for i, key in enumerate(keys):
        found.setdefault(key, []).append(i)
    if len(found) == 1:
        return [Bucket(rule, xs, gs, states)]
    lists = [[[values[i] for i in part] for values in (xs, gs, states)] for part in found.values()]
    return [Bucket(rule, *part) for part in lists]  # type: ignore[arg-type]


def _in(dtype: torch.dtype, tensors: Tensors) -> Tensors:
    """Return the tensors in a dtype; if all have it already, return the same list."""
    return tensors if {t.dtype for t in tensors} == {dtype} else [t.to(dtype) for t in tensors]


def _number(rate: Rate, x: Tensor) -> Rate:
    """Return a tensor on the host as a number, any other rate with at least the precision of x's arithmetic."""
    return rate.item() if isinstance(rate, Tensor) and on_host(rate) else scalar_rate(rate, x)


def _times(*factors: Numbers) -> Numbers:
    """Multiply numbers, some of which may be lists of one number per tensor."""
    size = next((len(f) for f in factors if isinstance(f, list)), None)
    if size is None:
        return functools.reduce(operator.mul, factors)
    rows: list[list[Any]] = [[f[i] if isinstance(f, list) else f for f in factors] for i in range(size)]
    return [functools.reduce(operator.mul, row) for row in rows]


def _clamp_(tensors: Tensors, lo: float, hi: float, factor: Numbers) -> None:
    """Clamp to [lo, hi] times the factor."""
    torch._foreach_clamp_min_(tensors, _times(factor, lo))  # type: ignore[arg-type]
    torch._foreach_clamp_max_(tensors, _times(factor, hi))  # type: ignore[arg-type]


def _is_one_vector(tensors: Tensors) -> bool:
    """Return whether tensors of one shape fill their memory in the same order, so that all are cut in one way."""
    return is_dense(tensors[0]) and all(same_strides(t, tensors[0]) for t in tensors[1:])


def _flat(t: Tensor) -> Tensor:
    """Return a tensor without gaps as a vector, in the order of its memory."""
    return t.detach().as_strided((t.numel(),), (1,))
