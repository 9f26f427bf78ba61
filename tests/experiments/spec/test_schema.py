"""Specs: reading, validation and error messages."""

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semaopt.experiments.spec import schema, search
from semaopt.experiments.spec.schema import SpecError
from semaopt.experiments.training import algorithms
from tests.experiments.tiny import AUC, RAW, a_spec


@pytest.mark.parametrize("name", schema.shipped())
def test_every_shipped_spec_is_valid_at_every_scale_and_starts_with_its_command(name):
    found = {scale: schema.load(name, scale) for scale in ("paper", "small", "quick")}
    assert [one.scale for one in found.values()] == ["paper", "small", "quick"]
    if found["paper"].claim.source == "paper":
        assert (found["paper"].epochs, found["paper"].batch) == (60, 32)
    paper = found["paper"]
    assert (paper.studies if paper.studies > 1 else len(paper.seeds.final)) >= 5
    if name.startswith("beta-study"):
        assert paper.tuning is not None
        spaces = {str((search.axes_of(paper, method), search.ranges_of(paper, method))) for method in paper.methods}
        assert len(spaces) == 1  # all methods search the same space
        assert (paper.tuning.sampler, len(paper.seeds.tuning), len(paper.seeds.rerank)) == ("sobol", 2, 5)
    if name.startswith(("figure1", "figure2")):
        assert paper.tuning is not None
        assert paper.tuning.sampler == "sobol"
        assert (len(paper.seeds.tuning), len(paper.seeds.rerank)) == (2, 5)
        assert paper.claim.controls
        assert any(method.contains for method in paper.methods)
    assert found["quick"].epochs <= 40
    first = (schema.FIGURES / f"{name}.toml").read_text().splitlines()[0]
    assert first == f"# semaopt run {name} --scale quick"


