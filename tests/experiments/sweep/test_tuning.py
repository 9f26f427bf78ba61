"""Tuning: equal budgets, selection, axes that grow for all methods, pruning, Sobol points and reranking."""

import math
from pathlib import Path

import pytest

from semaopt.experiments.files import canonical
from semaopt.experiments.results.trials import Trial
from semaopt.experiments.spec import schema as specs
from semaopt.experiments.spec.search import axes_of
from semaopt.experiments.sweep.tuning import binding, extended, last_decay, rungs, tune
from tests.experiments.tiny import AUC, RAW, a_spec

LOW, HIGH = (0, -1)


def searched(name, scale=None):
    """Return a spec whose search is a grid or tree estimators; the shipped figures use Sobol points."""
    return specs.load(Path(__file__).parent / f"{name}.toml", scale)


DIGITS = searched("grid-digits", "quick")
NAMES = ("adam", "beta", "both")


def best_at(best_lr, best_g0=1e-5, noise=(0.0, 0.0, 0.0)):
    """Return losses that grow with the distance from the best point on a logarithmic scale, whatever beta is."""

    def evaluate(asked, _):
        far = [math.log(p["lr"] / best_lr) ** 2 + 0.1 * math.log(p["g0"] / best_g0) ** 2 for _, p in asked]
        return [tuple(1 + d + e for e in noise) for d in far]

    return evaluate


def budgets(tuning):
    return {len(trials) for trials in tuning.trials.values()}


def with_rounds(rounds):
    return DIGITS.model_copy(update={"tuning": DIGITS.tuning.model_copy(update={"rounds": rounds})})


def test_every_method_gets_the_same_number_of_trials():
    tuning = tune(DIGITS, best_at(1e-2))
    assert budgets(tuning) == {27}
    adam, *others = (tuning.trials[name].values() for name in NAMES)
    assert len({trial.values["lr"] for trial in adam}) == 9
    for trials in others:
        assert {trial.values["beta"] for trial in trials} == {0.99, 0.9, 0.5}
        assert {trial.values["lr"] for trial in trials} <= {trial.values["lr"] for trial in adam}


def test_no_extension_if_the_best_value_is_inside():
    tuning = tune(DIGITS, best_at(1e-2))
    assert tuning.extensions == []
    assert tuning.on_edge == {}
    assert tuning.best("adam").values == {"lr": 1e-2, "g0": 1e-5}


def test_the_grid_grows_for_all_methods_if_one_is_on_its_edge():
    def evaluate(asked, until):
        far, near = best_at(0.1)(asked, until), best_at(1e-2)(asked, until)
        return [a if method.name == "adam" else b for (method, _), a, b in zip(asked, far, near, strict=True)]

    tuning = tune(DIGITS, evaluate)
    assert [(e.axis, e.because) for e in tuning.extensions] == [("lr", ("adam",))]
    assert tuning.extensions[0].value == pytest.approx(0.1, rel=1e-5)
    assert budgets(tuning) == {36}
    assert tuning.on_edge == {}
    before = {name: tuning.best_before(name).values["lr"] for name in NAMES}
    first = axes_of(DIGITS, DIGITS.methods[0])["lr"]
    assert before["adam"] == max(first) < tuning.best("adam").values["lr"]
    assert all(before[name] == tuning.best(name).values["lr"] for name in ("beta", "both"))


def test_two_axes_grow_at_once_one_of_them_downwards():
    tuning = tune(with_rounds(3), best_at(1e-3, best_g0=0.1))
    added = {axis: [e.value for e in tuning.extensions if e.axis == axis] for axis in ("lr", "g0")}
    assert added["lr"] == pytest.approx([1e-3, 3.16228e-4], rel=1e-5)
    assert added["g0"] == pytest.approx([0.1, 10.0])  # one value beyond the best confirms it
    assert len(budgets(tuning)) == 1


def test_an_edge_that_remains_is_recorded():
    tuning = tune(with_rounds(1), best_at(100.0))
    assert len(tuning.extensions) == 1
    assert tuning.on_edge == {("lr", HIGH): NAMES}


def test_no_trial_is_evaluated_twice():
    seen = []

    def evaluate(asked, until):
        seen.extend((method.name, canonical(point)) for method, point in asked)
        return best_at(0.1)(asked, until)

    tune(DIGITS, evaluate)
    assert len(seen) == len(set(seen)) == 3 * 45


