"""Plug-ins: own algorithms, data sets, models and losses in a spec."""

import copy
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from semaopt.experiments import data, models, plugins
from semaopt.experiments.spec import schema
from semaopt.experiments.spec.schema import SpecError
from semaopt.experiments.sweep.run import make
from semaopt.experiments.training import algorithms, loop, objectives
from semaopt.experiments.training.run import Machine, Unit
from tests.experiments.tiny import a_spec, go

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "plugins.md"
MODULE = '''
import torch
from torch import nn
from semaopt import baselines
from semaopt.experiments.data import Raw, Table
from semaopt.experiments.training.objectives import MinMax, Minimization

number = 3

def sgd(params, lr, momentum=0.0):
    """A function that returns an optimizer."""
    return torch.optim.SGD(params, lr=lr, momentum=momentum)

def anything(params, **values):
    return torch.optim.SGD(params, **values)

def saddle(primal, dual, lr, dual_lr):
    return baselines.SGDA(primal, dual, lr=lr, dual_lr=dual_lr)

def two_level(upper, lower, lr, lower_lr):
    return baselines.SOBA(upper, lower, lr=lr, lower_lr=lower_lr)

def no_optimizer(params, lr):
    return "nothing"

def blobs():
    """Three blobs."""
    labels = torch.arange(300) % 3
    noise = torch.randn(300, 4, generator=torch.Generator().manual_seed(0))
    return noise + 4 * nn.functional.one_hot(labels, 4), labels

def images():
    return torch.zeros(40, 1, 8, 8), torch.arange(40) % 2

def one_class_left():
    labels = torch.zeros(100).long()
    labels[:50] = 1
    inputs = Table(torch.randn(100, 2, generator=torch.Generator().manual_seed(0)))
    return Raw(inputs, labels, 2, {}, test=torch.arange(60, 100))  # all of them negative

def with_nan():
    inputs = torch.zeros(20, 2)
    inputs[7, 1] = float("nan")
    return inputs, torch.arange(20) % 2

def bad_labels():
    return torch.zeros(20, 2), torch.arange(20) / 2 - 1

def bad_shapes():
    return torch.zeros(20), torch.zeros(20)

def no_pair():
    return torch.zeros(20)

def linear(task, *, scale=1.0):
    end = [nn.Flatten(0)] if task.outputs == 1 else []
    return nn.Sequential(nn.Flatten(), nn.Linear(task.shape[0], task.outputs), *end)

def two_logits(task):
    return nn.Linear(task.shape[0], 2)

def column(task):
    return nn.Linear(task.shape[0], 1)

def no_module(task):
    return lambda x: x

class Squared(Minimization):
    title = "squared error"
    metrics = ("loss", "accuracy")

    def forward(self, scores, labels):
        return (scores - nn.functional.one_hot(labels, self.classes)).square().mean()

class Shifted(MinMax):
    title = "squared error with a shift"
    metrics = ("loss", "accuracy")

    def __init__(self, task, run):
        super().__init__(task, run)
        self.shift = nn.Parameter(torch.zeros(1))

    def dual_parameters(self):
        return [self.shift]

    def forward(self, scores, labels):
        target = nn.functional.one_hot(labels, self.classes)
        return (scores - target + self.shift).square().mean() - 5 * self.shift.square().sum()

class Nameless(Minimization):
    metrics = ("loss",)

class OddMetric(Minimization):
    title = "odd"
    metrics = ("loss", "kappa")
'''


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A module ``own_parts`` in the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "own_parts.py").write_text(MODULE)
    yield tmp_path / "own_parts.py"
    sys.modules.pop("own_parts", None)
    plugins._load.cache_clear()
    loop.task.cache_clear()


METHOD = {"name": "own", "label": "own", "algorithm": "own_parts:sgd", "options": {"lr": 0.1}}
PLAIN = {
    "data": {"name": "own_parts:blobs"},
    "model": {"name": "own_parts:linear", "options": {}},
    "methods": [METHOD],
    "claim": {"order": []},
}


def a_plain_spec(**changes):
    """A spec of plug-ins without tuning."""
    raw = schema.merge(a_spec().model_dump(exclude={"tuning"}), {**PLAIN, **changes})
    raw["seeds"]["tuning"] = []
    return schema.build(raw)


