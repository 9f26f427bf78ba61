"""The bilevel methods, in numpy, with x and y as one vector each.

A problem has ``outer()``, the next sample of f, and ``inner()``, the next sample of g. A sample has its derivatives as
functions of (x, y): ``f_x f_y``, and ``g_x g_y hessian mixed``, where ``mixed(x, y, w)`` is g_xy w.
"""

import numpy as np


def mixed_bits(x):
    """The finalizer of SplitMix64."""
    x ^= x >> 30
    x = x * 0xBF58476D1CE4E5B9 % 2**64
    x ^= x >> 27
    x = x * 0x94D049BB133111EB % 2**64
    return x ^ (x >> 31)


def uniform(k, seed, t):
    """Number t of a SplitMix64 stream, as a number in 0..k-1."""
    golden = 0x9E3779B97F4A7C15
    return mixed_bits((mixed_bits(seed % 2**64) + (t + 1) * golden) % 2**64) * k >> 64


# ---- inverses: (problem, x, y, f_y, memory, rates) -> g_y and g_xy w ------------------------------------------------


def neumann(terms, bound, seed=0):
    def inverse(problem, x, y, f_y, memory, rates):
        h = f_y
        for _ in range(uniform(terms, seed, memory["t"])):
            h = h - problem.inner().hessian(x, y) @ h / bound
        last = problem.inner()
        return last.g_y(x, y), last.mixed(x, y, terms / bound * h)

    return inverse


def series(terms, bound):
    def inverse(problem, x, y, f_y, memory, rates):
        h = total = f_y
        for _ in range(terms - 1):
            h = h - problem.inner().hessian(x, y) @ h / bound
            total = total + h
        last = problem.inner()
        return last.g_y(x, y), last.mixed(x, y, total / bound)

    return inverse


def tracked(lr=None):
    def inverse(problem, x, y, f_y, memory, rates):
        rho = rates if lr is None else lr
        w, sample = memory.get("w", rho * f_y), problem.inner()
        memory["w"] = w - rho * (sample.hessian(x, y) @ w - f_y)
        return sample.g_y(x, y), sample.mixed(x, y, w)

    return inverse


def exact():
    def inverse(problem, x, y, f_y, memory, rates):
        w = np.linalg.solve(problem.inner().hessian(x, y), f_y)
        last = problem.inner()
        return last.g_y(x, y), last.mixed(x, y, w)

    return inverse


def conjugate_gradients(steps):
    def inverse(problem, x, y, f_y, memory, rates):
        H, w, r, p = problem.inner().hessian(x, y), np.zeros_like(f_y), f_y, f_y
        for _ in range(steps):
            a = r @ r / (p @ H @ p)
            w, before, r = w + a * p, r, r - a * H @ p
            p = r + r @ r / (before @ before) * p
        last = problem.inner()
        return last.g_y(x, y), last.mixed(x, y, w)

    return inverse


def first_order(lam, steps, lr, project):
    def inverse(problem, x, y, f_y, memory, rates):
        rho, w, here = rates if lr is None else lr, memory.get("w"), problem.inner()
        w = rho * f_y if w is None else w
        f_x, g_y = memory["f_x"], here.g_y(x, y)
        for _ in range(steps):
            z = y - w / lam if project is None else project(y - w / lam)
            f, g = problem.outer(), problem.inner()
            if project is None:
                w = w + lam * rho / (1 + lam) * (f.f_y(x, z) + lam * (g.g_y(x, z) - g_y))
            else:
                w = lam * (y - project(z - rho / (1 + lam) * (f.f_y(x, z) + lam * g.g_y(x, z))))
        memory["w"] = w
        return g_y, f_x - (f.f_x(x, z) + lam * (g.g_x(x, z) - here.g_x(x, y)))

    return inverse


# ---- methods --------------------------------------------------------------------------------------------------------


class Method:
    """``xs`` is an ASA of one vector; ``rates`` has the step size of each entry of y."""

    def __init__(self, xs, y, rates, project, inverse=None, **options):
        self.xs, self.y, self.rates, self.inverse, self.memory = xs, y, rates, inverse, {"t": 0}
        self.project = project or (lambda y: y)
        self.__dict__.update(options)

    def step(self, problem):
        self.take(problem)
        self.memory["t"] += 1

    @property
    def x(self):
        return self.xs.xs[0]

    def descend_y(self, g_y, factor=1.0):
        self.y = self.project(self.y - factor * self.rates * g_y)

    def hypergradient(self, problem):
        f = problem.outer()
        self.memory["f_x"] = f.f_x(self.x, self.y)
        g_y, implicit = self.inverse(problem, self.x, self.y, f.f_y(self.x, self.y), self.memory, self.rates)
        return self.memory["f_x"] - implicit, g_y