@pytest.mark.parametrize(
    ("inner", "binds"),
    [
        ((1.2, 1.2, 1.2), True),
        ((1.05, 1.05, 1.05), True),
        ((1.005, 1.005, 1.005), False),  # less than 1%
        ((1.5, 0.9, 1.05), False),  # better by chance
        ((math.nan, 1.0, 1.0), True),
    ],
)
@pytest.mark.parametrize("sign", [1, -1])
def test_an_edge_binds_if_values_improve_towards_it(inner, binds, sign):
    on_edge, inside = {"lr": 0.1, "g0": 1e-7}, {"lr": 0.01, "g0": 1e-7}

    def measured(losses):  # or an AUC: 1 minus a tenth of the loss
        return tuple(loss if sign > 0 else 1 - 0.1 * loss for loss in losses)

    best = Trial("adam", on_edge, measured((1.0, 1.0, 1.0)), sign)
    other = Trial("adam", inside, measured(inner), sign)
    trials = {canonical(on_edge): best, canonical(inside): other}
    assert binding(trials, [0.01, 0.1], "lr", HIGH) is binds
    assert binding(trials, [0.01, 0.1], "lr", LOW) is False
    assert binding(trials, [1e-7], "g0", HIGH) is False  # a single value has no inside


def test_pruned_trials_are_compared_at_their_rung():
    def trial(lr, value, pruned=None, passed=()):
        return Trial("pdada", {"lr": lr}, (value,), -1, pruned, dict(passed))

    edge = trial(0.1, 0.95, passed=[(3, (0.7,)), (12, (0.80,))])  # at epoch 12 it was as good as `close`
    close, poor, early = trial(0.01, 0.799, 12), trial(0.001, 0.10, 12), trial(0.002, 0.99, 3)
    trials = {canonical(t.values): t for t in (edge, close, poor, early)}
    assert binding(trials, [0.001, 0.002, 0.01, 0.1], "lr", HIGH) is False
    del trials[canonical(close.values)]
    assert binding(trials, [0.001, 0.002, 0.01, 0.1], "lr", HIGH) is True


def test_an_edge_of_a_fixed_axis_is_recorded():
    spec = DIGITS.model_copy(update={"tuning": DIGITS.tuning.model_copy(update={"extend": ["lr"]})})
    tuning = tune(spec, best_at(1e-2, best_g0=1e-12))
    assert not any(extension.axis == "g0" for extension in tuning.extensions)
    assert tuning.on_edge[("g0", LOW)] == NAMES


def test_a_diverged_trial_is_never_selected():
    def evaluate(asked, _):
        return [(0.0, math.nan) if point["lr"] > 5e-3 else (2.0, 2.0) for _, point in asked]

    tuning = tune(a_spec(tuning={"rounds": 0}), evaluate)
    assert all(tuning.best(name).values["lr"] < 5e-3 for name in NAMES)


def test_equal_scores_go_to_the_smaller_lr():
    tuning = tune(DIGITS, lambda asked, _: [(1.0,)] * len(asked))
    assert tuning.best("beta").values == {"lr": 3.16228e-3, "g0": 1e-7, "beta": 0.5}


def test_tree_estimators_find_a_maximum_beyond_the_edge_reproducibly():
    changes = {**AUC, "tuning": {**AUC["tuning"], "budget": 24, "rounds": 2, "extend": ["lr", "dual_lr"]}}
    spec = a_spec(**changes)

    def evaluate(asked, _):
        return [
            (1 - 0.02 * math.log(p["lr"] / 1.0) ** 2 - 0.02 * math.log(p["dual_lr"] / 0.03) ** 2,) for _, p in asked
        ]

    first, second = tune(spec, evaluate), tune(spec, evaluate)
    assert first.trials == second.trials
    assert {e.axis for e in first.extensions} == {"lr"}
    assert first.grid["lr"][-1] >= 1.0
    assert all(first.best(name).values["lr"] > 0.3 for name in ("sgda", "pdada"))
    assert budgets(first) == {24 + 12 * len({e.value for e in first.extensions})}