def test_all_figures_are_there():
    sets = ("breast_cancer", "digits", "bbbp", "bace", "cifar10", "cifar100", "a9a", "ijcnn1")
    one = {f"figure1-{name}" for name in (*sets, "digits-noisy")}
    two = {f"figure2-{name}" for name in sets} | {"figure3-bbbp", "figure3-digits"}
    tables = (f"{name}{share}" for name in ("a9a", "ijcnn1") for share in ("", "-1", "-03"))
    peers = {f"peers-{name}" for name in ("bbbp", "bace", "digits", *tables)}
    beta = {f"beta-study-{name}" for name in ("mnist", "digits", "a9a", "cifar10", "text")}
    bilevel = {f"bilevel-{name}" for name in ("digits", "ijcnn1", "mnist")}
    others = {"stability-digits", "compositional-digits", "balanced-a9a-03", "balanced-ijcnn1-03"} | bilevel
    assert set(schema.shipped()) == one | two | peers | beta | others


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"epoch": 3}, "epoch is an unknown key. Did you mean 'epochs'? Known: about, batch"),
        ({"data": {"subst": 3}}, "data.subst is an unknown key. Did you mean 'subset'? Known: binary"),
        ({"methods": {"adam": {"opitons": {}}}}, "methods[0].opitons is an unknown key. Did you mean 'options'?"),
        ({"together": 4}, "together is now called vectorize. Rename the key."),
        ({"methods": {"adam": {"finer": {}}}}, "methods[0].finer is now called multipliers. Rename the key."),
        ({"tuning": {"first_look": 2}}, "tuning.first_look is now called first_rung. Rename the key."),
        ({"methods": {"adam": {"options": {"bta": 0.9}}}}, "methods[0].options.bta: ASA has no such hyper-parameter"),
        ({"methods": {"adam": {"options": {"beta": 1.5}}}}, "methods[0]: beta=1.5 is invalid: it must lie in [0, 1)"),
        (
            {"methods": {"adam": {"options": {"beta2": 0.9, "scaling": "shb"}}}},
            "beta2=0.9 is invalid: scaling 'shb' takes no hyper-parameters",
        ),
        (
            {"methods": {"adam": {"algorithm": "PDAda"}}},
            "methods[0].algorithm='PDAda' is for min-max problems; loss = 'cross_entropy' is a minimization problem. "
            "Use ASA, ASGD, Ada",
        ),
        (
            {"methods": {"beta": {"options": {"every": "two"}}}},
            "every='two' is invalid: it must be a whole number >= 1",
        ),
        ({"methods": {"beta": {"grid": {"beta": []}}}}, "methods[1]: the axis 'beta' is empty. Give it"),
        ({"methods": {"beta": {"grid": {"beta": [0.9]}}}}, "unequal numbers of trials (adam 6, beta 2, both 6)"),
        (
            {"methods": {"beta": {"label": "folklore Adam"}}},
            "methods: the label 'folklore Adam' is used twice. Give every",
        ),
        ({"epochs": "three"}, "epochs='three' is invalid: it should be a valid integer. Write a value of this type."),
        ({"epochs": 0}, "epochs=0 is invalid: it should be greater than or equal to 1. Use a value in this range."),
        ({"batch": 2.5}, "batch=2.5 is invalid: it should be a valid integer"),
        (
            {"loss": "mse"},
            "loss='mse' is an unknown loss. Known: auc, average_precision, benchmark_cleaning, "
            "benchmark_regularization, cleaning, cross_entropy, dro.",
        ),
        ({"data": {"name": "digit"}}, "data.name='digit' is an unknown data set. Did you mean 'digits'?"),
        ({"model": {"name": "mpl"}}, "model.name='mpl' is an unknown model. Did you mean 'mlp'?"),
        ({"name": "../../etc"}, "name='../../etc' is invalid: it should match pattern"),
        ({"metrics": ["valid_loss"]}, "metrics[0]='valid_loss' is not measured in final runs"),
        (
            {"tuning": {"metric": "test_loss"}},
            "tuning.metric='test_loss' is not a metric of the validation or training part",
        ),
        (
            {"tuning": {"extend": ["g0"]}},
            "tuning.extend: 'g0' has the values [1e-07]; only axes with at least two increasing positive numbers",
        ),
        ({"tuning": {"sampler": "tpe"}}, "tuning.budget is missing"),
        ({"tuning": {"first_rung": 2}}, "tuning.first_rung=2 applies to successive halving only"),
        (
            {"epochs": 8, "tuning": {"first_rung": 8, "pruner": "halving"}},
            "tuning.first_rung=8 must be less than epochs = 8. Try 2.",
        ),
        ({"seeds": {"final": [0, 100]}}, "seeds: [100] are both tuning and final seeds, which biases"),
        ({"seeds": {"final": [1, 1]}}, "seeds.final=[1, 1] has a seed twice"),
        (
            {"claim": {"order": [], "beats": {"both": ["bet"]}}},
            "claim.beats: 'bet' is not a method. Did you mean 'beta'?",
        ),
        ({"claim": {"order": [], "beats": {"both": ["both"]}}}, "claim.beats: 'both' cannot beat itself"),
        ({"claim": {"beats": {"both": ["beta"]}}}, "claim has both order and beats"),
        ({"claim": {"controls": {"both": ["bet"]}}}, "claim.controls: 'bet' is not a method. Did you mean 'beta'?"),
        ({"claim": {"order": ["adam", "bet"]}}, "claim.order: 'bet' is not a method. Did you mean 'beta'?"),
        (
            {"vectorize": 3, "model": {"name": "resnet8"}},
            "vectorize=3: only mlp and logistic can be vectorized, not resnet8. Remove it.",
        ),
        (
            {"tuning": {"grid": {"weight_dcay": [0.0, 1e-2]}}},
            "tuning.grid.weight_dcay: no method of this spec has this hyper-parameter. Did you mean 'weight_decay'?",
        ),
        (
            {"tuning": {"extend": ["lrr"]}},
            "tuning.extend: 'lrr' is not an axis of tuning.grid. Did you mean 'lr'? Known: g0",
        ),
        (
            {"metrics": ["train_loss", "test_auc"]},
            "metrics[1]='test_auc' is defined for two classes, but digits has 10. Set data.binary = true, or "
            "use test_accuracy",
        ),
        (
            {"data": {"name": "cifar100"}, "tuning": {"metric": "valid_auc", "direction": "maximize"}},
            "tuning.metric='valid_auc' is defined for two classes, but cifar100 has 100. Set data.binary = true, or "
            "use valid_accuracy",
        ),
        (
            {"tuning": {"direction": "maximize"}},
            "tuning.direction='maximize' is wrong: a lower valid_loss is better. Write direction = 'minimize'.",
        ),
        (
            {"tuning": {"metric": "valid_accuracy"}},
            "tuning.direction='minimize' is wrong: a higher valid_accuracy is better. Write direction = 'maximize'.",
        ),
        (
            {"methods": {"both": {"decays": []}}},
            "methods[2].options.every describes a decay, but both decays nothing. Add decays = ['lr'], ['gamma'] or",
        ),
        (
            {"methods": {"adam": {"grid": {"factor": [0.1, 0.2]}}}},
            "methods[0].grid.factor describes a decay, but adam decays nothing. Add decays = ",
        ),
        (
            {"tuning": {"grid": {"factor": [0.1, 0.2]}}},
            "methods[0]: tuning.grid.factor describes a decay, but adam decays nothing. Add decays = ['lr'], ['gamma'] "
            "or ['lr', 'gamma'], or move the axis to the grids of the methods that decay.",
        ),
        (
            {"methods": {"adam": {"decays": ["gama"]}}},
            "decays[0]='gama' is invalid: it should be 'lr' or 'gamma'. Try 'gamma'.",
        ),
        (
            {"methods": {"adam": {"options": {"scaling": "adabound"}}}},
            "methods[0]: g0=1e-07 is invalid: scaling 'adabound' takes c_l, c_u, beta2. Leave it out, or move",
        ),
        (
            {"methods": {"adam": {"options": {"scaling": "shb"}}}},
            "methods[0]: g0=1e-07 is invalid: scaling 'shb' takes no hyper-parameters. Leave it out",
        ),
    ],
)
def test_errors_name_the_place_the_value_the_rule_and_the_remedy(change, text):
    with pytest.raises(SpecError) as caught:
        a_spec(**change)
    assert text in str(caught.value)
    assert str(caught.value).startswith("spec: ")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"claim": {"target": "nobody"}}, "claim.target='nobody' is not a method"),
        (
            {"claim": {"groups": {"adam": {"label": "x", "methods": ["beta"]}}}},
            "claim.groups.adam: a method",
        ),
        ({"claim": {"groups": {"x": {"label": "x", "methods": ["sgd"]}}}}, "claim.groups.x: 'sgd' is not a method"),
        ({"claim": {"stability": "lr"}}, "claim.stability='lr': adam, beta, both have no such option"),
        (
            {"methods": {"adam": {"positives": 0.5}}},
            r"methods\[0\].positives=0.5: only the AUC",
        ),
        (
            {"methods": {"adam": {"objective": {"score": "x"}}}},
            r"methods\[0\].objective.score: the loss has",
        ),
        (
            {**AUC, "methods": [{**AUC["methods"][0], "objective": {"score": "x"}}, AUC["methods"][1]]},
            r"methods\[0\].objective.score='x' is invalid. Use one of: linear, sigmoid",
        ),
    ],
)
def test_errors_about_groups_targets_and_objectives(change, text):
    with pytest.raises(SpecError, match=text):
        a_spec(**change)


