"""SMB: algorithm box, degenerate cases, convergence, errors and memory."""

import copy
import io
import math
from pathlib import Path

import pytest
import torch
from torch import nn

import semaopt
from semaopt.hypergradient import CG, Exact, Neumann, NeumannSeries, TrackedSystem
from semaopt.hypergradient.inverses import uniform
from semaopt.problems import QuadraticBilevel


def bed(copies=1, **options):
    problem = QuadraticBilevel(**options)
    x, y = problem.start(copies)
    return problem, x, y, (problem.outer(x, y), problem.inner(x, y))


def test_three_steps_equal_the_algorithm_box():
    """Compare with alg:smb written out with matrices, on a deterministic problem."""
    problem, x, y, closures = bed()
    k, C, beta, eta_x, eta_y = 5, 2.5, 0.7, 0.05, 0.3
    inverse = Neumann(k, bound=C, seed=3)
    optimizer = semaopt.SMB([x], [y], lr=eta_x, lower_lr=eta_y, beta=beta, inverse=inverse, bias_correction=False)
    A, B, b, c = problem.A, problem.B, problem.b, problem.c
    X, Y, z = x.detach()[0].clone(), y.detach()[0].clone(), None
    eye = torch.eye(len(A), dtype=A.dtype)
    for t in range(3):
        p = uniform(k, 3, t)
        h = k / C * torch.linalg.matrix_power(eye - A / C, p)
        estimate = problem.mu * X - (-B.T) @ h @ (Y - c)
        z = estimate if z is None else beta * z + (1 - beta) * estimate
        X, Y = X - eta_x * z, Y - eta_y * (A @ Y - B @ X - b)
        loss = optimizer.step(*closures)
        torch.testing.assert_close(x.detach()[0], X)
        torch.testing.assert_close(x.grad[0], estimate)
        assert loss.shape == ()
        assert not loss.requires_grad
        Y = y.detach()[0].clone()  # the next test covers the step on y


def test_y_descends_at_the_old_x_and_is_projected():
    problem, x, y, closures = bed()
    box = semaopt.projections.Box(-0.2, 0.2)
    optimizer = semaopt.SMB([x], [y], lr=0.5, lower_lr=0.3, project=box)
    for _ in range(3):
        before = y.detach().clone()
        g_y = before @ problem.A - x.detach() @ problem.B.T - problem.b
        value = problem.inner(x.detach().clone(), before)().item()
        optimizer.step(*closures)
        torch.testing.assert_close(y.detach(), (before - 0.3 * g_y).clamp(-0.2, 0.2))
    assert y.abs().max().item() == pytest.approx(0.2)
    free = semaopt.SMB([x], [y], lr=0.0, lower_lr=0.3)
    value = problem.inner(x, y)().item()
    free.step(*closures)
    assert problem.inner(x, y)().item() < value


@pytest.mark.parametrize("scaling", list(semaopt.scalings.BY_NAME))
def test_upper_step_is_asa_on_the_hypergradient(scaling):
    _, x, y, closures = bed(noise=0.2, sigma2=0.2)
    twin = nn.Parameter(x.detach().clone())
    options = {"lr": 0.05, "beta": 0.8, "scaling": scaling, "weight_decay": 0.1, "decoupled_weight_decay": True}
    optimizer = semaopt.SMB([x], [y], lower_lr=0.3, inverse=CG(3), bias_correction=True, **options)
    asa = semaopt.ASA([twin], bias_correction=True, **options)
    for _ in range(5):
        optimizer.step(*closures)
        twin.grad = x.grad.clone()
        asa.step()
        assert torch.equal(x, twin)


