"""Specs: what is read, what is refused, and how it is said."""

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semaopt.experiments.spec import schema
from semaopt.experiments.spec.schema import SpecError
from tests.experiments.tiny import AUC, RAW, a_spec


@pytest.mark.parametrize("name", schema.shipped())
def test_every_shipped_spec_is_right_at_every_scale_and_says_its_command(name):
    found = {scale: schema.load(name, scale) for scale in ("paper", "small", "quick")}
    assert [one.scale for one in found.values()] == ["paper", "small", "quick"]
    if found["paper"].claim.source == "paper":
        assert (found["paper"].epochs, found["paper"].batch) == (60, 32)
    assert len(found["paper"].seeds.final) == 5
    assert found["quick"].epochs <= 40
    first = (schema.FIGURES / f"{name}.toml").read_text().splitlines()[0]
    assert first == f"# semaopt run {name} --scale quick"


def test_all_figures_are_there():
    one = {f"figure1-{name}" for name in ("digits", "digits-noisy", "bbbp", "bace", "cifar10", "cifar100")}
    sets = ("breast_cancer", "digits", "bbbp", "bace", "cifar10", "cifar100", "a9a", "ijcnn1")
    two = {f"figure2-{name}" for name in sets} | {"figure3-bbbp", "figure3-digits"}
    peers = {f"peers-{name}" for name in ("bbbp", "bace", "a9a", "ijcnn1")}
    assert set(schema.shipped()) == one | two | peers | {"stability-digits", "bilevel-digits", "compositional-digits"}


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"epoch": 3}, "epoch: unknown key; did you mean 'epochs'? Known: about, batch"),
        ({"data": {"subst": 3}}, "data.subst: unknown key; did you mean 'subset'? Known: binary"),
        ({"methods": {"adam": {"opitons": {}}}}, "methods[0].opitons: unknown key; did you mean 'options'?"),
        ({"methods": {"adam": {"options": {"bta": 0.9}}}}, "methods[0].options.bta: ASA has no such hyper-parameter"),
        ({"methods": {"adam": {"options": {"beta": 1.5}}}}, "methods[0]: beta=1.5 is invalid: it must lie in [0, 1)"),
        ({"methods": {"adam": {"options": {"beta2": 0.9, "scaling": "shb"}}}}, "beta2=0.9 is invalid: 'shb' has none"),
        ({"methods": {"adam": {"algorithm": "PDAda"}}}, "is not for loss = 'cross_entropy'; take ASA"),
        (
            {"methods": {"beta": {"options": {"every": "two"}}}},
            "every='two' is invalid: it must be a whole number >= 1",
        ),
        ({"methods": {"beta": {"grid": {"beta": []}}}}, "methods[1]: the axis 'beta' is empty"),
        ({"methods": {"beta": {"grid": {"beta": [0.9]}}}}, "unequal numbers of trials (adam 6, beta 2, both 6)"),
        ({"epochs": "three"}, "epochs='three': input should be a valid integer; write a value of that type"),
        ({"epochs": 0}, "epochs=0: input should be greater than or equal to 1; give a value within the bounds"),
        ({"batch": 2.5}, "batch=2.5: input should be a valid integer"),
        (
            {"loss": "mse"},
            "loss='mse': input should be 'cross_entropy', 'auc', 'cleaning' or 'average_precision'; take one of these",
        ),
        ({"data": {"name": "digit"}}, "data.name='digit': unknown data set; did you mean 'digits'?"),
        ({"model": {"name": "mpl"}}, "model.name='mpl': unknown model; did you mean 'mlp'?"),
        ({"name": "../../etc"}, "name='../../etc': string should match pattern"),
        ({"metrics": ["valid_loss"]}, "metrics[0]='valid_loss': is not measured in final runs"),
        ({"tuning": {"metric": "test_loss"}}, "tuning.metric='test_loss': must be measured on the validation or the"),
        ({"tuning": {"extend": ["g0"]}}, "tuning.extend: 'g0' must be a shared axis of at least two rising"),
        ({"tuning": {"sampler": "tpe"}}, "tuning.budget: is missing"),
        ({"tuning": {"first_look": 2}}, "tuning.first_look=2: only successive halving looks"),
        (
            {"epochs": 8, "tuning": {"first_look": 8, "pruner": "halving"}},
            "tuning.first_look=8: must come before the last epoch, 8; try 2",
        ),
        (
            {"seeds": {"final": [0, 100]}},
            "seeds: [100] are tuning and final seeds; what a seed chose it must not judge: take others",
        ),
        ({"seeds": {"final": [1, 1]}}, "seeds.final=[1, 1]: has a seed twice"),
        ({"claim": {"order": [], "beats": {"both": ["bet"]}}}, "claim.beats: 'bet' is no method; did you mean 'beta'?"),
        ({"claim": {"order": [], "beats": {"both": ["both"]}}}, "claim.beats: 'both' cannot beat itself"),
        ({"claim": {"beats": {"both": ["beta"]}}}, "claim: has both an order and beats"),
        ({"claim": {"order": ["adam", "bet"]}}, "claim.order: 'bet' is no method; did you mean 'beta'?"),
        ({"together": 3, "model": {"name": "resnet8"}}, "together=3: only mlp and logistic are trained as one"),
        (
            {"tuning": {"grid": {"weight_dcay": [0.0, 1e-2]}}},
            "tuning.grid.weight_dcay: no method here has such a hyper-parameter; did you mean 'weight_decay'? Known: ",
        ),
        (
            {"tuning": {"extend": ["lrr"]}},
            "tuning.extend: 'lrr' is no axis of tuning.grid; did you mean 'lr'? Known: g0",
        ),
        (
            {"metrics": ["train_loss", "test_auc"]},
            "metrics[1]='test_auc': is of two classes, and digits has 10; set data.binary = true, or take test_acc",
        ),
        (
            {"data": {"name": "cifar100"}, "tuning": {"metric": "valid_auc", "direction": "maximize"}},
            "tuning.metric='valid_auc': is of two classes, and cifar100 has 100; set data.binary = true, or take v",
        ),
        (
            {"tuning": {"direction": "maximize"}},
            "tuning.direction='maximize': a lower valid_loss is better; write direction = 'minimize'",
        ),
        (
            {"tuning": {"metric": "valid_accuracy"}},
            "tuning.direction='minimize': a higher valid_accuracy is better; write direction = 'maximize'",
        ),
        (
            {"methods": {"both": {"decays": []}}},
            "methods[2].options.every: says how to decay, and both decays nothing; add decays = ['lr'], ['gamma'] or",
        ),
        (
            {"methods": {"adam": {"grid": {"factor": [0.1, 0.2]}}}},
            "methods[0].grid.factor: says how to decay, and adam decays nothing; add decays = ",
        ),
        (
            {"tuning": {"grid": {"factor": [0.1, 0.2]}}},
            "methods[0]: tuning.grid.factor says how to decay, and adam decays nothing; add decays = ['lr'], ['gamma'] "
            "or ['lr', 'gamma'], or move the axis to the grids of the methods that decay",
        ),
        (
            {"methods": {"adam": {"decays": ["gama"]}}},
            "decays[0]='gama': input should be 'lr' or 'gamma'; did you mean",
        ),
        (
            {"methods": {"adam": {"options": {"scaling": "adabound"}}}},
            "methods[0]: g0=1e-07 is invalid: 'adabound' has none, it takes c_l, c_u, beta2. Leave it out, or move an axis",  # noqa: E501
        ),
        (
            {"methods": {"adam": {"options": {"scaling": "shb"}}}},
            "methods[0]: g0=1e-07 is invalid: 'shb' has none, it takes nothing of that kind. Leave it out",
        ),
    ],
)
def test_what_is_wrong_is_said(change, text):
    with pytest.raises(SpecError) as caught:
        a_spec(**change)
    assert text in str(caught.value)
    assert str(caught.value).startswith("spec: ")


