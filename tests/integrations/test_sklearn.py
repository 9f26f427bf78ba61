"""AUCClassifier: scikit-learn's contract, metrics, calibration, thresholds, weights, missing labels and saving."""

from __future__ import annotations

import io
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch

pytest.importorskip("sklearn", minversion="1.6")

import joblib
from scipy import sparse
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import make_classification
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score, f1_score, log_loss, roc_auc_score
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler
from sklearn.utils.estimator_checks import check_estimator

from semaopt.integrations import _curves, _fit
from semaopt.integrations.sklearn import AUCClassifier

FEW = "ignore:validation_fraction"


def data(n=600, share=0.2, seed=0):
    return make_classification(
        n, 8, n_informative=5, weights=[1 - share], class_sep=1.0, flip_y=0.02, random_state=seed
    )


X, Y = data()
TEST_X, TEST_Y = X[400:], Y[400:]
X, Y = X[:400], Y[:400]


def quick(**options):
    return AUCClassifier(**{"hidden": (16,), "max_epochs": 8, "lr": 1e-2, "random_state": 0, **options})


@pytest.mark.filterwarnings("ignore")
def test_check_estimator():
    check_estimator(AUCClassifier())


@pytest.mark.parametrize("metric", ["auroc", "ap", "pauc"])
def test_each_metric_is_learned(metric):
    found = quick(metric=metric, validation_fraction=0).fit(X, Y)
    scores = found.decision_function(TEST_X)
    assert roc_auc_score(TEST_Y, scores) > 0.85
    assert average_precision_score(TEST_Y, scores) > 0.6


def test_a_linear_model_is_as_good_as_logistic_regression():
    found = quick(hidden=(), max_epochs=30, validation_fraction=0).fit(X, Y)
    assert found.network_[0].weight.shape == (1, 8)
    reference = LogisticRegression(class_weight="balanced").fit(X, Y)
    ours, theirs = (roc_auc_score(TEST_Y, one.decision_function(TEST_X)) for one in (found, reference))
    assert ours > theirs - 0.02


@pytest.mark.parametrize(("options", "lr"), [({}, 1e-3), ({"hidden": ()}, 1e-2), ({"hidden": (), "lr": 0.3}, 0.3)])
def test_default_lr_is_larger_for_a_linear_model(options, lr):
    found = AUCClassifier(max_epochs=1, validation_fraction=0, **options).fit(X, Y)
    assert found.history_[0]["lr"] == pytest.approx(lr)


@pytest.mark.parametrize("hidden", [8, np.int64(8), [8], np.array([8])], ids=repr)
def test_a_number_is_one_hidden_layer(hidden, tmp_path):
    options = dict(max_epochs=2, validation_fraction=0)
    expected = quick(hidden=(8,), **options).fit(X, Y).decision_function(X)
    found = quick(hidden=hidden, **options).fit(X, Y)
    np.testing.assert_array_equal(found.decision_function(X), expected)
    found.save(tmp_path / "model.pt")
    np.testing.assert_array_equal(AUCClassifier.load(tmp_path / "model.pt").decision_function(X), expected)


@pytest.mark.parametrize(
    ("options", "total"),
    [
        ({}, 0.5),
        ({"weight_decay": 0.0}, 0.0),
        ({"hidden": ()}, 0.0),
        ({"module": lambda n: torch.nn.Linear(n, 1)}, 0.0),
    ],
)
def test_the_default_decay_shrinks_an_mlp_by_a_fixed_factor(options, total):
    found = quick(batch_size=64, validation_fraction=0, **options).fit(X, Y)
    group = found._learner.optimizer.param_groups[0]
    assert group["decoupled_weight_decay"] or total == 0
    rates = [entry["lr"] for entry in found.history_ for _ in range(7)]  # 400 rows are 7 batches
    assert group["weight_decay"] * sum(rates) == pytest.approx(total)


