"""The training loop: rates, data access, metrics, checkpoints and divergence."""

import math
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy

from semaopt.experiments import data
from semaopt.experiments.sweep.checkpoint import Checkpoint
from semaopt.experiments.sweep.run import make, units
from semaopt.experiments.sweep.runner import perform
from semaopt.experiments.training import loop, metrics, networks
from semaopt.experiments.training.objectives.base import orders
from semaopt.experiments.training.run import Machine
from semaopt.experiments.training.single import SingleRun
from tests.experiments.tiny import AUC, a_spec

ADAM = {"lr": 1e-2, "g0": 1e-3}


def a_run(method="adam", values=ADAM, seed=3, purpose="final", until=None, dtype="float32", **changes):
    spec = a_spec(**changes)
    machine = Machine(dtype=dtype)
    return make(spec, spec.method(method), values, seed=seed, purpose=purpose, machine=machine, until=until)


def a_unit(*runs):
    (unit,) = units(runs or [a_run()], max(len(runs), 1))
    return unit


def train(folder, *runs, every=1000.0):
    return perform(a_unit(*runs), folder=Path(folder), checkpoint_seconds=every)


def test_the_same_run_gives_the_same_numbers(tmp_path):
    noisy = {"data": {"noise": 0.2}}
    assert train(tmp_path, a_run(**noisy))[0].curves == train(tmp_path, a_run(**noisy))[0].curves
    assert train(tmp_path, a_run(**noisy))[0].curves != train(tmp_path, a_run(seed=4, **noisy))[0].curves


def test_torchs_global_random_state_is_not_changed(tmp_path):
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    train(tmp_path)
    assert torch.equal(torch.rand(1), expected)


def test_folklore_adam_equals_torchs_adam(tmp_path):
    run = a_run(batch=64)
    task = data.load("digits")
    net, order_of = networks.with_loss(run, task), orders(run.seed)
    adam = torch.optim.Adam(net.parameters(), lr=ADAM["lr"], betas=(0.9, 0.999), eps=ADAM["g0"])
    losses = []
    for _ in range(3):
        order = torch.randperm(len(task.train), generator=order_of)
        for rows in order.split(64):
            adam.zero_grad()
            cross_entropy(net(task.train.inputs(rows)), task.train.labels[rows]).backward()
            adam.step()
        losses.append(cross_entropy(net(task.train.inputs()), task.train.labels).item())
    assert train(tmp_path, run)[0].curves["train_loss"] == pytest.approx(losses, rel=1e-4)


@pytest.mark.parametrize(
    ("method", "lr", "gamma"),
    [("adam", (1, 1, 1), (1, 1, 1)), ("beta", (1, 1, 1), (1, 0.2, 0.04)), ("both", (1, 0.2, 0.04), (1, 0.2, 0.04))],
)
def test_each_method_decays_its_rates(method, lr, gamma):
    run = a_run(method, ADAM if method == "adam" else {**ADAM, "beta": 0.9})
    member = SingleRun(run, data.load("digits"))
    seen = []
    for _ in range(3):
        group = member.optimizer.param_groups[0]
        seen.append((group["lr"] / ADAM["lr"], (1 - group["beta"]) / 0.1))
        member.draw()
        member.step(0)
        member.end_epoch()
    assert [x for pair in seen for x in pair] == pytest.approx(
        [x for pair in zip(lr, gamma, strict=True) for x in pair]
    )


def poisoned(monkeypatch, name):
    """Replace a part of the data by useless labels and inputs."""
    clean = data.load("digits")
    part = getattr(clean, name)
    bad = data.Part(part.labels * 0, part.rows * 0, part.source, part.classes)
    monkeypatch.setattr(loop, "task", lambda _: data.Task(**{**vars(clean), name: bad}))


def test_tuning_never_sees_the_test_part(tmp_path, monkeypatch):
    tune, final = train(tmp_path, a_run(purpose="tune")), train(tmp_path)
    assert set(tune[0].curves) == {"train_loss", "valid_loss"}
    poisoned(monkeypatch, "test")
    assert train(tmp_path, a_run(purpose="tune"))[0].curves == tune[0].curves
    assert train(tmp_path)[0].curves != final[0].curves  # a run that reads the test part differs


def test_final_runs_never_see_the_validation_part(tmp_path, monkeypatch):
    final, tune = train(tmp_path), train(tmp_path, a_run(purpose="tune"))
    assert set(final[0].curves) == {"train_loss", "test_loss", "test_accuracy"}
    poisoned(monkeypatch, "valid")
    assert train(tmp_path)[0].curves == final[0].curves
    assert train(tmp_path, a_run(purpose="tune"))[0].curves != tune[0].curves


def test_tuning_measures_only_the_last_epochs(tmp_path):
    changes = {"epochs": 4, "final_epochs": 2}
    (tuned,), (final,) = train(tmp_path, a_run(purpose="tune", **changes)), train(tmp_path, a_run(**changes))
    assert len(final.curves["train_loss"]) == 4
    assert tuned.curves["train_loss"] == final.curves["train_loss"][-2:]
    assert tuned.end("train_loss", 2) == final.end("train_loss", 2)