def test_an_unknown_algorithm_is_one_line_with_the_nearest():
    with pytest.raises(SpecError) as caught:
        a_spec(methods={"adam": {"algorithm": "ASAA"}})
    assert str(caught.value) == (
        "spec: methods[0].algorithm='ASAA': input should be 'ASA', 'PDAda', 'PDSM', 'SGDA', 'EpochSGDA', 'PESSGDA', "
        "'PESAdaGrad', 'PESG', 'SMB', 'SOBA', 'StocBiO', 'TTSA', 'BSA' or 'SCMA'; did you mean 'ASA'?"
    )


def test_what_two_classes_or_one_method_have_is_right():
    assert a_spec(data={"binary": True}, metrics=["train_loss", "test_auc"]).metrics[1] == "test_auc"
    staged = {"name": "epoch", "label": "Epoch-SGDA", "algorithm": "EpochSGDA", "options": {"every": 1}}
    auc = a_spec(**{**AUC, "methods": [*AUC["methods"], staged]})  # g0 is an axis of PDAda alone
    assert auc.method("epoch").decays == []
    forgotten = {**AUC["methods"][0], "options": {"every": 1, "factor": 0.5}}
    with pytest.raises(
        SpecError, match=r"every: says how to decay, and sgda decays nothing; add decays = \['lr'\], or l"
    ):
        a_spec(**{**AUC, "methods": [forgotten, AUC["methods"][1]]})