def test_all_four_kinds_in_one_run(mine):
    spec = a_plain_spec(loss="own_parts:Squared", metrics=["train_loss", "test_accuracy"], epochs=10, batch=32)
    run = make(spec, spec.methods[0], {}, seed=0, purpose="final", machine=Machine())
    (result,) = loop.train(Unit((run,)))
    assert result.status == "done"
    assert result.curves["train_loss"][-1] < result.curves["train_loss"][0]
    assert result.last("test_accuracy") > 0.8


@pytest.mark.parametrize(
    ("loss", "algorithm", "options"),
    [
        ("own_parts:Shifted", "own_parts:saddle", {"lr": 0.1, "dual_lr": 0.1}),
        ("own_parts:Shifted", "AccMDA", {"lr": 0.3, "dual_lr": 0.1}),
        ("own_parts:Shifted", "SGDMax", {"lr": 0.1, "dual_lr": 0.1}),
        ("dro", "PDAda", {"lr": 0.01, "dual_lr": 0.1, "beta": 0.9}),
        ("cleaning", "own_parts:two_level", {"lr": 1.0, "lower_lr": 0.1}),
        ("cleaning", "SBMA", {"lr": 1.0, "lower_lr": 0.1, "beta": 0.9, "terms": 3}),
        ("cross_entropy", "own_parts:anything", {"lr": 0.1, "nesterov": True, "momentum": 0.9}),
        ("cross_entropy", "LBFGS", {"lr": 1.0, "max_iter": 2}),
        ("cross_entropy", "AdamW", {"lr": 0.01, "betas": [0.8, 0.9]}),
    ],
)
def test_algorithms_of_every_kind(mine, loss, algorithm, options):
    method = {**METHOD, "algorithm": algorithm, "options": options}
    noise = {"noise": 0.3} if loss == "cleaning" else {}
    changes = {"loss": loss, "methods": [method], "metrics": ["train_loss", "test_accuracy"], "batch": 32}
    changes["epochs"] = 10
    spec = a_plain_spec(**changes, data={"name": "own_parts:blobs", **noise})
    run = make(spec, spec.methods[0], {}, seed=0, purpose="final", machine=Machine())
    (result,) = loop.train(Unit((run,)))
    assert result.status == "done"
    assert result.last("test_accuracy") > 0.8


@pytest.mark.parametrize("name", [name for name in algorithms.TORCH if name not in ("LBFGS", "Muon")])
def test_every_optimizer_of_torch_accepts_the_common_options(name):
    algorithms.validate(name, ["lr"], {"lr": 0.01, "every": 1, "factor": 0.5})
    with pytest.raises(ValueError, match="unknown"):
        algorithms.validate(name, ["lr"], {"lr": 0.01, "every": 1, "factor": 0.5, "unknown": 1})


def test_a_resumed_run_of_plugins_equals_an_undisturbed_one(mine):
    spec = a_plain_spec(batch=32)
    run = make(spec, spec.methods[0], {}, seed=0, purpose="final", machine=Machine())

    class Memory(loop.NoCheckpoint):
        def __init__(self, state=None):
            super().__init__()
            self.states = [] if state is None else [state]

        def load(self):
            return self.states[-1] if self.states else None

        def due(self):
            return True

        def save(self, state):
            self.states.append(copy.deepcopy(state))

    memory = Memory()
    (whole,) = loop.train(Unit((run,)), memory)
    (resumed,) = loop.train(Unit((run,)), Memory(memory.states[3]))
    assert resumed.curves == whole.curves


def test_worker_processes_import_plugins(mine, tmp_path):
    results = go(tmp_path / "out", a_plain_spec(), workers=2)
    (final,) = results.findings[0].finals
    assert [run.status for run in final.runs] == ["done"] * 3


