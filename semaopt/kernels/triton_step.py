"""One ASA step (alg:adam) for all tensors of a param group in one pass over GPU memory: the Triton twin of ``step.c``.

The functions have the names, the order and the arithmetic of ``numbers.h``, ``arithmetic.h`` and ``step.c``. Division
and square root are correctly rounded, and :mod:`~semaopt.kernels.triton_launch` compiles without contraction to
fused multiply-adds, so the results are bitwise equal to those of the C step. Only the sum of Adam+'s norm has another
order.

A program computes one chunk: ``BLOCK`` elements of one tensor. Its row of ``tensors`` holds the addresses and the size.
Whole chunks take a branch without masks, whose loads and stores are 128 bits wide if ``ALIGNED``.
"""

from __future__ import annotations

import triton
import triton.language as tl

#: Elements per chunk. It divides 2^32, so that a chunk has one key for its random bits.
BLOCK = 2048
WARPS = 8

#: Columns of a row of ``tensors``: the roles of step.h, the average of iterates, and the number of elements.
X, G, V, U, U_MAX, MEAN, ROUNDING, N, COLUMNS = (tl.constexpr(k) for k in range(9))

#: Rows of Table 2 with their own arithmetic, numbered as in step.h. Adam+ is SHB with the norm of v as u.
SHB, ADAM, AMSGRAD = (tl.constexpr(k) for k in range(3))

# ---- numbers.h ------------------------------------------------------------------------------------------------------


@triton.jit
def from_bf16(h):
    return (h.to(tl.uint32) << 16).to(tl.float32, bitcast=True)


@triton.jit
def to_bf16(f):
    """Round to nearest, ties to even, like torch."""
    bits = f.to(tl.uint32, bitcast=True)
    nearest = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return tl.where((bits & 0x7FFFFFFF) > 0x7F800000, 0x7FC0, nearest).to(tl.uint16)


@triton.jit
def to_bf16_random(f, random):
    """Round up with a probability equal to the truncated fraction. ``random`` has 16 bits. NaN stays NaN."""
    bits = f.to(tl.uint32, bitcast=True)
    return (tl.where(f != f, 0xFFFFFFFF, bits + random) >> 16).to(tl.uint16)


@triton.jit
def random_bits(weyl, key):
    h = weyl ^ key
    h = (h ^ (h >> 15)) * 0xD35A2D97
    return h >> 16


@triton.jit
def mix(z):
    """Hash 64 bits: splitmix64 (Steele, Lea, Flood 2014)."""
    z += 0x9E3779B97F4A7C15
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB
    return z ^ (z >> 31)


# ---- memory ---------------------------------------------------------------------------------------------------------


@triton.jit
def pointer(row, ROLE: tl.constexpr, T: tl.constexpr, ALIGNED: tl.constexpr):
    """Return the address of a role as a pointer to T; bf16 numbers are handled as their bits."""
    address = tl.load(row + ROLE)
    p = address.to(tl.pointer_type(tl.uint16 if T == tl.bfloat16 else T))
    if ALIGNED:
        p = tl.multiple_of(p, 16)
    return p


@triton.jit
def load(p, mask, T: tl.constexpr, AT: tl.constexpr):
    value = tl.load(p, mask=mask)
    return from_bf16(value) if T == tl.bfloat16 else value.to(AT)


@triton.jit
def store_x(p, value, mask, T: tl.constexpr):
    tl.store(p, to_bf16(value) if T == tl.bfloat16 else value.to(T), mask=mask)


@triton.jit
def store_s(p, value, random, mask, T: tl.constexpr):
    tl.store(p, to_bf16_random(value, random) if T == tl.bfloat16 else value, mask=mask)


# ---- arithmetic.h ---------------------------------------------------------------------------------------------------


@triton.jit
def divide(a, b):
    return tl.div_rn(a, b) if a.dtype == tl.float32 else a / b


@triton.jit
def root(u):
    return tl.sqrt_rn(u) if u.dtype == tl.float32 else tl.sqrt(u)


@triton.jit
def lerp(v, g, w, low):
    """Compute torch's lerp: v + w (g - v) for w < 1/2, else g - (1-w)(g - v). It is exact at both ends."""
    return tl.where(low, v, g) + w * (g - v)


@triton.jit
def lerp_weight(gamma, AT: tl.constexpr):
    w = tl.full((), gamma, AT)
    return tl.where(gamma < 0.5, w, w - 1)