def test_a_short_training_of_a_linear_model_does_not_depend_on_its_initial_weights():
    values = [
        roc_auc_score(
            TEST_Y,
            quick(hidden=(), lr=1e-4, validation_fraction=0, random_state=seed).fit(X, Y).decision_function(TEST_X),
        )
        for seed in range(4)
    ]
    assert min(values) > 0.8
    assert max(values) - min(values) < 0.03


@pytest.mark.parametrize("labels", [1, 3])
@pytest.mark.parametrize("metric", ["auroc", "ap", "pauc"])
@pytest.mark.parametrize("hidden", [(), (7, 5)])
def test_the_direct_gradients_are_those_of_autograd(metric, labels, hidden, monkeypatch):
    generator = torch.Generator().manual_seed(0)
    a, index = torch.randn(16, 6, generator=generator), torch.arange(16)
    b = (torch.rand(16, labels, generator=generator) < 0.4).float()
    if metric != "pauc":
        b[3, 0] = torch.nan
    settings = _fit.Settings(metric, 1e-3, 1e-2, 0.9, 0.0, 16, 0.3)
    found = []
    for own in (False, True):
        weights = torch.Generator().manual_seed(1)
        network = _fit.perceptron(6, hidden, labels, weights)
        for x in network.parameters():  # a linear model starts at 0, where s and r have no gradient
            torch.nn.init.uniform_(x, -0.4, 0.4, generator=weights)
        learner = _fit.Learner(network, settings, torch.full((labels,), 0.3), None, own=own)
        if own:
            monkeypatch.setattr(_fit, "auc", lambda *_: pytest.fail("only the direct way calls the kernel"))
        value = float(learner._differentiate(learner.loss(16), a, b, index))
        found.append([value, *(x.grad for group in learner.optimizer.param_groups for x in group["params"])])
    torch.testing.assert_close(found[0], found[1], rtol=1e-5, atol=1e-7)
    assert all(g.abs().sum() > 0 for g in found[0][1:])


class TestCurves:
    """Metrics with weights and ties against scikit-learn's."""

    numbers = np.random.default_rng(0)
    scores, labels = numbers.integers(0, 20, 300) / 3, numbers.random(300) < 0.3
    weight = numbers.random(300)
    curve = _curves.curve(scores, labels, weight)

    def test_metrics(self):
        options = dict(sample_weight=self.weight)
        assert _curves.auroc(self.curve) == pytest.approx(roc_auc_score(self.labels, self.scores, **options))
        expected = average_precision_score(self.labels, self.scores, **options)
        assert _curves.average_precision(self.curve) == pytest.approx(expected)
        for max_fpr in (0.05, 0.3, 0.9):
            expected = roc_auc_score(self.labels, self.scores, max_fpr=max_fpr, **options)
            assert _curves.partial_auroc(self.curve, max_fpr) == pytest.approx(expected)

    @pytest.mark.parametrize("rule", ["youden", "f1"])
    def test_the_threshold_is_the_best_one(self, rule):
        def gain(threshold):
            found = self.scores > threshold
            if rule == "f1":
                return f1_score(self.labels, found, sample_weight=self.weight)
            rates = [np.average(found[part], weights=self.weight[part]) for part in (self.labels, ~self.labels)]
            return rates[0] - rates[1]

        best = _curves.best_threshold(self.curve, rule)
        assert gain(best) == pytest.approx(max(gain(t) for t in np.append(np.unique(self.scores), -1)))

    def test_platt_is_the_maximum_likelihood_fit(self):
        slope, offset = _curves.platt(self.scores, self.labels, np.ones(300))
        theirs = LogisticRegression(C=np.inf).fit(self.scores[:, None], self.labels)
        if theirs.coef_[0, 0] > 0:
            assert slope == pytest.approx(theirs.coef_[0, 0], rel=0.1, abs=0.01)
        p = 1 / (1 + np.exp(-slope * self.scores - offset))
        assert log_loss(self.labels, p) < log_loss(self.labels, theirs.predict_proba(self.scores[:, None])) + 1e-3

    def test_platt_with_perfect_scores_stays_finite(self):
        slope, offset = _curves.platt(np.array([-1e3, -900.0, 5.0, 6.0]), np.arange(4) > 1, np.ones(4))
        assert np.isfinite([slope, offset]).all()
        assert slope > 0