def test_an_unknown_algorithm_is_one_line_with_the_nearest():
    with pytest.raises(SpecError) as caught:
        a_spec(methods={"adam": {"algorithm": "ASAA"}})
    known = ", ".join(sorted(algorithms.NAMES))
    assert str(caught.value) == (
        f"spec: methods[0].algorithm='ASAA' is an unknown algorithm. Did you mean 'ASA'? Known: {known}."
    )


def test_binary_metrics_and_axes_of_one_method_are_accepted():
    assert a_spec(data={"binary": True}, metrics=["train_loss", "test_auc"]).metrics[1] == "test_auc"
    staged = {"name": "epoch", "label": "Epoch-SGDA", "algorithm": "EpochSGDA", "options": {"every": 1}}
    auc = a_spec(**{**AUC, "methods": [*AUC["methods"], staged]})  # g0 is an axis of PDAda alone
    assert auc.method("epoch").decays == []
    forgotten = {**AUC["methods"][0], "options": {"every": 1, "factor": 0.5}}
    with pytest.raises(
        SpecError, match=r"every describes a decay, but sgda decays nothing. Add decays = \['lr'\], or remove"
    ):
        a_spec(**{**AUC, "methods": [forgotten, AUC["methods"][1]]})


def test_a_missing_key_and_several_problems_at_once():
    raw = {key: value for key, value in RAW.items() if key != "epochs"}
    with pytest.raises(SpecError) as caught:
        schema.build({**raw, "bach": 3}, "my.toml")
    assert str(caught.value).splitlines() == [
        "my.toml: epochs is missing. Add it.",
        "my.toml: bach is an unknown key. Did you mean 'batch'? Known: "
        + ", ".join(sorted(schema.Spec.model_fields))
        + ".",
    ]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"a = ", "is not TOML"),
        (b"\xff\xfe", "is not TOML"),
        (b"a = " + b"[" * 100_000, "nested too deeply"),
        (b"a = 1" + b"0" * 5000, "is not TOML"),
        (b"#" * (2**20 + 1), "is larger than 1048576 bytes"),
        (b"scales = 3", "scales must hold tables"),
        (b"[scales.quick]\nepochs = 3", "title is missing"),
    ],
)
def test_hostile_files(tmp_path, content, text):
    path = tmp_path / "a.toml"
    path.write_bytes(content)
    with pytest.raises(SpecError, match=text):
        schema.load(path)


