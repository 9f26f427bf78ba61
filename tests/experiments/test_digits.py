"""One run: the data, the ensemble, the methods' rates, the label noise."""

import json
import math

import pytest
import torch
from semaopt.experiments.digits import Ensemble, Examples, Outcome, Point, Run, draw, entropy, judge, load, rates, train
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy

from semaopt.experiments import digits
from semaopt.experiments.runs import canonical
from semaopt.experiments.tuning import METHODS

ADAM = Point(lr=1e-2, g0=1e-3, beta=0.9)


def a_run(**changes):
    common = {"method": "adam", "decays": (), "points": (ADAM,), "seeds": (3,), "epochs": 3, "batch": 256, "hidden": 8}
    return Run(**{"purpose": "final", **common, **changes})


def generator(seed):
    return torch.Generator().manual_seed(seed)


def test_the_same_run_gives_the_same_numbers():
    run = a_run(decays=("lr", "gamma"), points=(ADAM, Point(3e-3, 1e-7, 0.5)), seeds=(0, 1), noise=0.2)
    assert train(run) == train(run)
    assert train(run) != train(a_run(decays=run.decays, points=run.points, seeds=(0, 2), noise=0.2))


def test_a_member_trains_as_if_alone():
    points, seeds = (ADAM, Point(3e-3, 1e-7, 0.5)), (5, 6, 7)
    together = train(a_run(decays=("gamma",), points=points, seeds=seeds, noise=0.2))
    for point, outcome in zip(points, together, strict=True):
        for k, seed in enumerate(seeds):
            (alone,) = train(a_run(decays=("gamma",), points=(point,), seeds=(seed,), noise=0.2))
            assert outcome.train_loss[k] == pytest.approx(alone.train_loss[0], rel=1e-4)
            assert outcome.held_out_accuracy[k] == pytest.approx(alone.held_out_accuracy[0], abs=0.01)


def test_folklore_adam_is_the_adam_of_torch():
    run, split, g = a_run(batch=64), load(), generator(3)
    flat = Ensemble(1, run.hidden, [g]).weights[0].detach()[0]
    net = torch.nn.Sequential(torch.nn.Linear(64, run.hidden), torch.nn.ReLU(), torch.nn.Linear(run.hidden, 10))
    w1, b1, w2, b2 = flat.split([64 * run.hidden, run.hidden, run.hidden * 10, 10])
    with torch.no_grad():
        for x, start in zip(net.parameters(), (w1.view(64, -1).T, b1, w2.view(-1, 10).T, b2), strict=True):
            x.copy_(start)
    adam = torch.optim.Adam(net.parameters(), lr=ADAM.lr, betas=(0.9, 0.999), eps=ADAM.g0)
    losses = []
    for _ in range(run.epochs):
        order, labels = draw(split.train.y, 0.0, [g])
        for index, y in zip(order[0].split(run.batch), labels[0].split(run.batch), strict=True):
            adam.zero_grad()
            cross_entropy(net(split.train.x[index]), y).backward()
            adam.step()
        losses.append(cross_entropy(net(split.train.x), split.train.y).item())
    (ours,) = train(run)
    assert ours.train_loss[0] == pytest.approx(losses, rel=1e-3)


CUT = (1, 0.2, 0.04)


@pytest.mark.parametrize(
    ("method", "lr", "gamma"),
    list(zip(METHODS, [(1, 1, 1), (1, 1, 1), CUT], [(1, 1, 1), CUT, CUT], strict=True)),
    ids=[method.name for method in METHODS],
)
def test_what_each_method_decays(method, lr, gamma):
    run = a_run(decays=method.decays, epochs=6)
    optimizer, schedule = rates(run, Ensemble(1, run.hidden, [generator(0)]))
    seen = []
    for _ in range(run.epochs):
        group = optimizer.param_groups[0]
        seen.append((group["lr"] / ADAM.lr, (1 - group["beta"]) / (1 - ADAM.beta)))
        optimizer.step()
        if schedule is not None:
            schedule.step()
    expected = [pair for stage in zip(lr, gamma, strict=True) for pair in (stage, stage)]
    assert [x for pair in seen for x in pair] == pytest.approx([x for pair in expected for x in pair])
    assert all(group["bias_correction"] for group in optimizer.param_groups)