@pytest.mark.parametrize(
    ("inverse", "lr", "tolerance"),
    [
        (TrackedSystem(), 0.1, 0.03),
        (NeumannSeries(12), 0.1, 0.05),
        (CG(5), 0.1, 1e-4),
        (Exact(), 0.1, 1e-4),
        (Neumann(12), 0.02, 0.2),
    ],
    ids=lambda i: type(i).__name__,
)
def test_smb_finds_the_minimizer_of_the_upper_problem(inverse, lr, tolerance):
    problem, x, y, closures = bed(mu=0.3)
    optimizer = semaopt.SMB([x], [y], lr=lr, lower_lr=0.5, beta=0.9, inverse=inverse)
    start = torch.linalg.vector_norm(problem.grad(x))
    for _ in range(400):
        optimizer.step(*closures)
    assert torch.linalg.vector_norm(problem.grad(x)) < tolerance * start
    torch.testing.assert_close(y.detach(), problem.y_star(x), rtol=0.1, atol=0.1)


def test_beta_zero_uses_only_the_newest_estimate():
    _, x, y, closures = bed(noise=0.3, sigma2=0.45)
    optimizer = semaopt.SMB([x], [y], lr=0.1, lower_lr=0.3, beta=0.0)
    for _ in range(3):
        before = x.detach().clone()
        optimizer.step(*closures)
        torch.testing.assert_close(x.detach(), before - 0.1 * x.grad)


def test_lower_weight_decay_equals_the_penalty_in_inner():
    results = []
    for closed in (True, False):
        _, x, y, (outer, inner) = bed(noise=0.1, sigma2=0.05)

        def penalized(inner=inner, y=y):
            return inner() + 0.4 / 2 * y.square().sum()

        lam = 0.4 if closed else 0.0
        optimizer = semaopt.SMB([x], [y], lr=0.05, lower_lr=0.2, lower_weight_decay=lam, inverse=Neumann(5))
        for _ in range(6):
            optimizer.step(outer, inner if closed else penalized)
        results.append((x.detach(), y.detach()))
    torch.testing.assert_close(results[0], results[1])


def test_tensor_rates_of_both_levels():
    ends = []
    for make in (float, torch.tensor, lambda rate: torch.tensor([rate])):
        _, x, y, closures = bed()
        z = nn.Parameter(torch.zeros((), dtype=torch.float64))
        optimizer = semaopt.SMB([x], [y, z], lr=make(0.1), lower_lr=make(0.25), inverse=CG(3))
        for _ in range(3):
            optimizer.step(closures[0], lambda closures=closures, x=x, z=z: closures[1]() + (z - x.sum()).square())
        ends.append(torch.cat([x.detach().flatten(), y.detach().flatten(), z.detach().view(1)]))
    torch.testing.assert_close(ends[0], ends[1])
    torch.testing.assert_close(ends[0], ends[2])


def test_schedules_set_both_levels_and_gamma():
    _, x, y, closures = bed()
    optimizer = semaopt.SMB([x], [y], lr=0.1, lower_lr=0.4, beta=0.5)
    schedule = semaopt.schedules.Stagewise(optimizer, every=1, factor=0.5)
    optimizer.step(*closures)
    schedule.step()
    upper, lower = optimizer.param_groups
    assert (upper["lr"], upper["beta"], lower["lr"], lower["beta"]) == (0.05, 0.75, 0.2, None)


@pytest.mark.parametrize(
    "inverse", [TrackedSystem(), Neumann(5), NeumannSeries(3), CG(2)], ids=lambda i: type(i).__name__
)
def test_resume_from_a_file_is_bit_exact(inverse):
    """Both continuations use the same samples, drawn from a generator of the test."""
    problem, x, y, closures = bed(noise=0.2, sigma2=0.2)
    optimizer = semaopt.SMB([x], [y], lr=0.05, lower_lr=0.3, scaling="adam", inverse=inverse)
    for _ in range(4):
        optimizer.step(*closures)
    buffer = io.BytesIO()
    torch.save({"optimizer": optimizer.state_dict(), "x": x, "y": y, "rng": problem.generator.get_state()}, buffer)
    for _ in range(4):
        optimizer.step(*closures)
    buffer.seek(0)
    saved = torch.load(buffer, weights_only=True)
    problem.generator.set_state(saved["rng"])
    x2, y2 = saved["x"], saved["y"]
    second = semaopt.SMB([x2], [y2], lr=1.0, lower_lr=1.0)  # the hyper-parameters of the checkpoint take precedence
    second.load_state_dict(saved["optimizer"])
    assert second.inverse == inverse
    for _ in range(4):
        second.step(problem.outer(x2, y2), problem.inner(x2, y2))
    assert torch.equal(x, x2)
    assert torch.equal(y, y2)


