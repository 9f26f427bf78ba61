"""Tasks: options, splits and facts."""

import json
import subprocess
import sys

import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from semaopt.experiments import data
from semaopt.experiments.data import splits
from semaopt.experiments.data.load import find
from tests.experiments.data import official
from tests.experiments.data.official import real, trusted

__all__ = ["trusted"]


def test_digits_is_split_as_scikit_learn_splits_it():
    x, y = load_digits(return_X_y=True)
    train, rest = train_test_split(range(len(y)), test_size=0.4, stratify=y, random_state=0)
    valid, test = train_test_split(rest, test_size=0.5, stratify=y[rest], random_state=0)
    task = data.load("digits")
    for part, rows in ((task.train, train), (task.valid, valid), (task.test, test)):
        assert torch.equal(part.inputs(), torch.tensor(x[rows] / 16, dtype=torch.float32))
        assert torch.equal(part.labels, torch.tensor(y[rows]))


def test_parts_share_no_row_and_leave_none_out():
    task = data.load("breast_cancer", seed=3)
    rows = torch.cat([task.train.rows, task.valid.rows, task.test.rows])
    assert torch.equal(rows.sort().values, torch.arange(569))
    shares = [part.labels.double().mean().item() for part in (task.train, task.valid, task.test)]
    assert max(shares) - min(shares) < 0.01
    assert not torch.equal(task.train.rows, data.load("breast_cancer", seed=4).train.rows)


def test_columns_are_standardised_on_the_training_part_only():
    task = data.load("breast_cancer")
    std, mean = torch.std_mean(task.train.inputs(dtype=torch.float64), dim=0, correction=0)
    torch.testing.assert_close(mean, torch.zeros(30).double(), atol=1e-5, rtol=0)
    torch.testing.assert_close(std, torch.ones(30).double(), atol=1e-5, rtol=0)
    assert task.test.inputs().mean(0).abs().max() > 0.01


def test_binary_imbalance_and_subset():
    whole = data.load("digits", binary=True)
    assert whole.classes == 2
    assert whole.outputs == 1
    task = data.load("digits", binary=True, imbalance=0.1, subset=200)
    assert (len(task.train), int(task.train.labels.sum())) == (200, 20)
    assert torch.equal(task.valid.labels, whole.valid.labels)
    multi = data.load("digits")
    assert torch.equal(whole.train.labels, (multi.train.labels >= 5).long())
    facts = task.describe()
    assert facts["binary"] == "classes 5 to 9 of 10 are positive"
    assert facts["positives"]["train"] == 20
    json.dumps(facts)


def test_imbalance_keeps_all_negatives():
    whole = data.load("digits", binary=True)
    task = data.load("digits", binary=True, imbalance=0.05)
    negatives = int((whole.train.labels == 0).sum())
    assert int((task.train.labels == 0).sum()) == negatives
    assert int(task.train.labels.sum()) == round(0.05 / 0.95 * negatives)


def test_noise_is_drawn_each_time_and_keeps_labels():
    task = data.load("digits", noise=0.5)
    index, generator = torch.arange(len(task.train)), torch.Generator().manual_seed(0)
    first, second = (task.train.draw(index, generator) for _ in range(2))
    changed = (first != task.train.labels).double().mean()
    assert abs(changed - 0.45) < 0.05
    assert not torch.equal(first, second)
    assert torch.equal(task.valid.draw(torch.arange(5), generator), task.valid.labels[:5])


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("digit", {}), "data set 'digit' is unknown. Did you mean 'digits'"),
        (("digits", {"spilt": "random"}), "option 'spilt' is unknown. Did you mean 'split'"),
        (("digits", {"split": "randm"}), "split 'randm' is unknown. Did you mean 'random'"),
        (("digits", {"split": "scaffold"}), "split='scaffold' needs molecules, and digits holds none. Use 'random'"),
        (("digits", {"imbalance": 0.1}), "imbalance=0.1 needs two classes, but digits has 10. Pass binary=True"),
        (("digits", {"binary": True, "imbalance": 0.9}), r"must lie in \(0, 0.49"),
        (("digits", {"binary": True, "imbalance": 1e-6}), "leaves none of"),
        (("digits", {"subset": 5000}), "subset=5000 is invalid: it must lie in 1..1078"),
        (("digits", {"subset": 3}), "cannot be split with all classes"),
        (("digits", {"noise": 1.0}), r"noise=1.0 is invalid: it must lie in \[0, 1\)"),
    ],
)
def test_invalid_arguments(arguments, text):
    name, options = arguments
    with pytest.raises(data.DataError, match=text):
        data.load(name, **options)


