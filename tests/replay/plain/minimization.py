"""ASA (``alg:adam``) with the scalings of ``tab:2``, in numpy."""

import numpy as np


class Average:
    """SEMA: from 0, divided by its weight (corrected), or from the first sample (the paper's start)."""

    def __init__(self, corrected):
        self.corrected, self.value, self.weight, self.t = corrected, 0.0, 0.0, 0

    def update(self, sample, gamma):
        if self.t == 0 and not self.corrected:
            gamma = 1.0
        self.value = (1 - gamma) * self.value + gamma * sample
        self.weight = (1 - gamma) * self.weight + gamma
        self.t += 1
        return self.estimate()

    def estimate(self):
        return self.value / self.weight


class Scaling:
    """u of one parameter; ``kind`` is a row of the table."""

    def __init__(self, kind, corrected, beta2=0.999, g0=0.0, c_l=None, c_u=None):
        self.kind, self.beta2, self.g0, self.c_l, self.c_u = kind, beta2, g0, c_l, c_u
        self.ema, self.largest, self.mean, self.t = Average(corrected), 0.0, 0.0, 0

    def u(self, g, norm):
        self.t += 1
        if self.kind == "shb":
            return 1.0
        if self.kind == "adam+":
            return norm
        if self.kind == "adafom":
            self.mean = self.mean + (g**2 - self.mean) / self.t
            return self.mean
        ema = self.ema.update(g**2, 1 - self.beta2)
        if self.kind == "amsgrad":  # torch's: the largest uncorrected average over the newest weight
            self.largest = np.maximum(self.largest, self.ema.value)
            return self.largest / self.ema.weight
        return np.clip(ema, self.c_u**-2, self.c_l**-2) if self.kind == "adabound" else ema


class ASA:
    """One param group. A parameter without a gradient (None) takes no step and keeps its averages."""

    def __init__(self, xs, lr, beta, scaling, decay=0.0, decoupled=False, maximize=False, corrected=True, clip=None):
        self.xs, self.lr, self.beta, self.clip = xs, lr, beta, clip
        self.decay, self.decoupled, self.sign = decay, decoupled, -1 if maximize else 1
        self.vs = [Average(corrected) for _ in xs]
        self.scalings = [Scaling(corrected=corrected, **scaling) for _ in xs]

    def step(self, gs):
        gs = {i: self.sign * g for i, g in enumerate(gs) if g is not None}
        for i in gs:
            if self.decoupled:
                self.xs[i] = self.xs[i] * (1 - self.lr * self.decay)
            else:
                gs[i] = gs[i] + self.decay * self.xs[i]
        vs = {i: self.vs[i].update(g, 1 - self.beta) for i, g in gs.items()}
        norm = np.sqrt(sum((v**2).sum() for v in vs.values()))
        for i, v in vs.items():
            s = 1 / (np.sqrt(self.scalings[i].u(gs[i], norm)) + self.scalings[i].g0)
            if self.clip is not None:
                s = np.clip(s, *self.clip)
            self.xs[i] = self.xs[i] - self.lr * s * v
