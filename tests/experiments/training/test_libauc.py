"""LibAUC's PESG: errors without LibAUC, and equality with LibAUC's own training loop."""

import pytest
import torch

from semaopt.experiments import api
from semaopt.experiments.spec import schema
from semaopt.experiments.spec.errors import SpecError
from semaopt.experiments.sweep import reproduction, run
from semaopt.experiments.training import algorithms
from semaopt.experiments.training import libauc as peers
from semaopt.experiments.training.algorithms import Variables
from semaopt.experiments.training.run import Machine
from semaopt.losses import WithLoss

VALUES = {"lr": 0.1, "epoch_decay": 2e-3, "mode": "sgd", "every": 1, "factor": 0.5}
NAMES = ["peers-a9a", "peers-bace", "peers-bbbp", "peers-ijcnn1"]
with_libauc = pytest.mark.skipif(not peers.installed(), reason=f"LibAUC is not installed: {peers.REMEDY}")


def test_without_libauc_a_spec_is_read_but_not_run(monkeypatch, tmp_path):
    monkeypatch.setattr(peers, "installed", lambda: False)
    found = schema.load("peers-a9a", "quick")
    assert [method.algorithm for method in found.methods] == ["PESG", "PDSM", "PDAda"]
    with pytest.raises(
        SpecError, match=r"peers-a9a: pesg needs a package that is not installed. Install it: pip install --no-deps"
    ):
        api.run(found, out=tmp_path / "new")
    assert not (tmp_path / "new").exists()
    assert api.validate_spec(found, None, ["pdsm"]) is found


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
    for name, values, each in (("pesg", point, [1, 1]), ("pdsm", {"lr": 0.1, "factor": 0.5, "every": 1, **rates}, [2])):
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