def test_a_missing_key_and_several_problems_at_once():
    raw = {key: value for key, value in RAW.items() if key != "epochs"}
    with pytest.raises(SpecError) as caught:
        schema.build({**raw, "bach": 3}, "my.toml")
    assert str(caught.value).splitlines() == [
        "my.toml: epochs: is missing; every spec must say it",
        "my.toml: bach: unknown key; did you mean 'batch'? Known: " + ", ".join(sorted(schema.Spec.model_fields)),
    ]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"a = ", "is not TOML"),
        (b"\xff\xfe", "is not TOML"),
        (b"a = " + b"[" * 100_000, "nested too deeply"),
        (b"a = 1" + b"0" * 5000, "is not TOML"),
        (b"#" * (2**20 + 1), "is larger than 1048576 bytes"),
        (b"scales = 3", "scales: must hold tables"),
        (b"[scales.quick]\nepochs = 3", "title: is missing"),
    ],
)
def test_hostile_files(tmp_path, content, text):
    path = tmp_path / "a.toml"
    path.write_bytes(content)
    with pytest.raises(SpecError, match=text):
        schema.load(path)


def test_what_is_no_file(tmp_path):
    with pytest.raises(
        SpecError, match=r"cannot be read \(No such file or directory\); give a file, or a shipped spec"
    ):
        schema.load(tmp_path / "a.toml")
    with pytest.raises(SpecError, match="Is a directory"):
        schema.load(tmp_path)
    with pytest.raises(SpecError, match="cannot be read"):
        schema.load("a\0b")
    with pytest.raises(SpecError, match="scale 'huge' is unknown; there is: small, quick, paper"):
        schema.load("figure1-digits", "huge")


def test_a_scale_overrides_by_name_and_is_checked_before_it_is_wanted(tmp_path):
    path = tmp_path / "a.toml"
    text = (schema.FIGURES / "figure1-digits.toml").read_text()
    path.write_text(text + "\n[scales.wrong]\nepoch = 3\n")
    with pytest.raises(SpecError, match=r"a.toml \(at scale wrong\): epoch: unknown key"):
        schema.load(path, "quick")
    path.write_text(text + "\n[scales.other.methods.nobody]\nlabel = 'x'\n")
    with pytest.raises(SpecError, match=r"scales.other.methods.nobody: must be a table that names a method"):
        schema.load(path)
    assert [m.options.get("every") for m in schema.load("figure1-digits", "quick").methods] == [None, 10, 10]
    assert schema.load("figure1-cifar10", "small").model.model_dump() == {"name": "resnet8", "options": {}}


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
PLACES = [
    ("epochs",), ("loss",), ("metrics",), ("claim",), ("claim", "order"), ("data",), ("data", "noise"), ("model",),
    ("model", "options"), ("seeds",), ("seeds", "final"), ("tuning",), ("tuning", "grid"), ("tuning", "grid", "lr"),
    ("tuning", "extend"), ("methods",), ("methods", 0), ("methods", 1, "options"), ("methods", 1, "options", "every"),
    ("methods", 1, "grid", "beta"), ("methods", 0, "finer"), ("methods", 0, "finer", "lr"), ("together",), ("name",),
]  # fmt: skip


@settings(max_examples=300, deadline=None, derandomize=True)
@given(place=st.sampled_from(PLACES), value=VALUES)
def test_whatever_stands_there_it_is_a_spec_or_an_error_that_says_why(place, value):
    raw = schema.merge(RAW, {})
    at = raw
    for step in place[:-1]:
        at = at[step]
    at[place[-1]] = value
    with contextlib.suppress(SpecError):  # anything else is a traceback
        assert schema.build(raw).batch == 512


def test_cleaning_is_not_tuned_by_the_labels_it_looks_for():
    raw = schema.load("bilevel-digits", "quick").model_dump()
    raw["tuning"]["metric"] = "train_accuracy"
    with pytest.raises(SpecError, match=r"tuning.metric='train_accuracy': must be measured on the validation part"):
        schema.build(raw)