def test_axes_of_a_method():
    spec = searched("tree-bbbp")
    axes = {method.name: set(axes_of(spec, method)) for method in spec.methods}
    assert axes["sgda"] == {"lr", "dual_lr"}
    assert axes["epoch_sgda"] == {"lr", "dual_lr", "every"}
    assert axes["pes_sgda"] == {"lr", "dual_lr", "every", "factor"}
    assert axes["pes_adagrad"] == {"lr", "dual_lr", "every", "factor", "g0"}
    assert axes["pdsm"] == {"lr", "dual_lr", "every", "factor", "beta"}
    assert axes["pdada"] == {"lr", "dual_lr", "every", "factor", "beta", "g0"}


def without_decay(spec, **tuning):
    """Return a spec whose first decay comes after the last epoch, so that pruning may start early."""
    methods = []
    for method in spec.methods:
        grid = {name: values for name, values in method.grid.items() if name != "every"}
        late = {"every": 10_000} if "every" in {**method.options, **axes_of(spec, method)} else {}
        methods.append(method.model_copy(update={"grid": grid, "options": {**method.options, **late}}))
    return spec.model_copy(update={"methods": methods, "tuning": spec.tuning.model_copy(update=tuning)})


def halved(best_lr, **changes):
    """Return the trials of each method that reached each rung, and the tuning."""
    reached = {}

    def evaluate(asked, until):
        for method, point in asked:
            reached.setdefault((method.name, until), []).append(point["lr"])
        losses = best_at(best_lr)(asked, until)
        return [(100.0,) * 3 if point["lr"] < 2e-3 else loss for (_, point), loss in zip(asked, losses, strict=True)]

    spec = without_decay(DIGITS, pruner="halving", **changes)
    return reached, tune(spec.model_copy(update={"epochs": 16}), evaluate)


def test_the_best_quarter_continues_at_each_rung():
    reached, tuning = halved(1e-2)
    # The best quarter, rounded up, continues. "beta" has three trials with each lr and equal losses, which continue
    # together.
    assert [len(reached["adam", rung]) for rung in (1, 4, 16)] == [27, 7, 2]
    assert [len(reached["beta", rung]) for rung in (1, 4, 16)] == [27, 9, 3]
    assert set(reached["beta", 16]) == {1e-2}
    assert {trial.pruned for trial in tuning.trials["adam"].values()} == {1, 4, None}
    assert tuning.best("adam").values == {"lr": 1e-2, "g0": 1e-5}


def test_no_trial_is_pruned_before_the_first_rung():
    reached, tuning = halved(1e-2, first_rung=6)
    assert {rung for _, rung in reached} == {6, 16}
    assert {trial.pruned for trial in tuning.trials["adam"].values()} == {6, None}


def test_trials_of_a_grown_grid_compete_with_earlier_ones():
    """Below 2e-3 all trials are bad: none of those that are added there continues."""
    first, _ = halved(3.3e-3, rounds=0)
    reached, tuning = halved(3.3e-3, rounds=2)
    assert [extension.axis for extension in tuning.extensions] == ["lr"]
    added = tuning.extensions[0].value
    assert added < min(DIGITS.tuning.grid["lr"])
    assert all(len(reached[name, 1]) == 36 for name in NAMES)
    assert all(reached[name, rung] == first[name, rung] for name in ("beta", "both") for rung in (4, 16))


def test_halving_does_not_make_a_gentle_slope_an_edge():
    """Losses depend on the epoch and hardly on lr. The axis does not grow just because no inner trial finished."""
    spec = without_decay(searched("grid-bbbp", "small"))

    def evaluate(asked, until):
        return [((1 + 1e-6 * math.log(point["lr"])) * 2 / until,) for _, point in asked]

    tuning = tune(spec, evaluate)
    assert tuning.extensions == []
    assert tuning.best("adam").passed.keys() == {3, 12, 48}


def test_halving_prunes_proposals_of_tree_estimators():
    # The first ten points are proposed at random.
    spec = without_decay(searched("tree-bbbp", "small"), rounds=0, budget=16)
    seen = {}

    def evaluate(asked, until):
        for method, point in asked:
            seen.setdefault((method.name, until), []).append(point["lr"])
        return [(1 - 0.1 * abs(math.log10(point["lr"] / 3e-3)),) for _, point in asked]

    tuning = tune(spec, evaluate)
    for method in spec.methods:
        first, last = (seen.get((method.name, rung), []) for rung in (4, 16))
        assert len(first) == 16 > len(last) >= 1
        best = min(first, key=lambda lr: abs(math.log10(lr / 3e-3)))
        assert best in last
        assert tuning.best(method.name).values["lr"] == best


