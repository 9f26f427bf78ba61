"""The bilevel optimizers with random options and every inverse, against numpy."""

import numpy as np
import torch

import semaopt
from semaopt import baselines, hypergradient, projections
from tests.replay.draws import deviation, parameters, positive_definite, values
from tests.replay.minimization import drawn_group
from tests.replay.plain import bilevel as plain
from tests.replay.plain import sets
from tests.replay.plain.minimization import ASA

UPPER, LOWER = [(2,), (1, 2)], [(3,), (2, 1)]
N, M = 4, 5
STEPS = 8
BOUND = 4.0  # above the curvature of every sample


class Sample:
    """f = y.Py/2 + q.y + mu |x - s|^2/2 + x.Ry and g = y.Hy/2 + y.B sin(x) + eps y^4/4 + lam |y|^2/2."""

    def __init__(self, problem, draw):
        self.p, self.noise = problem, (0.1 * draw.normal(N), 0.1 * draw.normal(M))
        self.H = positive_definite(draw, M, 0.8, 2.0)
        self.B = problem.B + 0.1 * draw.normal(M, N)

    def f_x(self, x, y):
        return self.p.mu * (x - self.noise[0]) + self.p.R @ y

    def f_y(self, x, y):
        return self.p.P @ y + self.p.q + self.noise[1] + self.p.R.T @ x

    def g_x(self, x, y):
        return np.cos(x) * (self.B.T @ y)

    def g_y(self, x, y):
        return self.H @ y + self.B @ np.sin(x) + self.p.eps * y**3 + self.p.lam * y

    def hessian(self, x, y):
        return self.H + np.diag(3 * self.p.eps * y**2 + self.p.lam)

    def mixed(self, x, y, w):
        return np.cos(x) * (self.B.T @ w)

    def f(self, x, y):
        p, (s, e) = self.p, map(torch.tensor, self.noise)
        P, q, R = map(torch.tensor, (p.P, p.q, p.R))
        return y @ P @ y / 2 + (q + e) @ y + p.mu / 2 * (x - s).square().sum() + x @ R @ y

    def g(self, x, y):
        """Without the weight decay, which the optimizer adds."""
        H, B = torch.tensor(self.H), torch.tensor(self.B)
        return y @ H @ y / 2 + y @ B @ torch.sin(x) + self.p.eps / 4 * y.pow(4).sum()


class Problem:
    """Samples that two callers draw in the same order."""

    def __init__(self, draw):
        self.draw, self.B, self.R = draw, 0.5 * draw.normal(M, N), 0.3 * draw.normal(N, M)
        self.P, self.q, self.mu = positive_definite(draw, M, 0.2, 1.0), draw.normal(M), draw.rate(0.1, 1)
        self.eps, self.lam = draw.pick([0.0, 0.02]), draw.pick([0.0, 0.1])
        self.drawn, self.next = ([], []), [0, 0]

    def sample(self, kind):
        self.next[kind] += 1
        while len(self.drawn[kind]) < self.next[kind]:
            self.drawn[kind].append(Sample(self, self.draw))
        return self.drawn[kind][self.next[kind] - 1]

    def outer(self):
        return self.sample(0)

    def inner(self):
        return self.sample(1)

    def rewind(self):
        counts, self.next = self.next, [0, 0]
        return counts


def drawn_set(draw):
    """A set for each lower tensor, and the numpy code that projects the whole vector."""
    radius = draw.rate(0.3, 3)

    def each(project):
        return lambda y: np.concatenate([project(part) for part in np.split(y, [3])])

    return draw.pick([
        (None, None),
        (projections.Box(-radius, radius), each(lambda y: sets.box(y, -radius, radius))),
        (projections.Ball(radius), each(lambda y: sets.ball(y, radius))),
    ])  # fmt: skip


class Setting:
    def __init__(self, draw):
        self.draw, self.problem = draw, Problem(draw)
        self.x, self.y = draw.normal(N), draw.normal(M)
        self.upper = parameters([self.x[:2], self.x[2:].reshape(1, 2)])
        self.project, self.set = drawn_set(draw)
        if self.set is not None:
            self.y = self.set(self.y)
        self.lower = parameters([self.y[:3], self.y[3:].reshape(2, 1)])
        self.lr, rates = draw.rate(0.01, 0.2), [draw.rate(0.02, 0.3) for _ in "ab"]
        self.rates = np.repeat(rates, [3, 2])
        self.groups = [{"params": [y], "lr": rate} for y, rate in zip(self.lower, rates, strict=True)]
        self.options = dict(project=self.project, lower_weight_decay=self.problem.lam)

    def flat(self, xs):
        return torch.cat([x.flatten() for x in xs])

    def run(self, optimizer, twin):
        for _ in range(STEPS):
            optimizer.step(
                lambda: self.problem.outer().f(self.flat(self.upper), self.flat(self.lower)),
                lambda: self.problem.inner().g(self.flat(self.upper), self.flat(self.lower)),
            )
        counts = self.problem.rewind()
        for _ in range(STEPS):
            twin.step(self.problem)
        assert self.problem.next == counts, "the two sides drew different numbers of samples"
        found = values([self.flat(self.upper), self.flat(self.lower)])
        return deviation(found, [twin.x, twin.y])

    def sgd(self):
        return ASA([self.x], self.lr, 0.0, {"kind": "shb"})

    def baseline(self, kind, twin, **options):
        own = {name: value for name, value in options.items() if name not in ("decreasing", "same")}
        optimizer = kind(self.upper, self.groups, self.lr, **self.options, **own)
        options.pop("inverse", None)
        same = options.pop("same", None)
        return self.run(optimizer, twin(self.sgd(), self.y, self.rates, self.set, same, **options))


