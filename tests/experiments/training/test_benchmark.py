"""The problems of benchmark_bilevel in the engine: metrics, oracle calls, sample numbers, resuming to the bit."""

import copy

import pytest
import torch

from semaopt.experiments.spec import SpecError, schema
from semaopt.experiments.sweep.run import make
from semaopt.experiments.training import loop, objectives
from semaopt.experiments.training.run import Machine
from semaopt.experiments.training.sampled import SampledRun
from semaopt.hypergradient import Exact, compare

pytest.importorskip("sklearn", reason="scikit-learn is an extra")
SMALL = {"bilevel-ijcnn1": {"name": "breast_cancer"}, "bilevel-mnist": {"name": "digits", "noise": 0.5}}
VALUES = {"lr": 1.0, "lower_lr": 0.02, "beta": 0.5, "every": 1, "factor": 1.0, "penalty": 5.0, "control": 0.5}


def a_spec(name, **changes):
    """Return the shipped spec at its quick scale on a small data set."""
    raw = schema.load(name, "quick").model_dump()
    return schema.build({**raw, "data": SMALL[name], "batch": 32, **changes})


def started(name, method, seed=0):
    one = a_spec(name)
    found = one.method(method)
    taken = {"lr", "lower_lr", *found.grid}
    values = {key: value for key, value in VALUES.items() if key in taken}
    run = make(one, found, values, seed=seed, purpose="final", machine=Machine())
    return SampledRun(run, loop.task(run.data), objectives.find(run.loss))


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("method", ["soba", "saba", "smb_neumann", "sustain", "fsla", "f2sa", "amigo"])
def test_it_runs_and_resumes_to_the_bit(name, method):
    one = started(name, method)
    for k in range(60):
        one.step(k)
    state = copy.deepcopy(one.state_dict())
    for k in range(60, 120):
        one.step(k)
    other = started(name, method)
    other.load_state_dict(state)
    for k in range(60, 120):
        other.step(k)
    after, again = one.measure()[0], other.measure()[0]
    assert one.finite
    assert 120 <= after["train_calls"] < 180
    assert after.pop("train_seconds") > 0
    again.pop("train_seconds")
    assert after == again
    assert all(torch.equal(a, b) for a, b in zip(one.variables, other.variables, strict=True))


@pytest.mark.parametrize("name", SMALL)
def test_the_metrics_are_exact(name):
    run = started(name, "soba")
    for k in range(200):
        run.step(k)
    found, sums = run.measure()[0], run.objective.sums
    if name == "bilevel-mnist":
        assert found["test_error"] == sums.error() < 0.5
    with torch.no_grad():
        sums.upper.data, sums.lower.data = sums.upper.double(), sums.solve_lower()
    assert found["train_value"] == pytest.approx(sums.f(sums.upper, sums.lower).item(), rel=1e-5)
    xs = (sums.upper, sums.lower)
    exact = compare(lambda: sums.f(*xs), lambda: sums.g(*xs), xs[:1], xs[1:], Exact()).exact[0]
    assert found["train_gradient_norm"] == pytest.approx(exact.norm().item(), rel=1e-4)


def test_an_epoch_has_a_call_per_batch_and_values_decrease():
    run = started("bilevel-ijcnn1", "saba")
    before = run.measure()[0]
    assert run.steps == run.objective.sums.samples[1] == 15
    for k in range(12 * run.steps):
        run.step(k)
    assert run.measure()[0]["train_value"] < before["train_value"]


@pytest.mark.filterwarnings("ignore:lower_lr=1e.06 is too large:RuntimeWarning")
def test_a_diverged_run_is_a_result():
    run = started("bilevel-ijcnn1", "soba")
    for group in run.optimizer.param_groups:
        group["lr"] = 1e6
    for k in range(400):
        run.step(k)
    assert not run.finite
    assert run.end_epoch() == [False]


def test_saba_needs_a_finite_sum():
    raw = schema.load("bilevel-digits", "quick").model_dump()
    raw["methods"][3] |= {"algorithm": "SABA"}
    with pytest.raises(
        SpecError, match=r"'SABA' is for bilevel problems on finite sums; loss = 'cleaning' is a bilevel"
    ):
        schema.build(raw)


def test_methods_with_sample_numbers_run_on_any_bilevel_objective():
    raw = schema.load("bilevel-digits", "quick").model_dump()
    raw["methods"][3] |= {"algorithm": "FSLA", "options": {"lower_weight_decay": 1e-3}}
    one = schema.build(raw)
    run = make(one, one.method("soba"), {"lr": 10.0, "lower_lr": 0.5}, seed=0, purpose="final", machine=Machine())
    trainee = SampledRun(run, loop.task(run.data), objectives.find(run.loss))
    before = trainee.measure()[0]["train_loss"]
    rows = []
    for number in (5, 6, 5):
        with trainee.draws.numbered(number):
            rows.append(trainee.draws.rows(1000).tolist())
    assert rows[0] == rows[2] != rows[1], "equal numbers are equal samples"
    for k in range(300):
        trainee.step(k)
    assert trainee.measure()[0]["train_loss"] < before
