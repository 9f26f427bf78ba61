import io
import math
from types import SimpleNamespace

import numpy
import pytest
import torch

import semaopt
from semaopt import Stage, Stages
from semaopt.diagnostics import Monitor

PLAN = [Stage(0.5, 0.5, T=4), Stage(0.25, 0.25, T=9), Stage(0.125, 0.125, T=0)]


def make(scaling="shb"):
    x = torch.nn.Parameter(torch.tensor([2.0, -1.0], dtype=torch.float64))
    return x, semaopt.ASA([x], scaling=scaling, bias_correction=False)


def step(x, optimizer, generator):
    x.grad = x.detach() + torch.randn(x.shape, generator=generator, dtype=x.dtype)
    optimizer.step()


def test_the_double_loop_as_the_box_writes_it():
    """Against the loop written out: each stage runs t = 0..T from (x_tau, v_{tau+1}) of the one before."""
    x, optimizer = make()
    stages = Stages(optimizer, PLAN, seed=4)
    noise, taus = torch.Generator().manual_seed(0), []
    while not stages.done:
        k = stages.k
        step(x, optimizer, noise)
        taus.append((k, stages.iterates.tau))
    assert stages.taken == 5 + 10 + 1

    noise, reservoir = torch.Generator().manual_seed(0), torch.Generator().manual_seed(4)
    y, v = torch.tensor([2.0, -1.0], dtype=torch.float64), None
    for stage in PLAN:
        following = 0
        for t in range(stage.T + 1):
            accept = t >= following
            if accept:
                following = int((t + 1) / torch.rand((), generator=reservoir, dtype=torch.float64).item())
            g = y + torch.randn(2, generator=noise, dtype=torch.float64)
            v = g if v is None else (1 - stage.gamma) * v + stage.gamma * g
            if accept:
                output = (y, v)
            y = y - stage.eta * v
        y, v = output
    torch.testing.assert_close(x.detach(), y, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(optimizer.state[x]["v"], v, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("seed", range(6))
def test_the_corrected_estimate_is_handed_on(seed):
    """The gradient is 2 everywhere: so is every corrected estimate, whatever tau is."""
    x = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
    optimizer = semaopt.ASA([x], scaling="shb", bias_correction=True)
    stages = Stages(optimizer, [Stage(0.1, 0.1, T=9), Stage(0.1, 0.05, T=3)], seed=seed)
    while not stages.done:
        x.grad = torch.full_like(x, 2.0)
        optimizer.step()
        state = optimizer.state[x]
        assert (state["v"] / state["v_weight"]).item() == pytest.approx(2.0, rel=1e-12)


def test_the_pieces_of_sbma_go_on():
    """SBMA's averages are algorithm state, not estimates that belong to x_tau."""
    kept = []
    for staged in (True, False):
        x, y = (torch.nn.Parameter(torch.ones(1)) for _ in range(2))
        inverse = semaopt.hypergradient.Neumann(terms=1, bound=1.0)
        optimizer = semaopt.SBMA(upper=[x], lower=[y], lr=0.1, lower_lr=0.5, beta=0.5, inverse=inverse)
        if staged:
            Stages(optimizer, [Stage(0.1, 0.5, T=2, dual_eta=0.5)], seed=2)
        for _ in range(3):
            optimizer.step(lambda x=x, y=y: (y - 2).square().sum() / 2, lambda x=x, y=y: (y - x).square().sum() / 2)
        kept.append(optimizer.algorithm_state["f_y"])
    assert torch.equal(*kept)


def test_rates_of_each_stage():
    x, optimizer = make()
    stages = Stages(optimizer, PLAN)
    noise, seen = torch.Generator().manual_seed(0), []
    while not stages.done:
        group = optimizer.param_groups[0]
        seen.append((group["lr"], group["beta"]))
        step(x, optimizer, noise)
    assert seen == [(0.5, 0.5)] * 5 + [(0.25, 0.75)] * 10 + [(0.125, 0.875)]


@pytest.mark.parametrize("output", ["average", "last"])
def test_other_outputs(output):
    x, optimizer = make()
    stages = Stages(optimizer, PLAN[:1], output=output)
    noise, path = torch.Generator().manual_seed(0), []
    while not stages.done:
        path.append(x.detach().clone())
        last = x.detach() - 0.0
        step(x, optimizer, noise)
    if output == "average":
        torch.testing.assert_close(x.detach(), torch.stack(path).mean(0))
    else:
        assert not torch.equal(x, last)


def test_linear_convergence_on_a_pl_function():
    """Halving eta and gamma and doubling T halves the error in each stage, as in thm:min_PL, on x^2 + 3 sin^2 x."""
    errors = []
    for stages in (1, 5):
        runs = []
        for seed in range(10):
            x = torch.nn.Parameter(torch.tensor([2.5], dtype=torch.float64))
            optimizer = semaopt.ASA([x], scaling="shb")
            plan = [Stage(0.05 / 2**k, 0.4 / 2**k, T=100 * 2**k) for k in range(stages)]
            driver, noise = Stages(optimizer, plan, seed=seed), torch.Generator().manual_seed(seed)
            while not driver.done:
                at = x.detach()
                x.grad = 2 * at + 3 * (2 * at).sin() + torch.randn(1, generator=noise, dtype=torch.float64)
                optimizer.step()
            runs.append((x**2 + 3 * x.sin() ** 2).item())
        errors.append(sum(runs) / len(runs))
    assert errors[1] < errors[0] / 8  # four halvings more, with room for noise


@pytest.mark.parametrize("cut", [3, 5, 9])
def test_resume_is_exact(cut):
    def run(saved=None, steps=16, start=0):
        x, optimizer = make("adam")
        stages = Stages(optimizer, PLAN, seed=1)
        if saved is not None:
            at, state, where = torch.load(io.BytesIO(saved), weights_only=True)
            x.data.copy_(at)
            optimizer.load_state_dict(state)
            stages.load_state_dict(where)
        for t in range(start, steps):
            step(x, optimizer, torch.Generator().manual_seed(t))
        buffer = io.BytesIO()
        torch.save((x.detach(), optimizer.state_dict(), stages.state_dict()), buffer)
        return x.detach(), stages, buffer.getvalue()

    whole, _, _ = run()
    _, _, saved = run(steps=cut)
    resumed, stages, _ = run(saved, start=cut)
    assert stages.done
    assert torch.equal(resumed, whole)


def test_a_step_too_many_is_refused_and_changes_nothing():
    x, optimizer = make()
    stages = Stages(optimizer, PLAN[:1])
    noise = torch.Generator().manual_seed(0)
    while not stages.done:
        step(x, optimizer, noise)
    at = x.detach().clone()
    with pytest.raises(RuntimeError, match=r"All 1 stages have ended after 5 steps.*Stop when \.done is True"):
        step(x, optimizer, noise)
    assert torch.equal(x, at)
    stages.remove()
    step(x, optimizer, noise)
    assert not torch.equal(x, at)


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (lambda: Stage(-1.0, 0.5, 1), r"eta=-1\.0 is invalid: it must be a finite number >= 0"),
        (lambda: Stage(math.inf, 0.5, 1), r"eta=inf"),
        (lambda: Stage(0.1, 0.0, 1), r"gamma=0\.0 is invalid: it must lie in \(0, 1\]"),
        (
            lambda: Stage(0.1, 0.5, -1),
            r"T=-1 is invalid: it must be a whole number >= 0\. The stage takes the steps 0\.\.T\.",
        ),
        (lambda: Stage(0.1, "a", 3), r"gamma='a' is invalid: it must lie in \(0, 1\]\. It is 1 - beta\."),
        (
            lambda: Stage(0.1, 0.5, 4.7),
            r"T=4\.7 is invalid: it must be a whole number >= 0\. The stage takes the steps 0\.\.T\.",
        ),
        (lambda: Stage(0.1, 0.5, True), r"T=True is invalid: it must be a whole number >= 0"),
        (
            lambda: Stages(make()[1], [SimpleNamespace(eta=0.1, gamma=0.5, T=4.7)]),
            r"T=4\.7 is invalid: it must be a whole number",
        ),
        (
            lambda: Stages(make()[1], [SimpleNamespace(eta="b", gamma=0.5, T=4)]),
            r"eta='b' is invalid: it must be a finite number",
        ),
        (lambda: Stages(make()[1], []), r"stages=\[\] is invalid: it must hold at least one stage"),
        (
            lambda: Stages(make()[1], PLAN, output="best"),
            r"output='best' is invalid: it must be one of sampled, average, last",
        ),
        (
            lambda: Stages(torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1), PLAN),
            r"SGD: param group 0 has no 'beta'",
        ),
        (
            lambda: Stages(make()[1], PLAN[:1]).load_state_dict({"k": 2}),
            r"k=2 is invalid: it must be at most 1\. Pass the same stages\.",
        ),
    ],
)
def test_wrong_use(wrong, text):
    with pytest.raises(ValueError, match=text):
        wrong()