def test_paths_that_are_no_file(tmp_path):
    with pytest.raises(
        SpecError, match=r"cannot be read \(No such file or directory\)\. Give a file or the name of a shipped spec"
    ):
        schema.load(tmp_path / "a.toml")
    with pytest.raises(SpecError, match=r"Did you mean 'figure1-digits'\? Give a file or the name"):
        schema.load("figure1-digit")
    with pytest.raises(SpecError, match="Is a directory"):
        schema.load(tmp_path)
    with pytest.raises(SpecError, match="cannot be read"):
        schema.load("a\0b")
    with pytest.raises(SpecError, match=r"scale 'huge' is unknown\. Known: small, quick, paper"):
        schema.load("figure1-digits", "huge")


def test_a_scale_overrides_by_name_and_is_validated_before_it_is_used(tmp_path):
    path = tmp_path / "a.toml"
    text = (schema.FIGURES / "figure1-digits.toml").read_text()
    path.write_text(text + "\n[scales.wrong]\nepoch = 3\n")
    with pytest.raises(SpecError, match=r"a.toml \(at scale wrong\): epoch is an unknown key"):
        schema.load(path, "quick")
    path.write_text(text + "\n[scales.other.methods.nobody]\nlabel = 'x'\n")
    with pytest.raises(SpecError, match=r"scales.other.methods.nobody: must be a table with the name of a method"):
        schema.load(path)
    assert [m.options.get("every") for m in schema.load("figure1-digits", "quick").methods] == [None, 4, 4, 4]
    assert schema.load("figure1-cifar10", "small").model.model_dump() == {"name": "resnet8", "options": {}}


def written(folder, name, text):
    path = folder / f"{name}.toml"
    path.write_text(text)
    return path


