"""The character language model: its text and its model."""

import os
from pathlib import Path

import pytest
import torch

from semaopt.experiments import data, models
from semaopt.experiments.data import DataError, text
from semaopt.experiments.data.catalogue import SETS
from semaopt.experiments.sweep.run import make
from semaopt.experiments.training.run import Machine
from tests.experiments.tiny import a_spec


@pytest.fixture(scope="module")
def task():
    return data.load("python_sources", subset=2000)


def decode(codes):
    return "".join([*text.VOCABULARY, "?"][int(code)] for code in codes)


def test_each_label_is_the_character_after_its_window(task):
    modules = {name: "\n".join(text._read(one) for one in names).lower() for name, names in _PARTS.items()}
    for name, part in (("train", task.train), ("train", task.valid), ("test", task.test)):
        inputs = part.inputs(torch.arange(5))
        assert inputs.shape == (5, text.CONTEXT)
        for codes, label in zip(inputs, part.labels, strict=False):
            known = "".join(c if c in text.VOCABULARY else "?" for c in modules[name])
            assert decode([*codes, label]) in known


_PARTS = {"train": text._TRAIN, "test": text._TEST}


def test_the_text_is_part_of_the_description_and_of_the_key(task, monkeypatch):
    assert task.facts["sha256"] == text.version()
    assert task.facts["source"].startswith("modules of the standard library of Python 3.")

    def key():
        spec = a_spec(data={"name": "python_sources"}, model={"name": "transformer"})
        return make(spec, spec.methods[0], {"lr": 1e-2}, seed=0, purpose="tune", machine=Machine()).key

    before = key()
    assert key() == before
    monkeypatch.setitem(SETS, "python_sources", SETS["python_sources"].__class__(**{
        **vars(SETS["python_sources"]), "version": lambda: "of another Python"
    }))  # fmt: skip
    assert key() != before


def test_a_missing_module_is_an_error(monkeypatch):
    with pytest.raises(DataError, match=r"nothing.py: cannot be read .* use a Python that has them as files"):
        text._read("nothing")
    assert Path(os.__file__).with_name("argparse.py").exists()


def test_the_last_block_computes_the_last_position_of_a_causal_transformer(task):
    model = models.build("transformer", task, width=8, heads=2, layers=2).double()
    x = task.train.inputs(torch.arange(4))
    found = model(x)
    assert found.shape == (4, task.classes)
    model.blocks[-1].last = False
    embedded = model.characters(x.long()) + model.positions.weight
    whole = model.blocks(embedded)  # all positions, each attends to itself and those before it
    torch.testing.assert_close(model.scores(model.norm(whole[:, -1])), found)
    shorter = model.blocks(embedded[:, :-3])
    torch.testing.assert_close(shorter, whole[:, :-3])  # later characters do not change earlier positions


def test_one_block_is_softmax_attention(task):
    model = models.build("transformer", task, width=4, heads=1).double()
    (block,) = model.blocks
    x = torch.randn(3, 5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    normed = block.norm1(x)
    keys, values = block.memory(normed).chunk(2, -1)
    weights = torch.softmax((keys @ block.query(normed)[:, -1, :, None])[..., 0] / 2, -1)
    y = x[:, -1] + block.merge((weights[..., None] * values).sum(1))
    torch.testing.assert_close(block(x)[:, 0], y + block.narrow(torch.relu(block.wide(block.norm2(y)))))


@pytest.mark.parametrize(
    ("name", "set_name", "options", "message"),
    [
        ("transformer", "digits", {}, "transformer takes text, but digits holds table. Use mlp or logistic."),
        ("convnet", "digits", {}, "convnet takes images, but digits holds table"),
        ("mlp", "python_sources", {}, "mlp takes rows of numbers or images, but python_sources holds text"),
        ("transformer", "python_sources", {"width": 9}, "width=9 is invalid: it must be a multiple of heads=4"),
        ("transformer", "python_sources", {"layers": 0}, "layers=0 is invalid: it must be a whole number >= 1"),
    ],
)
def test_models_name_what_they_take(task, name, set_name, options, message):
    with pytest.raises(DataError, match=message):
        models.build(name, task if set_name == "python_sources" else data.load(set_name), **options)


def test_convnet():
    class Images:
        kind, shape, outputs, classes, name = "images", (3, 32, 32), 10, 10, "some"

    model = models.build("convnet", Images, width=2)
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
    assert [tuple(x.shape[:2]) for x in model.parameters() if x.dim() == 4] == [(2, 3), (4, 2), (8, 4)]
    with pytest.raises(DataError, match="width=0 is invalid"):
        models.build("convnet", Images, width=0)
