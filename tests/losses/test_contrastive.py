"""Values and limits of the global contrastive loss; test_registry.py tests the exact objective."""

import pytest
import torch

from semaopt.losses import GlobalContrastive


def features(n=8, d=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(n, d, generator=generator, dtype=torch.float64) for _ in range(2)]


def test_batch_form_is_cross_entropy_without_the_positive_pair():
    """The value is tau log of the mean of exp((s_ij - s_ii)/tau) over the negatives."""
    a, b = (torch.nn.functional.normalize(x, dim=1) for x in features())
    s = a @ b.T
    expected = 0.0
    for rows in (s, s.T):
        off = rows.masked_fill(torch.eye(8).bool(), -torch.inf)
        expected = expected + (0.2 * (torch.logsumexp(off / 0.2, 1) - torch.log(torch.tensor(7.0)))).sub(s.diagonal())
    value = GlobalContrastive(8, 0.2, eps=0.0).eval()(*features())
    torch.testing.assert_close(value, expected.mean() / 2, rtol=1e-6, atol=1e-7)


def test_a_low_temperature_gives_the_nearest_negative():
    a, b = (torch.nn.functional.normalize(x, dim=1) for x in features())
    s = a @ b.T
    off = s.masked_fill(torch.eye(8).bool(), -2.0)
    expected = (off.amax(1) + off.amax(0) - 2 * s.diagonal()).mean() / 2
    value = GlobalContrastive(8, 1e-4, eps=0.0).eval()(*features())
    torch.testing.assert_close(value, expected, rtol=1e-2, atol=1e-2)


def similarities(form):
    """Return s_ij - s_ii of each feature with its negatives."""
    a, b = (torch.nn.functional.normalize(x.float().double(), dim=1) for x in features())
    other, own, rows = ~torch.eye(8).bool(), (a * b).sum(1, keepdim=True), []
    for first, second in ((a, b), (b, a)):
        kinds = [second, first] if form == "views" else [second]
        rows += [torch.cat([(first @ x.T)[other].view(8, 7) for x in kinds], 1) - own]
    return torch.cat(rows)


@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("mode", ["train", "eval", "no_grad"])
@pytest.mark.parametrize("form", ["pairs", "views"])
@pytest.mark.parametrize("temperature", [1e4, 1e6, 1e9, 1e12])
def test_large_temperatures_give_the_mean_in_float32(temperature, form, mode, closed):
    s = similarities(form)
    mean = s.mean() + s.var(1, correction=0).mean() / (2 * temperature)  # the next term is smaller by the temperature
    loss = GlobalContrastive(8, temperature, form=form, eps=0.0).train(mode != "eval")
    loss.closed_form = closed
    for _ in range(2):
        with torch.set_grad_enabled(mode != "no_grad"):
            value = loss(*(x.float().requires_grad_() for x in features()), torch.arange(8))
        torch.testing.assert_close(value, mean.float(), rtol=1e-4, atol=0.0)


@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("form", ["pairs", "views"])
def test_float32_features_have_exact_gradients_at_low_temperatures(form, closed):
    """The averages of equal batches do not change, so each gradient is that of the first batch."""
    loss = GlobalContrastive(8, 1e-6, form=form)
    loss.closed_form = closed
    x = [x.float().requires_grad_() for x in features()]
    found = [torch.autograd.grad(loss(*x, torch.arange(8)), x) for _ in range(3)]
    for later in found[1:]:
        torch.testing.assert_close(later, found[0], rtol=1e-5, atol=1e-7)


def test_averages_converge_to_the_whole_data_set_at_a_frozen_model():
    """Running means over batches of 4 converge to the expectation over the other examples of the data set."""
    a, b = features(10)
    loss, exact = GlobalContrastive(10, 0.5).double(), GlobalContrastive(10, 0.5).double()
    exact(a.clone().requires_grad_(), b, torch.arange(10))
    generator = torch.Generator().manual_seed(0)
    for visits in range(1, 3001):
        order = torch.randperm(10, generator=generator)
        loss.inner_beta = 1 - 1 / visits
        for part in (order[:5], order[5:]):
            loss(a[part].requires_grad_(), b[part], part)
    torch.testing.assert_close(loss.z.exp(), exact.z.exp(), rtol=0.02, atol=0.0)


