"""Models by name: shapes, sizes, seeds and errors."""

import pytest
import torch

from semaopt.experiments import data, models
from tests.experiments.data import official
from tests.experiments.data.official import trusted

__all__ = ["trusted"]


@pytest.fixture
def images(tmp_path, trusted):
    official.cifar(tmp_path)
    return data.load("cifar10", root=trusted("cifar10"))


@pytest.mark.parametrize(
    ("name", "count"),
    [("resnet8", 75_290), ("resnet20", 269_722), ("resnet50", 23_528_522), ("mlp", 197_322), ("logistic", 30_730)],
)
def test_images(images, name, count):
    model = models.build(name, images)
    assert sum(p.numel() for p in model.parameters()) == count
    scores = model(images.train.inputs(torch.arange(4)))
    assert scores.shape == (4, 10)
    scores.sum().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_mpnn_does_not_take_images(images):
    with pytest.raises(data.DataError, match=r"cifar10 holds images\. Use a resnet, convnet, mlp or logistic\.$"):
        models.build("mpnn", images)


def test_a_shortcut_skips_pixels_and_adds_channels():
    from semaopt.experiments.models.resnet import Basic

    block = Basic(16, 32, 2)
    torch.nn.init.zeros_(block.norm2.weight)  # leaves the shortcut alone
    x = torch.rand(2, 16, 8, 8)
    out = block(x)
    assert torch.equal(out[:, 8:24], x[:, :, ::2, ::2])
    assert not out[:, :8].any()
    assert not out[:, 24:].any()


@pytest.mark.parametrize("name", ["mlp", "logistic"])
def test_a_binary_task_has_one_score_per_row(name):
    task = data.load("digits", binary=True)
    model = models.build(name, task).double()
    assert model(task.train.inputs(torch.arange(5), dtype=torch.float64)).shape == (5,)
    assert model(task.train.inputs(torch.arange(1), dtype=torch.float64)).shape == (1,)


def test_seeds_and_the_state_of_torch():
    task = data.load("digits")
    before = torch.get_rng_state()
    a, b, c = (torch.cat([p.flatten() for p in models.build("mlp", task, seed=s).parameters()]) for s in (1, 1, 2))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)
    assert torch.equal(before, torch.get_rng_state())


def test_hidden_layers():
    task = data.load("digits")
    model = models.build("mlp", task, hidden=[32, 16])
    assert [tuple(p.shape) for p in model.parameters() if p.dim() == 2] == [(32, 64), (16, 32), (10, 16)]


@pytest.mark.parametrize(
    ("name", "options", "text"),
    [
        ("mlpp", {}, "model 'mlpp' is unknown. Did you mean 'mlp'"),
        ("mlp", {"hiden": 3}, "option of mlp 'hiden' is unknown. Did you mean 'hidden'"),
        ("logistic", {"hidden": 3}, "logistic has no option 'hidden'"),
        ("mlp", {"hidden": []}, r"hidden=\[\] is invalid: it must be a positive number"),
        ("mlp", {"hidden": 0}, "hidden=0 is invalid: it must be a positive number"),
        ("resnet20", {}, r"resnet20 takes images, but digits holds table\. Use mlp or logistic\.$"),
        ("mpnn", {}, r"mpnn takes molecules, but digits holds table\. Use mlp or logistic\.$"),
    ],
)
def test_invalid_options(name, options, text):
    with pytest.raises(data.DataError, match=text):
        models.build(name, data.load("digits"), **options)


def test_other_models_do_not_take_molecules(tmp_path, trusted):
    official.bbbp(tmp_path)
    task = data.load("bbbp", root=trusted("bbbp"))
    for name in ("mlp", "resnet8"):
        with pytest.raises(data.DataError, match=r"bbbp holds molecules\. Use mpnn\.$"):
            models.build(name, task)
    assert models.build("mpnn", task)(task.train.inputs(torch.arange(3))).shape == (3,)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_on_a_gpu(tmp_path, trusted):
    official.bbbp(tmp_path)
    task = data.load("bbbp", root=trusted("bbbp"))
    model = models.build("mpnn", task)
    there = model(task.train.inputs(torch.arange(12)))
    here = model.cuda()(task.train.inputs(torch.arange(12), device="cuda"))
    torch.testing.assert_close(there, here.cpu(), rtol=1e-4, atol=1e-4)
