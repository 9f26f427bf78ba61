"""SCMA: equations, a test problem with known constants, blocks, and errors."""

import io

import pytest
import torch
from torch import nn

import semaopt
from semaopt.problems import QuadraticComposition


def run(problem, optimizer, x, steps):
    inner = problem.inner(x)
    for _ in range(steps):
        optimizer.step(inner, problem.outer)


def test_steps_equal_the_equations():
    """Each step calls inner twice: the first call updates z, the second gives the Jacobian."""
    problem, twin = QuadraticComposition(), QuadraticComposition()
    x = problem.start()
    X, z, v = x.detach().clone(), None, None
    optimizer = semaopt.SCMA([x], lr=0.1, beta=0.7, inner_beta=0.6, scaling="shb", bias_correction=False)
    inner = problem.inner(x)
    for _ in range(4):
        samples = [(twin.A + 0.3 * twin._randn(twin.m, twin.d), twin.b + 0.3 * twin._randn(twin.m)) for _ in range(2)]
        g = samples[0][0] @ X + samples[0][1]
        z = g if z is None else 0.6 * z + 0.4 * g
        gradient = samples[1][0].T @ (z - twin.c)
        v = gradient if v is None else 0.7 * v + 0.3 * gradient
        X = X - 0.1 * v
        loss = optimizer.step(inner, problem.outer)
        torch.testing.assert_close(x.detach(), X)
        torch.testing.assert_close(x.grad, gradient)
        torch.testing.assert_close(optimizer.z, z)
        torch.testing.assert_close(loss, twin.outer(z))


def test_scgd_is_a_special_case():
    """SCGD uses one sample for z and the Jacobian, no average and no scaling (Wang, Fang, Liu, Algorithm 1)."""
    problem, twin = QuadraticComposition(), QuadraticComposition()
    x = problem.start()
    X, z = x.detach().clone(), None
    optimizer = semaopt.SCMA([x], lr=0.1, beta=0.0, inner_beta=0.6, scaling="shb", fresh=False)
    inner = problem.inner(x)
    for _ in range(4):
        A, b = twin.A + 0.3 * twin._randn(twin.m, twin.d), twin.b + 0.3 * twin._randn(twin.m)
        g = A @ X + b
        z = g if z is None else 0.6 * z + 0.4 * g
        X = X - 0.1 * A.T @ (z - twin.c)
        optimizer.step(inner, problem.outer)
        torch.testing.assert_close(x.detach(), X)


@pytest.mark.parametrize("scaling", list(semaopt.scalings.BY_NAME))
def test_step_is_asa_on_the_estimate(scaling):
    problem = QuadraticComposition()
    x = problem.start()
    twin = nn.Parameter(x.detach().clone())
    options = {"lr": 0.05, "beta": 0.8, "scaling": scaling, "weight_decay": 0.1, "bias_correction": True}
    optimizer, asa = semaopt.SCMA([x], **options), semaopt.ASA([twin], **options)
    inner = problem.inner(x)
    for _ in range(5):
        optimizer.step(inner, problem.outer)
        twin.grad = x.grad.clone()
        asa.step()
        assert torch.equal(x, twin)


def test_scma_finds_the_minimizer_where_the_biased_gradient_does_not():
    problem = QuadraticComposition(noise=0.5)
    right, wrong = problem.minimizer(), problem.naive_minimizer()
    assert torch.linalg.vector_norm(right - wrong) > 0.5
    ends = {}
    for inner_beta in (0.99, 0.0):
        bed = QuadraticComposition(noise=0.5)
        x = bed.start()
        optimizer = semaopt.SCMA([x], lr=0.05, beta=0.9, inner_beta=inner_beta, scaling="shb", fresh=False)
        run(bed, optimizer, x, 800)
        iterates = semaopt.Iterates(optimizer, keep=("average",))
        run(bed, optimizer, x, 1200)
        ends[inner_beta] = iterates.average()[0]
    gap = torch.linalg.vector_norm(right - wrong)
    assert torch.linalg.vector_norm(ends[0.99] - right) < 0.25 * gap
    assert torch.linalg.vector_norm(ends[0.0] - wrong) < 0.25 * gap, "SGD on f(g(x; xi)), the known wrong answer"


def test_tracking_error_matches_the_lemma():
    """lem:sema_mengdi for z at a fixed x: the variance approaches gamma/(2 - gamma) sigma^2."""
    problem = QuadraticComposition(noise=0.4)
    x = problem.start()
    gamma, inner, total = 0.1, problem.inner(x), 0.0
    optimizer = semaopt.SCMA([x], lr=0.0, inner_beta=1 - gamma)
    truth = problem.A @ x.detach() + problem.b
    sigma2 = problem.m * 0.4**2 * (1 + x.detach().square().sum().item())
    for t in range(1500):
        optimizer.step(inner, problem.outer)
        if t >= 100:
            total += (optimizer.z - truth).square().sum().item() / 1400
    assert total == pytest.approx(gamma / (2 - gamma) * sigma2, rel=0.15)