def test_probabilities_are_calibrated_on_the_validation_part():
    x, y = data(3000)
    fresh, labels = x[1500:], y[1500:]
    found = quick().fit(x[:1500], y[:1500])
    assert found.calibrated_on_ == "validation"
    raw = quick(calibrate=False).fit(x[:1500], y[:1500])
    assert raw.calibrated_on_ is None
    ours, theirs = (log_loss(labels, one.predict_proba(fresh)) for one in (found, raw))
    assert ours < theirs
    assert found.predict_proba(fresh)[:, 1].mean() == pytest.approx(labels.mean(), abs=0.05)


def test_early_stopping_keeps_the_best_epoch():
    found = quick(lr=0.3, max_epochs=40, patience=3).fit(*data(1500))
    metric = [entry["validation"] for entry in found.history_]
    assert len(metric) < 40
    assert metric[found.best_epoch_ - 1] == max(metric)
    assert [entry["epoch"] for entry in found.history_] == list(range(1, len(metric) + 1))
    assert found.history_[0]["lr"] > found.history_[-1]["lr"]


def test_few_positives_warn_and_use_all_data():
    with pytest.warns(UserWarning, match="validation_fraction=0.2 holds out 1 examples of the rarest class"):
        found = quick().fit(X[:60], np.arange(60) < 4)
    assert found.calibrated_on_ == "training"
    assert found.history_[0]["validation"] is None
    assert len(found.history_) == 8


def test_thresholds():
    options = dict(validation_fraction=0)
    found = {t: quick(threshold=t, **options).fit(X, Y) for t in (0.5, 0.1, "youden", "f1")}
    positive = {t: one.predict(X).sum() for t, one in found.items()}
    assert positive[0.1] > positive[0.5]
    p = found[0.5].predict_proba(X)[:, 1]
    np.testing.assert_array_equal(found[0.1].predict(X), p > 0.1)
    costs = quick(threshold={"fp": 1, "fn": 9}, **options).fit(X, Y)
    np.testing.assert_array_equal(costs.predict(X), found[0.1].predict(X))
    assert f1_score(Y, found["f1"].predict(X)) >= max(f1_score(Y, one.predict(X)) for one in found.values())
    for one in found.values():
        np.testing.assert_array_equal(one.decision_function(X) > 0, one.predict(X) == 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"metric": "auc"}, "metric='auc' is invalid: it must be one of"),
        ({"lr": -1.0}, "lr=-1.0 is invalid"),
        ({"threshold": "gmean"}, "threshold='gmean' is invalid"),
        ({"threshold": {"fp": 1}}, r"threshold=\{'fp': 1\} is invalid"),
        ({"threshold": 1.5}, "threshold=1.5 is invalid"),
        ({"validation_fraction": 1.0}, "validation_fraction=1.0 is invalid"),
        ({"max_fpr": 0.0}, "max_fpr=0.0 is invalid"),
        ({"hidden": (0,)}, "hidden=0 is invalid"),
        ({"hidden": 0}, "hidden=0 is invalid"),
        ({"hidden": None}, r"hidden=None is invalid: it must be a whole number >= 1\. Try hidden=\(64, 64\)"),
    ],
)
def test_invalid_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        quick(**options).fit(X, Y)