def test_the_key_holds_the_source_of_the_plugin(mine):
    def key(**changes):
        spec = a_plain_spec(**changes)
        return make(spec, spec.methods[0], {}, seed=0, purpose="final", machine=Machine()).key

    before, plain = key(), a_spec()
    other = make(plain, plain.methods[0], {"lr": 0.1}, seed=0, purpose="final", machine=Machine())
    assert other.plugins == {}
    assert key() == before
    mine.write_text(MODULE + "\n# edited")
    sys.modules.pop("own_parts")
    plugins._load.cache_clear()
    assert key() != before
    again = make(plain, plain.methods[0], {"lr": 0.1}, seed=0, purpose="final", machine=Machine())
    assert again.key == other.key


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            {"data": {"name": "absent_module:blobs"}},
            r"data\.name: absent_module:blobs: there is no module 'absent_module' in .* Run from the folder of absent_",
        ),
        ({"data": {"name": "own_parts:blob"}}, r"the module own_parts has no 'blob'\. Did you mean 'blobs'\?"),
        (
            {"data": {"name": "own parts:blobs"}},
            r"'own parts:blobs' is not a plug-in name\. Write 'package\.module:name'",
        ),
        ({"data": {"name": "own_parts:number"}}, r"own_parts:number has type int\. A data set is a function"),
        ({"model": {"name": "own_parts:number"}}, r"own_parts:number has type int\. A model is a function or class"),
        (
            {"loss": "own_parts:sgd"},
            r"loss: own_parts:sgd is no objective\. Make it a subclass of Minimization, MinMax",
        ),
        ({"loss": "own_parts:Nameless"}, r"own_parts:Nameless has no title"),
        ({"loss": "own_parts:OddMetric"}, r"own_parts:OddMetric: metrics=\('loss', 'kappa'\) has unknown names\. Use"),
        (
            {"methods": [{**METHOD, "algorithm": "own_parts:number"}]},
            r"methods\[0\]\.algorithm: own_parts:number has type int\. Use an optimizer class",
        ),
        (
            {"methods": [{**METHOD, "algorithm": "own_parts:no_optimizer"}]},
            r"own_parts:no_optimizer returned an object of type str\. Return a torch\.optim\.Optimizer",
        ),
        (
            {"methods": [{**METHOD, "options": {"lr": 0.1, "momentun": 0.9}}]},
            r"options\.momentun: own_parts:sgd has no such hyper-parameter\. Did you mean 'momentum'\?",
        ),
        ({"methods": [{**METHOD, "options": {}}]}, r"methods\[0\]: lr is missing\. Set it in options"),
        (
            {"methods": [{**METHOD, "algorithm": "own_parts:saddle"}]},
            r"'own_parts:saddle' is for min-max problems; loss = 'cross_entropy' is a minimization problem",
        ),
        ({"methods": [{**METHOD, "options": {"lr": -1.0}}]}, r"methods\[0\]: Invalid learning rate: -1\.0"),
    ],
)
def test_errors_of_a_spec_name_the_remedy(mine, change, text):
    with pytest.raises(SpecError, match=text):
        a_plain_spec(**change)


def test_a_module_that_fails_on_import(mine):
    (mine.parent / "broken_parts.py").write_text("1 / 0")
    (mine.parent / "needy_parts.py").write_text("import absent_library")
    with pytest.raises(plugins.PluginError, match=r"importing broken_parts raised ZeroDivisionError: division by zero"):
        plugins.resolve("broken_parts:x")
    with pytest.raises(plugins.PluginError, match=r"needy_parts needs the module 'absent_library'\. Install it"):
        plugins.resolve("needy_parts:x")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("with_nan", r"1 of 20 examples have NaN or infinite inputs, the first is example 7"),
        ("bad_labels", r"returned the labels \[-1\.0, -0\.5, 0\.0, 0\.5, 1\.0\], but labels are whole numbers from 0"),
        ("bad_shapes", r"inputs of shape \(20,\) and labels of shape \(20,\)\. Return \(inputs, labels\)"),
        ("no_pair", r"own_parts:no_pair returned an object of type Tensor\. Return \(inputs, labels\)"),
    ],
)
def test_data_that_cannot_be_used(mine, name, text):
    with pytest.raises(data.DataError, match=text):
        data.load(f"own_parts:{name}")


def test_images_of_a_plugin_fit_image_models(mine):
    task = data.load("own_parts:images")
    assert (task.kind, task.shape) == ("images", (1, 8, 8))
    assert models.build("resnet8", task)(task.train.inputs(torch.arange(2))).shape == (2,)


