"""LibAUC's PESG: errors without LibAUC, and equality with LibAUC's own training loop."""

import math

import pytest
import torch

from semaopt.experiments import api, data
from semaopt.experiments.spec import schema
from semaopt.experiments.spec.errors import SpecError
from semaopt.experiments.sweep import reproduction, run
from semaopt.experiments.training import algorithms
from semaopt.experiments.training import libauc as peers
from semaopt.experiments.training.algorithms import Variables
from semaopt.experiments.training.objectives.base import epoch_order
from semaopt.experiments.training.run import Machine
from semaopt.losses import AUCMinMax, WithLoss

VALUES = {"lr": 0.1, "epoch_decay": 2e-3, "mode": "sgd", "every": 1, "factor": 0.5}
SETS = ["a9a", "a9a-03", "a9a-1", "bace", "bbbp", "digits", "ijcnn1", "ijcnn1-03", "ijcnn1-1"]
NAMES = [f"peers-{name}" for name in SETS]
with_libauc = pytest.mark.skipif(not peers.installed(), reason=f"LibAUC is not installed: {peers.REMEDY}")


def test_without_libauc_a_spec_is_read_but_not_run(monkeypatch, tmp_path):
    monkeypatch.setattr(peers, "installed", lambda: False)
    found = schema.load("peers-a9a", "quick")
    text = "needs a package that is not installed. Install it: pip install --no-deps"
    for name in ("pesg_ours_linear", "pdsm_theirs_linear"):  # the optimizer, and the loss
        with pytest.raises(SpecError, match=f"peers-a9a: {name} {text}"):
            api.run(found, out=tmp_path / "new", only=[name])
    assert not (tmp_path / "new").exists()
    assert api.validate_spec(found, None, ["pdsm_ours_linear"]) is found


def test_loss_score_and_optimizer_are_crossed():
    for name in NAMES:
        methods = schema.load(name, "quick").methods
        cells = {
            (one.algorithm, one.options["mode"] if one.algorithm == "PESG" else "", *one.objective.values())
            for one in methods
            if one.positives is None
        }
        optimizers = [("PDSM", ""), ("PDAda", ""), ("PESG", "sgd"), ("PESG", "adam")]
        assert cells == {
            (*one, loss, score)
            for one in optimizers
            for loss in ("semaopt", "libauc")
            for score in ("linear", "sigmoid")
        }
        (recipe,) = [one for one in methods if one.positives is not None]
        assert recipe.objective == {"loss": "libauc", "score": "sigmoid", "version": "v2"}


def test_without_libauc_reproduce_skips_the_comparisons(monkeypatch):
    monkeypatch.setattr(peers, "installed", lambda: False)
    monkeypatch.setattr(reproduction, "find", lambda name: Available())
    monkeypatch.setattr(reproduction.importlib.util, "find_spec", lambda name: object())
    parts = reproduction.select("quick", "peers")
    assert parts.specs == ()
    assert parts.notes == (f"Skipped (data or packages not found): {', '.join(NAMES)}. Get them with: {peers.REMEDY}",)
    found = schema.load("peers-a9a", "quick")
    assert reproduction._remedy(found) == peers.REMEDY
    monkeypatch.setattr(peers, "installed", lambda: True)
    assert reproduction._remedy(found) is None


class Available:
    def missing(self, root):
        return []


@pytest.mark.parametrize("libauc", [False, pytest.param(True, marks=with_libauc)])
@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"lr": -1.0}, "lr=-1.0"),
        ({"epoch_decay": -1.0}, "epoch_decay=-1.0"),
        ({"mode": "rmsprop"}, "mode='rmsprop' is invalid: it must be one of sgd, adam"),
        ({"factor": 0.0}, r"factor=0.0 is invalid: it must lie in \(0, 1\]"),
        ({"every": 0}, "every=0 is invalid: it must be a whole number >= 1"),
        ({"beta": 0.9}, r"options=\['beta'\] is invalid: PESG does not take them"),
    ],
)
def test_wrong_values_are_errors_with_and_without_libauc(monkeypatch, libauc, wrong, text):
    monkeypatch.setattr(peers, "installed", lambda: libauc)
    algorithms.validate("PESG", [], VALUES)
    with pytest.raises(ValueError, match=text):
        algorithms.validate("PESG", [], {**VALUES, **wrong})


