"""Schedules of lr and gamma over a whole run, and averages of iterates."""

import math
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy

import semaopt
from semaopt.experiments import data
from semaopt.experiments.spec.errors import SpecError
from semaopt.experiments.sweep.checkpoint import Checkpoint
from semaopt.experiments.sweep.run import make, units
from semaopt.experiments.training import loop, networks, rates
from semaopt.experiments.training.objectives.base import orders
from semaopt.experiments.training.run import Machine
from tests.experiments.tiny import a_spec

STEPS = 100


def one(**options):
    """A method of the tiny spec with these options."""
    method = {"name": "one", "label": "One", "algorithm": "ASA", "options": {"bias_correction": True, **options}}
    return a_spec(methods=[method], tuning={"grid": {"lr": [1e-2, 3e-2], "beta": [0.9, 0.8]}}, claim={"order": []})


def a_run(options, values, seed=3, dtype="float64", **changes):
    spec = one(**options).model_copy(update=changes)
    return make(spec, spec.methods[0], values, seed=seed, purpose="final", machine=Machine(dtype=dtype))


@pytest.mark.parametrize(
    ("options", "lr", "gamma"),
    [
        ({}, lambda t: 1, lambda t: 1),
        ({"warm_up": 0.1}, lambda t: min(1, (t + 1) / 10), lambda t: 1),
        ({"schedule": "cosine"}, lambda t: math.cos(math.pi * t / 200) ** 2, lambda t: 1),
        (
            {"schedule": "cosine", "warm_up": 0.2, "gamma_schedule": "follow"},
            lambda t: (t + 1) / 20 if t < 20 else math.cos(math.pi * (t - 20) / 160) ** 2,
            lambda t: 1 if t < 20 else math.cos(math.pi * (t - 20) / 160) ** 2,
        ),
        (
            {"schedule": "cosine", "gamma_schedule": "sqrt"},
            lambda t: math.cos(math.pi * t / 200) ** 2,
            lambda t: math.cos(math.pi * t / 200),
        ),
        ({"gamma_schedule": "rise"}, lambda t: 1, lambda t: 1 if t < 80 else 1 + (t - 80) / 10),
        ({"gamma_schedule": "stagewise"}, lambda t: 1, lambda t: 1 if t < 34 else 0.2 if t < 67 else 0.04),
        ({"schedule": "stagewise"}, lambda t: 1 if t < 34 else 0.2 if t < 67 else 0.04, lambda t: 1),
    ],
)
def test_shapes(options, lr, gamma):
    found = rates.shapes(options, STEPS)
    for t in range(STEPS):
        assert found[0](t) == pytest.approx(lr(t), abs=1e-12)
        assert found[1](t) == pytest.approx(gamma(t), abs=1e-12)


def test_a_run_with_schedules_and_an_average_equals_a_loop():
    options = {"schedule": "cosine", "warm_up": 0.1, "gamma_schedule": "sqrt", "iterates": "polynomial"}
    run = a_run(options, {"lr": 1e-2, "beta": 0.9}, batch=256)
    task = data.load("digits")
    net, order_of = networks.with_loss(run, task).double(), orders(run.seed)
    optimizer = semaopt.ASA(net.parameters(), lr=1e-2, beta=0.9)
    steps, epochs = math.ceil(len(task.train) / 256), 3
    mean, t, losses = [x.detach().clone() for x in net.parameters()], 0, []
    for _ in range(epochs):
        for rows in torch.randperm(len(task.train), generator=order_of).split(256):
            first, total = round(0.1 * epochs * steps), epochs * steps
            factor = math.cos(math.pi * max(t - first, 0) / (total - first) / 2) ** 2
            group = optimizer.param_groups[0]
            group["lr"], group["beta"] = 1e-2 * factor * min(1, (t + 1) / first), 1 - 0.1 * factor**0.5
            for average, x in zip(mean, net.parameters(), strict=True):
                average.lerp_(x.detach(), 9 / (t + 9))
            optimizer.zero_grad()
            cross_entropy(net(task.train.inputs(rows, dtype=torch.float64)), task.train.labels[rows]).backward()
            optimizer.step()
            t += 1
        averaged = torch.func.functional_call(
            net, dict(zip(dict(net.named_parameters()), mean, strict=True)), task.train.inputs(dtype=torch.float64)
        )
        losses.append(cross_entropy(averaged, task.train.labels).item())
    (unit,) = units([run])
    assert loop.train(unit)[0].curves["train_loss"] == pytest.approx(losses, rel=1e-9)


OPTIONS = {"schedule": "stagewise", "warm_up": 0.1, "gamma_schedule": "rise", "iterates": "polynomial"}


def test_vectorized_runs_equal_single_ones():
    runs = [
        a_run(OPTIONS, {"lr": lr, "beta": beta}, seed) for lr, beta in ((1e-2, 0.9), (3e-2, 0.8)) for seed in (1, 2)
    ]
    (unit,) = units(runs, 4)
    for run, found in zip(runs, loop.train(unit), strict=True):
        (alone,) = loop.train(units([run])[0])
        assert found.curves["test_loss"] == pytest.approx(alone.curves["test_loss"], rel=1e-8)


@pytest.mark.parametrize("count", [1, 2])
def test_an_interrupted_run_resumes_to_the_bit(tmp_path, count):
    (unit,) = units([a_run(OPTIONS, {"lr": 1e-2, "beta": 0.9}, seed, batch=256) for seed in range(count)], count)
    expected = [result.curves for result in loop.train(unit)]

    class Stops(Checkpoint):
        saves = 0

        def save(self, state):
            super().save(state)
            Stops.saves += 1
            if Stops.saves == 5:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        loop.train(unit, Stops(Path(tmp_path), unit.key, 0.0))
    found = loop.train(unit, Checkpoint(Path(tmp_path), unit.key, 1000.0))
    assert [result.curves for result in found] == expected


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"schedule": "cosin"}, "schedule='cosin' is invalid: it must be one of constant, cosine, stagewise"),
        ({"gamma_schedule": "up"}, "gamma_schedule='up' is invalid: it must be one of constant, follow, sqrt, rise"),
        ({"warm_up": 1.0}, r"warm_up=1.0 is invalid: it must lie in \[0, 1\)"),
        ({"iterates": "mean"}, "iterates='mean' is invalid: it must be one of last, uniform, polynomial"),
    ],
)
def test_errors(options, text):
    with pytest.raises(SpecError, match=text):
        one(**options)


def test_a_decay_and_a_schedule_exclude_each_other():
    with pytest.raises(SpecError, match="schedule already schedule"):
        a_spec(methods={"both": {"options": {"schedule": "cosine"}}})


def test_batch_norm_has_no_average():
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(3))
    average = semaopt.Iterates(torch.optim.SGD(model.parameters()), average="polynomial")
    with pytest.raises(ValueError, match="the running statistics of BatchNorm1d belong to the last iterate"):
        networks.require_averageable(model, average)
    networks.require_averageable(model, None)