SADDLE = {"lr": 1e-2, "dual_lr": 1e-1, "g0": 1e-5}
CASES = {
    "both": [
        a_run("both", {**ADAM, "beta": beta}, seed, data={"noise": 0.2}) for beta in (0.9, 0.5) for seed in (1, 2)
    ],
    "pdada": [a_run("pdada", {**SADDLE, "g0": g0}, seed, **AUC) for g0 in (1e-5, 1e-3) for seed in (1, 2)],
    "sgda": [a_run("sgda", {"lr": lr, "dual_lr": 0.1}, seed, **AUC) for lr in (0.1, 0.3) for seed in (1, 2)],
}


@pytest.mark.parametrize("case", CASES)
def test_vectorized_runs_train_as_single_runs(tmp_path, case):
    runs = CASES[case]
    vectorized = train(tmp_path, *runs)
    for run, result in zip(runs, vectorized, strict=True):
        (alone,) = train(tmp_path, run)
        for metric, curve in alone.curves.items():
            assert result.curves[metric] == pytest.approx(curve, rel=1e-3, abs=3e-3), metric


class Cut(BaseException):
    pass


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("vectorized", [True, False])
@pytest.mark.parametrize("after", [1, 4, 6])
def test_an_interrupted_run_resumes_to_the_bit(tmp_path, monkeypatch, case, vectorized, after):
    runs = CASES[case] if vectorized else CASES[case][:1]
    undisturbed = train(tmp_path / "undisturbed", *runs)
    saves = []
    save = Checkpoint.save

    def cut(self, state):
        save(self, state)
        saves.append(state)
        if len(saves) == after:
            raise Cut

    monkeypatch.setattr(Checkpoint, "save", cut)
    with pytest.raises(Cut):
        train(tmp_path, *runs, every=0.0)
    resumed = train(tmp_path, *runs)
    for a, b in zip(undisturbed, resumed, strict=True):
        assert a.curves == b.curves
        assert b.notes == ()


def test_a_damaged_checkpoint_is_noted_and_the_previous_one_used(tmp_path, monkeypatch):
    undisturbed = train(tmp_path / "undisturbed")
    unit, keep = a_unit(), Checkpoint.remove
    monkeypatch.setattr(Checkpoint, "remove", lambda _: None)
    perform(unit, folder=tmp_path, checkpoint_seconds=0.0)
    monkeypatch.setattr(Checkpoint, "remove", keep)
    newest = Checkpoint(tmp_path, unit.key).newest
    newest.write_bytes(newest.read_bytes()[:-5])
    (resumed,) = perform(unit, folder=tmp_path, checkpoint_seconds=0.0)
    assert resumed.curves == undisturbed[0].curves
    assert resumed.notes == (f"checkpoint {newest.name} is damaged; resuming from the one before it",)


def test_a_pruned_run_equals_the_first_epochs_of_a_full_run(tmp_path):
    (early,) = train(tmp_path, a_run(purpose="tune", until=1))
    assert len(list(tmp_path.iterdir())) == 1  # a later rung may resume it
    (whole,) = train(tmp_path, a_run(purpose="tune"))
    (final,) = train(tmp_path / "other")
    assert early.curves["train_loss"] == final.curves["train_loss"][:1]
    assert whole.curves["train_loss"] == final.curves["train_loss"]  # the mean of three epochs is compared


def test_a_run_that_diverges_is_a_result(tmp_path):
    (result,) = train(tmp_path, a_run(values={"lr": 1e30, "g0": 1e-7}))
    assert result.status == "diverged"
    assert [len(curve) for curve in result.curves.values()] == [3, 3, 3]
    assert all(math.isnan(result.last(metric)) for metric in result.curves)
    ok, bad = train(tmp_path, a_run(), a_run(values={"lr": 1e30, "g0": 1e-7}))
    assert (ok.status, bad.status) == ("done", "diverged")
    assert math.isnan(bad.last("test_accuracy"))
    assert math.isfinite(ok.last("test_accuracy"))


class Fragile:
    """Diverges in its fifth epoch; before that all metrics are 0.9."""

    steps, epoch = 1, 0

    def __init__(self, *_):
        self.draw = lambda: None
        self.load_state_dict = vars(self).update

    def step(self, k):
        self.epoch += 1

    def end_epoch(self):
        return [self.epoch < 5]

    def measure(self):
        return [dict.fromkeys(("train_loss", "valid_loss", "test_loss", "test_accuracy"), 0.9)]

    def state_dict(self):
        return {"epoch": self.epoch}


@pytest.mark.parametrize("epochs", [5, 10])
def test_a_diverged_run_does_not_keep_the_score_of_an_earlier_rung(tmp_path, monkeypatch, epochs):
    monkeypatch.setattr(loop, "_trainee", Fragile)
    (early,) = train(tmp_path, a_run(purpose="tune", until=3, epochs=epochs))
    assert (early.status, early.curves["valid_loss"]) == ("done", [0.9] * 3)
    (late,) = train(tmp_path, a_run(purpose="tune", epochs=epochs))
    assert late.status == "diverged"
    assert all(len(curve) == 3 and math.isnan(curve[-1]) for curve in late.curves.values())
    (final,) = train(tmp_path / "final", a_run(epochs=epochs))
    assert [math.isnan(value) for value in final.curves["test_accuracy"]] == [False] * 4 + [True] * (epochs - 4)


