"""Search spaces of specs: ranges, families, nested spaces, studies and additional seeds."""

import pytest

from semaopt.experiments.spec import SpecError, schema
from semaopt.experiments.spec.search import axes_of, ranges_of
from tests.experiments.tiny import AUC, RAW

SOBOL = {
    "metric": "valid_auc",
    "direction": "maximize",
    "sampler": "sobol",
    "budget": 8,
    "ranges": {"lr": [1e-4, 1e-1], "dual_lr": [1e-4, 1e-1]},
    "families": {"plain": {"ranges": {"lr": [1e-3, 10.0]}}},
}
SGDA = {"name": "sgda", "label": "SGDA", "algorithm": "SGDA", "family": "plain"}
PDSM = {
    "name": "pdsm",
    "label": "PDSM",
    "algorithm": "PDSM",
    "family": "plain",
    "decays": ["lr", "gamma"],
    "contains": ["sgda"],
    "options": {"every": 1},
    "grid": {"beta": [0.0, 0.9], "factor": [1.0, 0.5]},
}


def a_spec(tuning=None, pdsm=None, sgda=None, **changes):
    raw = schema.merge(RAW, {**AUC, "claim": {"metric": "train_auc", "order": ["sgda", "pdsm"]}, **changes})
    raw["methods"] = [{**SGDA, **(sgda or {})}, {**PDSM, **(pdsm or {})}]
    return schema.build({**raw, "tuning": {**SOBOL, **(tuning or {})}})


def test_a_family_replaces_shared_ranges():
    spec = a_spec(pdsm={"family": None, "contains": []})
    assert ranges_of(spec, spec.method("sgda")) == {"lr": [1e-3, 10.0], "dual_lr": [1e-4, 1e-1]}
    assert ranges_of(spec, spec.method("pdsm")) == {"lr": [1e-4, 1e-1], "dual_lr": [1e-4, 1e-1]}
    assert axes_of(spec, spec.method("pdsm")) == {"beta": [0.0, 0.9], "factor": [1.0, 0.5]}


def test_a_fixed_value_or_a_grid_of_the_method_replaces_a_range():
    values = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0]  # as many as the budget
    spec = a_spec(sgda={"options": {"lr": 0.1}, "grid": {"dual_lr": values}}, pdsm={"contains": []})
    assert ranges_of(spec, spec.method("sgda")) == {}
    assert axes_of(spec, spec.method("sgda")) == {"dual_lr": values}


def test_a_late_decay_that_is_switched_off_is_accepted():
    spec = a_spec(pdsm={"options": {"every": 4}, "grid": {"beta": [0.0, 0.9], "factor": [1.0]}})
    assert spec.method("pdsm").options["every"] > spec.epochs