@triton.jit
def square(g):
    """Clamp to the largest finite bf16 number (float64: to its own). NaN stays NaN."""
    LARGEST: tl.constexpr = 3.3895313892515355e38 if g.dtype == tl.float32 else 1.7976931348623157e308
    largest = tl.full((), LARGEST, g.dtype)
    return tl.where(g * g > largest, largest, g * g)


@triton.jit
def clamp(value, lo, hi):
    """NaN stays NaN."""
    value = tl.where(value < lo, lo, value)
    return tl.where(value > hi, hi, value)


@triton.jit
def gradient(g, x, sign, decay):
    value = sign * g
    return tl.where(decay != 0, value + decay * x, value)


@triton.jit
def span(
    row, start, mask, eta, gamma, gamma_u, weight_u, g0, u_lo, u_hi, lo, hi, decay, shrink, sign, mean_weight, steps,
    SCALING: tl.constexpr, XT: tl.constexpr, ST: tl.constexpr, AT: tl.constexpr,
    ALIGNED: tl.constexpr, AVERAGED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute lines 3 to 5 for one chunk, and the average of the iterates before the step."""
    i = start + tl.arange(0, BLOCK)
    at_x = pointer(row, X, XT, ALIGNED) + i
    at_v = pointer(row, V, ST, ALIGNED) + i
    low, low_u = gamma < 0.5, gamma_u < 0.5
    w, w_u = lerp_weight(gamma, AT), lerp_weight(gamma_u, AT)
    random = 0
    if ST == tl.bfloat16:
        key = mix(mix(tl.load(row + ROUNDING).to(tl.uint64, bitcast=True)) + tl.full((), steps, tl.int64).to(tl.uint64))
        key = mix(key + (start.to(tl.uint64) >> 32))
        weyl = (i.to(tl.uint32) + key.to(tl.uint32)) * 0x9E3779B9
        random = random_bits(weyl, (key >> 32).to(tl.uint32))

    xi = load(at_x, mask, XT, AT)
    gi = load(pointer(row, G, XT, ALIGNED) + i, mask, XT, AT)
    gi = gradient(gi, xi, tl.full((), sign, AT), tl.full((), decay, AT))
    vi = lerp(load(at_v, mask, ST, AT), gi, w, low)  # line 3
    store_s(at_v, vi, random, mask, ST)
    if AVERAGED:
        at_mean = pointer(row, MEAN, AT, ALIGNED) + i
        mean = lerp(tl.load(at_mean, mask=mask), xi, lerp_weight(mean_weight, AT), mean_weight < 0.5)
        tl.store(at_mean, mean, mask=mask)
    xi = tl.full((), shrink, AT) * xi
    if SCALING == SHB:  # eta includes s
        xi = xi - vi * tl.full((), eta, AT)
    else:
        at_u = pointer(row, U, ST, ALIGNED) + i
        ui = lerp(load(at_u, mask, ST, AT), square(gi), w_u, low_u)  # line 4
        store_s(at_u, ui, random, mask, ST)
        if SCALING == AMSGRAD:
            at_max = pointer(row, U_MAX, ST, ALIGNED) + i
            peak = load(at_max, mask, ST, AT)
            ui = tl.where((peak > ui) | (peak != peak), peak, ui)
            store_s(at_max, ui, random, mask, ST)  # an old peak is stored exactly; a new one is rounded like u
        ui = clamp(ui * tl.full((), weight_u, AT), tl.full((), u_lo, AT), tl.full((), u_hi, AT))
        inverse_s = clamp(root(ui) + tl.full((), g0, AT), tl.full((), lo, AT), tl.full((), hi, AT))
        xi = xi - divide(vi, inverse_s) * tl.full((), eta, AT)  # line 5
    store_x(at_x, xi, mask, XT)


# ---- step.c ---------------------------------------------------------------------------------------------------------


@triton.jit
def update(
    tensors, chunks, norm_square,
    eta: tl.float64, gamma: tl.float64, gamma_u: tl.float64, weight_u: tl.float64, g0: tl.float64,
    u_lo: tl.float64, u_hi: tl.float64, inverse_lo: tl.float64, inverse_hi: tl.float64,
    decay: tl.float64, shrink: tl.float64, sign: tl.float64, mean_weight: tl.float64, steps: tl.int64,
    SCALING: tl.constexpr, XT: tl.constexpr, ST: tl.constexpr, AT: tl.constexpr,
    ALIGNED: tl.constexpr, AVERAGED: tl.constexpr, NORMED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Take the step of one chunk. With ``NORMED`` (Adam+), s is one number, computed from the sum of the norm pass."""
    chunk = chunks + 2 * tl.program_id(0).to(tl.int64)
    row = tensors + COLUMNS * tl.load(chunk)
    start = tl.load(chunk + 1) * BLOCK
    if NORMED:
        u = tl.sqrt(tl.load(norm_square))
        s = 1.0 / clamp(tl.sqrt(u) + g0, tl.full((), inverse_lo, tl.float64), tl.full((), inverse_hi, tl.float64))
        eta = eta * s
    n = tl.load(row + N)
    if start + BLOCK <= n:
        span(
            row, start, None, eta, gamma, gamma_u, weight_u, g0, u_lo, u_hi, inverse_lo, inverse_hi, decay, shrink,
            sign, mean_weight, steps, SCALING, XT, ST, AT, ALIGNED, AVERAGED, BLOCK,
        )  # fmt: skip
    else:
        mask = start + tl.arange(0, BLOCK) < n
        span(
            row, start, mask, eta, gamma, gamma_u, weight_u, g0, u_lo, u_hi, inverse_lo, inverse_hi, decay, shrink,
            sign, mean_weight, steps, SCALING, XT, ST, AT, ALIGNED, AVERAGED, BLOCK,
        )  # fmt: skip


@triton.jit
def squares(row, start, mask, gamma, decay, sign, XT: tl.constexpr, ST: tl.constexpr, AT: tl.constexpr,
            ALIGNED: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """Return the sum of squares of v_{t+1} over one chunk. v_{t+1} is not stored: the update pass recomputes it."""
    i = start + tl.arange(0, BLOCK)
    xi = load(pointer(row, X, XT, ALIGNED) + i, mask, XT, AT)
    gi = load(pointer(row, G, XT, ALIGNED) + i, mask, XT, AT)
    gi = gradient(gi, xi, tl.full((), sign, AT), tl.full((), decay, AT))
    vi = lerp(load(pointer(row, V, ST, ALIGNED) + i, mask, ST, AT), gi, lerp_weight(gamma, AT), gamma < 0.5)
    vi = vi.to(tl.float64)
    if mask is not None:
        vi = tl.where(mask, vi, 0.0)
    return tl.sum(vi * vi)


@triton.jit
def norm(
    tensors, chunks, partial, gamma: tl.float64, inverse_weight: tl.float64, decay: tl.float64, sign: tl.float64,
    XT: tl.constexpr, ST: tl.constexpr, AT: tl.constexpr, ALIGNED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Store the sum of squares of the corrected v_{t+1} over one chunk."""
    k = tl.program_id(0).to(tl.int64)
    row = tensors + COLUMNS * tl.load(chunks + 2 * k)
    start = tl.load(chunks + 2 * k + 1) * BLOCK
    n = tl.load(row + N)
    if start + BLOCK <= n:
        sum = squares(row, start, None, gamma, decay, sign, XT, ST, AT, ALIGNED, BLOCK)
    else:
        mask = start + tl.arange(0, BLOCK) < n
        sum = squares(row, start, mask, gamma, decay, sign, XT, ST, AT, ALIGNED, BLOCK)
    tl.store(partial + k, sum * inverse_weight * inverse_weight)


@triton.jit
def climb(row, start, mask, eta, lo, hi, XT: tl.constexpr, AT: tl.constexpr, ALIGNED: tl.constexpr,
          BLOCK: tl.constexpr):  # fmt: skip
    """Compute y <- clip(y + eta g, lo, hi) for one chunk."""
    i = start + tl.arange(0, BLOCK)
    at_y = pointer(row, X, XT, ALIGNED) + i
    yi, gi = load(at_y, mask, XT, AT), load(pointer(row, G, XT, ALIGNED) + i, mask, XT, AT)
    yi = clamp(yi + tl.full((), eta, AT) * gi, tl.full((), lo, AT), tl.full((), hi, AT))
    store_x(at_y, yi, mask, XT)


@triton.jit
def ascend(
    tensors, chunks, eta: tl.float64, lo: tl.float64, hi: tl.float64,
    XT: tl.constexpr, AT: tl.constexpr, ALIGNED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Take the dual step of one chunk."""
    chunk = chunks + 2 * tl.program_id(0).to(tl.int64)
    row = tensors + COLUMNS * tl.load(chunk)
    start = tl.load(chunk + 1) * BLOCK
    n = tl.load(row + N)
    if start + BLOCK <= n:
        climb(row, start, None, eta, lo, hi, XT, AT, ALIGNED, BLOCK)
    else:
        climb(row, start, start + tl.arange(0, BLOCK) < n, eta, lo, hi, XT, AT, ALIGNED, BLOCK)
