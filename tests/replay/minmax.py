"""The min-max optimizers with random options against numpy."""

import math

import numpy as np

import semaopt
from semaopt import baselines, projections
from tests.replay.draws import deviation, parameters, positive_definite, set_gradients, values
from tests.replay.minimization import drawn_group, drawn_path
from tests.replay.plain import minmax as plain
from tests.replay.plain import sets
from tests.replay.plain.minimization import ASA

PRIMAL, DUAL = [(2, 2), (3,)], [(3,), (2, 2)]
STEPS = 20


class Saddle:
    """f = x.Ax/2 + x.By - y.Cy/2 with noise in the gradients, for the tensors of x and y as one vector each."""

    def __init__(self, draw):
        n, m = (sum(math.prod(shape) for shape in shapes) for shapes in (PRIMAL, DUAL))
        self.A, self.C = positive_definite(draw, n, -0.2, 1.0), positive_definite(draw, m, 0.2, 1.0)
        self.B = 0.5 * draw.normal(n, m)

    def gradients(self, xs, ys, noise):
        x, y = (np.concatenate([z.ravel() for z in zs]) for zs in (xs, ys))
        g = np.concatenate([self.A @ x + self.B @ y, self.B.T @ x - self.C @ y]) + noise
        found, start = [], 0
        for z in (*xs, *ys):
            found.append(g[start : start + z.size].reshape(z.shape))
            start += z.size
        return found[: len(xs)], found[len(xs) :]


def drawn_set(draw):
    """One projection: our object and its numpy code; both act on tensors of any shape."""
    lo, hi, radius = -draw.rate(0.1, 2), draw.rate(0.1, 2), draw.rate(0.2, 2)
    return draw.pick([
        (None, lambda y: y),
        (projections.Box(lo, hi), lambda y: sets.box(y, lo, hi)),
        (projections.Ball(radius, 0.1), lambda y: sets.ball(y, radius, 0.1)),
        (projections.Simplex(radius), lambda y: sets.simplex(y, radius)),
    ])  # fmt: skip


class Setting:
    """Variables, rates and noise that every case starts from."""

    def __init__(self, draw):
        self.draw, self.saddle = draw, Saddle(draw)
        self.lr, self.dual_lr = draw.rate(0.01, 0.3), draw.rate(0.01, 0.3)
        self.project, self.set = drawn_set(draw)
        self.starts = draw.arrays(PRIMAL), [self.set(y) for y in draw.arrays(DUAL)]
        self.xs, self.ys = (parameters(start) for start in self.starts)
        self.size = sum(z.size for start in self.starts for z in start)

    def noise(self):
        return 0.3 * self.draw.normal(self.size)

    def missing(self):
        """Which gradients are missing: at most one on each side."""
        sides = [self.draw.pick([None, None, 0, 1]) for _ in "xy"]
        return [[k == out for k in range(2)] for out in sides]

    def here(self, noise):
        return self.saddle.gradients(values(self.xs), values(self.ys), noise)

    def closure(self, noises):
        """Sets gradients with new noise at each call, as a closure with backward() does."""

        def closure():
            set_gradients([*self.xs, *self.ys], [g for side in self.here(next(noises)) for g in side])
            return 0.0

        return closure

    def deviation(self, xs, ys):
        return deviation(values([*self.xs, *self.ys]), [*xs, *ys])

    def run(self, optimizer, twin):
        """Steps of a method that reads ``.grad``, with gradients that are sometimes missing."""
        for _ in range(STEPS):
            noise, missing = self.noise(), self.missing()
            pairs = self.here(noise), self.saddle.gradients(*self.at(twin), noise)
            theirs, ours = (
                [
                    [None if out else g for g, out in zip(side, lost, strict=True)]
                    for side, lost in zip(both, missing, strict=True)
                ]
                for both in pairs
            )
            set_gradients([*self.xs, *self.ys], [g for side in theirs for g in side])
            optimizer.step()
            twin.step(*ours)
        return self.deviation(*self.at(twin))

    @staticmethod
    def at(twin):
        return (twin.xs.xs if isinstance(twin.xs, ASA) else twin.xs), twin.ys