@pytest.mark.filterwarnings(FEW)
def test_the_global_random_state_is_untouched():
    torch.manual_seed(1)
    np.random.seed(1)
    before = torch.get_rng_state(), np.random.get_state()[1].copy()
    own = quick(module=lambda n: torch.nn.Sequential(torch.nn.Linear(n, 4), torch.nn.Dropout(), torch.nn.Linear(4, 1)))
    for one in (quick(), quick(metric="ap"), own):
        first = one.fit(X, Y).decision_function(X)
        torch.rand(3)
        np.testing.assert_array_equal(clone(one).fit(X, Y).decision_function(X), first)
        torch.set_rng_state(before[0])
        one.partial_fit(X, Y)
        assert torch.equal(torch.get_rng_state(), before[0])
    np.testing.assert_array_equal(np.random.get_state()[1], before[1])


@pytest.mark.filterwarnings(FEW)
def test_weights():
    numbers = np.random.default_rng(0)
    whole = numbers.integers(0, 4, len(Y))
    repeated = numbers.permutation(np.repeat(np.arange(len(Y)), whole))
    weighted = quick().fit(X, Y, sample_weight=whole).decision_function(X)
    np.testing.assert_array_equal(weighted, quick().fit(X[repeated], Y[repeated]).decision_function(X))
    # The weight decides which of two contradicting groups is learned.
    x, y = np.tile(X[:, :1], (2, 1)), np.tile(X[:, 0] > 0, 2)
    y[len(X) :] = ~y[len(X) :]
    weight = np.repeat([0.9, 0.1], len(X))
    assert roc_auc_score(y[: len(X)], quick().fit(x, y, weight).decision_function(x[: len(X)])) > 0.9
    assert roc_auc_score(y[: len(X)], quick().fit(x, y, weight[::-1]).decision_function(x[: len(X)])) < 0.1


@pytest.mark.parametrize("metric", ["auroc", "ap", "pauc"])
@pytest.mark.filterwarnings(FEW)
def test_several_labels_with_missing_ones(metric):
    numbers = np.random.default_rng(0)
    x = numbers.standard_normal((800, 6))
    full = (x[:, :3] + 0.3 * numbers.standard_normal((800, 3)) > 0.5).astype(float)
    y = np.where(numbers.random(full.shape) < 0.4, np.nan, full)
    found = quick(metric=metric).fit(x[:600], y[:600])
    assert found.classes_.tolist() == [0, 1, 2]
    shapes = {getattr(found, name)(x[600:]).shape for name in ("decision_function", "predict_proba", "predict")}
    assert shapes == {(200, 3)}
    assert roc_auc_score(full[600:], found.decision_function(x[600:])) > 0.9
    assert set(np.unique(found.predict(x))) == {0, 1}


def test_a_label_of_one_class_is_an_error():
    y = np.stack([Y, np.zeros_like(Y)], 1)
    with pytest.raises(ValueError, match="column 1 of y has one class"):
        quick().fit(X, y)


@pytest.mark.filterwarnings(FEW)
def test_sparse_input_equals_dense_input_without_centering():
    x = np.where(np.random.default_rng(0).random(X.shape) < 0.5, X, 0.0)
    dense, thin = (quick(standardize=False).fit(kind, Y) for kind in (x, sparse.csr_matrix(x)))
    np.testing.assert_allclose(dense.decision_function(x), thin.decision_function(sparse.csc_matrix(x)), atol=1e-6)
    assert roc_auc_score(Y, quick().fit(sparse.csr_array(x), Y).decision_function(x)) > 0.7


@pytest.mark.filterwarnings(FEW)
def test_data_frames_keep_their_names(tmp_path):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(X, columns=[f"f{k}" for k in range(8)])
    found = quick().fit(frame, pandas.Series(Y))
    assert found.feature_names_in_.tolist() == list(frame)
    found.save(tmp_path / "model.pt")
    assert AUCClassifier.load(tmp_path / "model.pt").feature_names_in_.tolist() == list(frame)
    with pytest.raises(ValueError, match="feature names"):
        found.predict(frame.rename(columns={"f0": "g"}))


