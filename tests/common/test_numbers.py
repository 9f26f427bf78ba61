"""Numerical properties of every optimizer and path: finite results, independence of order and units.

Results that exceed the range of float32 by their definition may overflow: a sum of steps, or v/G0 long after u has
decayed. Squares are clamped to 3.4e38 (|g| > 1.8e19). Below |g| = 1e-19 they underflow, which has no effect for
G0 >= 1e-15.
"""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import semaopt
from semaopt.kernels import available
from tests.common.registry import METHODS, Problem, compose, descend, parameters
from tests.common.test_suite import assert_close, assert_same, run, skip_unless, values

SCALINGS = list(semaopt.scalings.BY_NAME)
PATHS = ["c", "foreach", "loop"] if available() else ["foreach", "loop"]
FEW = settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
MORE = settings(FEW, max_examples=60)
#: Denormals, magnitudes whose squares underflow or overflow, and the limits of float32.
MAGNITUDES = (0.0, 1e-45, 1e-40, 1e-38, 1e-30, 1e-20, 1e-7, 1.0, 1e10, 1.8e19, 1.9e19, 1e30, 1e38)
extreme = st.builds(lambda size, sign: sign * size, st.sampled_from(MAGNITUDES), st.sampled_from((1.0, -1.0)))
gradients = st.lists(st.lists(extreme, min_size=3, max_size=3), min_size=1, max_size=6)
all_methods = pytest.mark.parametrize("method", METHODS, ids=str)


def stepped(gs, dtype=torch.float32, **options):
    """Return the parameters after steps with these gradients (one row per step), and the optimizer."""
    x = torch.nn.Parameter(torch.tensor([0.5, -2.0, 0.0], dtype=dtype))
    optimizer = semaopt.ASA([x], **options)
    for g in gs:
        x.grad = torch.tensor(g, dtype=dtype)
        optimizer.step()
    return x, optimizer


def assert_finite(x, optimizer):
    for name, m in {"x": x, **optimizer.state[x]}.items():
        assert torch.isfinite(m).all(), name


@pytest.mark.parametrize("scaling", SCALINGS)
@MORE
@given(
    gs=gradients,
    lr=st.sampled_from((0.0, 1e-45, 1e-3, 0.1)),
    beta=st.sampled_from((0.0, 0.5, 0.9, 0.999)),
    corrected=st.booleans(),
    dtype=st.sampled_from((torch.float32, torch.bfloat16, torch.float64)),
)
def test_extreme_gradients(scaling, gs, lr, beta, corrected, dtype):
    """Gradients from 1e-45 to 1e38 in any order give no NaN or Inf, and all paths agree."""
    options = {"scaling": scaling, "lr": lr, "beta": beta, "bias_correction": corrected}
    results = [stepped(gs, dtype, implementation=path, **options) for path in PATHS]
    for x, optimizer in results:
        assert_finite(x, optimizer)
        if lr == 0:
            assert torch.equal(x, torch.tensor([0.5, -2.0, 0.0], dtype=dtype))
    first, *others = (x.detach().double() for x, _ in results)
    rounding = {torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float64: 1e-10}[dtype]
    size = max(first.abs().max().item(), 1.0)
    for other in others:
        torch.testing.assert_close(other, first, rtol=rounding, atol=rounding * size * 1e-2)


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("path", PATHS)
def test_averages_in_bf16_stay_finite(path, scaling):
    gs = [[1e38, -1e38, 1e-45], [1.0, 1e19, 1e-38], [-1e38, 2e19, 0.0], [0.0, 0.0, 0.0]]
    for seed in range(5):
        options = {"implementation": path, "state_dtype": torch.bfloat16, "rounding_seed": seed}
        assert_finite(*stepped(gs, scaling=scaling, lr=0.1, **options))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("scaling", ["adam", "amsgrad", "adafom"])