def test_if_all_continued_trials_diverge_a_pruned_one_is_selected():
    spec = without_decay(searched("grid-bbbp", "small"), rounds=0)

    def evaluate(asked, until):
        return [(math.nan if until > 3 else 1 / point["lr"],) for _, point in asked]

    tuning = tune(spec, evaluate)
    chosen = tuning.best("beta")
    assert (chosen.values["lr"], chosen.pruned) == (1e-3, 3)  # the nine trials with 1e-2 continued


def test_rungs_are_four_times_as_late_each():
    def epochs_of(epochs, **changes):
        return rungs(without_decay(DIGITS, pruner="halving", **changes).model_copy(update={"epochs": epochs}))

    assert [epochs_of(epochs) for epochs in (1, 3, 8, 16, 60)] == [[], [1], [1, 4], [1, 4], [3, 12, 48]]
    assert epochs_of(60, first_rung=5) == [5, 20]
    assert rungs(DIGITS) == []  # it does not prune


@pytest.mark.parametrize(
    ("name", "every", "decay"), [("grid-bbbp", {20}, 40), ("tree-bbbp", {5, 10, 15, 20, 25, 30}, 55)]
)
def test_no_trial_is_pruned_before_the_last_possible_decay_has_acted(name, every, decay):
    spec = searched(name)
    found = {
        value
        for method in spec.methods
        for value in [*axes_of(spec, method).get("every", []), method.options.get("every", 20)]
    }
    assert every <= found
    halving = spec.model_copy(update={"tuning": spec.tuning.model_copy(update={"pruner": "halving"})})
    assert last_decay(halving) == decay
    assert rungs(halving) == [decay + 3]  # all three measured epochs come after the decay
    assert rungs(halving.model_copy(update={"final_epochs": 60 - decay})) == []


@pytest.mark.parametrize(
    ("options", "pruned"),
    [
        ({"schedule": "constant", "warm_up": 0.1}, [3, 12, 48]),
        ({"schedule": "constant", "gamma_schedule": "constant"}, [3, 12, 48]),
        ({"schedule": "cosine"}, []),
        ({"schedule": "stagewise"}, []),
        *(({"schedule": "constant", "gamma_schedule": by}, []) for by in ("rise", "stagewise")),
        ({"schedule": "cosine", "gamma_schedule": "follow"}, []),
    ],
)
@pytest.mark.parametrize("table", ["options", "grid"])
def test_a_schedule_that_changes_rates_until_the_end_forbids_pruning(options, pruned, table):
    given = options if table == "options" else {name: [value] for name, value in options.items()}
    adam = {**RAW["methods"][0], "multipliers": {}}
    adam[table] = {**adam.get(table, {}), **given}
    spec = a_spec(methods=[adam], claim={"order": []}, epochs=60, tuning={"pruner": "halving"})
    assert rungs(spec) == pruned


def test_an_axis_is_extended_by_its_ratio():
    assert extended([1e-3, 1e-2], LOW) == [1e-4, 1e-3, 1e-2]


SOBOL = {
    "metric": "valid_auc",
    "direction": "maximize",
    "sampler": "sobol",
    "budget": 8,
    "ranges": {"lr": [1e-4, 1e-1]},
    "families": {"wide": {"ranges": {"lr": [1e-3, 10.0]}}},
}


def sobol_spec(**changes):
    """Return a spec whose two methods share the axis lr, one of them in a range of its family."""
    sgda = {**AUC["methods"][0], "grid": {"dual_lr": [0.1]}, "family": "wide"}
    pdada = {**AUC["methods"][1], "grid": {"dual_lr": [0.1], "beta": [0.0, 0.5, 0.9, 0.99]}}
    pdada["options"] = {"every": 1, "factor": 0.5}
    raw = specs.merge(RAW, {**AUC, "studies": 2, "methods": [sgda, pdada], **changes})
    return specs.build({**raw, "tuning": SOBOL})