def test_custom_inverse():
    problem, x, y, closures = bed()

    class Diagonal:
        """Divide by an estimate of the curvature."""

        def __call__(self, oracles, f_y, memory):
            last = oracles.draw(mixed=True)
            return last.g_y, last.mixed([part / 2 for part in f_y])

    x_0, y_0 = x.detach().clone(), y.detach().clone()
    optimizer = semaopt.SMB([x], [y], lr=0.1, lower_lr=0.1, inverse=Diagonal())
    optimizer.step(*closures)
    expected = problem.mu * x_0 + (y_0 - problem.c) / 2 @ problem.B
    torch.testing.assert_close(x.grad, expected)
    state = optimizer.state_dict()
    assert state["param_groups"][1]["inverse"]["name"].endswith("Diagonal")
    with pytest.raises(ValueError, match=r"written with inverse=.*Diagonal.*onstruct the optimizer"):
        semaopt.SMB([x], [y]).load_state_dict(state)
    semaopt.SMB([x], [y], inverse=Diagonal()).load_state_dict(state)


def test_inverse_can_be_changed_between_steps():
    _, x, y, closures = bed()
    optimizer = semaopt.SMB([x], [{"params": [y], "lr": 0.2}], inverse=Neumann(3, 2.0))
    optimizer.step(*closures)
    optimizer.inverse = CG(4)
    optimizer.step(*closures)
    assert optimizer.inverse == CG(4)
    assert optimizer.algorithm_state["t"] == 2
    assert optimizer.algorithm_state["bound"] is None, "that of another kind says nothing"
    late = [nn.Parameter(torch.zeros(1, dtype=torch.float64)) for _ in range(3)]
    optimizer.add_param_group({"params": [late[0]], "role": "lower"})
    assert optimizer.defaults["inverse"] == optimizer.param_groups[2]["inverse"] == CG(4)
    with pytest.raises(ValueError, match=r"inverse=Neumann.*: all lower groups share one inverse"):
        optimizer.add_param_group({"params": [late[1]], "role": "lower", "inverse": Neumann(3, 2.0)})
    twin = semaopt.SMB([x], [{"params": [y]}, {"params": [late[0]]}])
    twin.load_state_dict(optimizer.state_dict())
    twin.add_param_group({"params": [late[1]], "role": "lower"})
    assert twin.param_groups[3]["inverse"] == twin.inverse == CG(4)
    optimizer.inverse = None
    assert optimizer.inverse == TrackedSystem()


def test_groups_of_each_level_have_their_own_options():
    problem, x, y, closures = bed()
    z = nn.Parameter(torch.zeros(problem.d_y, dtype=torch.float64))
    w = nn.Parameter(torch.ones((), dtype=torch.float64))

    def outer():
        return closures[0]() + (z * w).sum()

    def inner():
        return closures[1]() + (z - w).square().sum()

    optimizer = semaopt.SMB(
        upper=[{"params": [x]}, {"params": [w], "lr": 0.3, "scaling": "adam"}],
        lower=[
            {"params": [y], "weight_decay": 0.1},
            {"params": [z], "lr": 0.7, "project": semaopt.projections.Ball(0.5)},
        ],
        lr=0.1,
        lower_lr=0.2,
        beta=0.0,
    )
    assert [group["role"] for group in optimizer.param_groups] == ["upper", "upper", "lower", "lower"]
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.3, 0.2, 0.7]
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.0, 0.0, 0.1, 0.0]
    optimizer.step(outer, inner)
    assert w.item() == pytest.approx(1.0 - 0.3 * math.copysign(1, w.grad.item()))
    assert torch.linalg.vector_norm(z).item() == pytest.approx(0.5)
    late = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    optimizer.add_param_group({"params": [late], "role": "lower"})
    optimizer.step(outer, lambda: inner() + (late - w).square().sum())
    assert late.item() > 0


