"""Linear algebra on vectors that are lists of tensors, and on the second derivatives of a lower problem.

Vectors first, then curvature seen through Hessian-vector products, then dense matrices for small lower problems.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from semaopt._validation import DivergenceError, NonFiniteError, require
from semaopt.estimator import state_dtype
from semaopt.hypergradient.counts import count

if TYPE_CHECKING:
    from semaopt.hypergradient.closures import Oracles, Sample

#: One tensor for each parameter.
Vector = list[Tensor]
#: Rows of a dense matrix that are computed in one batched backward pass.
CHUNK = 256
_NOT_FINITE = (
    "a Hessian-vector product of inner() is not finite; nothing was changed. Either the lower variable has diverged "
    "(use a smaller lower_lr), or inner() has no second derivative at this point."
)


def axpy(a: float, x: Vector, y: Vector) -> Vector:
    """Return ``a x + y`` as a new vector."""
    return list(torch._foreach_add(y, x, alpha=a))


def scaled(a: float, x: Vector) -> Vector:
    """Return ``a x`` as a new vector."""
    return list(torch._foreach_mul(x, a))


def dot(x: Vector, y: Vector) -> float:
    """Return the inner product over all tensors."""
    parts = [torch.dot(a.flatten(), b.flatten()) for a, b in zip(x, y, strict=True)]
    if parts[0].is_cpu:
        return sum(part.item() for part in parts)
    return torch.stack(parts).sum().item()  # one device synchronization instead of one per tensor


def dots(x: Vector, y: Vector) -> tuple[float, float]:
    """Return ``x . y`` and ``y . y``."""
    if not y[0].is_cpu:
        return dot(x, y), dot(y, y)
    along = length = 0.0
    for a, b in zip(x, y, strict=True):  # one loop, since on a small model the calls cost more than the arithmetic
        flat_b = b.ravel()
        along += torch.dot(a.ravel(), flat_b).item()
        length += torch.dot(flat_b, flat_b).item()
    return along, length


def norm(x: Vector) -> float:
    """Return the Euclidean norm over all tensors."""
    parts = torch._foreach_norm(x)
    if parts[0].is_cpu:
        return math.hypot(*map(Tensor.item, parts))
    return math.hypot(*torch.stack(parts).tolist())  # one device synchronization instead of one per tensor


def longer(x: Vector, y: Vector, times: float) -> bool:
    """Return whether ``|x| > times |y|``, or x holds NaN."""
    found = torch.stack(torch._foreach_norm(x + y)).tolist()  # one device synchronization
    return not math.hypot(*found[: len(x)]) <= times * math.hypot(*found[len(x) :])


def flat(x: Sequence[Tensor]) -> Tensor:
    """Concatenate a vector into one tensor."""
    return torch.cat([part.flatten() for part in x])


def unflat(x: Tensor, like: Sequence[Tensor]) -> Vector:
    """Split one tensor into the shapes of ``like``: the inverse of :func:`flat`."""
    parts = torch.split(x, [y.numel() for y in like])
    return [part.view(y.shape) for part, y in zip(parts, like, strict=True)]


def average(tensors: Vector, process_group: Any) -> Vector:
    """Return the mean of each tensor over the ranks of the group, or the tensors themselves if there is no group."""
    if process_group is None:
        return tensors
    import torch.distributed as dist

    mean = flat(tensors)
    dist.all_reduce(mean, group=process_group)
    mean /= dist.get_world_size(process_group)
    return [part.to(t.dtype) for part, t in zip(unflat(mean, tensors), tensors, strict=True)]


def curvature(v: Vector, hv: Vector) -> float:
    r"""Return :math:`|Hv|^2/(v\cdot Hv)`, a lower bound of :math:`|H|` if :math:`0\preceq H`.

    A step of size :math:`\rho` along v satisfies :math:`|v - \rho Hv| \le |v|` exactly if :math:`\rho` times this
    number is at most 2. It is negative if :math:`v\cdot Hv < 0`, and 0 if :math:`Hv = 0`.

    >>> from semaopt.hypergradient.linalg import curvature
    >>> curvature([torch.tensor([1.0, 1.0])], [torch.tensor([1.0, 3.0])])      # H = diag(1, 3)
    2.5
    """
    along, length = dots(v, hv)
    if not math.isfinite(length):
        raise NonFiniteError(_NOT_FINITE)
    if length == 0:
        return 0.0
    return length / along if along else math.inf


def power_iteration(oracles: Oracles, v: Vector, steps: int = 10) -> float:
    """Return the largest ``|O_gyy v|/|v|`` seen by power iteration from v, with a fresh sample O_gyy in each step."""
    largest = 0.0
    for _ in range(steps):
        length = math.sqrt(dot(v, v))
        if length == 0:
            v = [torch.ones_like(part) for part in v]
            length = math.sqrt(dot(v, v))
        v = oracles.draw().hessian(scaled(1 / length, v))
        curvature(v, v)  # raises if v is not finite
        largest = max(largest, math.sqrt(dot(v, v)))
    refuse_flat(largest)
    return largest


def refuse_flat(bound: float) -> None:
    """Raise if every Hessian-vector product was 0, since the bound is a divisor."""
    require(bound > 0, "bound", bound, "inner() has no curvature in the lower level", "add a regularizer to inner()")


def along_growth(oracles: Oracles, v: Vector, C: float, p: int) -> float:
    """Return ``v.O_gyy v/|v|^2`` after p factors ``I - O_gyy/C`` were applied to v.

    Where v grows, this number tends to an eigenvalue above 2C (C is not a bound) or below 0 (g is not convex).
    """
    for _ in range(p):
        longer_v = oracles.contracted(v, C)
        length = math.sqrt(dot(longer_v, longer_v))
        if not 0 < length < math.inf:
            break
        v = scaled(1 / length, longer_v)
    return dot(v, oracles.draw().hessian(v)) / dot(v, v)


def hessian_matrix(sample: Sample, limit: int) -> Tensor:
    """Return g_yy of one sample as a matrix; raise if it has more than ``limit`` rows or is not finite."""
    d = sum(y.numel() for y in sample.oracles.lower)
    require(d > 0, "lower parameters", d, "all lower tensors are empty", "pass tensors with elements as lower=")
    rule = f"must be at most {limit} for a dense Hessian"
    require(d <= limit, "lower parameters", d, rule, "use CG or TrackedSystem")
    count(hessian_products=d)
    rows, start = _rows(sample, sample.oracles.lower), 0
    for lam, y in zip(sample.oracles.decay, sample.oracles.lower, strict=False):
        rows.diagonal()[start : start + y.numel()] += lam
        start += y.numel()
    if not torch.isfinite(rows).all():
        raise NonFiniteError(_NOT_FINITE)
    return rows


def mixed_matrix(sample: Sample) -> Tensor:
    """Return g_xy of one sample: one row per entry of x, one column per entry of y."""
    count(mixed_products=sum(y.numel() for y in sample.oracles.lower))
    return _rows(sample, sample.oracles.upper).T


def _rows(sample: Sample, inputs: Sequence[Tensor]) -> Tensor:
    """Return the derivative of g_y in ``inputs``: one row per entry of y."""
    lower, found = sample.oracles.lower, []
    d = sum(y.numel() for y in lower)
    for units in torch.split(torch.eye(d, dtype=lower[0].dtype, device=lower[0].device), CHUNK):
        split = torch.split(units, [y.numel() for y in lower], dim=1)
        vectors = [split[i].reshape(len(units), *lower[i].shape).to(lower[i].dtype) for i in sample.curved]
        with full_precision(units):
            blocks = torch.autograd.grad(
                sample.outputs, inputs, vectors, retain_graph=True, is_grads_batched=True, allow_unused=True
            )
        n = len(units)
        full = [units.new_zeros(n, x.numel()) if g is None else g for g, x in zip(blocks, inputs, strict=True)]
        found.append(torch.cat([block.reshape(n, -1) for block in full if block.numel()], 1))
    rows = torch.cat(found)
    return sample.oracles.seen(sample.oracles.average([rows.to(state_dtype(rows))]), "inner")[0]


def full_precision(like: Tensor) -> torch.autocast:
    """Return a context that disables autocast on the device of ``like``.

    Closures may run under autocast, but backward passes and products of matrices must not be rounded to bfloat16.
    """
    return torch.autocast(like.device.type, enabled=False)


def contracted_matrix(h: Tensor, factors: Sequence[Tensor], C: float) -> Tensor:
    """Return ``prod_i (I - factor_i/C) h``, where every factor is a sample of g_yy.

    Raise if a factor is not positive semi-definite or exceeds 2C, or if the product overflows.
    """
    with full_precision(h):
        for factor in factors:
            require_convex(factor, C)
            h = h - factor @ h / C
    if not torch.isfinite(h).all():
        raise DivergenceError(
            f"bound={C:g}: a product of {len(factors)} factors I - O_gyy/bound overflows. Pass a larger bound."
        )
    return h


def require_convex(hessian: Tensor, C: float = math.inf) -> None:
    """Raise if a sample of g_yy has a negative eigenvalue, up to rounding, or one above 2C."""
    values = torch.linalg.eigvalsh(hessian)
    least, largest = values[0].item(), values.abs().max().item()
    if least < -math.sqrt(torch.finfo(hessian.dtype).eps) * largest:
        raise DivergenceError(
            f"inner() has curvature {least:g}, so it is not convex in the lower parameters, and the Neumann series "
            "does not converge; nothing was changed. Regularize inner() (lower_weight_decay), or use SMB, whose "
            "TrackedSystem tolerates negative curvature."
        )
    if largest > 2 * C:
        raise DivergenceError(
            f"bound={C:g}: inner() has curvature {largest:g}, and above twice the bound the Neumann series diverges; "
            f"nothing was changed. Pass a bound of at least {largest:.3g}, or None to measure it."
        )


def solve(matrix: Tensor, f_y: Vector) -> Vector:
    """Return matrix^{-1} f_y; raise if the matrix is singular."""
    w, info = torch.linalg.solve_ex(matrix, flat(f_y))
    if info.item() != 0 or not torch.isfinite(w).all():
        raise RuntimeError("the Hessian of inner() in the lower parameters is singular: add a regularizer to inner()")
    return unflat(w, f_y)
