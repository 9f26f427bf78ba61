"""Projected gradient ascent, the dual step of ``alg:pdadam``: compiled for boxes, with its slow twin."""

from __future__ import annotations

import torch
from torch import Tensor

from semaopt import projections
from semaopt.estimator import Rate, arithmetic_dtype, scalar
from semaopt.kernels import compiled, triton_launch


def ascend_(y: Tensor, g: Tensor, eta: Rate, project: projections.Projection | None) -> None:
    """Compute ``y <- Proj_Y[y + eta g]`` in place, for any projection."""
    y.add_(g * (scalar(eta, g.real) if isinstance(eta, Tensor) else eta))
    projections.apply_(project, y)


def ascend_box_(ys: list[Tensor], gs: list[Tensor], eta: Rate, lo: float, hi: float) -> None:
    """Compute ``y <- clip(y + eta g, lo, hi)`` for each y in place; ``lo=-inf`` and ``hi=inf`` mean no bounds.

    >>> y = torch.tensor([0.0, 0.9])
    >>> ascend_box_([y], [torch.ones(2)], 0.5, -1.0, 1.0)
    >>> y
    tensor([0.5000, 1.0000])
    """
    # A rate on a device is not read: the host would wait for the device.
    remote = isinstance(eta, Tensor) and not eta.is_cpu
    traced = torch.compiler.is_compiling() or torch.is_grad_enabled() or remote
    done = False
    if not traced and all(y.is_cpu for y in ys):
        done = compiled.ascend_box_(ys, gs, float(eta), lo, hi)
    elif not traced and all(y.is_cuda for y in ys):
        done = triton_launch.ascend_box_(ys, gs, float(eta), lo, hi)
    if not done:
        ascend_box_loop_(ys, gs, eta, lo, hi)


def ascend_box_loop_(ys: list[Tensor], gs: list[Tensor], eta: Rate, lo: float, hi: float) -> None:
    """Do the same as :func:`ascend_box_` on any device, recording a graph if gradients are enabled."""
    for y, g in zip(ys, gs, strict=True):
        h = g.to(arithmetic_dtype(y))
        z = y.to(h.dtype) + h * (scalar(eta, h) if isinstance(eta, Tensor) else eta)
        y.copy_(z.clamp(lo, hi))