def test_overflowing_square_decays_like_any_other(path, scaling):
    """One gradient of 1e30 must not block its coordinate forever, as an infinite u would."""
    gradients = [[1e30] * 3] + [[1.0] * 3] * 2
    x, optimizer = stepped(gradients, scaling=scaling, implementation=path, bias_correction=False)
    u = optimizer.state[x]["u_mean" if scaling == "adafom" else "u"]
    assert (u < 3.3895e38).all()
    assert (u > 1e38).all()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("scaling", SCALINGS)
def test_nan_is_not_hidden(path, scaling):
    """Without on_nonfinite, NaN appears in its own coordinate, or in all of them if u is a norm."""
    x, _ = stepped([[1.0, math.nan, 1.0]], scaling=scaling, implementation=path)
    assert x.isnan().tolist() == ([True] * 3 if scaling == "adam+" else [False, True, False])


@all_methods
@FEW
@given(exponent=st.integers(-36, 36), beta=st.sampled_from((0.0, 0.9)))
def test_finite_losses_give_finite_variables(method, exponent, beta):
    """Scale the loss, and the step sizes inversely; products of units in bilevel methods limit the range."""
    direct = method.advance in (descend, compose) or method.saddle
    scale = 10.0 ** (exponent if direct else exponent // 3)
    rates = {"lr": 0.05 / max(1.0, scale)} | ({"dual_lr": 0.1 / max(1.0, scale)} if method.saddle else {})
    hyper = rates if "beta" in method.lacks else {**rates, "beta": beta}
    optimizer, problem = method.start(**hyper)
    problem.scale = scale
    run(method, optimizer, problem, range(3))
    assert all(torch.isfinite(x).all() for x in values(problem))
    for state in optimizer.state.values():
        assert all(torch.isfinite(m).all() for m in state.values())


@all_methods
@FEW
@given(order=st.permutations(range(3)), lrs=st.lists(st.floats(0, 0.1), min_size=3, max_size=3), data=st.data())
def test_order_of_groups(method, order, lrs, data):
    skip_unless(method, "groups")
    betas = data.draw(st.lists(st.floats(0, 0.99), min_size=3, max_size=3))
    own = "beta" not in method.lacks and method.name != "SBMA"  # SBMA has one beta for all groups
    results = []
    for places in (range(3), order):
        _, problem = method.start()
        groups = [{"params": [problem.xs[i]], "lr": lrs[i], **({"beta": betas[i]} if own else {})} for i in places]
        run(method, method.build(groups, problem.others), problem, range(3))
        results.append(values(problem))
    # Bilevel methods sum over all parameters in the order of the groups.
    assert_close(*results, rtol=1e-5, atol=1e-6)
    if "gradients" not in method.lacks:
        assert_same(*results)


#: Exponent p such that scaling the gradients by c scales the displacement of x by c^p.
POWER = {"shb": 1, "adam": 0, "amsgrad": 0, "adafom": 0, "adabound": 0, "adam+": 0.5}
#: Settings without constants that have a unit: G0 and the bounds of AdaBound.
UNITLESS = {
    "shb": semaopt.scalings.SHB(),
    "adam": semaopt.scalings.Adam(g0=1e-30),
    "amsgrad": semaopt.scalings.AMSGrad(g0=1e-30),
    "adafom": semaopt.scalings.AdaFom(g0=1e-30),
    "adam+": semaopt.scalings.AdamPlus(g0=1e-30),
    "adabound": semaopt.scalings.AdaBound(1e-18, 1e18),
}


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("path", PATHS)
@FEW
@given(
    gs=st.lists(st.lists(st.floats(2.0**-10, 2.0**10, width=32), min_size=4, max_size=4), min_size=1, max_size=6),
    k=st.integers(-10, 10),
    dtype=st.sampled_from((torch.float32, torch.float64)),
    corrected=st.booleans(),
)
def test_units_of_the_gradient(path, scaling, gs, k, dtype, corrected):
    """A power of four as unit keeps all rounding: SHB is exactly linear, Adam exactly invariant."""

    def end(c):
        x = torch.nn.Parameter(torch.zeros(4, dtype=dtype))
        options = {"bias_correction": corrected, "implementation": path, "lr": 0.5}
        optimizer = semaopt.ASA([x], scaling=UNITLESS[scaling], **options)
        for g in gs:
            x.grad = torch.tensor(g, dtype=dtype) * c
            optimizer.step()
        return x.detach()

    c = 4.0**k
    assert torch.equal(end(c), end(1.0) * c ** POWER[scaling])


#: Excludes BSA, TTSA and stocBiO: they update y first, and f has a term in y that is not scaled here.
LINEAR = ("PDSM", "SGDA", "SGDMax", "EpochSGDA", "PESSGDA", "AccMDA", "SMB[tracked]", "SBMA", "SOBA")


@pytest.mark.parametrize("method", [method for method in METHODS if method.name in LINEAR], ids=str)
def test_first_steps_are_linear_in_the_loss(method):
    """Doubling the (outer) loss doubles the first step on x if nothing is clipped."""
    moves = []
    hyper = {"c_fy": None} if method.name == "SBMA" else {}
    hyper |= {"max_ascents": 1, "tolerance": 1e9} if method.name == "SGDMax" else {}
    for scale in (1.0, 2.0):
        optimizer, problem = method.start(torch.float64, **hyper)
        problem.scale = scale
        for y in problem.others:
            y.data.zero_()  # f of the bilevel problem has 0.1 |y|^2, which is not scaled
        start = values(problem)
        method.advance(optimizer, problem, 0)
        moves.append([a - b for a, b in zip(values(problem), start, strict=True)][: len(problem.xs)])
    assert all(m.abs().max() > 0 for m in moves[0])
    assert_close(moves[1], [2 * m for m in moves[0]], rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("scaling", SCALINGS)
def test_beta_zero_has_no_memory(path, scaling):
    x, optimizer = stepped([[1.0, 2.0, 3.0], [4.0, -5.0, 1e-40]], scaling=scaling, beta=0.0, implementation=path)
    assert torch.equal(optimizer.state[x]["v"], torch.tensor([4.0, -5.0, 1e-40]))


def test_stage_of_at_most_one_step():
    """T = 0 means the single step t = 0."""
    x = torch.nn.Parameter(torch.tensor([1.0]))
    stages = semaopt.Stages(semaopt.ASA([x], scaling="shb"), [semaopt.Stage(0.5, 0.5, T=0)] * 2)
    for _ in range(2):
        assert not stages.done
        x.grad = x.detach().clone()
        stages.optimizer.step()
    assert (stages.done, stages.taken) == (True, 2)


def test_plans_for_no_steps_are_refused():
    constants = semaopt.theory.Constants(L=1.0, sigma2=1.0, delta_f=1.0, mu=0.5, lam=0.5, L_f=1.0)
    for plan in (semaopt.theory.constant, semaopt.theory.decreasing, semaopt.theory.minmax):
        with pytest.raises(ValueError, match="T=0 is invalid: it must be a whole number >= 1"):
            plan(constants, 0)


@pytest.mark.parametrize("labels", [[1], [0], [1, 1, 1], [-1, -1]])
def test_one_sample_and_one_class(labels):
    """A batch with one example or one class gives finite steps of model, s, r and y."""
    auc = semaopt.losses.AUCMinMax(prior=0.3)
    model = torch.nn.Linear(2, 1)
    primal = [*model.parameters(), *auc.primal_parameters()]
    optimizer = semaopt.PDAda(primal=primal, dual=auc.dual_parameters(), on_nonfinite="error")
    features = torch.ones(len(labels), 2)  # constant features
    for _ in range(20):
        optimizer.zero_grad()
        auc(model(features), torch.tensor(labels)).backward()
        optimizer.step()
    assert all(torch.isfinite(x).all() for x in (*primal, auc.y, *auc.saddle(model(features), torch.tensor(labels))))
    with pytest.raises(ValueError, match=r"there are only (posi|nega)tive labels .*AUC is not defined; add examples"):
        semaopt.losses.AUCMinMax.from_labels(labels)


def test_no_gradients_means_no_step():
    xs = parameters()
    optimizer = semaopt.ASA(xs, on_nonfinite="error")
    optimizer.step()
    assert not optimizer.state
    assert Problem(xs).minimize(0).isfinite()
