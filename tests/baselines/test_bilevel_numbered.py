"""SABA, SUSTAIN, MRBO and FSLA compared with plain NumPy implementations on a finite sum of quadratics."""

import numpy as np
import pytest
import torch

from semaopt.baselines import FSLA, MRBO, SABA, SUSTAIN
from semaopt.hypergradient import Exact, Neumann, NeumannSeries, TrackedSystem, count_calls
from semaopt.hypergradient.inverses import uniform

M, N, C = 4, 5, 4.0


class Sums:
    """f_j = |y - c_j|^2/2 + mu_j |x|^2/2 and g_i = y.A_i y/2 - (B_i x).y, in NumPy and as closures."""

    def __init__(self):
        generator = np.random.default_rng(0)
        self.c, self.mu = generator.normal(size=(M, 3)), generator.uniform(0.2, 0.6, size=M)
        self.A = np.stack([np.diag(generator.uniform(0.5, 2.0, 3)) for _ in range(N)])
        self.B = generator.normal(size=(N, 3, 2))
        self.X, self.Y = generator.normal(size=2), generator.normal(size=3)
        self.x, self.y = (torch.nn.Parameter(torch.tensor(v)) for v in (self.X, self.Y))

    def outer(self, j):
        c, mu = torch.tensor(self.c[j]), float(self.mu[j])
        return (self.y - c).square().sum() / 2 + mu * self.x.square().sum() / 2

    def inner(self, i):
        A, B = torch.tensor(self.A[i]), torch.tensor(self.B[i])
        return self.y @ A @ self.y / 2 - (B @ self.x) @ self.y

    def f(self, j, x, y):
        return self.mu[j] * x, y - self.c[j]

    def g_y(self, i, x, y):
        return self.A[i] @ y - self.B[i] @ x

    def implicit(self, i, w):  # g_xy w
        return -self.B[i].T @ w

    def gradient(self, x):
        """Return the gradient of F on the whole sums."""
        A, B, c, mu = self.A.mean(0), self.B.mean(0), self.c.mean(0), self.mu.mean()
        y = np.linalg.solve(A, B @ x)
        return mu * x + B.T @ np.linalg.solve(A, y - c)

    def assert_equal(self, x, y):
        np.testing.assert_allclose(self.x.detach().numpy(), x, rtol=1e-11, atol=1e-12)
        np.testing.assert_allclose(self.y.detach().numpy(), y, rtol=1e-11, atol=1e-12)


def draws(seed, t):
    """Yield the sample numbers of f and of g in step t, as documented."""
    streams = ((M, 2 * seed), (N, 2 * seed + 1))
    return (iter([uniform(n, s, t * 2**20 + k) for k in range(30)]) for n, s in streams)


def test_saba():
    problem = Sums()
    optimizer = SABA([problem.x], [problem.y], lr=0.05, lower_lr=0.2, samples=(M, N), system_lr=0.1, seed=3)
    x, y, w = problem.X.copy(), problem.Y.copy(), np.zeros(3)
    tables = [np.zeros((M, 2)), np.zeros((M, 3)), np.zeros((N, 3)), np.zeros((N, 3)), np.zeros((N, 2))]
    seen = set()
    for t in range(40):
        j, i = (next(stream) for stream in draws(3, t))
        seen.add((j, i))
        values = [*problem.f(j, x, y), problem.g_y(i, x, y), problem.A[i] @ w, problem.implicit(i, w)]
        directions = []
        for table, value, k in zip(tables, values, (j, j, i, i, i), strict=True):
            directions.append(value - table[k] + table.mean(0))
            table[k] = value
        f_x, f_y, g_y, g_yy, g_xy = directions
        x, y, w = x - 0.05 * (f_x - g_xy), y - 0.2 * g_y, w - 0.1 * (g_yy - f_y)
        optimizer.step(problem.outer, problem.inner)
        problem.assert_equal(x, y)
    assert len(seen) > 10


def test_saba_converges_with_constant_steps_and_soba_noise_does_not_remain():
    problem = Sums()
    optimizer = SABA([problem.x], [problem.y], lr=0.02, lower_lr=0.1, samples=(M, N))
    for _ in range(4000):
        optimizer.step(problem.outer, problem.inner)
    assert np.linalg.norm(problem.gradient(problem.x.detach().numpy())) < 1e-5


def neumann(problem, t, stream, x, y, f_y, terms, summed):
    """Return h f_y and the numbers of the samples that it used."""
    p = terms - 1 if summed else uniform(terms, 0, t)
    v, total, used = f_y, f_y, []
    for _ in range(p):
        used.append(next(stream))
        v = v - problem.A[used[-1]] @ v / C
        total = total + v
    return (total / C if summed else terms / C * v), used