class SMB(Method):
    """``alg:smb``; SOBA has a tracked system and no average."""

    def take(self, problem):
        z, g_y = self.hypergradient(problem)
        self.xs.step([z])
        self.descend_y(g_y)


class DoubleLoop(Method):
    """BSA (``decreasing``) and stocBiO."""

    def take(self, problem):
        for s in range(self.lower_steps):
            self.descend_y(problem.inner().g_y(self.x, self.y), 2 / (s + 2) if self.decreasing else 1.0)
        self.xs.step([self.hypergradient(problem)[0]])


class TTSA(Method):
    def take(self, problem):
        t, (b, a) = self.memory["t"] + 1, self.powers
        self.descend_y(problem.inner().g_y(self.x, self.y), t**-b)
        z, _ = self.hypergradient(problem)
        self.xs.step([z * t**-a])


class AmIGO(Method):
    def take(self, problem):
        for _ in range(self.lower_steps):
            self.descend_y(problem.inner().g_y(self.x, self.y))
        f, w = problem.outer(), self.memory.get("w", np.zeros_like(self.y))
        rho = self.rates if self.system_lr is None else self.system_lr
        for _ in range(self.system_steps):
            w = w - rho * (problem.inner().hessian(self.x, self.y) @ w - f.f_y(self.x, self.y))
        self.memory["w"] = w
        self.xs.step([f.f_x(self.x, self.y) - problem.inner().mixed(self.x, self.y, w)])


class F2SA(Method):
    """``self.y`` is z, which minimizes g; ``penalized`` is the paper's y."""

    def take(self, problem):
        lam, x = self.penalty + self.penalty_growth * self.memory["t"], self.x
        y = self.memory.get("penalized", self.y)
        for _ in range(self.lower_steps):
            self.descend_y(problem.inner().g_y(x, self.y))
            f, g = problem.outer(), problem.inner()
            y = self.project(y - self.rates / (1 + lam) * (f.f_y(x, y) + lam * g.g_y(x, y)))
        self.memory["penalized"] = y
        at_z, f, at_y = problem.inner(), problem.outer(), problem.inner()
        self.xs.step([f.f_x(x, y) + lam * (at_y.g_x(x, y) - at_z.g_x(x, self.y))])


class BOME(Method):
    def take(self, problem):
        x, y = self.x, self.y
        f, g = problem.outer(), problem.inner()
        best = y
        for _ in range(self.lower_steps):
            best = self.project(best - self.rates * problem.inner().g_y(x, best))
        q_x, q_y = g.g_x(x, y) - problem.inner().g_x(x, best), g.g_y(x, y)
        f_x, f_y = f.f_x(x, y), f.f_y(x, y)
        lam = max(0.0, self.control - (f_x @ q_x + f_y @ q_y) / (q_x @ q_x + q_y @ q_y))
        self.xs.step([f_x + lam * q_x])
        self.descend_y(f_y + lam * q_y)


class SBMA(Method):
    """SEMA on each piece of the hypergradient; ``xs`` takes its step without another average."""

    def take(self, problem):
        x, y, memory = self.x, self.y, self.memory
        f, p = problem.outer(), uniform(self.terms, self.seed, memory["t"])
        unknown = self.bound is None and "C" not in memory
        factors = [problem.inner().hessian(x, y) for _ in range(max(p, 1) if unknown else p)]
        memory["C"] = self.bound or max([memory.get("C", 0.0), *(np.linalg.norm(F, 2) for F in factors)])
        h = self.terms / memory["C"] * np.eye(len(y))
        for F in factors[:p]:
            h = h - F @ h / memory["C"]
        last = problem.inner()
        g_xy = np.stack([last.mixed(x, y, e) for e in np.eye(len(y))], 1)
        u = self.track("u", f.f_x(x, y))
        v = self.track("v", f.f_y(x, y), self.c_fy)
        V = self.track("V", g_xy, self.c_gxy)
        H = self.track("H", h, self.lam and 1 / self.lam)
        self.descend_y(last.g_y(x, y))
        self.xs.step([u - V @ H @ v])

    def track(self, name, sample, clip=None):
        """The corrected average, or the paper's; then its singular values (or its norm) are clipped."""
        t, gamma = self.memory["t"], 1 - self.beta
        newest = gamma / (1 - self.beta ** (t + 1)) if self.corrected else 1.0 if t == 0 else gamma
        average = self.memory.get(name, 0.0)
        average = average + newest * (sample - average)
        if clip is not None and average.ndim == 1:
            average = average * min(1.0, clip / np.linalg.norm(average))
        elif clip is not None:
            left, s, right = np.linalg.svd(average, full_matrices=False)
            average = (left * np.minimum(s, clip)) @ right
        self.memory[name] = average
        return average