def sobol_points(study=0, **changes):
    """Return the points of each method, in order, that a study tries, and the tuning."""
    seen = {}

    def evaluate(asked, _):
        for method, point in asked:
            seen.setdefault(method.name, []).append(point)
        return [(0.5,)] * len(asked)

    return seen, tune(sobol_spec(**changes), evaluate, study=study)


def test_sobol_points_share_the_coordinates_of_shared_axes():
    seen, tuning = sobol_points()
    assert budgets(tuning) == {8}
    for plain, adaptive in zip(seen["sgda"], seen["pdada"], strict=True):
        u = math.log(plain["lr"] / 1e-3) / math.log(10.0 / 1e-3)  # of the family's range
        v = math.log(adaptive["lr"] / 1e-4) / math.log(1e-1 / 1e-4)
        assert u == pytest.approx(v, abs=1e-5)
    assert set(seen["pdada"][0]) == {"lr", "dual_lr", "beta"}
    assert {point["beta"] for point in seen["pdada"]} == {0.0, 0.5, 0.9, 0.99}  # eight points cover all four


def test_sobol_points_fill_the_range_evenly():
    seen, _ = sobol_points()
    eighths = sorted(int(8 * math.log(point["lr"] / 1e-3) / math.log(10.0 / 1e-3)) for point in seen["sgda"])
    assert eighths == list(range(8))  # one in each eighth, which random points would miss


def test_each_study_and_each_data_set_has_its_own_scrambling():
    first, again = sobol_points()[0], sobol_points()[0]
    assert first == again
    other_study = sobol_points(study=1)[0]
    other_data = sobol_points(data={"name": "breast_cancer", "binary": False, "imbalance": None})[0]
    rates = [tuple(point["lr"] for point in one["sgda"]) for one in (first, other_study, other_data)]
    assert len(set(rates)) == 3


def test_an_edge_of_a_range_is_recorded_with_the_value_of_its_family():
    def evaluate(asked, _):
        return [(1 - 0.01 * abs(math.log(10.0 / point["lr"])),) for _, point in asked]

    spec = sobol_spec()
    tuning = tune(spec, evaluate, methods=spec.methods[:1])
    assert tuning.on_edge == {("lr", HIGH): ("sgda",)}
    assert tuning.edge("lr", HIGH) == 10.0


def test_the_best_quarter_is_ranked_again_with_more_seeds():
    """With the tuning seeds lr = 0.3 looks best by luck; the additional seeds show that it is not."""
    grid = {"lr": [0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0], "g0": [1e-7]}
    adam = a_spec().methods[0].model_copy(update={"multipliers": {}})
    options = a_spec().tuning.model_copy(update={"rounds": 0, "grid": grid, "extend": []})
    spec = a_spec().model_copy(update={"methods": [adam], "tuning": options})
    again = []

    def evaluate(asked, _):
        return [(0.5, 0.5) if point["lr"] == 0.3 else (1.0 + point["lr"], 1.0) for _, point in asked]

    def rerank(asked):
        again.extend(point["lr"] for _, point in asked)
        return [(8.0, 8.0) if point["lr"] == 0.3 else (1.0, 1.0) for _, point in asked]

    assert tune(spec, evaluate).best("adam").values["lr"] == 0.3
    tuning = tune(spec, evaluate, rerank=rerank)
    assert again == [0.3, 0.003]  # a quarter of eight
    best = tuning.best("adam")
    assert (best.values["lr"], best.reranked, len(best.measured)) == (0.003, True, 4)
    # 0.01 was not ranked again: it cannot win, even if its mean over fewer seeds were lower.
    assert tuning.trials["adam"][canonical({"lr": 0.01, "g0": 1e-7})].reranked is False


def test_losses_of_seeds_are_averaged_geometrically():
    def evaluate(asked, _):  # arithmetic means: 5.05 and 2; geometric: 1 and 2
        return [(0.1, 10.0) if point["lr"] > 5e-3 else (2.0, 2.0) for _, point in asked]

    tuning = tune(a_spec(tuning={"rounds": 0}), evaluate)
    assert all(tuning.best(name).values["lr"] > 5e-3 for name in NAMES)
    assert tuning.best("beta").mean == pytest.approx(1.0)
