"""Bilevel and compositional runs: learning, number of batches, and resuming to the bit."""

import copy
import math
from functools import partial

import pytest
import torch

from semaopt.experiments import data
from semaopt.experiments.spec import schema
from semaopt.experiments.sweep.run import make
from semaopt.experiments.training import algorithms, loop, metrics, objectives
from semaopt.experiments.training.objectives.base import orders
from semaopt.experiments.training.run import Machine, Unit
from semaopt.experiments.training.sampled import SampledRun

SPECS = {name: schema.load(name, "quick") for name in ("bilevel-digits", "compositional-digits")}
VALUES = {
    "bsa": {"lr": 10.0, "lower_lr": 0.5},
    "ttsa": {"lr": 100.0, "lower_lr": 0.5},
    "stocbio": {"lr": 10.0, "lower_lr": 0.3},
    "soba": {"lr": 10.0, "lower_lr": 0.5},
    "smb_neumann": {"lr": 10.0, "lower_lr": 0.5},
    "smb": {"lr": 10.0, "lower_lr": 0.5},
    "batch": {"lr": 0.1},
    "scgd": {"lr": 0.1},
    "scma_shb": {"lr": 0.1},
    "scma": {"lr": 0.01},
}
METHODS = [(name, method.name) for name, one in SPECS.items() for method in one.methods]


def a_run(name, method, epochs=3, seed=0):
    one = SPECS[name].model_copy(update={"epochs": epochs})
    return make(one, one.method(method), VALUES[method], seed=seed, purpose="final", machine=Machine())


def started(run):
    return SampledRun(run, loop.task(run.data), objectives.find(run.loss))


def trained(trainee, epochs):
    for _ in range(epochs):
        trainee.draw()
        for k in range(trainee.steps):
            trainee.step(k)
        assert trainee.end_epoch() == [True]
    return trainee.measure()[0]


@pytest.mark.parametrize(("name", "method"), METHODS)
def test_it_learns_and_resumes_to_the_bit(name, method):
    run = a_run(name, method)
    task = loop.task(run.data)
    kind = partial(SampledRun, objective=objectives.find(run.loss))
    torch.manual_seed(0)
    one = kind(run, task)
    before = one.measure()[0]
    trained(one, 1)
    one.step(0)
    state = copy.deepcopy(one.state_dict())  # as in a file
    for k in range(1, one.steps):
        one.step(k)
    after = one.measure()[0]
    metric = SPECS[name].claim.metric
    assert after[metric] > before[metric] + 0.1
    other = kind(run, task)
    other.load_state_dict(state)
    for k in range(1, other.steps):
        other.step(k)
    assert other.measure()[0] == after
    assert all(torch.equal(a, b) for a, b in zip(one.variables, other.variables, strict=True))


def test_every_bilevel_method_draws_equally_many_batches():
    counts = {}
    for name, method in METHODS:
        if name.startswith("bilevel"):
            run = a_run(name, method)
            cleaner = started(run)
            trained(cleaner, 1)
            counts[method] = cleaner.objective.batch_count
            assert cleaner.due == cleaner.steps == 34
    assert all(
        34 <= count < 34 + 25 for count in counts.values()
    )  # the last step may draw more batches than an epoch has
    assert counts["soba"] == counts["smb"] == 34


def test_only_the_lower_level_has_wrong_labels():
    run = a_run("bilevel-digits", "smb")
    task = loop.task(run.data)
    cleaner, same = started(run).objective, started(run).objective
    assert torch.equal(cleaner.noisy.labels, same.noisy.labels)
    assert len(cleaner.clean) == 1078 // 3
    assert cleaner.parts()["train"] is cleaner.clean
    assert torch.equal(task.train.labels, data.load("digits").train.labels)  # the task is not modified
    order = torch.randperm(1078, generator=orders(0))
    wrong = (cleaner.noisy.labels != task.train.labels[order[1078 // 3 :]]).double().mean()
    assert float(wrong) == pytest.approx(0.4, abs=1e-3)


def test_a_run_that_diverges_is_a_result():
    one = SPECS["bilevel-digits"]
    values = {"lr": 10.0, "lower_lr": 1e30}
    run = make(one, one.method("soba"), values, seed=0, purpose="final", machine=Machine())
    (result,) = loop.train(Unit((run,)))
    assert result.status == "diverged"
    assert len(result.curves["test_accuracy"]) == one.epochs


def test_the_checkpoint_records_divergence():
    run = a_run("bilevel-digits", "soba")
    one, other = started(run), started(run)
    one.step(0)
    one.finite = False  # as after a NonFiniteError
    other.load_state_dict(copy.deepcopy(one.state_dict()))
    other.step(1)
    assert other.objective.batch_count == one.objective.batch_count
    assert other.end_epoch() == [False]


def test_average_precision_is_the_mean_precision_at_the_positive_rows():
    generator = torch.Generator().manual_seed(0)
    for _ in range(5):
        scores = torch.randint(8, (50,), generator=generator).double()  # with ties
        labels = torch.randint(2, (50,), generator=generator)
        precisions = [labels[scores >= score].double().mean() for score in scores[labels == 1]]
        found = metrics.average_precision(scores, labels)
        assert found == pytest.approx(torch.stack(precisions).mean().item(), rel=1e-12)
        assert metrics.average_precision(scores.bfloat16(), labels) == found
    assert math.isnan(metrics.average_precision(scores, labels * 0))
    assert math.isnan(metrics.average_precision(scores * math.nan, labels))
    assert metrics.average_precision(scores, labels * 0 + 1) == 1


@pytest.mark.parametrize(
    ("method", "values", "text"),
    [
        ("SMB", {"inverse": "exact"}, "inverse='exact' is invalid: it must be one of tracked, neumann, series"),
        ("SMB", {"terms": 3}, "inverse='tracked' is invalid: it does not take terms. Leave them out"),
        ("SMB", {"g0": 1e-8}, "g0=1e-08 is invalid: scaling 'shb' takes no hyper-parameters. Leave it out"),
        ("SMB", {"beta2": 0.9}, "beta2=0.9 is invalid: scaling 'shb' takes no hyper-parameters. Leave it out"),
        ("SOBA", {"terms": 3}, "SOBA does not take them"),
        ("SCMA", {"inner_beta": 1.5}, "inner_beta=1.5"),
    ],
)
def test_invalid_values(method, values, text):
    given = {"lr": 0.1, "beta": 0.9, **({"lower_lr": 0.1} if method != "SCMA" else {}), **values}
    if method == "SOBA":
        del given["beta"]
    with pytest.raises(ValueError, match=text):
        algorithms.validate(method, [], given)


def test_they_cannot_be_vectorized():
    raw = SPECS["bilevel-digits"].model_dump()
    with pytest.raises(schema.SpecError, match=r"vectorize=2: runs with loss = 'cleaning' cannot be vectorized"):
        schema.build({**raw, "vectorize": 2})