class TestScores:
    """Scores of a wrong shape are an error before training, not a divergence."""

    def rehearse(self, model, loss="auc"):
        method = {**METHOD, "algorithm": "SGDA" if loss == "auc" else "SGD", "options": {"lr": 0.1}}
        if loss == "auc":
            method["options"] = {"lr": 0.1, "dual_lr": 0.1}
        binary = {"name": "breast_cancer"} if loss == "auc" else {"name": "digits"}
        metric = "auc" if loss == "auc" else "accuracy"
        spec = a_plain_spec(
            loss=loss, metrics=["train_loss", f"test_{metric}"], methods=[method], model={"name": model}, data=binary
        )
        run = make(spec, spec.methods[0], {}, seed=0, purpose="final", machine=Machine())
        with pytest.raises(data.DataError) as rehearsed:
            loop.rehearse(run)
        with pytest.raises(data.DataError) as trained:
            loop.train(Unit((run,)))
        assert str(rehearsed.value) == str(trained.value)
        return str(trained.value)

    def test_two_logits_for_two_classes(self, mine):
        assert self.rehearse("own_parts:two_logits") == (
            "the model returned shape (8, 2) for 8 examples; loss = 'auc' needs one score per example, shape (8,). "
            "Return, for example, logits[:, 1] - logits[:, 0]."
        )

    def test_a_column_of_scores(self, mine):
        assert "returned shape (8, 1) for 8 examples" in self.rehearse("own_parts:column")
        assert "Return, for example, scores.squeeze(-1)." in self.rehearse("own_parts:column")

    def test_too_few_classes(self, mine):
        text = self.rehearse("own_parts:two_logits", "cross_entropy")
        assert "needs one score per example and class (10 classes), shape (8, 10)" in text

    def test_the_study_stops_before_anything_is_written(self, mine, tmp_path):
        from semaopt.experiments import api

        spec = a_plain_spec(model={"name": "own_parts:two_logits"})
        with pytest.raises(data.DataError, match=r"tiny: the model returned shape \(8, 2\) for 8 examples"):
            api.run(spec, out=tmp_path / "out", workers=0)
        assert not (tmp_path / "out").exists()


def test_an_auc_of_one_class_is_an_error_at_load(mine):
    method = {**METHOD, "algorithm": "SGDA", "options": {"lr": 0.1, "dual_lr": 0.1}}
    spec = a_plain_spec(
        loss="auc", metrics=["train_auc", "test_auc"], methods=[method], data={"name": "own_parts:one_class_left"},
        claim={"metric": "train_auc", "order": []},
    )  # fmt: skip
    run = make(spec, spec.methods[0], {}, seed=0, purpose="final", machine=Machine())
    text = "test_auc is undefined: the test part of own_parts:one_class_left has only one class"
    with pytest.raises(data.DataError, match=text):
        loop.rehearse(run)


def test_a_model_that_is_no_module(mine):
    with pytest.raises(
        plugins.PluginError,
        match=r"own_parts:no_module returned an object of type function\. Return a torch\.nn\.Module",
    ):
        models.build("own_parts:no_module", data.load("digits"))
    with pytest.raises(data.DataError, match=r"option of own_parts:linear 'scal' is unknown.*'scale'"):
        models.build("own_parts:linear", data.load("digits"), scal=2.0)


def test_the_words_of_every_objective():
    for name in objectives.NAMES:
        objective = objectives.find(name)
        assert all(objective.metric_title(metric) for metric in objective.metric_names())
    assert objectives.find("auc").metric_title("test_loss") == "test objective"
    assert objectives.find("cross_entropy").metric_title("train_loss", noise=0.1) == "training excess loss"
    assert objectives.find("cleaning").metric_title("train_accuracy") == "accuracy on clean data"
    assert objectives.find("dro").metric_title("test_worst_accuracy") == "test accuracy of the worst class"
    assert not objectives.find("auc").compares_by_ratio("test_loss")
    assert objectives.find("dro").compares_by_ratio("test_loss")


def test_the_page_runs(tmp_path):
    """Write the files of the how-to page and run its commands as a user would."""
    text = PAGE.read_text()
    for name, content in re.findall(r'^```\w+ title="([\w.]+)"\n(.*?)^```', text, re.DOTALL | re.MULTILINE):
        (tmp_path / name).write_text(content)
    commands = re.findall(r"^```sh\nsemaopt (.*?)\n```", text, re.MULTILINE)
    assert len(commands) == 2
    for command in commands:
        args = [sys.executable, "-m", "semaopt", *command.split(), "--workers", "2", "--out", command.split()[-1][:-5]]
        done = subprocess.run(args, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
    assert "Lion" in (tmp_path / "mine" / "results.md").read_text()
    assert "learned weight decay (bilevel)" in (tmp_path / "decay" / "report.html").read_text()