def test_small_batches_learn_to_match_pairs():
    torch.manual_seed(0)
    latent = torch.randn(64, 6)
    images, texts = latent @ torch.randn(6, 10), latent @ torch.randn(6, 8)
    left, right = torch.nn.Linear(10, 6), torch.nn.Linear(8, 6)
    loss = GlobalContrastive(64, 0.2)
    optimizer = torch.optim.AdamW([*left.parameters(), *right.parameters()], lr=0.01)

    def matched():
        with torch.no_grad():
            a, b = (torch.nn.functional.normalize(z, dim=1) for z in (left(images), right(texts)))
            return ((a @ b.T).argmax(1) == torch.arange(64)).float().mean().item()

    before = matched()
    for _ in range(40):
        for part in torch.randperm(64).split(8):
            optimizer.zero_grad()
            loss(left(images[part]), right(texts[part]), part).backward()
            optimizer.step()
    assert before < 0.2
    assert matched() > 0.8


def test_one_example_has_no_negatives():
    x = torch.randn(1, 3, requires_grad=True)
    loss = GlobalContrastive(4)
    value = loss(x, torch.randn(1, 3), torch.tensor([2]))
    value.backward()
    assert value == 0
    assert (x.grad == 0).all()
    assert loss.z.isnan().all()


@pytest.mark.parametrize("mode", ["C", "autograd", "eval"])
@pytest.mark.parametrize("form", ["pairs", "views"])
def test_copies_of_an_example_are_not_its_negatives(form, mode):
    """Compare with loops; the batch holds the example 0 twice, with different features."""
    index = torch.tensor([0, 1, 2, 3, 0])
    x = [z.requires_grad_() for z in features(5)]
    a, b = (torch.nn.functional.normalize(z, dim=1) for z in x)
    expected = 0.0
    for first, second in ((a, b), (b, a)):
        for i in range(5):
            others = [j for j in range(5) if index[j] != index[i]]
            s = torch.cat([first[i] @ z[others].T for z in ((second, first) if form == "views" else (second,))])
            expected = expected + 0.4 * ((s - first[i] @ second[i]) / 0.4).exp().mean().log() / 10
    loss = GlobalContrastive(4, 0.4, form=form, eps=0.0).train(mode != "eval")
    loss.closed_form = mode == "C"
    value = loss(*x, index)
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(torch.autograd.grad(value, x), torch.autograd.grad(expected, x))


@pytest.mark.parametrize("closed", [True, False])
def test_copies_of_one_example_have_no_negatives(closed):
    loss, x = GlobalContrastive(4), torch.randn(3, 2, generator=torch.Generator().manual_seed(0)).requires_grad_()
    loss.closed_form = closed
    value = loss(x, x.flip(0), torch.tensor([2, 2, 2]))
    value.backward()
    assert value == 0
    assert (x.grad == 0).all()
    assert loss.z.isnan().all()


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: GlobalContrastive(4, 0.0), r"temperature=0\.0.*must be a finite number > 0"),
        (lambda: GlobalContrastive(4, form="clip"), r"form='clip'.*must be 'pairs' or 'views'"),
        (lambda: GlobalContrastive(4, eps=-1.0), r"eps=-1\.0.*must be a finite number >= 0"),
        (
            lambda: GlobalContrastive(4)(torch.zeros(3, 2), torch.zeros(3, 3), torch.arange(3)),
            r"features=.*must both have the shape \(n, d\)",
        ),
        (
            lambda: GlobalContrastive(4)(torch.zeros(3, 2), torch.zeros(3, 2).double(), torch.arange(3)),
            r"features=\(torch\.float32, torch\.float64\).*must have one dtype.*second\.to\(first\.dtype\)",
        ),
    ],
)
def test_invalid_arguments(make, text):
    with pytest.raises(ValueError, match=text):
        make()