def drawn_inverse(draw, name, setting):
    """One inverse: our object and its numpy code."""
    terms, steps, seed = draw.pick([1, 3, 6]), draw.pick([1, 2, 3]), draw.pick([0, 1, 12345])
    lr, lam = draw.pick([None, 0.2]), draw.rate(1, 50)
    H = hypergradient
    return {
        "Neumann": lambda: (H.Neumann(terms, BOUND, seed), plain.neumann(terms, BOUND, seed)),
        "NeumannSeries": lambda: (H.NeumannSeries(terms, BOUND), plain.series(terms, BOUND)),
        "TrackedSystem": lambda: (H.TrackedSystem(lr), plain.tracked(lr)),
        "CG": lambda: (H.CG(steps), plain.conjugate_gradients(steps)),
        "Exact": lambda: (H.Exact(), plain.exact()),
        "FirstOrder": lambda: (H.FirstOrder(lam, steps, lr), plain.first_order(lam, steps, lr, setting.set)),
    }[name]()


INVERSES = ("Neumann", "NeumannSeries", "TrackedSystem", "CG", "Exact", "FirstOrder")


def smb(name):
    def case(draw):
        s = Setting(draw)
        inverse, same = drawn_inverse(draw, name, s)
        ours, theirs = drawn_group(draw, None, maximize=False)
        optimizer = semaopt.SMB(s.upper, s.groups, inverse=inverse, **s.options, **ours)
        return s.run(optimizer, plain.SMB(ASA([s.x], **theirs), s.y, s.rates, s.set, same))

    return case


def sbma(draw):
    s, terms, seed = Setting(draw), draw.pick([1, 3, 5]), draw.pick([0, 7])
    bound, beta, corrected = draw.pick([None, BOUND]), draw.pick([0.0, 0.5, 0.9]), draw.yes()
    clips = {"lam": draw.pick([None, 1.0]), "c_fy": draw.pick([None, 1.0]), "c_gxy": draw.pick([None, 0.5])}
    ours, theirs = drawn_group(draw, None, maximize=False)
    optimizer = semaopt.SBMA(
        s.upper,
        s.groups,
        s.lr,
        beta=beta,
        scaling=ours["scaling"],
        bias_correction=corrected,
        inverse=hypergradient.Neumann(terms, bound, seed),
        **clips,
        **s.options,
    )
    xs = ASA([s.x], s.lr, 0.0, theirs["scaling"], corrected=corrected)
    own = dict(clips, terms=terms, seed=seed, bound=bound, beta=beta, corrected=corrected)
    return s.run(optimizer, plain.SBMA(xs, s.y, s.rates, s.set, **own))


def double_loop(kind, decreasing):
    def case(draw):
        s = Setting(draw)
        inverse, same = drawn_inverse(draw, draw.pick(INVERSES[:5]), s)
        options = {"lower_steps": draw.pick([1, 3]), "decreasing": decreasing}
        return s.baseline(kind, plain.DoubleLoop, inverse=inverse, same=same, **options)

    return case


def ttsa(draw):
    s = Setting(draw)
    inverse, same = drawn_inverse(draw, draw.pick(INVERSES[:5]), s)
    return s.baseline(
        baselines.TTSA, plain.TTSA, inverse=inverse, same=same, powers=draw.pick([(0.4, 0.6), (0.0, 1.0)])
    )


def soba(draw):
    s, lr = Setting(draw), draw.pick([None, 0.3])
    optimizer = baselines.SOBA(s.upper, s.groups, s.lr, system_lr=lr, **s.options)
    return s.run(optimizer, plain.SMB(s.sgd(), s.y, s.rates, s.set, plain.tracked(lr)))


def amigo(draw):
    steps = {"lower_steps": draw.pick([1, 3]), "system_steps": draw.pick([1, 4]), "system_lr": draw.pick([None, 0.2])}
    return Setting(draw).baseline(baselines.AmIGO, plain.AmIGO, **steps)


def f2sa(draw):
    options = {"penalty": draw.rate(1, 30), "penalty_growth": draw.pick([0.0, 0.5]), "lower_steps": draw.pick([1, 3])}
    return Setting(draw).baseline(baselines.F2SA, plain.F2SA, **options)


def bome(draw):
    options = {"control": draw.pick([0.0, 0.1, 0.5]), "lower_steps": draw.pick([1, 5])}
    return Setting(draw).baseline(baselines.BOME, plain.BOME, **options)


CASES = {
    **{f"SMB[{name}]": smb(name) for name in INVERSES},
    "SBMA": sbma,
    "BSA": double_loop(baselines.BSA, True),
    "StocBiO": double_loop(baselines.StocBiO, False),
    "TTSA": ttsa,
    "SOBA": soba,
    "AmIGO": amigo,
    "F2SA": f2sa,
    "BOME": bome,
}