def test_each_rung_counts_its_own_seconds(tmp_path, monkeypatch):
    clock = iter(range(10_000))
    monkeypatch.setattr(loop, "_trainee", Fragile)
    monkeypatch.setattr(loop.time, "perf_counter", lambda: float(next(clock)))
    (whole,) = train(tmp_path / "whole", a_run(purpose="tune", until=4, epochs=9), every=0.0)
    rungs = [train(tmp_path, a_run(purpose="tune", until=end, epochs=9), every=0.0)[0] for end in (2, 4)]
    (again,) = train(tmp_path, a_run(purpose="tune", until=4, epochs=9), every=0.0)  # as if it was not stored
    assert rungs[1].seconds <= rungs[0].seconds + 1  # as many epochs
    assert sum(rung.seconds for rung in rungs) <= whole.seconds + 3
    assert again.seconds >= rungs[1].seconds


def test_a_later_checkpoint_is_not_used_for_an_earlier_rung(tmp_path):
    (early,) = train(tmp_path, a_run(purpose="tune", until=1))
    train(tmp_path, a_run(purpose="tune", until=2))
    (again,) = train(tmp_path, a_run(purpose="tune", until=1))  # its row in the store was damaged
    assert again.curves == early.curves


def test_the_dtype_is_used(tmp_path):
    (double,), (single,) = train(tmp_path, a_run(dtype="float64")), train(tmp_path)
    assert double.curves["train_loss"] != single.curves["train_loss"]
    assert double.curves["train_loss"] == pytest.approx(single.curves["train_loss"], rel=1e-4)


def test_the_auc_needs_two_classes(tmp_path):
    with pytest.raises(
        data.DataError, match=r"loss = 'auc' needs two classes, and digits has 10\. Set data\.binary = true"
    ):
        train(tmp_path, a_run("sgda", {"lr": 0.1, "dual_lr": 0.1}, **{**AUC, "data": {}}))


def test_the_loss_is_the_exact_mean_over_the_label_noise():
    scores, labels, noise = torch.randn(20, 10, generator=torch.Generator().manual_seed(0)), torch.arange(20) % 10, 0.3
    for_true = cross_entropy(scores, labels).item()
    for_any = torch.stack([cross_entropy(scores, torch.full((20,), k)) for k in range(10)]).mean().item()
    mean = (1 - noise) * for_true + noise * for_any
    assert metrics.class_loss(scores, labels, noise, 10).item() == pytest.approx(
        mean - metrics.entropy(noise, 10), rel=1e-5
    )
    best = torch.tensor([0.85 / 0.15]).log()  # the right odds under noise 0.3
    assert metrics.class_loss(best, torch.tensor([1]), noise).item() == pytest.approx(0, abs=1e-6)


def test_the_auc_counts_pairs_and_ties_half():
    g = torch.Generator().manual_seed(1)
    scores, labels = torch.randint(5, (60,), generator=g).float(), torch.randint(2, (60,), generator=g)
    p, n = scores[labels == 1], scores[labels == 0]
    pairs = (p[:, None] > n).double() + 0.5 * (p[:, None] == n).double()
    assert metrics.area_under_curve(scores, labels) == pytest.approx(pairs.mean().item(), rel=1e-12)
    assert math.isnan(metrics.area_under_curve(scores, labels * 0))
    assert math.isnan(metrics.area_under_curve(scores * math.nan, labels))


@pytest.mark.parametrize("clip", [None, [0.5, 100.0]])
@pytest.mark.parametrize("corrected", [True, False])
@pytest.mark.parametrize("scaling", ["shb", "adam", "amsgrad", "adafom", "adam+", "adabound"])
def test_the_bounds_of_s_are_those_of_the_last_step(scaling, corrected, clip):
    """Compare with s from the step itself: x moved by eta s v."""
    import semaopt

    g = torch.Generator().manual_seed(0)
    x = torch.nn.Parameter(torch.randn(51, generator=g).double())
    optimizer = semaopt.ASA([x], lr=0.1, scaling=scaling, bias_correction=corrected, clip_scaling=clip and tuple(clip))
    for _ in range(5):
        before = x.detach().clone()
        x.grad = torch.randn(51, generator=g).double()
        optimizer.step()
    v = optimizer.state[x]["v"] / (float(optimizer.state[x]["v_weight"]) if corrected else 1)
    s = (before - x.detach()) / (0.1 * v)
    (found,) = metrics.bounds(optimizer)
    places = {"s_min": 0, "s_q01": 1, "s_q25": 13, "s_median": 25, "s_q75": 38, "s_q99": 50, "s_max": 50}
    ordered = s.sort().values
    assert found == pytest.approx({name: ordered[place].item() for name, place in places.items()}, rel=1e-6)