def test_errors_name_the_value_the_rule_and_the_remedy():
    x, y = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))
    with pytest.raises(
        ValueError, match=r"lower_lr=-1 is invalid: it must be a finite number >= 0\. Keep it below 2/\|g_yy\|"
    ):
        semaopt.SMB([x], [y], lower_lr=-1)
    with pytest.raises(ValueError, match=r"lower_weight_decay=-1 is invalid: it must be a finite number >= 0"):
        semaopt.SMB([x], [y], lower_weight_decay=-1)
    with pytest.raises(TypeError, match=r"upper: got one tensor; pass a list, upper=\[tensor\]"):
        semaopt.SMB(x, [y])
    with pytest.raises(ValueError, match=r"lower=\[\] is invalid: it must hold at least one parameter"):
        semaopt.SMB([x], [])
    with pytest.raises(ValueError, match=r"given twice, at group 0, position 0 and at group 1, position 0"):
        semaopt.SMB([x], [x])
    with pytest.raises(
        ValueError, match=r"beta=0\.5 is invalid: the lower variables of SMB are not averaged\. Leave beta out"
    ):
        semaopt.SMB([x], [{"params": [y], "beta": 0.5}])
    with pytest.raises(ValueError, match=r"scaling='adam': a lower group has no such option; it has .*project"):
        semaopt.SMB([x], [{"params": [y], "scaling": "adam"}])
    with pytest.raises(ValueError, match=r"project=.*: an upper group has no such option"):
        semaopt.SMB([{"params": [x], "project": None}], [y])
    with pytest.raises(ValueError, match=r"inverse=.*: all lower groups share one inverse"):
        semaopt.SMB([x], [{"params": [y], "inverse": CG(3)}])
    with pytest.raises(TypeError, match=r"inverse='cg': must be an object of semaopt\.hypergradient"):
        semaopt.SMB([x], [y], inverse="cg")
    with pytest.raises(TypeError, match=r"complex parameters are unsupported here: pass torch\.view_as_real"):
        semaopt.SMB([nn.Parameter(torch.ones(1, dtype=torch.complex64))], [y])
    optimizer = semaopt.SMB([x], [y])
    with pytest.raises(ValueError, match=r"role=None is invalid: a param group of a bilevel optimizer must have one"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]})
    with pytest.raises(TypeError, match=r"inner=tensor\(1\.\): step\(outer, inner\) takes two functions"):
        optimizer.step(lambda: y.sum(), torch.tensor(1.0))
    swapped = semaopt.SMB([y], [x]).state_dict()
    swapped["param_groups"].reverse()
    with pytest.raises(ValueError, match=r"role='lower' is invalid: group 0 of this optimizer is upper\. Construct"):
        optimizer.load_state_dict(swapped)


@pytest.mark.parametrize(
    ("outer", "inner"),
    [
        (lambda x, y: y.sum() / 0, lambda x, y: (y - x).square().sum()),
        (lambda x, y: y.sum(), lambda x, y: (y - x).square().sum() * math.nan),
        (lambda x, y: y.sum(), lambda x, y: y.square().sum()),
        (lambda x, y: y.sum(), lambda x, y: 100 * (y - x).square().sum()),
    ],
    ids=["f infinite", "g_yy nan", "no coupling", "bound too small"],
)
def test_failed_step_changes_nothing(outer, inner):
    x, y = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    inverse = NeumannSeries(4, bound=1.0)
    optimizer = semaopt.SMB([x], [y], lr=0.1, lower_lr=0.1, inverse=inverse)
    optimizer.step(lambda: y.sum(), lambda: ((y - x).square() / 4).sum())
    before = copy.deepcopy((x, y, str(optimizer.state_dict())))
    with pytest.raises(RuntimeError):
        optimizer.step(lambda: outer(x, y), lambda: inner(x, y))
    assert torch.equal(x, before[0])
    assert torch.equal(y, before[1])
    assert str(optimizer.state_dict()) == before[2]
    assert x.requires_grad


