"""Iterates and Stages with random options against numpy."""

import torch

import semaopt
from tests.replay.draws import deviation, parameters, set_gradients, values
from tests.replay.minimization import drawn_group
from tests.replay.plain import averages as plain
from tests.replay.plain.minimization import ASA

SHAPES, STEPS = [(3,), (2, 2)], 30


def uniform_numbers(seed):
    """The random numbers that determine tau, from torch's generator with this seed."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        yield torch.rand((), generator=generator, dtype=torch.float64).item()


class Setting:
    def __init__(self, draw):
        self.draw, self.starts, self.centers = draw, draw.arrays(SHAPES), draw.arrays(SHAPES)
        self.xs = parameters(self.starts)
        ours, theirs = drawn_group(draw, None)
        self.optimizer, self.twin = semaopt.ASA(self.xs, **ours), ASA(self.starts, **theirs)

    def gradients(self):
        noise = self.draw.arrays(SHAPES)
        return [
            [x - c + e for x, c, e in zip(at, self.centers, noise, strict=True)]
            for at in (values(self.xs), self.twin.xs)
        ]


def iterates(draw):
    s, seed, power = Setting(draw), draw.pick([0, 1, 2, 3]), draw.pick([None, 0, 2.5, 8])
    every = draw.pick([1, 3])
    kind = {} if power is None else {"average": "polynomial", "power": power}
    kept = semaopt.Iterates(s.optimizer, seed=seed, every=every, **kind)
    twin, found, expected = plain.Iterates(uniform_numbers(seed), power or 0, every), [], []
    for _ in range(STEPS):
        theirs, ours = s.gradients()
        set_gradients(s.xs, theirs)
        s.optimizer.step()
        twin.before(s.twin.xs)
        s.twin.step(ours)
        twin.after(s.twin.vs)
        found += [x.clone() for x in (*kept.sampled(), *kept.average(), *kept.estimate())]
        expected += [*twin.sampled, *twin.average, *twin.estimate]
    return deviation(found, expected)


def stages(draw):
    s, seed, output = Setting(draw), draw.pick([0, 1, 2, 3]), draw.pick(["sampled", "average", "last"])
    plan = [(draw.rate(0.01, 0.3), draw.pick([0.1, 0.5, 1.0]), draw.pick([0, 3, 7])) for _ in range(4)]
    run = semaopt.Stages(s.optimizer, [semaopt.Stage(*stage) for stage in plan], output, seed)
    twin = plain.Stages(s.twin, plan, output, uniform_numbers(seed))
    while not run.done:
        theirs, ours = s.gradients()
        set_gradients(s.xs, theirs)
        s.optimizer.step()
        twin.step(ours)
    assert twin.k == len(plan)
    return deviation(values(s.xs), s.twin.xs)


CASES = {"Iterates": iterates, "Stages": stages}