def test_scaffolds_are_never_split_and_frequent_ones_come_first():
    scaffolds = ["a"] * 5 + ["b"] * 3 + ["c", "d"]
    rows = splits.by_scaffold(scaffolds)
    assert [part.tolist() for part in rows[:3]] == [[0, 1, 2, 3, 4, 5, 6, 7], [9], [8]]


@pytest.mark.parametrize(
    ("name", "sizes", "positives"),
    [
        ("bbbp", (1631, 204, 204), (1248, 156, 156)),
        ("bace", (1210, 151, 152), (553, 69, 69)),
        ("a9a", (29304, 3257, 16281), (7057, 784, 3846)),
        ("ijcnn1", (44991, 4999, 91701), (4368, 485, 8712)),
    ],
)
def test_real_binary_sets(name, sizes, positives):
    task = data.load(name, root=real(name))
    facts = task.describe()
    assert tuple(facts["sizes"].values()) == sizes
    assert tuple(facts["positives"].values()) == positives


def test_the_catalogue_knows_the_classes(tmp_path, trusted):
    official.cifar(tmp_path)
    official.cifar(tmp_path, "cifar-100-python", 100, rows=1000)
    official.mnist(tmp_path)
    official.bbbp(tmp_path)
    for name in ("digits", "breast_cancer", "cifar10", "cifar100", "mnist", "bbbp"):
        assert data.load(name, root=trusted(name)).classes == find(name).classes
    several = {"digits", "cifar10", "cifar100", "mnist", "python_sources"}
    assert {name for name in data.NAMES if find(name).classes > 2} == several


def test_real_bbbp_rows_that_do_not_parse_are_named():
    facts = data.load("bbbp", root=real("bbbp")).describe()
    assert (facts["rows"], facts["molecules"], facts["distinct_molecules"]) == (2050, 2039, 1975)
    assert len(facts["unparsable"]) == 11
    assert facts["unparsable"][0]["row"] == 60


def test_real_scaffold_splits_have_both_classes():
    facts = data.load("bbbp", root=real("bbbp"), split="scaffold").describe()
    assert tuple(facts["sizes"].values()) == (1631, 204, 204)
    assert tuple(facts["positives"].values()) == (1341, 112, 107)


@pytest.mark.parametrize(("name", "train"), [("cifar10", 45000), ("mnist", 54000)])
def test_real_images(name, train):
    task = data.load(name, root=real(name))
    assert (len(task.train), len(task.test), task.classes) == (train, 10000, 10)
    x = task.train.inputs(torch.arange(2000))
    assert x.mean().abs() < 0.05
    assert abs(x.std() - 1) < 0.05


@pytest.mark.parametrize(
    ("package", "missing"), [("data", "numpy"), ("models", "sklearn"), ("training", "pydantic"), ("spec", "filelock")]
)
def test_without_the_extra_the_error_names_it(package, missing):
    code = f"import sys; sys.modules[{missing!r}] = None; from semaopt.experiments import {package}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ModuleNotFoundError: semaopt.experiments.")
    assert last.endswith(f"needs {missing!r}. Install the extra: pip install 'semaopt[experiments]'")