def blocks_problem():
    """Return the mean over i of (E[a_i x + noise])^4, with one row per inner map."""
    a = torch.linspace(0.5, 1.5, 6, dtype=torch.float64)
    x = nn.Parameter(torch.tensor(1.0, dtype=torch.float64))
    generator = torch.Generator().manual_seed(0)

    def inner(index):
        noise = torch.randn(len(index), 1, generator=generator, dtype=torch.float64)
        return (a[index] * x)[:, None] + 0.1 * noise

    return a, x, inner


def test_each_block_has_its_own_average():
    _, x, inner = blocks_problem()
    optimizer = semaopt.SCMA([x], lr=0.01, beta=0.0, inner_beta=0.75, scaling="shb", blocks=6, fresh=False)
    seen, z = {}, {}
    for index in ([0, 2], [2, 5], [0], [], [2, 1]):
        rows = []

        def sample(index=index, rows=rows):
            rows.append(inner(index))
            return rows[-1]

        optimizer.step(sample, lambda u: u.pow(4).sum() / max(1, len(u)), index=index)
        for i, g in zip(index, rows[0].detach(), strict=True):
            z[i] = 0.75 * z[i] + 0.25 * g if i in z else g
            seen[i] = seen.get(i, 0) + 1
        for i, value in z.items():
            torch.testing.assert_close(optimizer.z[i], value)
    assert optimizer.z.shape == (6, 1)
    assert optimizer.algorithm_state["z_seen"].tolist() == [1.0, 1.0, 1.0, 0.0, 0.0, 1.0]
    before = optimizer.state_dict()
    buffer = io.BytesIO()
    torch.save(before, buffer)
    buffer.seek(0)
    second = semaopt.SCMA([nn.Parameter(x.detach().clone())], blocks=6)
    second.load_state_dict(torch.load(buffer, weights_only=True))
    assert torch.equal(second.z, optimizer.z)
    assert second.param_groups[0]["fresh"] is False


def test_blocks_reach_the_optimum_of_the_coupled_sum():
    _, x, inner = blocks_problem()
    generator = torch.Generator().manual_seed(1)
    optimizer = semaopt.SCMA([x], lr=0.02, beta=0.9, inner_beta=0.9, scaling="shb", blocks=6)
    for _ in range(600):
        index = torch.randperm(6, generator=generator)[:2]
        optimizer.step(lambda index=index: inner(index), lambda u: u.square().mean() + (u - 1).square().mean(), index)
    a = torch.linspace(0.5, 1.5, 6, dtype=torch.float64)
    optimum = a.sum() / (2 * a.square().sum())  # of sum (a x)^2 + (a x - 1)^2
    assert x.item() == pytest.approx(optimum.item(), abs=0.03)


def test_f_may_depend_on_x_directly():
    x = nn.Parameter(torch.tensor([2.0]))
    optimizer = semaopt.SCMA([x], lr=0.1, beta=0.0, inner_beta=0.0, scaling="shb")
    optimizer.step(lambda: 3 * x, lambda z: (z + 5 * x).sum())
    assert x.grad.item() == pytest.approx(8.0)


def test_schedule_sets_both_gammas():
    x = nn.Parameter(torch.tensor([1.0]))
    optimizer = semaopt.SCMA([x], lr=0.0, beta=0.5, inner_beta=0.6)
    schedule = semaopt.schedules.Stagewise(optimizer, every=1, factor=0.25)
    optimizer.step(lambda: x * 1, lambda z: z.sum())
    schedule.step()
    optimizer.step(lambda: x * 11, lambda z: z.sum())
    assert optimizer.z.item() == pytest.approx(1 + 0.4 * 0.25 * 10)


def test_groups_share_z():
    a, b = nn.Parameter(torch.tensor([1.0])), nn.Parameter(torch.tensor([2.0]))
    optimizer = semaopt.SCMA([{"params": [a], "lr": 0.5}, {"params": [b], "lr": 0.0}], beta=0.0, scaling="shb")
    optimizer.step(lambda: a * b, lambda z: z.sum())
    assert (a.item(), b.item()) == (0.0, 2.0)
    with pytest.raises(
        ValueError, match=r"inner_beta=0\.5 is invalid: all groups share one z\. Pass inner_beta to the optimizer"
    ):
        optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))], "inner_beta": 0.5})


