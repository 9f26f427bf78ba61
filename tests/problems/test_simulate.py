"""Compare the simulator, which runs many rows at once, with the optimizers and with steps by hand."""

import math

import pytest
import torch

import semaopt
from semaopt import scalings
from semaopt.problems import (
    Additive,
    Bounded,
    DualPL,
    Noiseless,
    QuadraticBilevel,
    QuadraticComposition,
    StronglyConcave,
    Wavy,
    simulate,
)
from semaopt.problems.oracles import blocks

ROWS = [
    scalings.SHB(),
    scalings.Adam(g0=0.1),
    scalings.AMSGrad(g0=0.1),
    scalings.AdaFom(g0=0.1),
    scalings.AdamPlus(g0=0.1),
    scalings.AdaBound(0.5, 2.0),
]


@pytest.mark.parametrize("clip", [None, (0.7, 1.5)])
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_each_row_is_a_run_of_asa(row, clip):
    problem, oracle, T, seeds = Bounded(d=3), Additive(0.5), 40, 3
    run = simulate.minimize(problem, oracle, row, lambda t: (0.05 / (t + 1), 1 - 0.7), T, seeds=seeds, clip=clip)
    noises = [n[0] for n in blocks(oracle, T + 1, problem.start(seeds), torch.Generator().manual_seed(0))]
    for k in range(seeds):
        x = torch.nn.Parameter(problem.start()[0].clone())
        optimizer = semaopt.ASA([x], beta=0.7, scaling=row, clip_scaling=clip, bias_correction=False)
        gradient, tracking = 0.0, 0.0
        for t in range(T + 1):
            optimizer.param_groups[0]["lr"] = 0.05 / (t + 1)
            exact = problem.grad(x.detach().unsqueeze(0))[0]
            x.grad = exact + noises[t][k]
            optimizer.step()
            gradient += float(exact.square().sum())
            tracking += float((optimizer.state[x]["v"] - exact).square().sum())
        # Not to the bit: the compiled step fuses a product and a sum, which torch rounds separately.
        assert float(problem.F(x.detach().unsqueeze(0))) == pytest.approx(float(run.gap[k]), rel=1e-13)
        assert float(run.gradient[k]) == pytest.approx(gradient / (T + 1), rel=1e-12)
        assert float(run.tracking[k]) == pytest.approx(tracking / (T + 1), rel=1e-12)


def test_the_bounds_of_s():
    problem = Bounded(d=1)
    run = simulate.minimize(problem, Noiseless(), scalings.Adam(beta2=0.0, g0=1.0), (0.1, 1.0), 5, seeds=1)
    x, slopes = 1.0, []
    for _ in range(6):
        slopes.append(2 * x / (1 + x**2) ** 2)
        x -= 0.1 * slopes[-1] / (slopes[-1] + 1)
    assert run.scaling_bounds == pytest.approx((1 / (1 + max(slopes)), 1 / (1 + min(slopes))))
    assert float(run.gradient) == pytest.approx(sum(slope**2 for slope in slopes) / 6)
    run = simulate.minimize(problem, Noiseless(), scalings.SHB(), (0.1, 1.0), 5, seeds=1, clip=(0.2, 0.5))
    assert run.scaling_bounds == (1.0, 0.5)


def test_seeds_are_reproducible_and_differ():
    first, again = (
        simulate.minimize(Bounded(d=2), Additive(1.0), "adam", (0.01, 0.1), 20, seeds=4, seed=3) for _ in range(2)
    )
    assert torch.equal(first.gradient, again.gradient)
    assert len(set(first.gap.tolist())) == 4


def test_each_stage_starts_at_x_tau_and_its_estimate():
    problem = Wavy(d=2)
    stages = [semaopt.Stage(0.05, 0.5, 0), semaopt.Stage(0.05, 0.5, 30)]
    first, second = simulate.minimize_in_stages(problem, Noiseless(), "shb", stages, seeds=64)
    assert torch.equal(first.gap, problem.F(problem.start(64)))  # tau = 0 is the only choice in a stage of one step
    path, x, v = [], problem.start(), problem.grad(problem.start())
    for _ in range(31):
        v = 0.5 * v + 0.5 * problem.grad(x)
        path.append(float(problem.F(x)))
        x = x - 0.05 * v
    taus = [min(range(31), key=lambda t: abs(path[t] - gap)) for gap in second.gap.tolist()]
    for tau, gap in zip(taus, second.gap.tolist(), strict=True):
        assert gap == pytest.approx(path[tau], rel=1e-9)
    assert abs(sum(taus) / 64 - 15) < 4 * math.sqrt(31**2 / 12 / 64)


@pytest.mark.parametrize("problem", [StronglyConcave(d=2), DualPL(d=2)], ids=lambda b: type(b).__name__)
def test_min_max_by_hand(problem):
    rates = {"eta_x": 0.05, "eta_y": 0.2, "gamma": 0.3}
    run = simulate.minmax(problem, Noiseless(), scalings.Adam(g0=1.0, beta2=0.5), rates, 10, seeds=1)
    x, y = problem.start()
    v = u = None
    sums = [0.0, 0.0, 0.0]
    for _ in range(11):
        gx, gy = problem.grads(x, y)
        v = gx if v is None else 0.7 * v + 0.3 * gx
        u = gx**2 if u is None else 0.5 * u + 0.5 * gx**2
        for k, e in enumerate((problem.grad(x), v - problem.grad(x), y - problem.y_star(x, y))):
            sums[k] += float(e.square().sum()) / 11
        x, y = x - 0.05 * v / (u.sqrt() + 1.0), problem.project_(y + 0.2 * gy)
    assert [float(run.gradient), float(run.tracking), float(run.follower)] == pytest.approx(sums, rel=1e-9)
    assert float(run.gap) == pytest.approx(float(problem.F(x)), rel=1e-9)