def test_a_nested_space_is_accepted():
    spec = a_spec()
    assert spec.method("pdsm").contains == ["sgda"]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"pdsm": {"grid": {"beta": [0.5, 0.9], "factor": [1.0]}}}, "beta is [0.5, 0.9] for pdsm, [0.0] for sgda"),
        ({"pdsm": {"grid": {"beta": [0.0], "factor": [0.5]}}}, "factor is [0.5] for pdsm, [1.0] for sgda"),
        ({"pdsm": {"family": None}}, "lr is 0.0001 to 0.1 for pdsm, 0.001 to 10 for sgda. Widen it"),
        ({"sgda": {"options": {"lr": 20.0}}}, "lr is 0.001 to 10 for pdsm, [20.0] for sgda"),
        (
            {"pdsm": {"positives": 0.5}, "sgda": {"positives": None}},
            "positives is 0.5 for pdsm, None for sgda. Use one value, or remove 'sgda' from contains.",
        ),
        (
            {"pdsm": {"objective": {"score": "sigmoid"}}},
            "objective.score is 'sigmoid' for pdsm, 'the default' for sgda. Use one value, or remove 'sgda'",
        ),
        ({"pdsm": {"options": {"every": 1, "weight_decay": 0.1}}}, "weight_decay is [0.1] for pdsm, [0.0] for sgda"),
        ({"sgda": {"options": {"weight_decay": 0.1}}}, "weight_decay is [0.0] for pdsm, [0.1] for sgda"),
        ({"sgda": {"decays": ["lr"], "options": {"every": 1, "factor": 0.5}}}, "decays is ['lr', 'gamma'] for pdsm,"),
        ({"pdsm": {"contains": ["sgd"]}}, "methods[1].contains: 'sgd' is not another method. Did you mean 'sgda'?"),
        ({"pdsm": {"contains": ["pdsm"]}}, "'pdsm' is not another method"),
        (
            {"pdsm": {"family": "plane"}},
            "methods[1].family='plane' is not one of tuning.families. Did you mean",
        ),
        ({"tuning": {"ranges": {"lr": [0.1, 0.01]}}}, "tuning.ranges.lr=[0.1, 0.01] is invalid: the first number must"),
        ({"tuning": {"ranges": {"lrr": [0.01, 0.1]}}}, "tuning.ranges.lrr: no method here has such a hyper-parameter"),
        ({"tuning": {"grid": {"lr": [0.01]}}}, "tuning.ranges.lr is also an axis of tuning.grid. Keep one of them"),
        ({"tuning": {"extend": ["lr"]}}, "tuning.extend=['lr']: Sobol points do not extend axes"),
        ({"tuning": {"sampler": "tpe"}}, "tuning.ranges needs sampler = 'sobol', not 'tpe'"),
        ({"tuning": {"budget": None}}, "tuning.budget is missing: sampler = 'sobol' needs the number of trials"),
        ({"seeds": {"rerank": [100, 5]}}, "seeds.rerank: [100] are also tuning or final seeds"),
        (
            {"studies": 2, "seeds": {"final": [0, 1000]}},
            "seeds: [1000] are invalid: with several studies, seeds",
        ),
        ({"studies": 0}, "studies=0"),
        ({"seeds": {"rerank": [200, 200]}}, "seeds.rerank=[200, 200] has a seed twice. Use every seed once."),
        (
            {"studies": 2, "data": {"name": "bbbp", "split": "scaffold", "binary": False, "imbalance": None}},
            "data.split='scaffold' is invalid with studies = 2: each study needs a split of its own, and there is only "
            "one split by scaffold. Use split = 'random', or studies = 1.",
        ),
        (
            {"tuning": {"families": {**SOBOL["families"], "wide": {"ranges": {"lr": [1.0, 2.0]}}}}},
            "tuning.families.wide: no method has this family. Set it in a method, or remove it.",
        ),
        (
            {"tuning": {"ranges": {**SOBOL["ranges"], "every": [1, 4]}}, "pdsm": {"options": {}}},
            "methods[1]: every cannot be searched from 1 to 4 (every=1.95493 is invalid: it must be a whole number >= "
            "1. It counts epochs; the paper takes 20). List its values in a grid.",
        ),
        (
            {"sgda": {"multipliers": {"lr": [1.0, 2.0]}}},
            "methods[0].multipliers.lr: lr is searched in a range, which multipliers do not change. Remove it, or list",
        ),
        (
            {"sgda": {"options": {"lr": 0.1}, "grid": {"dual_lr": [0.1, 1.0]}}, "pdsm": {"contains": []}},
            "methods[0]: the space of sgda has 2 points, fewer than the budget of 8 trials, which is unfair.",
        ),
        (
            {"pdsm": {"options": {"every": 4}}},
            "methods[1]: every=4 is greater than epochs = 3, so no rate decays. Use a smaller value, or factor = 1.0.",
        ),
    ],
)
def test_invalid_search_spaces(changes, text):
    with pytest.raises(SpecError) as caught:
        a_spec(**changes)
    assert text in str(caught.value)


def one_in_another(outer, inner):
    """Build a spec in which ``outer`` contains ``inner``; both are minimizers with a common lr."""
    methods = [
        {"name": name, "label": name, "algorithm": "ASA", **method}
        for name, method in (("inner", inner), ("outer", {"contains": ["inner"], **outer}))
    ]
    tuning = {"metric": "valid_loss", "direction": "minimize", "sampler": "sobol", "budget": 4}
    raw = schema.merge(RAW, {"claim": {"order": []}})
    return schema.build({**raw, "methods": methods, "tuning": {**tuning, "ranges": {"lr": [1e-3, 1e-1]}}})


