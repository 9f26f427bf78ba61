import collections
import itertools
import random

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import semaopt
from semaopt.losses import AUCMinMax
from semaopt.samplers import ClassBalanced


def binary(n=100, positives=10):
    labels = torch.zeros(n, dtype=torch.long)
    labels[torch.randperm(n, generator=torch.Generator().manual_seed(0))[:positives]] = 1
    return labels


def multi(n=120, classes=3, missing=0.0):
    generator = torch.Generator().manual_seed(0)
    labels = (torch.rand(n, classes, generator=generator) < torch.tensor([0.05, 0.2, 0.5])[:classes]).float()
    labels[torch.rand(n, classes, generator=generator) < missing] = torch.nan
    return labels


FORMS = {
    "0, 1": lambda b: b,
    "-1, 1": lambda b: 2 * b - 1,
    "bool": lambda b: b.bool(),
    "float": lambda b: b.float(),
    "list": lambda b: b.tolist(),
    "column": lambda b: b[:, None],
    "numpy": lambda b: b.numpy(),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_batch_has_the_share(form):
    labels = binary()
    sampler = ClassBalanced(FORMS[form](labels), batch_size=16, positives=0.25)
    batches = list(sampler)
    assert len(batches) == len(sampler) == 7
    assert all(len(batch) == 16 and labels[batch].sum() == 4 for batch in batches)
    assert sampler.prior.tolist() == [0.25]


@pytest.mark.parametrize(("size", "positives", "count"), [(2, 0.01, 1), (2, 0.99, 1), (10, 0.001, 1), (10, 0.34, 3)])
def test_the_share_is_rounded_to_examples(size, positives, count):
    labels = binary()
    sampler = ClassBalanced(labels, size, positives)
    assert all(labels[batch].sum() == count for batch in sampler)
    assert sampler.prior.item() == pytest.approx(count / size)


def test_a_class_is_used_up_before_it_repeats():
    labels = binary(100, 10)
    counts = collections.Counter(itertools.chain.from_iterable(ClassBalanced(labels, 20, 0.5)))
    assert sum(counts.values()) == 100
    assert {counts[i] for i in labels.nonzero().flatten().tolist()} == {5}
    assert {counts[i] for i in (labels == 0).nonzero().flatten().tolist()} <= {0, 1}


@pytest.mark.parametrize("positives", [8, 9, 13, 40])
@pytest.mark.parametrize("replicas", [1, 2])
def test_a_batch_repeats_no_example_of_a_large_enough_class(positives, replicas):
    """A class may be used up and reshuffled in the middle of a batch."""
    labels = binary(100, positives * replicas)
    drawn = collections.Counter()
    for rank in range(replicas):
        sampler = ClassBalanced(labels, 16, num_replicas=replicas, rank=rank)
        for _ in range(40 * replicas):
            for batch in sampler:
                assert len(set(batch)) == 16
                drawn.update(batch)
    counts = torch.tensor([drawn[i] for i in range(100)]).double()
    for b in (0, 1):  # the examples of a class are drawn equally often
        each = counts[labels == b]
        assert each.std() < 0.15 * each.mean()


def test_a_batch_repeats_no_example_of_a_column():
    labels = torch.zeros(90, 3)
    for c, count in enumerate([4, 7, 11]):
        labels[30 * c : 30 * c + count, c] = 1
        labels[: 30 * c, c] = labels[30 * (c + 1) :, c] = torch.nan
    sampler = ClassBalanced(labels, 24)
    for _ in range(30):
        assert all(len(set(batch)) == 24 for batch in sampler)


def test_epochs_differ_and_seeds_decide():
    labels = binary()
    sampler = ClassBalanced(labels, 16)
    first, second = list(sampler), list(sampler)
    assert first != second, "a new iteration is a new epoch"
    sampler.set_epoch(0)
    assert list(sampler) == first
    assert list(ClassBalanced(labels, 16)) == first
    assert list(ClassBalanced(labels, 16, seed=1)) != first


def test_the_global_random_state_is_neither_read_nor_changed():
    torch.manual_seed(0), random.seed(0)
    before = torch.get_rng_state(), random.getstate()
    first = list(ClassBalanced(binary(), 16))
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    torch.manual_seed(1), random.seed(1)
    assert list(ClassBalanced(binary(), 16)) == first


def test_the_default_device_is_not_used():
    expected = list(ClassBalanced(binary(), 16))
    labels = binary()
    with torch.device("meta"):
        assert list(ClassBalanced(labels, 16)) == expected


@pytest.mark.parametrize("missing", [0.0, 0.4])
@pytest.mark.parametrize("replicas", [1, 2])
def test_multi_label_priors_are_the_shares_in_the_batches(missing, replicas):
    labels = multi(missing=missing)
    drawn, prior = [], None
    for rank in range(replicas):
        sampler = ClassBalanced(labels, 12, 0.5, num_replicas=replicas, rank=rank)
        assert prior is None or torch.equal(prior, sampler.prior)
        prior = sampler.prior
        for epoch in range(200):
            sampler.set_epoch(epoch)
            drawn += itertools.chain.from_iterable(sampler)
    rows = labels[drawn]
    share = rows.nansum(0) / (~rows.isnan()).sum(0)
    torch.testing.assert_close(share, prior, rtol=0.02, atol=0.01)
    assert prior[0] > 3 * 0.05, "the rare column is raised"


def rare(missing=0.3, seed=0):
    """Return labels (200, 5) with few positives: with several processes, some have one class in a column."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.zeros(200, 5)
    for c, count in enumerate([2, 5, 18, 4, 29]):
        labels[torch.randperm(200, generator=generator)[:count], c] = 1
    labels[torch.rand(200, 5, generator=generator) < missing] = torch.nan
    labels[:2, 0] = 1
    return labels


def shares(labels, epochs=300, **options):
    """Return the share of positives in each column in the batches of each process, and in all batches."""
    counts = []
    for rank in range(options["num_replicas"]):
        sampler = ClassBalanced(labels, **options, rank=rank)
        rows = labels[[*itertools.chain.from_iterable(itertools.chain.from_iterable(sampler for _ in range(epochs)))]]
        counts.append(torch.stack([rows.nansum(0), (~rows.isnan()).sum(0)]))
    counts = torch.stack(counts)
    return counts[:, 0] / counts[:, 1], counts[:, 0].sum(0) / counts[:, 1].sum(0)


@pytest.mark.parametrize("seed", [0, 1])
def test_the_prior_is_the_share_in_the_batches_of_all_processes(seed):
    """A process with one class in a column counts with what it draws, not with a share of 0.5."""
    labels = rare(seed=seed)
    each, joint = shares(labels, batch_size=16, num_replicas=4)
    sampler = ClassBalanced(labels, 16, num_replicas=4, rank=0)
    assert (each == 0).any(), "a process without positives in a column"
    torch.testing.assert_close(sampler.prior, joint, rtol=0, atol=4e-3)


def test_columns_of_one_class_are_skipped():
    labels = multi()
    labels[:, 1] = 0
    labels[:, 2] = torch.nan
    sampler = ClassBalanced(labels, 8, 0.25)
    assert all(labels[batch, 0].sum() == 2 for batch in sampler)
    assert sampler.prior.tolist() == [0.25, 0.5, 0.5]


@pytest.mark.parametrize("make", [binary, multi])
def test_processes_draw_from_disjoint_parts(make):
    labels = make()
    parts = []
    for rank in range(3):
        sampler = ClassBalanced(labels, 8, num_replicas=3, rank=rank)
        assert len(sampler) == -(-len(labels) // 24)
        seen = set()
        for _ in range(60):
            seen |= {*itertools.chain.from_iterable(sampler)}
        parts.append(seen)
    assert set.union(*parts) == {*range(len(labels))}
    assert sum(map(len, parts)) == len(labels)


@pytest.mark.parametrize("epochs", [0, 2])
@pytest.mark.parametrize("batches", [0, 3, 7])
def test_it_resumes_in_the_middle_of_an_epoch(epochs, batches):
    labels = binary()
    sampler = ClassBalanced(labels, 16)
    for _ in range(epochs):
        list(sampler)
    running = iter(sampler)
    for _ in range(batches):
        next(running)
    state = sampler.state_dict()
    rest = list(running) + list(sampler)
    twin = ClassBalanced(labels, 16)
    twin.load_state_dict(state)
    twin.set_epoch(state["epoch"])  # as a loop over epochs does
    assert list(twin) + list(twin) == rest
    assert all(type(value) is int for value in state.values())


def test_workers_draw_ahead_so_the_position_is_given():
    labels = binary()
    expected = list(ClassBalanced(labels, 16))
    sampler = ClassBalanced(labels, 16)
    list(zip(range(5), sampler, strict=False))
    twin = ClassBalanced(labels, 16)
    twin.load_state_dict(sampler.state_dict(position=2))
    assert list(twin) == expected[2:]


def test_an_abandoned_iteration_starts_again():
    sampler = ClassBalanced(binary(), 16)
    first = next(iter(sampler))
    assert next(iter(sampler)) == first


def test_a_loader_and_a_loss_take_it():
    labels = binary()
    sampler = ClassBalanced(labels, 16, positives=0.25)
    loader = DataLoader(TensorDataset(torch.arange(100), labels), batch_sampler=sampler)
    auc = AUCMinMax.from_sampler(sampler, score="linear")
    assert auc.prior.item() == 0.25
    assert auc.score == "linear"
    for index, b in loader:
        assert torch.equal(labels[index], b)
        assert b.sum() == 4
    with pytest.raises(TypeError, match=r"sampler of type RandomSampler: has no attribute prior; pass a semaopt"):
        AUCMinMax.from_sampler(torch.utils.data.RandomSampler(labels))


def test_a_loss_refuses_columns_of_one_class():
    """So does AUCMinMax.from_labels; a column without labels is skipped by both."""
    labels = multi()
    labels[:, 2] = torch.nan
    assert AUCMinMax.from_sampler(ClassBalanced(labels, 8)).prior[2] == 0.5
    for value, kind in ((0, "negative"), (1, "positive")):
        labels[:, 1] = value
        text = rf"labels that the sampler draws in an epoch: column 1 has only {kind} labels \(120 of them\), so its"
        with pytest.raises(ValueError, match=text + " AUC is not defined; drop the column, set its labels to NaN"):
            AUCMinMax.from_sampler(ClassBalanced(labels, 8))
        with pytest.raises(ValueError, match=rf"labels: column 1 has only {kind} labels \(120 of them\), so its AUC"):
            AUCMinMax.from_labels(labels)


def test_a_loss_with_another_prior_warns():
    labels = binary()

    def train(auc, sampler):
        for epoch in range(12):
            for k, batch in enumerate(sampler):
                auc(torch.full((16,), float(10 * epoch + k), requires_grad=True), labels[batch]).backward()

    sampler = ClassBalanced(labels, 16)
    train(AUCMinMax.from_sampler(sampler), sampler)
    with pytest.warns(UserWarning, match=r"0\.5 were positive, but prior=0\.1\..*AUCMinMax\.from_sampler\(sampler\)"):
        train(AUCMinMax.from_labels(labels), sampler)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"batch_size": 1}, r"batch_size=1.*must be a whole number >= 2"),
        ({"positives": 1.0}, r"positives=1\.0.*must lie in \(0, 1\)"),
        ({"batch_size": 2.5}, r"batch_size=2\.5.*must be a whole number >= 2"),
        ({"num_replicas": 2, "rank": 2}, r"rank=2.*must lie in 0\.\.1"),
        ({"num_replicas": 2, "rank": -1}, r"rank=-1.*must be a whole number >= 0"),
        ({"num_replicas": 0}, r"num_replicas=0.*must be a whole number >= 1"),
        ({"num_replicas": 50, "rank": 0}, r"process \d+ of 50 has no column with both classes; .*use fewer processes"),
        ({"labels": [1, 1, 1]}, r"labels of 3 examples: no column has both classes"),
        ({"labels": []}, r"labels=\(0,\).*must have the shape \(n,\) or \(n, C\)"),
        ({"labels": [0, 1, 2]}, r"labels=\[0, 1, 2\].*must be \{0, 1\}"),
        ({"labels": ["no", "yes"]}, r"labels=\['no', 'yes'\].*must hold numbers or booleans .*with labels == 'yes'"),
    ],
)
def test_invalid_arguments(arguments, text):
    with pytest.raises(ValueError, match=text):
        ClassBalanced(**{"labels": binary(), "batch_size": 8, **arguments})


def test_integers_of_numpy():
    four, two = np.int64(4), np.int64(2)
    sampler = ClassBalanced(binary(), four, seed=two, num_replicas=two, rank=np.int64(1))
    assert list(sampler) == list(ClassBalanced(binary(), 4, seed=2, num_replicas=2, rank=1))
    assert all(type(value) is int for value in sampler.state_dict(position=two).values())


def test_a_state_of_another_sampler_is_refused():
    state = ClassBalanced(binary(), 16, seed=3).state_dict()
    with pytest.raises(ValueError, match=r"seed=0.*must be the value in the state, 3.*seed=3"):
        ClassBalanced(binary(), 16).load_state_dict(state)


def test_labels_of_pandas():
    pandas = pytest.importorskip("pandas", reason="pandas is optional")
    labels, order = binary(), [*range(99, -1, -1)]
    expected = list(ClassBalanced(labels, 16))
    assert list(ClassBalanced(pandas.Series(labels.numpy(), index=order), 16)) == expected
    assert list(ClassBalanced(pandas.DataFrame({"b": labels.numpy()}, index=order), 16)) == expected
    with pytest.raises(ValueError, match=r"labels=\['no', .*must hold numbers or booleans"):
        ClassBalanced(pandas.Series(["no", "yes"]), 2)


@pytest.mark.parametrize("name", ["size", "epoch", "position"])
def test_an_incomplete_state_is_refused(name):
    sampler = ClassBalanced(binary(), 16)
    with pytest.raises(ValueError, match=r"state=\{\} is invalid: it lacks 'epoch', 'position', 'size'.*\. Pass what"):
        sampler.load_state_dict({})
    state = sampler.state_dict()
    del state[name]
    with pytest.raises(ValueError, match=rf"lacks '{name}'\. Pass what state_dict\(\) of a ClassBalanced returned"):
        sampler.load_state_dict(state)


def test_it_is_exported():
    assert semaopt.samplers.ClassBalanced is ClassBalanced
