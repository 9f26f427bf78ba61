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
    spec = a_spec(sgda={"options": {"lr": 0.1}, "grid": {"dual_lr": [0.1, 1.0]}}, pdsm={"contains": []})
    assert ranges_of(spec, spec.method("sgda")) == {}
    assert axes_of(spec, spec.method("sgda")) == {"dual_lr": [0.1, 1.0]}


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
    ],
)
def test_invalid_search_spaces(changes, text):
    with pytest.raises(SpecError) as caught:
        a_spec(**changes)
    assert text in str(caught.value)
