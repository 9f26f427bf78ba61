"""Factors of the schedules after t calls of ``step``, and torch's SGD with a momentum that changes."""

import math


def stagewise(t, every, factor):
    return factor ** (t // every)


def polynomial(t, every, power):
    return (t // every + 1) ** -power


def inverse_sqrt(t):
    return 1 / math.sqrt(t + 1)


def cosine(t, period):
    return (1 + math.cos(math.pi * t / period)) / 2


def warm_up(t, start, length):
    return start + (1 - start) * min(t, length) / length


class SGD:
    """The buffer starts at the first gradient and stays (1 - dampening)/(1 - momentum) times an average."""

    def __init__(self, xs, lr, momentum, dampening, decay):
        self.xs, self.lr, self.beta, self.decay = xs, lr, momentum, decay
        self.multiple, self.buffer = (1 - dampening) / (1 - momentum), [None] * len(xs)

    def step(self, gs):
        for i, g in enumerate(gs):
            full, b = g + self.decay * self.xs[i], self.buffer[i]
            gamma = 1 - self.beta
            self.buffer[i] = full if b is None else (1 - gamma) * b + self.multiple * gamma * full
            self.xs[i] = self.xs[i] - self.lr * self.buffer[i]
