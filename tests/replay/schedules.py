"""Schedules on our optimizers and torch's: the rates by formula, and the steps that they give."""

import numpy as np
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, ExponentialLR, LinearLR, SequentialLR

import semaopt
from semaopt import schedules
from tests.replay.draws import deviation, parameters, set_gradients, values
from tests.replay.plain import schedules as plain
from tests.replay.plain.minimization import ASA

SHAPES, STEPS = [(3,), (2, 2)], 24


def drawn_optimizer(draw, xs, starts):
    """One of four optimizers, and its steps in numpy; both have ``lr`` and ``beta`` set by the schedule."""
    lr, beta, beta2, eps = draw.rate(0.01, 0.2), draw.pick([0.5, 0.9]), draw.pick([0.9, 0.999]), draw.rate(1e-4, 1e-2)
    decay, kind = draw.pick([0.0, 0.1]), draw.pick(["ASA", "Adam", "AdamW", "SGD"])
    adam = {"kind": "adam", "beta2": beta2, "g0": eps}
    if kind == "SGD":
        dampening = draw.pick([0.0, beta, 0.3])
        made = torch.optim.SGD(xs, lr, beta, dampening, decay)
        return made, plain.SGD(starts, lr, beta, dampening, decay)
    if kind == "ASA":
        scaling = semaopt.scalings.Adam(beta2, eps)
        made = semaopt.ASA(xs, lr, beta, scaling, weight_decay=decay)
    else:
        made = getattr(torch.optim, kind)(xs, lr, (beta, beta2), eps, decay)
    return made, ASA(starts, lr, beta, adam, decay, decoupled=kind == "AdamW")


def drawn_schedule(draw, optimizer):
    """A schedule and, for each t, the factors of lr and gamma."""
    every, factor, power = draw.pick([3, 5]), draw.rate(0.3, 1.5), draw.rate(0.3, 2)
    on = draw.pick([("lr",), ("gamma",), ("lr", "gamma")])
    period, start, warm = draw.pick([10, 40]), draw.rate(0.01, 0.5), draw.pick([2, 6])

    def both(at):
        return lambda t: (at(t) if "lr" in on else 1.0, at(t) if "gamma" in on else 1.0)

    def followed():
        first, second = (
            LinearLR(optimizer, start, total_iters=warm),
            schedules.Follow(CosineAnnealingLR(optimizer, period)),
        )
        return SequentialLR(optimizer, [first, second], [warm])

    def in_sequence(t):
        if t < warm:
            return plain.warm_up(t, start, warm), 1.0
        return (plain.cosine(t - warm, period),) * 2

    made = {
        "stages": lambda: schedules.Stagewise(optimizer, every, factor, on),
        "polynomial": lambda: schedules.Polynomial(optimizer, every, power, on),
        "root": lambda: schedules.InverseSqrt(optimizer, on),
        "follow": lambda: schedules.Follow(ExponentialLR(optimizer, factor)),
        "sequence": followed,
    }
    factors = {
        "stages": both(lambda t: plain.stagewise(t, every, factor)),
        "polynomial": both(lambda t: plain.polynomial(t, every, power)),
        "root": both(plain.inverse_sqrt),
        "follow": lambda t: (factor**t,) * 2,
        "sequence": in_sequence,
    }
    kind = draw.pick([*made])
    return made[kind](), factors[kind]


def case(draw):
    starts = draw.arrays(SHAPES)
    xs, centers = parameters(starts), draw.arrays(SHAPES)
    optimizer, twin = drawn_optimizer(draw, xs, starts)
    schedule, factors = drawn_schedule(draw, optimizer)
    lr, gamma, rates = twin.lr, 1 - twin.beta, []
    largest = 1.0 - 2.0**-53 if isinstance(twin, plain.SGD) else 1.0
    for t in range(STEPS):
        of_lr, of_gamma = factors(t)
        twin.lr, twin.beta = lr * of_lr, 1 - min(max(gamma * of_gamma, 1e-16), largest)
        group, noise = optimizer.param_groups[0], draw.arrays(SHAPES)
        momentum = group.get("beta", group.get("momentum", group.get("betas", (0,))[0]))
        rates.append([float(group["lr"]) - twin.lr, momentum - twin.beta])
        set_gradients(xs, [x - c + e for x, c, e in zip(values(xs), centers, noise, strict=True)])
        optimizer.step()
        twin.step([x - c + e for x, c, e in zip(twin.xs, centers, noise, strict=True)])
        schedule.step()
    return max(deviation(values(xs), twin.xs), float(np.abs(rates).max()))


CASES = {"schedules": case}
