"""AmIGO, F2SA and BOME compared with their formulas on the quadratic problem."""

import pytest
import torch

from semaopt.baselines import BOME, F2SA, AmIGO
from semaopt.hypergradient import Exact, count_calls
from semaopt.problems import QuadraticBilevel


def make(**options):
    problem = QuadraticBilevel(**options)
    x, y = problem.start()
    return problem, x, y, (problem.outer(x, y), problem.inner(x, y))


def f_gradients(problem, x, y):
    return problem.mu * x, y - problem.c


def g_gradients(problem, x, y):
    return -y @ problem.B, y @ problem.A - x @ problem.B.T - problem.b


def test_amigo_equals_its_formulas():
    problem, x, y, closures = make()
    optimizer = AmIGO([x], [y], lr=0.2, lower_lr=0.4, lower_steps=3, system_steps=2, system_lr=0.3)
    X, Y = x.detach().clone(), y.detach().clone()
    w = torch.zeros_like(Y)
    for _ in range(4):
        for _ in range(3):
            Y = Y - 0.4 * g_gradients(problem, X, Y)[1]
        f_x, f_y = f_gradients(problem, X, Y)
        for _ in range(2):
            w = w - 0.3 * (w @ problem.A - f_y)
        X = X - 0.2 * (f_x + w @ problem.B)
        optimizer.step(*closures)
        torch.testing.assert_close(x.detach(), X)
        torch.testing.assert_close(y.detach(), Y)


def test_f2sa_equals_its_formulas():
    problem, x, z, closures = make()
    optimizer = F2SA([x], [z], lr=0.02, lower_lr=0.4, penalty=3.0, penalty_growth=0.5, lower_steps=2)
    X, Z = x.detach().clone(), z.detach().clone()
    Y = Z.clone()
    for t in range(4):
        lam = 3.0 + 0.5 * t
        for _ in range(2):
            Z = Z - 0.4 * g_gradients(problem, X, Z)[1]
            Y = Y - 0.4 / (1 + lam) * (f_gradients(problem, X, Y)[1] + lam * g_gradients(problem, X, Y)[1])
        difference = g_gradients(problem, X, Y)[0] - g_gradients(problem, X, Z)[0]
        X = X - 0.02 * (f_gradients(problem, X, Y)[0] + lam * difference)
        optimizer.step(*closures)
        torch.testing.assert_close(x.detach(), X)
        torch.testing.assert_close(z.detach(), Z)


def test_bias_of_f2sa_decreases_with_the_penalty():
    errors = []
    for penalty in (10.0, 100.0):
        problem, x, z, closures = make()
        optimizer = F2SA([x], [z], lr=0.0, lower_lr=0.5, penalty=penalty)
        for _ in range(400):
            optimizer.step(*closures)
        errors.append(torch.linalg.vector_norm(x.grad - problem.grad(x)).item())
    assert errors[1] < 0.15 * errors[0]


def test_bome_equals_its_formulas():
    problem, x, y, closures = make()
    optimizer = BOME([x], [y], lr=0.05, lower_lr=0.4, control=0.3, lower_steps=3)
    X, Y = x.detach().clone(), y.detach().clone()
    weights = []
    for _ in range(20):
        best = Y
        for _ in range(3):
            best = best - 0.4 * g_gradients(problem, X, best)[1]
        q = torch.cat(g_gradients(problem, X, Y), 1)
        q[:, : problem.d_x] -= g_gradients(problem, X, best)[0]
        f = torch.cat(f_gradients(problem, X, Y), 1)
        weights.append(max(0.0, 0.3 - ((f * q).sum() / q.square().sum()).item()))
        step_x, step_y = (f + weights[-1] * q).split([problem.d_x, problem.d_y], 1)
        X, Y = X - 0.05 * step_x, Y - 0.4 * step_y
        optimizer.step(*closures)
        torch.testing.assert_close(x.detach(), X)
        torch.testing.assert_close(y.detach(), Y)
    assert len(set(weights)) > 3


@pytest.mark.parametrize(
    ("kind", "options", "steps", "share"),
    [
        (AmIGO, {"lr": 0.1, "lower_lr": 0.5}, 100, 0.1),
        (F2SA, {"lr": 0.05, "lower_lr": 0.5, "penalty": 20.0, "lower_steps": 5}, 300, 0.1),
        (BOME, {"lr": 0.05, "lower_lr": 0.05, "control": 0.9, "lower_steps": 20}, 1500, 0.4),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_baselines_reduce_the_gradient_of_the_value_function(kind, options, steps, share):
    problem, x, y, closures = make(mu=0.3)
    optimizer = kind([x], [y], **options)
    start = torch.linalg.vector_norm(problem.grad(x))
    for _ in range(steps):
        optimizer.step(*closures)
    assert torch.linalg.vector_norm(problem.grad(x)) < share * start


def test_first_order_methods_use_no_second_derivatives():
    for kind in (F2SA, BOME):
        _, x, y, closures = make(noise=0.1, sigma2=0.1)
        optimizer = kind([x], [y])
        with count_calls() as calls:
            optimizer.step(*closures)
        assert calls.gradients > 2
        assert calls.hessian_products == calls.mixed_products == 0


def spread(kind, fresh, **options):
    """Return the standard deviation of the hypergradient estimate if the sample of g changes g_x only."""
    generator, noise, found = torch.Generator().manual_seed(0), torch.zeros(1), []
    x, y = torch.nn.Parameter(torch.ones(1)), torch.nn.Parameter(torch.zeros(1))
    optimizer = kind([x], [y], lr=0.0, lower_lr=0.1, **options)

    def inner():
        if fresh:
            noise.normal_(generator=generator)
        return ((y - x).square() / 2 + noise * x).sum()

    for _ in range(50):
        noise.normal_(generator=generator)
        optimizer.step(lambda: (y - 2).square().sum() / 2, inner)
        found.append(x.grad.clone())
    return torch.stack(found[20:]).std().item()


@pytest.mark.parametrize(("kind", "options"), [(F2SA, {"penalty": 100.0}), (BOME, {"control": 2.0})])
def test_one_batch_per_step_cancels_noise_that_fresh_batches_add(kind, options):
    assert spread(kind, True, **options) > 5 * spread(kind, False, **options) + 0.1


def test_invalid_options():
    _, x, y, _ = make()
    for kind, text in ((F2SA, "does not use an inverse"), (AmIGO, "does not use an inverse")):
        optimizer = kind([x], [y])
        with pytest.raises(TypeError, match=rf"{kind.__name__} {text}\. Leave it out"):
            optimizer.inverse = Exact()
    with pytest.raises(ValueError, match=r"penalty=0 is invalid: it must be a number > 0\. Try 10\.0"):
        F2SA([x], [y], penalty=0)
    with pytest.raises(ValueError, match=r"control=-1\.0 is invalid: it must be a finite number >= 0"):
        BOME([x], [y], control=-1.0)
    with pytest.raises(ValueError, match=r"system_steps=0 is invalid: it must be a whole number >= 1"):
        AmIGO([x], [y], system_steps=0)
    with pytest.raises(ValueError, match=r"system_lr=0\.0 is invalid: it must be a number > 0"):
        AmIGO([x], [y], system_lr=0.0)
