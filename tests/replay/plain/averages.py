"""Averages and samples of the iterates, and the double loop of ``alg:adam_PL``, in numpy."""

import math


class Iterates:
    """x_tau with tau uniform on 0..t (by ``draws``, uniform numbers), and the polynomial average."""

    def __init__(self, draws, power=0.0, every=1):
        self.draws, self.power, self.every = draws, power, every
        self.reset()

    def reset(self):
        self.t, self.next, self.average, self.sampled, self.estimate = 0, 0, None, None, None

    def before(self, xs):
        self.taken = self.t >= self.next
        if self.taken:
            self.sampled = [x.copy() for x in xs]
            self.next = math.floor((self.t + 1) / next(self.draws))
        if self.t % self.every == 0:
            weight = (self.power + 1) / (self.t // self.every + self.power + 1)
            old = xs if self.average is None else self.average
            self.average = [a + weight * (x - a) for a, x in zip(old, xs, strict=True)]

    def after(self, averages):
        if self.taken:
            self.estimate = [v.estimate() for v in averages]
        self.t += 1


class Stages:
    """ASA in stages (eta, gamma, T); each starts at the output of the last one."""

    def __init__(self, asa, stages, output, draws):
        self.asa, self.stages, self.output, self.iterates, self.k = asa, stages, output, Iterates(draws), 0
        self.begin()

    def begin(self):
        self.asa.lr, self.asa.beta = self.stages[self.k][0], 1 - self.stages[self.k][1]

    def step(self, gs):
        self.iterates.before(self.asa.xs)
        self.asa.step(gs)
        self.iterates.after(self.asa.vs)
        if self.iterates.t <= self.stages[self.k][2]:
            return
        if self.output == "sampled":
            self.asa.xs[:] = self.iterates.sampled
            for v, estimate in zip(self.asa.vs, self.iterates.estimate, strict=True):
                v.value = estimate * v.weight
        elif self.output == "average":
            self.asa.xs[:] = self.iterates.average
        self.iterates.reset()
        self.k += 1
        if self.k < len(self.stages):
            self.begin()