@pytest.mark.parametrize(
    ("kind", "inverse", "summed"),
    [(SUSTAIN, Neumann(4, bound=C), False), (MRBO, NeumannSeries(4, bound=C), True)],
    ids=["SUSTAIN", "MRBO"],
)
def test_double_momentum(kind, inverse, summed):
    problem = Sums()
    options = {"lr": 0.1, "lower_lr": 0.2, "weight": 0.4, "samples": (M, N), "seed": 1}
    optimizer = kind([problem.x], [problem.y], inverse=inverse, **options)
    x, y = problem.X.copy(), problem.Y.copy()
    last = None

    def estimate(t, x, y):
        outer, inner = draws(1, t)
        f_x, f_y = problem.f(next(outer), x, y)
        h, _ = neumann(problem, t, inner, x, y, f_y, 4, summed)
        i = next(inner)
        return f_x - problem.implicit(i, h), problem.g_y(i, x, y)

    for t in range(12):
        a, slower = 0.4 * (t + 1) ** (-2 / 3), (t + 1) ** (-1 / 3)
        d_x, d_y = estimate(t, x, y)
        if last is not None:
            old_x, old_y = estimate(t, *last[:2])
            d_x, d_y = d_x + (1 - a) * (last[2] - old_x), d_y + (1 - a) * (last[3] - old_y)
        last = x, y, d_x, d_y
        x, y = x - 0.1 * slower * d_x, y - 0.2 * slower * d_y
        optimizer.step(problem.outer, problem.inner)
        problem.assert_equal(x, y)


def test_fsla():
    problem = Sums()
    options = {"lr": 0.1, "lower_lr": 0.2, "weight": 0.4, "samples": (M, N), "seed": 2}
    optimizer = FSLA([problem.x], [problem.y], **options)
    x, y, w = problem.X.copy(), problem.Y.copy(), np.zeros(3)
    last = None
    for t in range(12):
        delta, (outer, inner) = (t + 1) ** -0.5, draws(2, t)
        old_y, old_w = y, w
        y = y - 0.2 * delta * problem.g_y(next(inner), x, y)
        w = w - 0.2 * delta * (problem.A[next(inner)] @ w - problem.f(next(outer), x, y)[1])
        j, i = next(outer), next(inner)
        d = problem.f(j, x, y)[0] - problem.implicit(i, w)
        if last is not None:
            old = problem.f(j, last[0], old_y)[0] - problem.implicit(i, old_w)
            d = d + (1 - 0.4 * delta) * (last[1] - old)
        last = x, d
        x = x - 0.1 * delta * d
        optimizer.step(problem.outer, problem.inner)
        problem.assert_equal(x, y)


@pytest.mark.parametrize(
    ("kind", "options", "first", "later"),
    [
        (SABA, {}, (2, 1, 1), (2, 1, 1)),
        (SUSTAIN, {"inverse": NeumannSeries(4, bound=C)}, (5, 3, 1), (10, 6, 2)),
        (MRBO, {"inverse": NeumannSeries(4, bound=C)}, (5, 3, 1), (10, 6, 2)),
        (FSLA, {}, (5, 1, 1), (7, 1, 2)),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_oracle_calls(kind, options, first, later):
    problem = Sums()
    optimizer = kind([problem.x], [problem.y], samples=(M, N), **options)
    for expected in (first, later):
        with count_calls() as calls:
            optimizer.step(problem.outer, problem.inner)
        assert (calls.gradients, calls.hessian_products, calls.mixed_products) == expected


@pytest.mark.parametrize("kind", [SABA, SUSTAIN, MRBO, FSLA])
def test_closures_without_a_sample_number_are_refused(kind):
    problem = Sums()
    optimizer = kind([problem.x], [problem.y], samples=(M, N))
    text = r"inner takes no sample number .*write def inner\(i\), which returns the loss of sample i in 0\.\.4"
    with pytest.raises(TypeError, match=text):
        optimizer.step(problem.outer, lambda: problem.inner(0))
    with pytest.raises(TypeError, match=r"outer=3: step\(outer, inner\) takes two functions"):
        optimizer.step(3, problem.inner)
    np.testing.assert_array_equal(problem.x.detach().numpy(), problem.X)


def test_invalid_options():
    problem = Sums()
    xs = ([problem.x], [problem.y])
    for samples in (3, (3,), (0, 1), (1.5, 2), (True, 1)):
        with pytest.raises(ValueError, match=r"samples=.* is invalid: it must be two whole numbers > 0"):
            SABA(*xs, samples=samples)
    with pytest.raises(ValueError, match=r"weight=0\.0 is invalid: it must lie in \(0, 1\]"):
        FSLA(*xs, weight=0.0)
    with pytest.raises(TypeError, match=r"SUSTAIN applies it at two points in each step, and it remembers"):
        SUSTAIN(*xs, inverse=TrackedSystem())
    with pytest.raises(TypeError, match="SABA does not use an inverse"):
        SABA(*xs, samples=(1, 1)).inverse = Exact()


def test_numbers_without_a_count_are_seeds():
    problem, seen = Sums(), []

    def inner(i):
        seen.append(i)
        return problem.inner(i % N)

    optimizer = SUSTAIN([problem.x], [problem.y], inverse=Neumann(1, bound=C))
    for _ in range(20):
        optimizer.step(lambda j: problem.outer(j % M), inner)
    assert len(set(seen)) == 20
    assert all(0 <= i < 2**31 for i in seen)
    assert max(seen) > 2**27