def test_the_split_uses_each_image_once():
    split = load()
    assert [len(part.y) for part in split] == [1078, 359, 360]
    x, _ = load_digits(return_X_y=True)
    mine = torch.cat([part.x for part in split]) * 16
    assert sorted(map(tuple, mine.tolist())) == sorted(map(tuple, x.tolist()))
    for part in split:
        assert torch.bincount(part.y).min() > 0.9 * len(part.y) / 10


def poisoned(split, name):
    part = getattr(split, name)
    return split._replace(**{name: Examples(torch.full_like(part.x, math.nan), torch.zeros_like(part.y))})


def test_tuning_never_sees_the_test_set(monkeypatch):
    clean, split = train(a_run(purpose="tune")), load()
    monkeypatch.setattr(digits, "load", lambda: poisoned(split, "test"))
    assert train(a_run(purpose="tune")) == clean
    (final,) = train(a_run())
    assert all(map(math.isnan, final.held_out_loss[0]))  # the poison works where the test set is read


def test_final_runs_never_see_the_validation_set(monkeypatch):
    clean, split = train(a_run()), load()
    monkeypatch.setattr(digits, "load", lambda: poisoned(split, "valid"))
    assert train(a_run()) == clean


def test_tuning_keeps_only_the_last_epoch():
    (tuned,), (final,) = train(a_run(purpose="tune")), train(a_run())
    assert [len(tuned.train_loss[0]), len(final.train_loss[0])] == [1, 3]
    assert tuned.train_loss[0][-1] == final.train_loss[0][-1]


def test_the_loss_is_the_exact_mean_over_the_label_noise():
    net, noise = Ensemble(1, 8, [generator(0)]), 0.3
    examples = Examples(*(part[:20] for part in load().valid))
    loss, _ = judge(net, examples, noise, 1)
    with torch.no_grad():
        logits = net(examples.x[None])[0]
    for_true = cross_entropy(logits, examples.y)
    for_any = torch.stack([cross_entropy(logits, torch.full_like(examples.y, k)) for k in range(10)]).mean()
    mean = (1 - noise) * for_true.item() + noise * for_any.item()
    assert loss.item() == pytest.approx(mean - entropy(noise), rel=1e-5)


def test_no_prediction_is_below_the_entropy():
    noise = 0.2
    best = torch.full((1, 10), noise / 10)
    best[0, 4] += 1 - noise
    loss = cross_entropy(best.log(), torch.tensor([4]), label_smoothing=noise)
    assert loss.item() == pytest.approx(entropy(noise), rel=1e-5)


def test_label_noise_replaces_as_often_as_it_says():
    y = torch.arange(10).repeat(2000)
    order, labels = draw(y, 0.2, [generator(0)])
    wrong = labels[0] != y[order[0]]
    assert wrong.float().mean().item() == pytest.approx(0.2 * 0.9, abs=0.01)
    assert torch.bincount(labels[0][wrong]).min() > 0.8 * wrong.sum() / 10
    order, labels = draw(y, 0.0, [generator(0)])
    assert torch.equal(labels, y[order])
    assert torch.equal(order[0].sort().values, torch.arange(len(y)))


def test_divergence_is_kept_as_null_and_read_as_nan():
    (outcome,) = train(a_run(points=(Point(lr=1e30, g0=1e-7, beta=0.9),)))
    assert math.isnan(outcome.train_loss[0][-1])
    text = canonical(digits.asdict(outcome))
    assert "NaN" not in text
    assert math.isnan(Outcome.from_json(json.loads(text)).train_loss[0][-1])


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"epochs": 4}, "epochs=4: must be a positive multiple of 3; rates decay at each third"),
        ({"epochs": 0}, "epochs=0: must be a positive multiple of 3"),
        ({"noise": 1.0}, r"noise=1.0: must lie in \[0, 1\); 0.0 leaves the labels"),
        ({"seeds": ()}, r"seeds=\(\): must not be empty"),
        ({"points": ()}, r"points=\(\): must not be empty"),
    ],
)
def test_a_run_that_makes_no_sense_is_refused(change, text):
    with pytest.raises(ValueError, match=text):
        a_run(**change)