def pdada(draw):
    s, (path, rate) = Setting(draw), drawn_path(draw)
    ours, theirs = drawn_group(draw, None, maximize=False)
    optimizer = semaopt.PDAda(
        s.xs, s.ys, dual_lr=rate(s.dual_lr), project=s.project, implementation=path, **{**ours, "lr": rate(ours["lr"])}
    )
    return s.run(optimizer, plain.PDAda(ASA(s.starts[0], **theirs), s.starts[1], s.dual_lr, s.set))


def pdsm(draw):
    s, (path, _) = Setting(draw), drawn_path(draw)
    ours, theirs = drawn_group(draw, "shb", maximize=False)
    del ours["scaling"], ours["clip_scaling"]
    optimizer = semaopt.PDSM(s.xs, s.ys, dual_lr=s.dual_lr, project=s.project, implementation=path, **ours)
    return s.run(optimizer, plain.PDAda(ASA(s.starts[0], **{**theirs, "clip": None}), s.starts[1], s.dual_lr, s.set))


def sgd(s, decay=0.0):
    return ASA(s.starts[0], s.lr, 0.0, {"kind": "shb"}, decay)


def sgda(draw):
    s, decay = Setting(draw), draw.pick([0.0, 0.1])
    optimizer = baselines.SGDA(s.xs, s.ys, s.lr, s.dual_lr, project=s.project, weight_decay=decay)
    return s.run(optimizer, plain.PDAda(sgd(s, decay), s.starts[1], s.dual_lr, s.set))


def sgdmax(draw):
    s, decay = Setting(draw), draw.pick([0.0, 0.1])
    options = {"tolerance": draw.rate(0.05, 1), "max_ascents": draw.pick([1, 4, 30])}
    optimizer = baselines.SGDMax(s.xs, s.ys, s.lr, s.dual_lr, project=s.project, weight_decay=decay, **options)
    twin = plain.SGDMax(sgd(s, decay), s.starts[1], s.dual_lr, s.set, **options)
    for _ in range(10):
        noises = [s.noise() * draw.pick([0, 1]) for _ in range(31)]
        optimizer.step(s.closure(iter(noises)))
        calls = iter(noises)
        twin.step(lambda xs, ys, calls=calls: s.saddle.gradients(xs, ys, next(calls)))
    return s.deviation(*s.at(twin))


def stagewise(kind):
    def case(draw):
        s = Setting(draw)
        both = {"growth": draw.pick(["linear", "constant", "inverse"]), "proximal": draw.pick([0.0, 0.2])}
        both |= {"average": draw.yes(0.7)}
        ours, theirs = dict(both, stage_length=draw.pick([1, 3, 4])), dict(both, factor=None)
        if kind is not baselines.EpochSGDA:
            ours["factor"] = theirs["factor"] = draw.rate(0.3, 1)
        if kind is baselines.PESAdaGrad:
            ours["delta"] = theirs["delta"] = draw.rate(1e-4, 1)
        decay = draw.pick([0.0, 0.1])
        optimizer = kind(s.xs, s.ys, s.lr, s.dual_lr, project=s.project, weight_decay=decay, **ours)
        theirs |= {"length": ours["stage_length"], "decay": decay}
        return s.run(optimizer, plain.Stagewise(*s.starts, s.lr, s.dual_lr, s.set, **theirs))

    return case


def acc_mda(draw):
    s, k, c = Setting(draw), draw.rate(0.5, 2), {"c_x": draw.rate(0.2, 2), "c_y": draw.rate(0.2, 2)}
    options = {"k": k, "m": max(2.0, *((factor * k) ** 3 for factor in (1, *c.values()))) + draw.rate(0.1, 5), **c}
    optimizer = baselines.AccMDA(s.xs, s.ys, s.lr, s.dual_lr, project=s.project, **options)
    twin = plain.AccMDA(*s.starts, s.lr, s.dual_lr, s.set, **options)
    for _ in range(STEPS):
        noise = s.noise()
        optimizer.step(s.closure(iter([noise, noise])))
        twin.step(lambda xs, ys, noise=noise: s.saddle.gradients(xs, ys, noise))
    return s.deviation(twin.xs, twin.ys)


CASES = {
    "PDAda": pdada,
    "PDSM": pdsm,
    "SGDA": sgda,
    "SGDMax": sgdmax,
    **{kind.__name__: stagewise(kind) for kind in (baselines.EpochSGDA, baselines.PESSGDA, baselines.PESAdaGrad)},
    "AccMDA": acc_mda,
}
