r"""SEMA, the stochastic estimator by moving average, on which every method of the library is built.

.. math:: v \leftarrow (1-\gamma) v + \gamma\, O(x)

It tracks any Lipschitz map :math:`h` of a moving point :math:`x` through unbiased samples
:math:`O(x)` (``lem:sema_mengdi``):

.. math::
    E|v_+ - h(x)|^2 \le (1-\gamma)|v - h(x_{prev})|^2 + 2\gamma^2\sigma^2
    + L^2|x - x_{prev}|^2/\gamma ,

so :math:`\gamma` must shrink together with the step size that moves :math:`x`.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

Rate = float | Tensor

#: Numbers in the state of a parameter; they are never cast to its dtype nor moved to its device.
COUNTERS = frozenset({"step", "v_weight", "u_weight", "rounding"})


def track_(v: Tensor, sample: Tensor, gamma: Rate) -> Tensor:
    """Compute ``v <- (1 - gamma) v + gamma sample`` in place and return ``v``.

    >>> v = torch.tensor([0.0, 4.0])
    >>> track_(v, torch.tensor([1.0, 0.0]), 0.25)
    tensor([0.2500, 3.0000])
    """
    return v.lerp_(sample, scalar(gamma, v) if isinstance(gamma, Tensor) else gamma)


def scalar(number: Tensor, like: Tensor) -> Tensor:
    """Return a one-element tensor with 0 dimensions, in the dtype and on the device of ``like``."""
    return number.reshape(()).to(like)


def sema_(state: Mapping[str, Tensor], key: str, sample: Tensor, gamma: Rate, t: Rate, *, corrected: bool) -> Tensor:
    r"""Take step ``t`` of the moving average ``state[key]``, which holds zeros before step 0, and return the estimate.

    With ``corrected=False``, the paper's start :math:`v_0 = O(x_0)`, gamma counts as 1 in step 0.
    With ``corrected=True``, torch's start :math:`v_0 = 0`, the estimate is :math:`v/w`. Here :math:`w` is the same
    average of the constant 1; it is kept in ``state[key + "_weight"]``. So :math:`w = 1-\prod_i \beta_i` for any
    sequence of :math:`\beta_i = 1-\gamma_i`, while :math:`1-\beta^t` is right only for a constant beta.

    >>> state = {"v": torch.zeros(1), "v_weight": torch.zeros((), dtype=torch.float64)}
    >>> sema_(state, "v", torch.tensor([3.0]), 0.5, 0, corrected=True)
    tensor([3.])
    """
    average_(state, key, sample, gamma, t, corrected=corrected)
    return estimate(state, key, corrected=corrected)


def average_(state: Mapping[str, Tensor], key: str, sample: Tensor, gamma: Rate, t: Rate, *, corrected: bool) -> None:
    """Do what :func:`sema_` does, and leave the estimate to a later call of :func:`estimate`."""
    v = state[key]
    if corrected:
        weight = state[f"{key}_weight"]
        if (
            torch.compiler.is_compiling()
        ):  # torch.compile loses what is written to a 0-dimensional float64 tensor, but not to a view
            weight = weight.view(1)
        track_(weight, torch.ones_like(weight), gamma)
        track_(v, sample, gamma)
    elif isinstance(t, Tensor):
        track_(v, sample, one_or(gamma, t, v))
    else:
        track_(v, sample, 1.0 if t == 0 else gamma)


def one_or(gamma: Rate, t: Tensor, like: Tensor) -> Tensor:
    """Return 1 in step 0, else gamma; torch.where would turn two Python numbers into a float32."""
    return torch.where(t == 0, torch.ones((), dtype=like.dtype, device=t.device), gamma)


def estimate(state: Mapping[str, Tensor], key: str, *, corrected: bool) -> Tensor:
    """Return the last result of :func:`sema_` for ``state[key]`` again, without a step."""
    v = state[key]
    return v / divisor(state[f"{key}_weight"], v) if corrected else v


def divisor(weight: Tensor, v: Tensor) -> Rate:
    """Return the weight of an average ``v`` as a number if it can be read now, else as a tensor for ``v``'s device."""
    if weight.is_cpu and not weight.requires_grad and not torch.compiler.is_compiling():
        return weight.item()
    return scalar(weight, v)


def group_norm(tensors: list[Tensor]) -> Tensor:
    """Return the Euclidean norm of all tensors, taken as one vector; if they are sharded (FSDP2), of all shards.

    It is computed in float64 if the device has it, since the square of 1e20 overflows float32.
    """
    wide = torch.float32 if tensors[0].device.type == "mps" else torch.float64
    norms = [torch.linalg.vector_norm(real(v), dtype=wide) for v in tensors]
    whole = [n.full_tensor() if hasattr(n, "full_tensor") else n for n in norms]
    total: Tensor = torch.linalg.vector_norm(torch.stack([n.to(whole[0]) for n in whole]))
    return total


def square(g: Tensor) -> Tensor:
    """Return ``g^2``, clipped to the largest number that an average can store.

    In float32, values are clipped if |g| > 1.8e19. An infinite average would become NaN in the next step.

    >>> square(torch.tensor([3.0, 1e38]))
    tensor([9.0000e+00, 3.3895e+38])
    """
    return g.square().clamp_max_(largest(g))


def largest(g: Tensor) -> float:
    """Return the largest number of g's dtype or, for float32, of bf16, because averages may be stored in bf16."""
    return torch.finfo(torch.bfloat16 if g.dtype == torch.float32 else g.dtype).max


#: Dtypes too coarse for sums.
NARROW = (torch.bfloat16, torch.float16)


def state_dtype(x: Tensor, chosen: torch.dtype | None = None) -> torch.dtype:
    """Return the dtype of v and u for parameter ``x``: ``chosen``, or its own, but float32 for bf16 and float16.

    Torch stores them in the parameter's dtype, where gamma = 1e-3 is lost to rounding and g^2 underflows.
    """
    return arithmetic_dtype(x) if chosen is None else chosen


def arithmetic_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype to compute in with ``x``: its own, but float32 for bf16 and float16."""
    return torch.float32 if x.dtype in NARROW else x.dtype


def real(x: Tensor) -> Tensor:
    """Return ``x``, or a view of a complex ``x`` as pairs of reals: a coordinate is a real number."""
    return torch.view_as_real(x) if x.is_complex() else x