def test_failure_after_the_update_of_x_restores_nothing():
    def project(y):
        raise RuntimeError("mine")

    ends = []
    for policy in (None, "error"):
        x, y = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
        optimizer = semaopt.SMB([x], [y], lr=0.1, project=project, on_nonfinite=policy)
        with pytest.raises(RuntimeError, match="mine"):
            optimizer.step(lambda y=y: y.sum(), lambda x=x, y=y: (y - x).square().sum())
        ends.append((x.tolist(), y.tolist(), str(optimizer.state_dict())))
    assert ends[0] == ends[1]
    assert ends[0][0] != [1.0, 1.0]


def resident_bytes():
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


linux = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads the resident memory from /proc")


@linux
@pytest.mark.parametrize(
    "inverse", [TrackedSystem(), Neumann(4), NeumannSeries(4), CG(3)], ids=lambda i: type(i).__name__
)
def test_no_graph_outlives_its_step(inverse):
    """100 steps with a lower variable of 400 kB would leak 40 MB if each step kept its graph."""
    x, y = nn.Parameter(torch.ones(100_000)), nn.Parameter(torch.ones(100_000))
    optimizer = semaopt.SMB([x], [y], lr=0.01, lower_lr=0.1, inverse=inverse)

    def run(steps):
        for _ in range(steps):
            optimizer.step(lambda: y.square().mean(), lambda: ((y - x.sigmoid()).square() * (1 + y.square())).mean())

    run(30)
    before = resident_bytes()
    run(100)
    assert resident_bytes() - before < 8e6


@linux
@pytest.mark.slow
def test_memory_is_constant_over_ten_thousand_steps():
    x, y = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))

    def outer():
        return (y - torch.rand(3)).square().sum()

    def inner():
        return (y - x + 0.1 * torch.rand(3)).square().sum()

    for inverse in (TrackedSystem(), Neumann(3)):
        optimizer = semaopt.SMB([x], [y], lr=0.01, lower_lr=0.1, inverse=inverse)
        for t in range(10_000):
            if t == 1000:
                before = resident_bytes()
            optimizer.step(outer, inner)
        assert resident_bytes() - before < 2e6, "a kept graph of 1 kB a step would be 9 MB"


@pytest.mark.slow
def test_rate_is_one_over_root_t():
    """thm:5 with gamma, eta_x, eta_y ~ 1/sqrt(T) and k ~ ln T: the mean of |grad F|^2 decreases like 1/sqrt(T)."""
    means = {}
    for T in (100, 400, 1600):
        problem, x, y, closures = bed(noise=0.5, sigma2=0.75, lam=1.0, C_gyy=2.0, copies=64, d_x=3, d_y=3)
        rate, k = 2 / math.sqrt(T), math.ceil(problem.C_gyy / (2 * problem.lam) * math.log(64 * math.sqrt(T)))
        optimizer = semaopt.SMB([x], [y], lr=rate, lower_lr=rate, beta=1 - 2 * rate, inverse=Neumann(k, problem.C_gyy))
        total = 0.0
        for _ in range(T):
            total += problem.grad(x).square().sum(1).mean().item()
            optimizer.step(*closures)
        means[T] = total / T
    slope = math.log(means[1600] / means[100]) / math.log(16)
    assert -0.65 < slope < -0.4, means
    assert means[100] > means[400] > means[1600]