PROBLEM = QuadraticBilevel(d_x=2, d_y=3, lam=1.0, C_gyy=2.0, C_gxy=0.5, rho=0.5, noise=0.2, sigma2=2.0)
RATES, TERMS, STEPS = {"eta_x": 0.1, "eta_y": 0.2, "gamma": 0.4}, 3, 12


def derivatives(x, y):
    """Return f_x, f_y, -B and g_y at (x, y), by autograd."""
    x, y = x.clone().requires_grad_(), y.clone().requires_grad_()
    fx, fy = torch.autograd.grad(PROBLEM.f(x, y).sum(), (x, y))
    gy = y.detach() @ PROBLEM.A - x.detach() @ PROBLEM.B.T - PROBLEM.b
    return fx, fy, -PROBLEM.B.T, gy


def matrices(h):
    """Return the matrix with the eigenvalues h and the eigenvectors of A."""
    _, basis = torch.linalg.eigh(PROBLEM.A)
    return basis @ torch.diag(h) @ basis.T


def test_smb_by_hand():
    run = simulate.smb(PROBLEM, "shb", RATES, TERMS, STEPS, seeds=2, seed=5)
    x = PROBLEM.start(2)[0].detach()
    y, z, gradient = PROBLEM.y_star(x), None, 0.0
    noises = PROBLEM.draw(STEPS + 1, 2, TERMS, torch.Generator().manual_seed(5))
    for e_fx, e_fy, e_gxy, e_gy, h in zip(*noises, strict=True):
        fx, fy, gxy, gy = derivatives(x, y)
        rows = [fx[i] + e_fx[i] - (gxy + e_gxy[i]) @ matrices(h[i]) @ (fy[i] + e_fy[i]) for i in range(2)]
        sample = torch.stack(rows)
        z = sample if z is None else 0.6 * z + 0.4 * sample
        gradient = gradient + PROBLEM.grad(x).square().sum(1) / (STEPS + 1)
        x, y = x - 0.1 * z, y - 0.2 * (gy + e_gy)
    torch.testing.assert_close(run.gap, PROBLEM.F(x))
    torch.testing.assert_close(run.gradient, gradient)


def test_sbma_by_hand():
    run = simulate.sbma(PROBLEM, RATES, TERMS, STEPS, seeds=1, seed=5)
    x = PROBLEM.start(1)[0].detach()
    y = PROBLEM.y_star(x)
    C_fy = PROBLEM.constants().C_fy
    tracked, clipped = {}, 0

    def average(key, sample):
        tracked[key] = sample if key not in tracked else 0.6 * tracked[key] + 0.4 * sample
        return tracked[key]

    def clip(matrix, radius):
        u, s, vh = torch.linalg.svd(matrix, full_matrices=False)
        nonlocal clipped
        clipped += int(float(s.max()) > radius)
        return u @ torch.diag(s.clamp_max(radius)) @ vh

    for e_fx, e_fy, e_gxy, e_gy, h in zip(
        *PROBLEM.draw(STEPS + 1, 1, TERMS, torch.Generator().manual_seed(5)), strict=True
    ):
        fx, fy, gxy, gy = derivatives(x, y)
        u = average("u", (fx + e_fx)[0])
        v = average("v", (fy + e_fy)[0])
        tracked["v"] = v = v * min(1.0, C_fy / float(v.norm()))
        tracked["V"] = V = clip(average("V", gxy + e_gxy[0]), PROBLEM.C_gxy)
        tracked["H"] = H = clip(average("H", matrices(h[0])), 1 / PROBLEM.lam)
        x, y = x - 0.1 * (u - V @ H @ v), y - 0.2 * (gy + e_gy)
    assert clipped > 3
    torch.testing.assert_close(run.gap, PROBLEM.F(x))


def test_averaging_the_inner_value_removes_the_bias():
    """Compare SCMA with the biased gradient at one sample of g."""
    problem = QuadraticComposition(noise=0.5)
    rates = {"eta": 0.02, "gamma": 0.05}
    with_one, averaged = (
        float(simulate.compositional(problem, "shb", {**rates, "inner_gamma": gamma}, 2000, seeds=16).follower.mean())
        for gamma in (1.0, 0.05)
    )
    assert averaged < with_one / 5


def test_scma_by_hand():
    problem = QuadraticComposition()
    rates = {"eta": 0.1, "gamma": 0.3, "inner_gamma": 0.4}
    run = simulate.compositional(problem, "shb", rates, 5, seeds=1, seed=7)
    twin, x = QuadraticComposition(), problem.start()
    twin.generator = torch.Generator().manual_seed(7)
    optimizer = semaopt.SCMA([x], lr=0.1, beta=0.7, inner_beta=0.6, scaling="shb", bias_correction=False)
    for _ in range(6):
        optimizer.step(twin.inner(x), twin.outer)
    torch.testing.assert_close(run.gap[0], problem.F(x) - problem.smallest)
