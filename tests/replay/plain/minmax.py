"""The min-max methods, in numpy: PDAda (``alg:pdadam``) and the baselines. ``None`` is a missing gradient."""

import math

import numpy as np


class PDAda:
    """``xs`` is an ASA; SGDA has one with beta = 0 and the scaling SHB."""

    def __init__(self, xs, ys, dual_lr, project):
        self.xs, self.ys, self.dual_lr, self.project = xs, ys, dual_lr, project

    def step(self, g_x, g_y):
        self.xs.step(g_x)
        for i, g in enumerate(g_y):
            if g is not None:
                self.ys[i] = self.project(self.ys[i] + self.dual_lr * g)


class SGDMax:
    """Ascend until the gradient mapping is small, then take one step in x."""

    def __init__(self, xs, ys, dual_lr, project, tolerance, max_ascents):
        self.xs, self.ys, self.dual_lr, self.project = xs, ys, dual_lr, project
        self.tolerance, self.max_ascents = tolerance, max_ascents

    def step(self, gradients):
        for ascents in range(self.max_ascents + 1):
            g_x, g_y = gradients(self.xs.xs, self.ys)
            if ascents == self.max_ascents:
                break
            moved = [self.project(y + self.dual_lr * g) for y, g in zip(self.ys, g_y, strict=True)]
            mapping = sum((((a - b) / self.dual_lr) ** 2).sum() for a, b in zip(moved, self.ys, strict=True))
            if math.sqrt(mapping) <= self.tolerance:
                break
            self.ys[:] = moved
        self.xs.step(g_x)


class Stagewise:
    """Epoch-SGDA (``factor=None``), PES-SGDA and, with ``delta``, PES-AdaGrad."""

    def __init__(
        self, xs, ys, lr, dual_lr, project, *, length, growth, factor, proximal, average, decay=0.0, delta=None
    ):
        self.xs, self.ys, self.lr, self.dual_lr, self.project = xs, ys, lr, dual_lr, project
        self.length, self.growth, self.factor, self.average = length, growth, factor, average
        self.proximal, self.decay, self.delta, self.k = proximal, decay, delta, 0
        self.start()

    def start(self):
        self.t, self.x_0, self.sums = 0, [x.copy() for x in self.xs], [0.0] * (len(self.xs) + len(self.ys))
        self.total = [np.zeros_like(z) for z in (*self.xs, *self.ys)]

    def direction(self, i, g):
        if self.delta is None:
            return g
        self.sums[i] = self.sums[i] + g**2
        return g / (self.delta + np.sqrt(self.sums[i]))

    def step(self, g_x, g_y):
        rate = 1 / (self.k + 1) if self.factor is None else self.factor**self.k
        self.total = [a + z for a, z in zip(self.total, (*self.xs, *self.ys), strict=True)]
        for i, g in enumerate(g_x):
            if g is not None:
                full = g + self.proximal * (self.xs[i] - self.x_0[i]) + self.decay * self.xs[i]
                self.xs[i] = self.xs[i] - rate * self.lr * self.direction(i, full)
        for i, g in enumerate(g_y):
            if g is not None:
                self.ys[i] = self.project(self.ys[i] + rate * self.dual_lr * self.direction(len(self.xs) + i, g))
        self.t += 1
        inverse = self.k + 1 if self.factor is None else self.factor**-self.k
        growth = {"linear": self.k + 1, "constant": 1, "inverse": inverse}[self.growth]
        if self.t == math.ceil(self.length * growth):
            self.restart()

    def restart(self):
        if self.average:
            means = [total / self.t for total in self.total]
            self.xs[:], self.ys[:] = means[: len(self.xs)], means[len(self.xs) :]
        self.k += 1
        self.start()


class AccMDA:
    """STORM on both sides; ``gradients(xs, ys)`` is evaluated twice on one sample."""

    def __init__(self, xs, ys, lr, dual_lr, project, *, k, m, c_x, c_y):
        self.xs, self.ys, self.lr, self.dual_lr, self.project = xs, ys, lr, dual_lr, project
        self.k, self.m, self.c, self.t, self.before, self.v = k, m, (c_x, c_y), 0, None, None

    def eta(self, t):
        return self.k / (self.m + t) ** (1 / 3)

    def step(self, gradients):
        self.t += 1
        now = gradients(self.xs, self.ys)
        if self.before is None:
            self.v = now
        else:
            last = gradients(*self.before)
            self.v = tuple(
                [g + (1 - c * self.eta(self.t - 1) ** 2) * (v - b) for g, v, b in zip(*triple, strict=True)]
                for c, triple in zip(self.c, zip(now, self.v, last, strict=True), strict=True)
            )
        self.before = ([*self.xs], [*self.ys])
        eta = self.eta(self.t)
        self.xs[:] = [x - eta * self.lr * v for x, v in zip(self.xs, self.v[0], strict=True)]
        self.ys[:] = [
            y + eta * (self.project(y + self.dual_lr * v) - y) for y, v in zip(self.ys, self.v[1], strict=True)
        ]
