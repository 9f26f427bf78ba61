"""SCMA with random options against numpy."""

import numpy as np
import torch

import semaopt
from tests.replay.draws import deviation, parameters, values
from tests.replay.minimization import drawn_group
from tests.replay.plain.compositional import SCMA
from tests.replay.plain.minimization import ASA

N, M, BLOCKS, STEPS = 4, 3, 6, 15


def scma(draw):
    blocks, fresh, inner_beta = draw.pick([None, BLOCKS]), draw.yes(), draw.pick([0.0, 0.5, 0.9])
    ours, theirs = drawn_group(draw, None)
    start, factor = draw.normal(N), draw.pick([None, 0.5, 3.0])
    xs, inner_weights = parameters([start[:3], start[3:]]), 0.4 * draw.normal(BLOCKS, M, N)
    optimizer = semaopt.SCMA(xs, inner_beta=inner_beta, blocks=blocks, fresh=fresh, **ours)
    schedule = factor and semaopt.schedules.Stagewise(optimizer, every=4, factor=factor)
    twin = SCMA(ASA([start], **theirs), inner_beta, blocks)
    found, expected = [], []
    for t in range(STEPS):
        rows = None if blocks is None else draw.rng.permutation(BLOCKS)[: draw.pick([1, 3])]
        W = inner_weights[0] if rows is None else inner_weights[rows]
        samples = [W + 0.1 * draw.normal(*W.shape) for _ in range(2 if fresh else 1)]
        calls = iter(samples)
        optimizer.step(
            lambda calls=calls: torch.tensor(next(calls)) @ torch.sin(torch.cat(xs)),
            lambda z: torch.log1p(z.square()).sum() + 0.05 * torch.cat(xs).square().sum(),
            None if rows is None else torch.tensor(rows),
        )
        gamma = 1 - inner_beta
        if factor:  # the schedule multiplies the inner gamma by the same factor
            scale = factor ** (t // 4)
            twin.xs.lr = theirs["lr"] * scale
            clipped = min(1.0, (1 - theirs["beta"]) * scale)
            twin.xs.beta, gamma = 1 - clipped, min(1.0, gamma * clipped / (1 - theirs["beta"]))
        z = twin.step(
            lambda x, first=samples[0]: first @ np.sin(x),
            lambda x, last=samples[-1]: last * np.cos(x),
            lambda z: 2 * z / (1 + z**2),
            lambda x: 0.1 * x,
            rows,
            gamma,
        )
        if schedule:
            schedule.step()
        found.append(values([optimizer.z])[0] if rows is None else values([optimizer.z])[0][rows])
        expected.append(z)
    return deviation([torch.cat(xs), *found], [twin.xs.xs[0], *expected])


CASES = {"SCMA": scma}
