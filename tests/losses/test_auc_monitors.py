"""Warnings about the prior and the variables of AUCMinMax, raised in the first batches."""

import copy
import itertools
import warnings

import pytest
import torch

import semaopt
from semaopt.losses import AUCMinMax
from semaopt.samplers import ClassBalanced


def draw(auc, share, batches, seed=0, size=32, views=1):
    generator = torch.Generator().manual_seed(seed)
    for k in range(batches):
        b = torch.rand(size // views, len(share), generator=generator) < torch.tensor(share)
        b = b.repeat_interleave(views, 0)
        auc(torch.full(b.shape, float(k), requires_grad=True), b).backward()


def warnings_of(run, *arguments, **options):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        run(*arguments, **options)
    return [str(one.message) for one in found]


def test_sampler_that_contradicts_the_prior_warns_once():
    text = r"of the first 2048 examples 0\.\d+ were positive, but prior=0\.3\. .*Pass the share"
    with pytest.warns(UserWarning, match=text) as found:
        draw(AUCMinMax(0.3), [0.5], 300)
    assert [warning.filename for warning in found] == [__file__]
    with pytest.warns(UserWarning, match=r"positive in column 1, but prior=0\.3"):
        draw(AUCMinMax([0.5, 0.3]), [0.5, 0.1], 64)
    with pytest.warns(UserWarning, match=r"but prior=0\.001"):
        draw(AUCMinMax(0.001), [0.5], 64)


def test_warning_points_to_the_caller_and_is_raised_once_even_as_an_error():
    both = semaopt.losses.WithLoss(torch.nn.Identity(), AUCMinMax(0.1))
    with pytest.warns(UserWarning, match="prior") as found:
        draw(both, [0.5], 80)
    assert [warning.filename for warning in found] == [__file__]
    auc = AUCMinMax(0.3)
    draw(auc, [0.5], 63)
    with pytest.raises(UserWarning, match="prior"):
        draw(auc, [0.5], 1)
    draw(auc, [0.5], 80)


@pytest.mark.parametrize(("prior", "batches"), [(0.0115, 4), (0.99, 4), (0.05, 16), (0.1, 32)])
def test_gross_disagreement_warns_early_and_once(prior, batches):
    auc, b = AUCMinMax(prior), torch.arange(32) % 2

    def balanced(start, stop):
        for k in range(start, stop):
            auc(torch.full((32,), float(k), requires_grad=True), b)

    assert warnings_of(balanced, 0, batches - 1) == []
    (text,) = warnings_of(balanced, batches - 1, batches)
    assert f"of the first {32 * batches} examples 0.5 were positive, but prior={prior:.3g}" in text
    assert warnings_of(balanced, batches, 200) == []


@pytest.mark.parametrize("size", [1, 2, 8, 32, 128])
@pytest.mark.parametrize("prior", [1e-4, 1e-3, 0.01, 0.05, 0.1, 0.3, 0.5, 0.9, 0.99])
def test_uniform_batches_do_not_warn(prior, size):
    """200 columns are as many seeds."""
    assert warnings_of(draw, AUCMinMax([prior] * 200), [prior] * 200, 64, size=size) == []


@pytest.mark.parametrize("views", [4, 8])
@pytest.mark.parametrize("prior", [1e-3, 0.05, 0.2, 0.5])
def test_a_few_batches_of_equal_groups_do_not_warn(prior, views):
    """Four batches of one group each may all be positive or all negative."""
    assert warnings_of(draw, AUCMinMax([prior] * 200), [prior] * 200, 32, size=8, views=views) == []


@pytest.mark.parametrize("size", [1, 4, 16, 32])
@pytest.mark.parametrize("positives", [1, 5, 25])
@pytest.mark.parametrize("first", [True, False])
def test_small_sorted_sets_do_not_warn(size, positives, first):
    b = (torch.arange(50) < positives) == first
    auc = AUCMinMax.from_labels(b)

    def passes():
        batches = itertools.cycle(b.split(size))
        for k, batch in enumerate(itertools.islice(batches, 80)):
            auc(torch.full(batch.shape, float(k), requires_grad=True), batch)

    assert warnings_of(passes) == []


@pytest.mark.parametrize("views", [1, 8, 32])
@pytest.mark.parametrize("prior", [1e-4, 0.01, 0.1, 0.5, 0.99])
def test_batches_that_match_the_prior_do_not_warn(prior, views):
    for seed in range(20):
        assert warnings_of(draw, AUCMinMax(prior), [prior], 64, seed, views=views) == []


def see_batches(auc, labels, sampler, batches=80):
    """Show the loss the labels of batches with random scores."""
    generator = torch.Generator().manual_seed(0)
    for batch in itertools.islice(itertools.chain.from_iterable(itertools.repeat(sampler)), batches):
        auc(torch.randn(len(batch), labels.shape[1], generator=generator, requires_grad=True), labels[batch])


def rare(seed):
    """Return labels (200, 3) with few positives: with four processes, their shares differ."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.zeros(200, 3)
    for c, count in enumerate([2, 6, 29]):
        labels[torch.randperm(200, generator=generator)[:count], c] = 1
    labels[torch.rand(200, 3, generator=generator) < 0.3] = torch.nan
    labels[:2, 0] = 1
    return labels


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("rank", range(4))
def test_a_process_compares_with_what_its_sampler_draws(rank, seed):
    labels = rare(seed)
    sampler = ClassBalanced(labels, 16, num_replicas=4, rank=rank)
    auc = AUCMinMax.from_sampler(sampler)
    assert warnings_of(see_batches, auc, labels, sampler) == []
    wrong = AUCMinMax.from_sampler(sampler)
    wrong.prior.fill_(0.95)
    assert "but prior=0.95" in warnings_of(see_batches, wrong, labels, sampler)[0]


def test_a_process_that_does_not_know_its_share_does_not_warn(monkeypatch):
    labels = rare(0)
    sampler = ClassBalanced(labels, 16, num_replicas=4, rank=0)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 4)
    assert warnings_of(see_batches, AUCMinMax(sampler.prior), labels, sampler) == []
    assert "prior=0.1" in warnings_of(draw, AUCMinMax(0.1), [0.5], 64)[0], "one column: all processes have its share"


def test_many_rare_classes_do_not_warn():
    assert warnings_of(draw, AUCMinMax([1e-4] * 500), [1e-4] * 500, 64) == []


def test_reused_batch_counts_once():
    auc, b = AUCMinMax(0.1), torch.ones(32)

    def again():
        for _ in range(2000):
            auc(torch.zeros(32, requires_grad=True), b)

    assert warnings_of(again) == []


def test_monitors_run_only_in_training_with_validation():
    auc, b, free, later = AUCMinMax(0.3), torch.ones(32), AUCMinMax(0.3, validate=False), AUCMinMax(0.3)
    later.validate = False
    for k in range(100):
        free(torch.full((32,), float(k), requires_grad=True), b)
        later(torch.full((32,), float(k), requires_grad=True), b)
        with torch.no_grad():
            auc(torch.full((32,), float(k)), b)
    auc.eval()
    draw(auc, [0.5], 100)
    auc.train()
    draw(auc, [0.5], 63)
    with pytest.warns(UserWarning, match=r"of the first 2048 examples"):
        draw(copy.deepcopy(auc), [0.5], 1)


def test_missing_labels_do_not_count_as_negatives():
    def train(share):
        auc, generator = AUCMinMax([0.5, 0.5]), torch.Generator().manual_seed(0)
        for _ in range(64):
            b = (torch.rand(32, 2, generator=generator) < share).float()
            b[torch.rand(32, generator=generator) < 0.6, 0] = torch.nan
            auc(torch.randn(32, 2, generator=generator, requires_grad=True), b)

    assert warnings_of(train, 0.5) == []
    assert "positive in column 0, but prior=0.5" in warnings_of(train, 0.2)[0]


def optimize(make, steps=20, **options):
    """Train a linear model; ``make(model, auc)`` returns the optimizer."""
    torch.manual_seed(2)  # of the model; with some others Adam moves y the right way at first
    generator = torch.Generator().manual_seed(0)
    auc, model = AUCMinMax(0.5, **options), torch.nn.Linear(3, 1)
    optimizer = make(model, auc)
    for _ in range(steps):
        b = torch.arange(16) % 2
        a = torch.randn(16, 3, generator=generator) + b[:, None]
        optimizer.zero_grad()
        auc(model(a), b).backward()
        optimizer.step()


KINDS = [semaopt.PDAda, semaopt.PDSM, semaopt.baselines.SGDA]


@pytest.mark.parametrize("kind", KINDS)
def test_swapped_roles_are_an_error(kind):
    model, auc = torch.nn.Linear(3, 1), AUCMinMax(0.5)
    text = r"primal= holds a dual variable of a min-max loss, which must be maximized over\. Pass primal="
    with pytest.raises(ValueError, match=text):
        kind(primal=auc.dual_parameters(), dual=[*model.parameters(), *auc.primal_parameters()])
    with pytest.raises(ValueError, match=r"dual= holds a primal variable .*must be minimized over"):
        kind(primal=model.parameters(), dual=[*auc.dual_parameters(), *auc.primal_parameters()])
    named = [("s", auc.primal_parameters()[0])]
    with pytest.raises(ValueError, match=r"dual= holds a primal variable"):
        kind(primal=model.named_parameters(), dual=named)


@pytest.mark.parametrize("kind", KINDS)
def test_missing_primal_variables_warn(kind):
    def without(model, auc):
        return kind(primal=model.parameters(), dual=auc.dual_parameters(), lr=0.01, dual_lr=0.1)

    def complete(model, auc):
        primal = [*model.parameters(), *auc.primal_parameters()]
        return kind(primal=primal, dual=auc.dual_parameters(), lr=0.01, dual_lr=0.1)

    with pytest.warns(UserWarning, match=r"s and r have not moved while y has.*auc\.primal_parameters\(\)"):
        optimize(without)
    optimize(complete)


def test_frozen_primal_variables_do_not_warn():
    def frozen(model, auc):
        auc.s.requires_grad_(False), auc.r.requires_grad_(False)
        return semaopt.PDSM(primal=model.parameters(), dual=auc.dual_parameters(), dual_lr=0.1)

    optimize(frozen)


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW])
def test_minimized_dual_variable_warns(kind):
    with pytest.warns(UserWarning, match=r"y moves against its gradient: it is minimized but must be maximized"):
        optimize(lambda model, auc: kind([*model.parameters(), *auc.parameters()], lr=0.01))


def accumulate(make, batches, seed, score="sigmoid"):
    """Train a linear model with one step per ``batches`` batches: 10 steps and at least 64 batches."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    auc, model = AUCMinMax(0.1, score=score), torch.nn.Linear(5, 1)
    optimizer = make(model, auc)
    for k in range(max(10 * batches, 64)):
        b = (torch.rand(32, generator=generator) < 0.1).long()
        a = torch.randn(32, 5, generator=generator) + b[:, None]
        (auc(model(a), b) / batches).backward()
        if (k + 1) % batches == 0:
            optimizer.step()
            optimizer.zero_grad()


@pytest.mark.parametrize("batches", [2, 8, 20])
def test_accumulated_gradients_do_not_warn(batches):
    """A move of y follows the sum of the gradients since its last move, not the gradient of the last batch."""

    def make(model, auc):
        return semaopt.PDAda(primal=[*model.parameters(), *auc.primal_parameters()], dual=auc.dual_parameters())

    for seed in range(12):
        assert warnings_of(accumulate, make, batches, seed) == []


@pytest.mark.parametrize("batches", [1, 2, 8, 20])
def test_minimized_dual_variable_warns_with_accumulated_gradients(batches):
    def make(model, auc):
        return torch.optim.Adam([*model.parameters(), *auc.parameters()], lr=0.001)

    found = [warnings_of(accumulate, make, batches, seed, "linear") for seed in range(6)]
    assert sum("it is minimized but must be maximized" in text for texts in found for text in texts) >= 3
    assert all(len(texts) <= 1 for texts in found)


def test_moves_of_y_are_compared_with_the_gradient_of_the_labelled_examples():
    """With 31 of 32 labels missing, or a column without labels, y follows its gradient and nothing is warned."""
    auc = AUCMinMax([0.5, 0.5], score="linear")
    optimizer = torch.optim.SGD(auc.dual_parameters(), lr=0.1, maximize=True)

    def train():
        for k in range(20):
            optimizer.zero_grad()
            b = torch.full((64, 2), torch.nan)
            b[:2, 0] = torch.tensor([1.0, 0.0])
            h = (b == 1) * 4.0 + 1e-3 * k
            auc(h.requires_grad_(), b).backward()
            optimizer.step()

    auc.s.requires_grad_(False), auc.r.requires_grad_(False)
    assert warnings_of(train) == []
    assert auc.y[0] < -1


@pytest.mark.parametrize("name", ["SGDA", "SGDMax", "EpochSGDA", "PESSGDA", "PESAdaGrad", "AccMDA"])
@pytest.mark.parametrize("score", ["sigmoid", "linear"])
def test_min_max_optimizers_do_not_warn(name, score):
    kind = getattr(semaopt.baselines, name)
    options = {"stage_length": 3} if name in ("EpochSGDA", "PESSGDA", "PESAdaGrad") else {}
    generator = torch.Generator().manual_seed(0)
    auc, model = AUCMinMax(0.5, score=score), torch.nn.Linear(3, 1)
    primal = [*model.parameters(), *auc.primal_parameters()]
    optimizer = kind(primal=primal, dual=auc.dual_parameters(), lr=0.05, dual_lr=0.1, **options)
    for _ in range(40):
        b = torch.arange(16) % 2
        a = torch.randn(16, 3, generator=generator) + b[:, None]

        def closure(a=a, b=b):
            optimizer.zero_grad()
            loss = auc(model(a), b)
            loss.backward()
            return loss

        optimizer.step(closure)