def test_runs_of_pesg_are_never_vectorized():
    found = schema.build({**schema.load("peers-a9a", "quick").model_dump(), "vectorize": 4})
    point = {"lr": 0.1, "factor": 0.5, "every": 1, "mode": "sgd", "epoch_decay": 2e-3}
    rates = {"beta": 0.9, "dual_lr": 0.1}
    decay = {"lr": 0.1, "factor": 0.5, "every": 1, **rates}
    cases = [
        ("pesg_ours_linear", point, [1, 1]),
        ("pdsm_ours_linear", decay, [2]),
        ("pdsm_theirs_linear", decay, [1, 1]),
    ]
    for name, values, each in cases:
        method = found.method(name)
        two = [run.make(found, method, values, seed=seed, purpose="final", machine=Machine()) for seed in range(2)]
        assert [len(unit.runs) for unit in run.units(two, 4)] == each


def model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1), torch.nn.Flatten(0))


def batches(count):
    generator = torch.Generator().manual_seed(1)
    for _ in range(count):
        yield torch.randn(8, 3, generator=generator), torch.tensor([0, 1] * 4)


def ours(values, length):
    network = WithLoss(model(), peers.MarginLoss())
    variables = Variables([network.primal_parameters()], [network.dual_parameters()])
    return network, algorithms.build("PESG", [], [values], variables, length)[0]


def train(network, optimizer, count, skip=0):
    for a, b in list(batches(count))[skip:]:
        optimizer.zero_grad()
        network(a, b).backward()
        optimizer.step()


@with_libauc
@pytest.mark.parametrize("decay", [2e-3, 0.0])
@pytest.mark.parametrize("mode", peers.MODES)
def test_it_equals_libaucs_own_loop(mode, decay):
    from libauc.losses.auc import AUCMLoss
    from libauc.optimizers.pesg import PESG

    network, loss = model(), AUCMLoss(device="cpu")
    torch.manual_seed(0)  # for its random reference point
    options = {"lr": 0.1, "mode": mode, "epoch_decay": decay, "verbose": False, "device": torch.device("cpu")}
    plain = PESG(network.parameters(), loss_fn=loss, **options)
    for k, (a, b) in enumerate(batches(7)):
        plain.zero_grad()
        loss(torch.sigmoid(network(a)), b).backward()
        plain.step()
        if k % 3 == 2:  # stages of three steps
            (plain.update_regularizer if decay else plain.update_lr)(2.0)
    both, optimizer = ours({**VALUES, "mode": mode, "epoch_decay": decay}, 3)
    state = torch.get_rng_state()
    train(both, optimizer, 7)
    assert torch.equal(state, torch.get_rng_state())
    assert optimizer.param_groups[0]["lr"] == 0.025
    expected = [*network.parameters(), loss.a, loss.b, loss.alpha]
    assert all(torch.equal(x, y) for x, y in zip(both.parameters(), expected, strict=True))


@with_libauc
def test_it_resumes_from_a_checkpoint_to_the_bit(tmp_path):
    whole, optimizer = ours(VALUES, 3)
    train(whole, optimizer, 7)
    first, optimizer = ours(VALUES, 3)
    train(first, optimizer, 4)
    torch.save({"network": first.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "half.pt")
    rest, optimizer = ours(VALUES, 3)
    saved = torch.load(tmp_path / "half.pt", weights_only=True)
    rest.load_state_dict(saved["network"])
    optimizer.load_state_dict(saved["optimizer"])
    train(rest, optimizer, 7, skip=4)
    assert all(torch.equal(x, y) for x, y in zip(rest.parameters(), whole.parameters(), strict=True))


@with_libauc
def test_pesg_on_our_loss_equals_pesg_on_libaucs():
    """With the prior of the batch both losses have the same gradients; alpha is y plus the margin."""
    ours_, theirs = AUCMinMax(0.5, s=0.0, r=0.0, y=-1.0, score="sigmoid"), peers.MarginLoss()
    found = []
    for loss, offset in ((ours_, 1.0), (theirs, 0.0)):
        network = WithLoss(model(), loss)
        variables = Variables([network.primal_parameters()], [network.dual_parameters()], offset=offset)
        train(network, algorithms.build("PESG", [], [VALUES], variables, 3)[0], 7)
        found.append([x.detach() for x in network.parameters()])
    *first, y = found[0]
    *second, alpha = found[1]
    for a, b in zip(first, second, strict=True):
        torch.testing.assert_close(a, b)
    torch.testing.assert_close(y + 1, alpha)
    assert alpha.item() > 0.1


def test_balanced_batches_have_the_asked_share_of_positives():
    part = data.load("digits", binary=True, imbalance=0.05).train
    generator = torch.Generator().manual_seed(0)
    order = epoch_order(part, 32, 0.25, generator)
    assert len(order) == 32 * math.ceil(len(part) / 32)
    assert {int(part.labels[rows].sum()) for rows in order.split(32)} == {8}
    assert not torch.equal(order, epoch_order(part, 32, 0.25, generator))  # another epoch
    assert sorted(epoch_order(part, 32, None, generator).tolist()) == list(range(len(part)))