@pytest.mark.parametrize(
    ("options", "call", "kind", "text"),
    [
        (
            {},
            {"index": [0]},
            ValueError,
            r"index=\[0\] is invalid: this optimizer has one z\. Construct it with blocks=n",
        ),
        (
            {"blocks": 3},
            {},
            ValueError,
            r"index=None is invalid: this optimizer has 3 blocks\. Pass the blocks of the rows",
        ),
        ({"blocks": 3}, {"index": [0, 3]}, ValueError, r"index=\[0, 3\] is invalid: it must lie in 0\.\.2"),
        (
            {"blocks": 3},
            {"index": [1, 1]},
            ValueError,
            r"index=\[1, 1\] is invalid: it must hold each block at most once",
        ),
        (
            {"blocks": 3},
            {"index": [0.5]},
            ValueError,
            r"index=\[0\.5\] is invalid: it must be a vector of whole numbers",
        ),
        (
            {"blocks": 3},
            {"index": [0]},
            ValueError,
            r"inner\(\)=\(2,\) is invalid: it must have 1 rows\. Return one row per block",
        ),
        ({}, {"inner": lambda x: 1.0}, TypeError, r"inner\(\) returned float; return the tensor g\(x\)"),
        ({}, {"inner": lambda x: x.detach()}, RuntimeError, r"inner\(\) returned a tensor without a graph"),
        ({}, {"outer": lambda z: z}, ValueError, r"outer\(\) returned shape \(2,\): it must return one number"),
        (
            {},
            {"inner": lambda x: x[:1] * 2},
            ValueError,
            r"inner\(\)=\(1,\) is invalid: it had shape \(2,\) before\. Keep its shape",
        ),
    ],
)
def test_errors_change_nothing(options, call, kind, text):
    x = nn.Parameter(torch.tensor([1.0, 2.0]))
    optimizer = semaopt.SCMA([x], lr=0.1, **options)
    index = {"index": [0, 1]} if "blocks" in options else {}
    optimizer.step(lambda: x * 2, lambda z: z.square().sum(), **index)
    before, state = x.detach().clone(), str(optimizer.state_dict())
    inner, outer = call.pop("inner", lambda x: x * 2), call.pop("outer", lambda z: z.square().sum())
    with pytest.raises(kind, match=text):
        optimizer.step(lambda: inner(x), outer, **call)
    assert torch.equal(x, before)
    assert str(optimizer.state_dict()) == state


def test_invalid_options():
    x = nn.Parameter(torch.ones(1))
    with pytest.raises(ValueError, match=r"inner_beta=1\.0 is invalid: it must lie in \[0, 1\)"):
        semaopt.SCMA([x], inner_beta=1.0)
    with pytest.raises(ValueError, match=r"blocks=0 is invalid: it must be a whole number >= 1"):
        semaopt.SCMA([x], blocks=0)
    with pytest.raises(ValueError, match=r"fresh=1 is invalid: it must be True or False"):
        semaopt.SCMA([x], fresh=1)
    optimizer = semaopt.SCMA([x])
    with pytest.raises(RuntimeError, match=r"outer\(z\) does not depend on z"):
        optimizer.step(lambda: x * 1, lambda z: x.sum())
    assert optimizer.z is None


def test_schedule_limits_gamma_to_one():
    x = nn.Parameter(torch.ones(1))
    optimizer = semaopt.SCMA([x], lr=1e-9, beta=0.99, inner_beta=0.5, scaling="shb")
    warming_up = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: 10.0)
    schedule = semaopt.schedules.Follow(warming_up, reference_lr=1e-9)
    assert schedule.get_last_gamma() == [pytest.approx(0.1)]  # ten times the initial value, so gamma_g would be 5
    for value in (1.0, 2.0, 1.0):
        optimizer.step(lambda value=value: value * x, torch.Tensor.sum)
        assert optimizer.z.item() == pytest.approx(value)  # gamma_g is 1, so z is the newest value


def test_sparse_gradient_is_refused_before_z_changes():
    table = nn.Embedding(3, 2, sparse=True)
    optimizer = semaopt.SCMA(table.parameters())
    with pytest.raises(RuntimeError, match="does not support sparse gradients"):
        optimizer.step(lambda: table(torch.tensor([1])).sum().reshape(1), torch.Tensor.sum)
    assert optimizer.z is None


@pytest.mark.parametrize("inner_beta", [0.9, torch.tensor([0.9], dtype=torch.float64)], ids=["float", "tensor"])
def test_all_blocks_together_equal_a_single_z_exactly(inner_beta):
    generator = torch.Generator().manual_seed(0)
    A = torch.randn(4, 3, dtype=torch.float64, generator=generator)
    results = []
    for blocks, given in ((None, {}), (4, {"index": [0, 1, 2, 3]})):
        x = nn.Parameter(torch.ones(3, dtype=torch.float64))
        optimizer = semaopt.SCMA([x], lr=0.1, inner_beta=inner_beta, scaling="shb", blocks=blocks, fresh=False)
        for _ in range(5):
            optimizer.step(lambda x=x: A @ x, lambda z: z.square().sum() / 2, **given)
        results.append(x.detach())
    torch.testing.assert_close(*results, rtol=1e-15, atol=1e-15)