def test_numbers_of_other_libraries_become_plain_ones():
    stage = Stage(torch.tensor(0.5), torch.tensor(0.25), numpy.int64(3), torch.tensor(0.125))
    assert [type(value) for value in vars(stage).values()] == [float, float, int, float]
    assert stage == Stage(0.5, 0.25, 3, 0.125)


def test_skipped_steps_do_not_advance_a_stage():
    x = torch.nn.Parameter(torch.ones(1))
    optimizer = semaopt.ASA([x], scaling="shb", on_nonfinite="skip")
    stages = Stages(optimizer, PLAN)
    for _ in range(3):
        for value in (math.nan, 1.0):
            x.grad = torch.full_like(x, value)
            optimizer.step()
    assert (stages.taken, stages.k, stages.iterates.t) == (3, 0, 3)


@pytest.mark.parametrize("seed", range(10))
def test_other_hooks_measure_before_a_stage_replaces_x_and_v(seed):
    """Attached before or after Stages, a monitor and Iterates see the same numbers."""
    found = []
    for late in (False, True):
        x, optimizer = make()

        def attach(x=x, optimizer=optimizer):
            monitor = Monitor(optimizer, full_gradient=lambda: x.square().sum() / 2, every=1, seed=seed)
            return semaopt.Iterates(optimizer, seed=seed), monitor.__enter__()

        tools = None if late else attach()
        stages = Stages(optimizer, PLAN, seed=seed)
        iterates, monitor = attach() if tools is None else tools
        noise = torch.Generator().manual_seed(seed)
        while not stages.done:
            step(x, optimizer, noise)
        found.append((monitor.history, iterates.estimate()[0], iterates.sampled()[0], x.detach()))
    (history, *tensors), (late_history, *late_tensors) = found
    assert history == late_history
    assert all(torch.equal(a, b) for a, b in zip(tensors, late_tensors, strict=True))


def test_another_default_device():
    with torch.device("meta"):
        x = torch.nn.Parameter(torch.ones(2, device="cpu"))
        optimizer = semaopt.ASA([x], scaling="shb")
        stages = Stages(optimizer, PLAN)
        x.grad = torch.ones(2, device="cpu")
        while not stages.done:
            optimizer.step()
    assert x.isfinite().all()