def test_a_base_is_updated_and_methods_are_added(tmp_path):
    path = written(
        tmp_path,
        "mine",
        """
        base = "figure2-digits"
        title = "Mine"
        [data]
        name = "breast_cancer"
        [claim.beats]
        mine = ["pdada"]
        [claim.controls]
        [[methods]]
        name = "mine"
        label = "Mine"
        algorithm = "SGDA"
        family = "plain"
        [scales.quick]
        epochs = 2
        methods."*".grid.every = [1]
        methods.mine.label = "Mine, quickly"
        """,
    )
    base, mine = schema.load("figure2-digits"), schema.load(path)
    assert (mine.name, mine.title, mine.epochs, mine.tuning) == ("mine", "Mine", base.epochs, base.tuning)
    assert (mine.data.name, mine.data.binary, mine.data.imbalance) == ("breast_cancer", False, None)
    assert (mine.claim.beats, mine.claim.controls) == ({"mine": ["pdada"]}, {})
    assert mine.methods[:-1] == base.methods
    assert (mine.methods[-1].name, mine.methods[-1].algorithm) == ("mine", "SGDA")
    small, quick = schema.load(path, "small"), schema.load(path, "quick")
    assert small.epochs == schema.load("figure2-digits", "small").epochs  # inherited
    assert (quick.epochs, quick.studies, quick.methods[-1].label) == (2, base.studies, "Mine, quickly")  # replaced
    kept = written(tmp_path, "kept", 'base = "mine.toml"\nkeep = ["mine", "pdada"]\n')
    assert [method.name for method in schema.load(kept).methods] == ["pdada", "mine"]
    grandchild = written(tmp_path, "other", 'base = "mine.toml"\nmethods.mine.label = "Other"\n')
    assert schema.load(grandchild).methods[-1].label == "Other"
    assert schema.load(grandchild, "quick").epochs == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('base = "figure2-digts"', r"base='figure2-digts' is neither a shipped spec nor a file\. Did you mean"),
        ('base = "x\\u0000"', r"base='x\\x00' is neither a shipped spec nor a file\. Shipped specs: b"),
        ("base = 3", r"base=3 is invalid: it must be a shipped spec or a file\. Try 'figure2-digits'"),
        ('base = "a.toml"', r"a.toml: base='a.toml' is invalid: it has this file as its own base"),
        ('base = "figure1-digits"\nmethods.adm.label = "x"', r"a.toml.methods.adm: must be a table with the name"),
        ('base = "figure1-digits"\nepoch = 3', r"a.toml: epoch is an unknown key. Did you mean 'epochs'"),
        ('base = "figure1-digits"\n[[methods]]\nname = "adam"', r"methods"),
        ('base = "figure1-digits"\nkeep = ["adm"]', r"keep=\['adm'\] is invalid: .* Known: adam, lr, beta"),
        ('base = "figure1-digits"\nkeep = 3', r"keep=3 is invalid: it must list methods of the base"),
    ],
)
def test_mistakes_in_a_base(tmp_path, text, message):
    with pytest.raises(SpecError, match=message):
        schema.load(written(tmp_path, "a", text))


def test_a_star_changes_values_that_methods_have(tmp_path):
    text = 'base = "figure2-digits"\n[scales.quick.methods."*"]\n'
    star = schema.load(written(tmp_path, "a", text + "grid.every = [1]\noptions.bias_correction = false"), "quick")
    base = schema.load("figure2-digits")
    assert star.method("sgda") == base.method("sgda")
    assert star.method("pdsm").grid == {**base.method("pdsm").grid, "every": [1]}
    assert star.method("pdsm").options == {"bias_correction": False}
    assert star.method("epoch_sgda_last").options == {"average": False}
    with pytest.raises(SpecError, match=r"scales.quick.methods.'\*'.grid.evry: no method has this key. Write it below"):
        schema.load(written(tmp_path, "b", text + "grid.evry = [1]"))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
PLACES = [
    ("epochs",), ("loss",), ("metrics",), ("claim",), ("claim", "order"), ("data",), ("data", "noise"), ("model",),
    ("model", "options"), ("seeds",), ("seeds", "final"), ("tuning",), ("tuning", "grid"), ("tuning", "grid", "lr"),
    ("tuning", "extend"), ("methods",), ("methods", 0), ("methods", 1, "options"), ("methods", 1, "options", "every"),
    ("methods", 1, "grid", "beta"), ("methods", 0, "multipliers"), ("methods", 0, "multipliers", "lr"),
    ("methods", 1, "algorithm"), ("model", "name"), ("data", "name"), ("vectorize",), ("name",),
]  # fmt: skip


@settings(max_examples=300, deadline=None, derandomize=True)
@given(place=st.sampled_from(PLACES), value=VALUES)
def test_any_value_gives_a_spec_or_a_spec_error(place, value):
    raw = schema.merge(RAW, {})
    at = raw
    for step in place[:-1]:
        at = at[step]
    at[place[-1]] = value
    with contextlib.suppress(SpecError):  # anything else is a traceback
        assert schema.build(raw).batch == 512


def test_cleaning_cannot_be_tuned_by_the_true_training_labels():
    raw = schema.load("bilevel-digits", "quick").model_dump()
    raw["tuning"]["metric"] = "train_accuracy"
    with pytest.raises(SpecError, match=r"tuning.metric='train_accuracy' is not a metric of the validation part"):
        schema.build(raw)