@pytest.mark.filterwarnings(FEW)
def test_scikit_learn_tools():
    pipeline = make_pipeline(MinMaxScaler(), quick(max_epochs=3))
    assert cross_val_score(pipeline, X, Y, cv=2, scoring="roc_auc").min() > 0.5
    search = GridSearchCV(quick(max_epochs=2), {"lr": [1e-5, 1e-2]}, scoring="roc_auc", cv=2).fit(X, Y)
    assert search.best_params_ == {"lr": 1e-2}
    calibrated = CalibratedClassifierCV(quick(max_epochs=2), cv=2).fit(X, Y)
    assert calibrated.predict_proba(X).shape == (len(X), 2)
    own = quick(module=torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1)))
    assert roc_auc_score(Y, clone(own).fit(X[:385], Y[:385]).decision_function(X)) > 0.8


def test_a_module_with_two_outputs_is_an_error():
    with pytest.raises(ValueError, match="module has 2 outputs per example: it must have 1"):
        quick(module=lambda n: torch.nn.Linear(n, 2), validation_fraction=0).fit(X, Y)


@pytest.mark.parametrize("metric", ["auroc", "pauc"])
def test_partial_fit(metric):
    found = quick(metric=metric)
    found.partial_fit(X[Y == 0][:50], Y[Y == 0][:50], classes=[0, 1])
    for _ in range(6):
        for k in range(0, 400, 100):
            found.partial_fit(X[k : k + 100], Y[k : k + 100])
    assert roc_auc_score(TEST_Y, found.decision_function(TEST_X)) > 0.85
    with pytest.raises(ValueError, match="y has classes outside of"):
        found.partial_fit(X, Y + 5)


def test_warm_start_continues():
    options = dict(validation_fraction=0, max_epochs=1, lr=1e-3, weight_decay=0.0)
    found = quick(warm_start=True, **options).fit(X, Y)
    before = found.network_[0].weight.detach().clone()
    found.fit(X, Y)
    distance = (found.network_[0].weight - before).abs().max()
    fresh = quick(random_state=1, **options).fit(X, Y)
    assert 0 < distance < 0.05 < (fresh.network_[0].weight - before).abs().max()
    with pytest.raises(ValueError, match="warm_start=True is invalid"):
        found.fit(X[:, :3], Y)


@pytest.mark.filterwarnings(FEW)
def test_saving(tmp_path):
    names = np.array(["no", "yes"])
    found = quick(threshold={"fp": 1, "fn": 3}).fit(X, names[Y])
    found.save(tmp_path / "model.pt")
    loaded = AUCClassifier.load(tmp_path / "model.pt")
    joblib.dump(found, tmp_path / "model.joblib")
    for other in (loaded, pickle.loads(pickle.dumps(found)), joblib.load(tmp_path / "model.joblib")):
        np.testing.assert_array_equal(other.predict_proba(X), found.predict_proba(X))
        np.testing.assert_array_equal(other.predict(X), found.predict(X))
        assert other.get_params() == found.get_params()
        assert other.history_ == found.history_
        other.partial_fit(X, names[Y])
    with pytest.raises(ValueError, match="module='Linear' is invalid: cannot be saved without pickle"):
        quick(module=torch.nn.Linear(8, 1)).fit(X, Y).save(io.BytesIO())


def test_progress(capsys):
    quick(verbose=1, max_epochs=2, validation_fraction=0).fit(X, Y)
    text = capsys.readouterr().err
    assert "\r[##########..........] epoch 1/2  loss" in text
    assert text.endswith("\n")
    quick(verbose=2, max_epochs=2, validation_fraction=0).fit(X, Y)
    assert len(capsys.readouterr().err.splitlines()) == 2


def test_the_error_without_scikit_learn_names_the_extra():
    code = "import sys; sys.modules['sklearn'] = None; import semaopt.integrations.sklearn"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "pip install 'semaopt[sklearn]'" in done.stderr
