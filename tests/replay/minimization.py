"""ASA with random options against numpy."""

import math

import numpy as np
import torch

import semaopt
from semaopt import kernels, scalings
from tests.replay.draws import deviation, parameters, set_gradients, values
from tests.replay.plain import minimization as plain

SHAPES = [(3, 2), (4,), (), (2, 1, 2)]
STEPS = 25


def drawn_scaling(draw, kind=None):
    """The same row of the table, as our object and for the numpy code."""
    kind = kind or draw.pick([*scalings.BY_NAME])
    g0, beta2, bounds = (
        draw.rate(1e-6, 1.0),
        draw.pick([0.0, 0.5, 0.9, 0.999]),
        sorted([draw.rate(0.1, 10) for _ in "lu"]),
    )
    made = {
        "shb": lambda: scalings.SHB(),
        "adam": lambda: scalings.Adam(beta2, g0),
        "amsgrad": lambda: scalings.AMSGrad(beta2, g0),
        "adafom": lambda: scalings.AdaFom(g0),
        "adam+": lambda: scalings.AdamPlus(g0),
        "adabound": lambda: scalings.AdaBound(*bounds, beta2),
    }[kind]()
    ours = {"kind": kind, "beta2": beta2, "g0": 0.0 if kind in ("shb", "adabound") else g0}
    return made, ours | {"c_l": bounds[0], "c_u": bounds[1]}


def drawn_group(draw, kind, maximize=True):
    """Options of one group, by our names and by those of the numpy code."""
    scaling, same = drawn_scaling(draw, kind)
    lr, beta = draw.rate(1e-3, 0.3), draw.pick([0.0, 0.5, 0.9, 0.99])
    decay, decoupled = draw.pick([0.0, 0.1]), draw.yes()
    corrected, up = draw.yes(), maximize and draw.yes(0.3)
    clip = tuple(sorted((draw.rate(0.05, 20), draw.rate(0.05, 20)))) if draw.yes(0.3) else None
    ours = dict(lr=lr, beta=beta, scaling=scaling, weight_decay=decay, decoupled_weight_decay=decoupled)
    ours |= dict(bias_correction=corrected, clip_scaling=clip)
    if maximize:
        ours["maximize"] = up
    theirs = dict(lr=lr, beta=beta, scaling=same, decay=decay, decoupled=decoupled, corrected=corrected, clip=clip)
    return ours, theirs | {"maximize": up}


def drawn_path(draw):
    """A path of the step that supports plain float64 tensors, and an lr that may be a tensor."""
    paths = ["auto", "loop", "foreach"] + (["c"] if kernels.available().ok else [])
    return draw.pick(paths), draw.pick(
        [float, lambda lr: torch.tensor(lr, dtype=torch.float64).reshape(draw.pick([(), (1,)]))]
    )


def asa(kind):
    def case(draw):
        count = draw.pick([1, 2, 3])
        starts = draw.arrays(draw.pick(SHAPES) for _ in range(2 * count))
        weights, centers = [np.exp(draw.normal(*x.shape)) for x in starts], draw.arrays(x.shape for x in starts)
        xs, options = parameters(starts), [drawn_group(draw, kind) for _ in range(count)]
        (path, rate), late = drawn_path(draw), count > 1 and draw.yes(0.4)
        groups = [
            {"params": xs[2 * k : 2 * k + 2], **ours, "lr": rate(ours["lr"])} for k, (ours, _) in enumerate(options)
        ]
        optimizer = semaopt.ASA(groups[: count - late], implementation=path, on_nonfinite=draw.pick([None, "skip"]))
        plains = [plain.ASA(starts[2 * k : 2 * k + 2], **theirs) for k, (_, theirs) in enumerate(options)]
        for t in range(STEPS):
            if late and t == 8:
                optimizer.add_param_group({**groups[-1], "implementation": path})
            noise, missing = draw.arrays(x.shape for x in starts), [draw.yes(0.15) for _ in xs]
            bad = optimizer.on_nonfinite == "skip" and draw.yes(0.15)

            def gradients(at, noise=noise, missing=missing):
                found = [w * (x - c) + e for w, x, c, e in zip(weights, at, centers, noise, strict=True)]
                return [None if out else g for g, out in zip(found, missing, strict=True)]

            set_gradients(xs, gradients(values(xs)))
            if bad and xs[0].grad is not None:
                xs[0].grad.view(-1)[0] = math.nan
            elif bad:
                bad = False
            optimizer.step()
            gs = gradients([x for group in plains for x in group.xs])
            for k, group in enumerate(plains):
                if not bad and not (late and k == count - 1 and t < 8):
                    group.step(gs[2 * k : 2 * k + 2])
            if t == 12:
                change_rates(draw, optimizer, plains)
        return deviation(values(xs), [x for group in plains for x in group.xs])

    return case


def change_rates(draw, optimizer, plains):
    """What a schedule does: another lr and beta in every group."""
    for group, own in zip(optimizer.param_groups, plains, strict=True):
        own.lr, own.beta = own.lr * draw.pick([0.5, 1.0, 2.0]), draw.pick([own.beta, 0.3, 0.95])
        group["beta"] = own.beta
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(own.lr)
        else:
            group["lr"] = own.lr


CASES = {f"ASA[{kind}]": asa(kind) for kind in scalings.BY_NAME}
