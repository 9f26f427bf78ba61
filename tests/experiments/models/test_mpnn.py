"""The message-passing network: its three implementations agree, and it is the described network."""

import pytest
import torch

from semaopt.experiments import data, models
from semaopt.experiments.data.featurize import featurize
from semaopt.experiments.data.molecule_batches import GROUP, Molecules
from semaopt.experiments.models import messages
from semaopt.experiments.models.mpnn import IMPLEMENTATIONS, MPNN
from tests.experiments.data.official import MOLECULES, real

SET = Molecules(featurize([*MOLECULES, "CC(C)NCC(O)COc1cccc2ccccc12", "C(=O)(OC(C)(C)C)CCCc1ccc(cc1)N(CCCl)CCCl"]))
ROWS = torch.tensor([3, 11, 0, 1, 2, 10, 8, 9, 4, 7, 3, 5])


def batch(rows=ROWS, dtype=torch.float64):
    return SET.take(rows, "cpu", dtype)


def network(implementation="fast", dtype=torch.float64):
    torch.manual_seed(0)
    return MPNN(implementation=implementation).to(dtype)


def gradient(model, inputs):
    scores = model(inputs)
    (scores * torch.linspace(-1, 2, len(scores), dtype=scores.dtype)).sum().backward()
    return scores.detach(), {name: p.grad for name, p in model.named_parameters()}


@pytest.mark.parametrize("implementation", ["general", "plain"])
@pytest.mark.parametrize(("dtype", "close"), [(torch.float64, 1e-12), (torch.float32, 2e-5)])
def test_all_implementations_agree_forward_and_backward(implementation, dtype, close):
    assert len(ROWS) > GROUP  # so that attention has several groups
    fast, fast_grads = gradient(network("fast", dtype), batch(dtype=dtype))
    slow, slow_grads = gradient(network(implementation, dtype), batch(dtype=dtype))
    torch.testing.assert_close(fast, slow, rtol=close, atol=close)
    assert fast_grads.keys() == slow_grads.keys()
    for name, found in fast_grads.items():
        assert found.abs().max() > 0 or name == "readout.qkv.bias", name
        assert (found - slow_grads[name]).norm() <= close * (1 + found.norm()), name


def test_messages_for_any_edge_features_equal_nnconv():
    """The general implementation sums per atom and feature; here with arbitrary features."""
    inputs = batch()
    torch.manual_seed(1)
    edge = torch.nn.Linear(7, 16).double()
    h = torch.randn(len(inputs.atoms), 4, dtype=torch.float64)

    class Weighted:
        def edges(self):
            source, target, features = inputs.edges()
            return source, target, features * torch.linspace(0.5, 2, len(features), dtype=torch.float64)[:, None]

    torch.testing.assert_close(messages.by_feature(Weighted(), edge)(h), messages.by_edge(Weighted(), edge)(h))


def test_the_plain_implementation_keeps_the_parameters():
    model = network("plain")
    before = [p.clone() for p in model.parameters()]
    model(batch())
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_score_depends_on_its_molecule_only(implementation):
    model = network(implementation)
    together = model(batch())
    alone = torch.cat([model(batch(row[None])) for row in ROWS])
    torch.testing.assert_close(together, alone)
    assert together[0].item() == pytest.approx(together[10].item(), rel=1e-12)  # the same molecule twice
    assert len({round(score, 9) for score in together.tolist()}) == len(ROWS) - 1


def test_a_single_atom_has_only_its_self_loop():
    methane = batch(torch.tensor([2]))
    assert len(methane.source) == 0
    torch.testing.assert_close(network("fast")(methane), network("plain")(methane))


def test_parameters_and_their_initialization():
    model = network()
    assert sum(p.numel() for p in model.parameters()) == 290_561
    recurrent = model.gru.weight_hh
    torch.testing.assert_close(recurrent.T @ recurrent, torch.eye(64, dtype=torch.float64), atol=1e-6, rtol=0)
    bounds = {
        model.edge: 7 + 4096,
        model.readout.qkv: 8 * 64 + 64 * 64,
        model.readout.mix: 2 * 8 * 64,
        model.readout.feed[0]: 64 + 512,
        model.dense: 64 + 512,
        model.score: 512 + 1,
    }
    for layer, fans in bounds.items():
        bound = (6 / fans) ** 0.5
        assert 0.97 * bound < layer.weight.abs().max() <= bound
        assert not layer.bias.any()
    assert model.readout.norm1.eps == 1e-3


def test_invalid_options():
    with pytest.raises(data.DataError, match=r"implementation 'fats' is unknown\. Did you mean 'fast'"):
        MPNN(implementation="fats")
    with pytest.raises(data.DataError, match="units=16 is invalid: it must be at least 29"):
        MPNN(units=16)
    with pytest.raises(data.DataError, match="mpnn takes molecules, but digits holds table"):
        models.build("mpnn", data.load("digits"))


@pytest.mark.slow
def test_it_learns_on_the_real_data():
    from sklearn.metrics import roc_auc_score

    task = data.load("bbbp", root=real("bbbp"))
    model = models.build("mpnn", task, seed=0)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-4)
    torch.manual_seed(0)
    for _ in range(5):
        for index in torch.randperm(len(task.train)).split(32):
            optimizer.zero_grad()
            scores = model(task.train.inputs(index))
            torch.nn.functional.binary_cross_entropy_with_logits(scores, task.train.labels[index].float()).backward()
            optimizer.step()
    with torch.no_grad():
        auc = roc_auc_score(task.valid.labels, model(task.valid.inputs()))
    assert auc > 0.8