def decaying(*decays, factor=(1.0, 0.5), **changes):
    return {"decays": list(decays), "options": {"beta": 0.9, "every": 1}, "grid": {"factor": list(factor)}, **changes}


ADAM = {"options": {"beta": 0.9}}


@pytest.mark.parametrize(
    ("outer", "inner"),
    [
        (ADAM, ADAM),
        (ADAM, {"options": {"beta": 0.9, "scaling": "adam", "beta2": 0.999, "bias_correction": True}}),
        (decaying("lr", "gamma"), ADAM),
        (decaying("lr", "gamma"), decaying("lr", factor=[1.0])),
        (decaying("lr", "gamma"), decaying("gamma", "lr")),
        (ADAM, decaying("lr", factor=[1.0])),
        ({"options": {"beta": 0.9, "schedule": "constant", "warm_up": 0.0}}, ADAM),
        ({"grid": {"beta": [0.0, 0.9], "scaling": ["adam", "shb"]}}, ADAM),
        # beta = 0 is no average, so its bias correction changes nothing
        (
            {"options": {"beta": 0.0, "scaling": "shb", "bias_correction": False}},
            {"options": {"beta": 0.0, "scaling": "shb"}},
        ),
        ({"algorithm": "AdamW"}, {"algorithm": "AdamW", "options": {"betas": [0.9, 0.999], "weight_decay": 0.01}}),
    ],
)
def test_spaces_that_are_nested(outer, inner):
    assert one_in_another(outer, inner).method("outer").contains == ["inner"]


@pytest.mark.parametrize(
    ("outer", "inner", "text"),
    [
        (ADAM, decaying("lr"), "decays is [] for outer, ['lr'] for inner, and one factor applies to all decays. Use"),
        (decaying("lr", "gamma"), decaying("lr"), "decays is ['lr', 'gamma'] for outer, ['lr'] for inner"),
        (decaying("lr", factor=[0.5]), ADAM, "factor is [0.5] for outer, [1.0] for inner. Widen it, or remove 'inner'"),
        (ADAM, {"options": {"beta": 0.9, "scaling": "shb"}}, "scaling is ['adam'] for outer, ['shb'] for inner"),
        (
            {"options": {"beta": 0.9, "bias_correction": False}},
            ADAM,
            "bias_correction is [False] for outer, [True]",
        ),
        ({"options": {"beta": 0.9, "g0": 1e-3}}, ADAM, "g0 is [0.001] for outer, [1e-07] for inner"),
        ({"options": {"beta": 0.9, "schedule": "cosine"}}, ADAM, "schedule is ['cosine'] for outer, ['constant'] for"),
        (
            {"algorithm": "SGD"},
            {"algorithm": "Adam"},
            "betas is [[0.9, 0.999]] for inner, and outer has no betas. Remove 'inner' there.",
        ),
        ({"algorithm": "Adam"}, {"algorithm": "AdamW"}, "weight_decay is [0] for outer, [0.01] for inner"),
    ],
)
def test_spaces_that_are_not_nested(outer, inner, text):
    with pytest.raises(SpecError) as caught:
        one_in_another(outer, inner)
    assert "methods[1].contains: the space of outer does not contain that of inner: " in str(caught.value)
    assert text in str(caught.value)


def test_a_method_with_an_average_is_not_nested_in_one_without():
    contains = {"sgda": {"contains": ["pdsm"]}, "pdsm": {"contains": []}}
    with pytest.raises(SpecError, match=r"beta is \[0.0\] for sgda, \[0.0, 0.9\] for pdsm. Widen it, or remove 'pdsm'"):
        a_spec(**contains)
    a_spec(sgda={"contains": ["pdsm"]}, pdsm={"contains": [], "grid": {"beta": [0.0], "factor": [1.0]}})
