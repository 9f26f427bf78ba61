"""Objective of AUC maximization for one class and its gradients in one kernel: the Triton twin of ``auc.c``.

A batch has few elements, so one program reads it block by block. Sums are accumulated in float64 for every score dtype.
"""

from __future__ import annotations

import triton
import triton.language as tl

BLOCK = 1024
WARPS = 8

#: Order of the inputs in ``numbers``, and of the outputs in ``out``.
P, S, R, Y = (tl.constexpr(k) for k in range(4))
VALUE, BY_S, BY_R, BY_Y, WRONG, OUTPUTS = (tl.constexpr(k) for k in range(6))


@triton.jit
def objective(
    scores, labels, gradient, numbers, out, n: tl.int64, margin: tl.float64,
    SIGMOID: tl.constexpr, FLOATING: tl.constexpr, SIGNED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Label 1 is positive, 0 or -1 negative, NaN missing. Other labels are invalid, and so is a mix of 0 and -1."""
    p, s, r, y = tl.load(numbers + P), tl.load(numbers + S), tl.load(numbers + R), tl.load(numbers + Y)
    slack = tl.full((), margin, tl.float64) + y
    quadratic, linear = tl.zeros((BLOCK,), tl.float64), tl.zeros((BLOCK,), tl.float64)
    by_s, by_r = tl.zeros((BLOCK,), tl.float64), tl.zeros((BLOCK,), tl.float64)
    zeros, minuses, others = tl.zeros((BLOCK,), tl.int1), tl.zeros((BLOCK,), tl.int1), tl.zeros((BLOCK,), tl.int1)
    present = tl.full((), n, tl.int64)
    if FLOATING:
        missing = tl.zeros((BLOCK,), tl.int64)
        for start in range(0, n, BLOCK):
            i = start + tl.arange(0, BLOCK)
            label = tl.load(labels + i, mask=i < n, other=0)
            missing += (label != label).to(tl.int64)
        present -= tl.sum(missing)
    mean = 1.0 / tl.maximum(present, 1).to(tl.float64)
    for start in range(0, n, BLOCK):
        i = start + tl.arange(0, BLOCK)
        inside = i < n
        label = tl.load(labels + i, mask=inside, other=0)
        known = inside & (label == label)
        positive, zero = label == 1, label == 0
        minus = (label == -1) if SIGNED else tl.zeros((BLOCK,), tl.int1)
        zeros |= known & zero
        minuses |= known & minus
        others |= known & (positive == 0) & (zero == 0) & (minus == 0)
        h = tl.load(scores + i, mask=inside, other=0).to(tl.float64)
        slope = tl.full((BLOCK,), 1.0, tl.float64)
        if SIGMOID:
            small = tl.exp(-tl.abs(h))
            q = 1.0 / (1.0 + small)
            slope = small * q * q
            h = tl.where(h >= 0.0, q, small * q)
        b = tl.where(positive, p - 1.0, p)
        d = h - tl.where(positive, s, r)
        e = tl.where(positive, -b, b) * d
        quadratic += tl.where(known, e * d, 0.0)
        linear += tl.where(known, b * h, 0.0)
        by_s += tl.where(known & positive, e, 0.0)
        by_r += tl.where(known & (positive == 0), e, 0.0)
        found = tl.where(known, 2.0 * mean * (e + slack * b) * slope, 0.0)
        tl.store(gradient + i, found.to(gradient.dtype.element_ty), mask=inside)
    spread = tl.where(present > 0, p * (1.0 - p), 0.0)
    along = tl.sum(linear)
    tl.store(out + VALUE, (tl.sum(quadratic) + 2.0 * slack * along) * mean - spread * y * y)
    tl.store(out + BY_S, -2.0 * tl.sum(by_s) * mean)
    tl.store(out + BY_R, -2.0 * tl.sum(by_r) * mean)
    tl.store(out + BY_Y, 2.0 * (along * mean - spread * y))
    mixed = tl.max(zeros.to(tl.int32)) & tl.max(minuses.to(tl.int32))
    tl.store(out + WRONG, (tl.max(others.to(tl.int32)) | mixed).to(tl.float64))
