"""A scikit-learn classifier that trains a network for the AUC, the average precision or the partial AUC.

>>> from sklearn.datasets import load_breast_cancer
>>> from semaopt.integrations.sklearn import AUCClassifier
>>> X, y = load_breast_cancer(return_X_y=True)
>>> classifier = AUCClassifier(max_epochs=5, random_state=0).fit(X, y)
>>> classifier.predict_proba(X[:3]).shape
(3, 2)
"""

from __future__ import annotations

import contextlib
import copy
import math
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from numbers import Integral
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from semaopt._validation import is_real, require, validate_beta, validate_integer, validate_rate

try:
    import numpy as np
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.utils import check_random_state
    from sklearn.utils.multiclass import check_classification_targets, type_of_target
    from sklearn.utils.validation import (
        _check_sample_weight,
        check_array,
        check_is_fitted,
        column_or_1d,
        validate_data,
    )
except ModuleNotFoundError as error:
    text = f"semaopt.integrations.sklearn needs {error.name!r}. Install the extra: pip install 'semaopt[sklearn]'"
    raise ModuleNotFoundError(text, name=error.name) from error

from semaopt.integrations._curves import Curve, auroc, average_precision, best_threshold, curve, partial_auroc, platt
from semaopt.integrations._fit import Array, Learner, Rows, Settings, cosine, distinct, moments, perceptron

METRICS = ("auroc", "ap", "pauc")
#: Without gradients, the default weight decay multiplies an MLP's weights by exp(-TOTAL_DECAY) in ``max_epochs``.
TOTAL_DECAY = 0.5
#: A validation part needs this many examples of each class; with fewer, early stopping follows noise.
SMALLEST_VALIDATION = 20


class Data(NamedTuple):
    """Rows, labels (n, labels) in {0, 1, NaN} and weights of a part of the data."""

    rows: Rows
    labels: Tensor
    weight: Array

    def curves(self, scores: Array) -> list[Curve | None]:
        """Return the ROC curve of each label; None for a label of one class."""
        found: list[Curve | None] = []
        for k, b in enumerate(self.labels.numpy().T):
            known = ~np.isnan(b)
            both = known.any() and 0 < b[known].mean() < 1
            found.append(curve(scores[known, k], b[known] == 1, self.weight[known]) if both else None)
        return found


class AUCClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Binary or multi-label classifier that maximizes a ranking metric.

    ``"auroc"`` minimizes :class:`semaopt.losses.AUCMinMax` with :class:`semaopt.PDAda`; ``"ap"`` and ``"pauc"``
    minimize :class:`semaopt.losses.MeanAveragePrecision` and :class:`semaopt.losses.PartialAUC` (CVaR) with
    :class:`semaopt.ASA`. The learning rates follow a cosine towards 0, epoch by epoch.

    Args:
        metric: ``"auroc"``, ``"ap"`` (average precision) or ``"pauc"`` (AUROC up to ``max_fpr``, standardized as in
            ``roc_auc_score(max_fpr=...)``). The training maximizes it, and early stopping uses it.
        hidden: sizes of the hidden ReLU layers, or the size of the only one. ``()`` is a linear model, which starts at
            0.
        module: your network instead: a module, which is copied, or a function of the number of features that returns
            one. It maps (n, features) to one score per example, or per label, without a sigmoid.
        standardize: subtract the mean and divide by the standard deviation of each feature. Sparse features are only
            divided.
        lr: learning rate of the network. None is 1e-3, or 1e-2 for a linear model.
        dual_lr: learning rate of the dual variable, for ``"auroc"``.
        beta: momentum.
        weight_decay: decoupled weight decay. For an MLP, None chooses 0.5, divided by the sum of the learning rates of
            all steps: without gradients the training would multiply the weights by exp(-0.5). For a linear model, your
            own module and ``partial_fit``, None is 0.
        batch_size: examples per step.
        max_epochs: passes over the training part.
        validation_fraction: share held out for early stopping, calibration and threshold, stratified by class. If a
            class would have fewer than 20 held-out examples, all data is used for training, calibration and threshold
            come from the training scores, and a warning is raised. 0 does the same without a warning.
        early_stopping: keep the weights of the epoch with the best validation metric and stop after ``patience`` epochs
            without improvement. Among equal epochs the last one is kept.
        patience: epochs.
        max_fpr: largest false positive rate of ``"pauc"``, in (0, 1).
        threshold: rule of ``predict``: a probability in (0, 1); ``"youden"`` or ``"f1"``, the best threshold on the
            validation part; or costs ``{"fp": 1, "fn": 10}``, which give the probability fp / (fp + fn). The
            probability of a rare class may never exceed 0.5; use another rule if ``predict`` should find it.
        calibrate: fit a sigmoid to the validation scores (Platt) for ``predict_proba``. Without it the
            probabilities are the sigmoid of the raw output, which is not calibrated.
        device: device of the training; None is the CPU.
        random_state: determines the split, the initial weights and the order of the examples. The global random state
            is never changed.
        verbose: 1 shows a progress bar, 2 prints a line per epoch, on stderr.
        warm_start: ``fit`` starts from the weights of the previous fit.

    Attributes:
        classes_: the two classes; the second one is positive. For multi-label y, the numbers of the labels.
        n_features_in_, feature_names_in_: as usual.
        history_: a dict per epoch: ``epoch``, ``loss``, ``lr``, ``validation`` (the metric, or None), ``seconds``.
        best_epoch_: the epoch whose weights are kept.
        calibrated_on_: ``"validation"``, ``"training"`` or None.
        threshold_: raw score (one per label) above which ``predict`` is positive.
        network_: the trained module. It expects standardized features.

    ``decision_function`` is the raw score minus the threshold, so its sign is the prediction. For multi-label y (n, C),
    with NaN for missing labels, ``decision_function``, ``predict_proba`` and ``predict`` return (n, C).

    ``sample_weight`` are sampling probabilities: an example of weight 2 appears in batches twice as often as one of
    weight 1. They also weight the means of the features, the metric, the calibration and the threshold. ``fit`` merges
    equal examples, so a whole weight is the same as repeating the example and weight 0 the same as leaving it out, to
    the bit.
    """

    network_: nn.Module
    _learner: Learner
    _calibration: Array  # (labels, 2): slope and offset
    _prior_counts: Tensor  # (2, labels): weights of the positive and of all known labels

    def __init__(
        self,
        metric: str = "auroc",
        *,
        hidden: int | tuple[int, ...] = (64, 64),
        module: nn.Module | Callable[[int], nn.Module] | None = None,
        standardize: bool = True,
        lr: float | None = None,
        dual_lr: float = 1e-2,
        beta: float = 0.9,
        weight_decay: float | None = None,
        batch_size: int = 32,
        max_epochs: int = 50,
        validation_fraction: float = 0.2,
        early_stopping: bool = True,
        patience: int = 15,
        max_fpr: float = 0.3,
        threshold: str | float | Mapping[str, float] = 0.5,
        calibrate: bool = True,
        device: Any = None,
        random_state: Any = None,
        verbose: int = 0,
        warm_start: bool = False,
    ) -> None:
        self.metric = metric
        self.hidden = hidden
        self.module = module
        self.standardize = standardize
        self.lr = lr
        self.dual_lr = dual_lr
        self.beta = beta
        self.weight_decay = weight_decay
        self.batch_size = batch_size
        self.max_epochs = max_epochs
        self.validation_fraction = validation_fraction
        self.early_stopping = early_stopping
        self.patience = patience
        self.max_fpr = max_fpr
        self.threshold = threshold
        self.calibrate = calibrate
        self.device = device
        self.random_state = random_state
        self.verbose = verbose
        self.warm_start = warm_start

    # ---- training ----------------------------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> AUCClassifier:
        """Train.

        Args:
            X: (n, features): array, sparse matrix or data frame.
            y: (n,) with two classes, or (n, C) with {0, 1} and NaN for missing labels.
            sample_weight: (n,) numbers >= 0.
        """
        settings = self._settings()
        again = self.warm_start and hasattr(self, "_learner")
        previous = (self.n_features_in_, self.classes_.tolist()) if again else None
        X, y, weight = self._validated(X, y, sample_weight, reset=True)
        b = self._encoded(y, None)
        found = (self.n_features_in_, self.classes_.tolist())
        require(not again or found == previous, "warm_start", True, f"needs the same features and classes, {previous}",
                "Use warm_start=False for other data.")  # fmt: skip
        keep = weight > 0
        X, b, weight = X[keep], b[torch.from_numpy(keep)], weight[keep]
        _validate_classes(b)
        rows, weight = distinct(X, b, weight)
        X, b = X[rows], b[torch.from_numpy(rows)]
        generator = torch.Generator().manual_seed(int(check_random_state(self.random_state).randint(2**31 - 1)))
        with self._isolated(generator):
            held = self._split(b, generator)
            train = np.setdiff1d(np.arange(len(b)), held)
            if not again:
                self._standardization(X[train], weight[train])
            parts = [self._part(X, b, weight, rows) for rows in (train, held)]
            self._prior_counts = _count(parts[0])
            settings = replace(settings, weight_decay=self._decay(len(train)))
            self._learner = self._new_learner(self.network_ if again else self._network(generator), settings)
            self.network_ = self._learner.network
            self._train(parts[0], parts[1], generator)
            self._finish(parts[1] if len(held) else parts[0], "validation" if len(held) else "training")
        return self

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> AUCClassifier:
        """Train for one epoch on a part of the data, at a constant learning rate.

        The first call determines the means of the features and the classes. Calibration and threshold come from the
        scores of the latest part that has both classes.

        Args:
            X, y, sample_weight: as in :meth:`fit`.
            classes: both classes, needed in the first call if y has only one of them.
        """
        first = not hasattr(self, "_learner")
        settings = self._settings()
        X, y, weight = self._validated(X, y, sample_weight, reset=first)
        b = self._encoded(y, classes if first else self.classes_)
        keep = weight > 0
        X, b, weight = X[keep], b[torch.from_numpy(keep)], weight[keep]
        if first:
            self._seed = int(check_random_state(self.random_state).randint(2**31 - 1))
            self._parts_seen, self._prior_counts = 0, torch.zeros(2, b.shape[1], dtype=torch.float64, device="cpu")
            self.history_: list[dict[str, Any]] = []
            self._standardization(X, weight)
        elif not hasattr(self, "_parts_seen"):
            self._seed, self._parts_seen = 0, 0
        generator = torch.Generator().manual_seed(self._seed + self._parts_seen)
        with self._isolated(generator):
            data = self._part(X, b, weight, np.arange(len(b)))
            self._prior_counts = self._prior_counts + _count(data)
            if first:
                self._learner = self._new_learner(self._network(generator), settings)
            self._learner.set_prior(self._prior())
            self.network_ = self._learner.network
            start, learner = time.perf_counter(), self._learner
            order = learner.order(data.labels, _uneven(data.weight), generator)
            loss = learner.epoch(learner.loss(len(b)), data.rows, data.labels, order, 1.0)
            self._parts_seen += 1
            self._record(loss, 1.0, None, start)
            self.best_epoch_ = len(self.history_)
            self._finish(data, "training")
        return self

    def _train(self, train: Data, held: Data, generator: torch.Generator) -> None:
        """Train for ``max_epochs`` or until the validation metric stops improving."""
        learner, validated = self._learner, len(held.labels) > 0
        loss, weight = learner.loss(len(train.labels)), _uneven(train.weight)
        self.history_, self.best_epoch_ = [], 0
        best, kept, stale = -1.0, None, 0
        for k in range(self.max_epochs):
            start = time.perf_counter()
            order = learner.order(train.labels, weight, generator)
            rate = cosine(k, self.max_epochs)
            value = learner.epoch(loss, train.rows, train.labels, order, rate)
            found = self._metric(held) if validated and self.early_stopping else None
            self._record(value, rate, found, start)
            if found is None:
                self.best_epoch_ = len(self.history_)
                continue
            stale = 0 if found > best else stale + 1
            if found >= best:
                best, self.best_epoch_ = found, len(self.history_)
                kept = {name: x.detach().clone() for name, x in learner.network.state_dict().items()}
            if stale >= self.patience:
                break
        if kept is not None:
            learner.network.load_state_dict(kept)
        if self.verbose == 1:
            print(file=sys.stderr)

    def _record(self, loss: float, rate: float, metric: float | None, start: float) -> None:
        """Add an epoch to ``history_`` and show it."""
        k, seconds = len(self.history_) + 1, time.perf_counter() - start
        entry = {"epoch": k, "loss": loss, "lr": self._rate() * rate, "validation": metric, "seconds": seconds}
        self.history_.append(entry)
        if self.verbose:
            shown = "" if metric is None else f"  validation {self.metric} {metric:.4f}"
            done = min(20 * k // self.max_epochs, 20)
            bar = f"\r[{'#' * done}{'.' * (20 - done)}] " if self.verbose == 1 else ""
            end = "" if self.verbose == 1 else "\n"
            print(f"{bar}epoch {k}/{self.max_epochs}  loss {loss:.4f}{shown}", end=end, file=sys.stderr, flush=True)

    def _metric(self, data: Data) -> float:
        """Return the metric, the mean over the labels that have both classes."""
        curves = [c for c in data.curves(self._raw(data.rows)) if c is not None]
        if self.metric == "auroc":
            values = [auroc(c) for c in curves]
        elif self.metric == "ap":
            values = [average_precision(c) for c in curves]
        else:
            values = [partial_auroc(c, self.max_fpr) for c in curves]
        return float(np.mean(values))

    def _finish(self, data: Data, source: str) -> None:
        """Fit calibration and threshold to the scores of this part, for each label that has both classes."""
        scores, labels = self._raw(data.rows), len(self._prior_counts[0])
        if not hasattr(self, "_calibration") or len(self._calibration) != labels or source == "validation":
            self._calibration = np.tile([1.0, 0.0], (labels, 1))  # slope and offset of each label
            self.threshold_ = np.zeros(labels)
        for k, c in enumerate(data.curves(scores)):
            if c is None:
                continue
            b = data.labels[:, k].numpy()
            known = ~np.isnan(b)
            if self.calibrate:
                self._calibration[k] = platt(scores[known, k], b[known] == 1, data.weight[known])
            if isinstance(self.threshold, str):
                self.threshold_[k] = best_threshold(c, self.threshold)
        if not isinstance(self.threshold, str):
            p, t = self._calibration, _probability(self.threshold)
            self.threshold_ = (np.log(t / (1 - t)) - p[:, 1]) / p[:, 0]
        self.calibrated_on_ = source if self.calibrate else None

    # ---- prediction --------------------------------------------------------------------------------------------------

    def decision_function(self, X: Any) -> Array:
        """Return the raw scores minus the threshold, (n,) or (n, C): positive where ``predict`` is."""
        scores = self._validated_scores(X) - self.threshold_
        return scores if self._multilabel else scores[:, 0]

    def predict_proba(self, X: Any) -> Array:
        """Return the probabilities of both classes (n, 2), or of each label (n, C)."""
        h = self._validated_scores(X) * self._calibration[:, 0] + self._calibration[:, 1]
        p = np.where(h >= 0, 1.0, np.exp(-np.abs(h))) / (1 + np.exp(-np.abs(h)))
        return p if self._multilabel else np.concatenate([1 - p, p], 1)

    def predict(self, X: Any) -> Array:
        """Return the class of each example, or {0, 1} for each label."""
        positive = (self.decision_function(X) > 0).astype(int)
        return positive if self._multilabel else self.classes_[positive]

    def _validated_scores(self, X: Any) -> Array:
        check_is_fitted(self, "network_")
        X = validate_data(self, X, reset=False, accept_sparse="csr", dtype=[np.float64, np.float32])
        return self._raw(Rows(X, self._mean, self._scale))

    @torch.no_grad()
    def _raw(self, rows: Rows) -> Array:
        """Return the scores (n, labels). Built-in networks are evaluated in float64: batches of any size agree."""
        network = self.network_
        if self.module is None:
            network = copy.deepcopy(network).to(device="cpu", dtype=torch.float64)
        x = next(network.parameters())
        network.eval()
        parts = [network(a.to(x)).reshape(len(a), -1) for a in rows.chunks()]
        return torch.cat(parts).double().cpu().numpy()

    # ---- saving ------------------------------------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Write a fitted classifier with a built-in network as tensors and plain values, without pickled code.

        The state of the optimizer is not saved. A classifier with your own module can be pickled (joblib), or you save
        ``network_.state_dict()``.
        """
        check_is_fitted(self, "network_")
        require(self.module is None, "module", type(self.module).__name__, "cannot be saved without pickle",
                "Use joblib.dump, or save network_.state_dict().")  # fmt: skip
        options = self.get_params(deep=False)
        if not isinstance(self.random_state, Integral):
            options["random_state"] = None
        options["hidden"], options["device"] = [*self._layers()], None
        names = getattr(self, "feature_names_in_", None)
        content = {
            "options": {name: _plain(value) for name, value in options.items()},
            "network": {name: x.cpu() for name, x in self.network_.state_dict().items()},
            "arrays": {name: torch.from_numpy(np.asarray(getattr(self, name))) for name in _ARRAYS},
            "values": {name: getattr(self, name) for name in _VALUES},
            "classes": (self.classes_.tolist(), self.classes_.dtype.str),
            "prior_counts": self._prior_counts,
            "feature_names": None if names is None else names.tolist(),
        }
        torch.save(content, path)

    @classmethod
    def load(cls, path: str | Path) -> AUCClassifier:
        """Read what :meth:`save` wrote; no code of the file is executed."""
        content = torch.load(path, weights_only=True, map_location="cpu")
        options = content["options"]
        found = cls(**{**options, "hidden": tuple(options["hidden"])})
        for name in _ARRAYS:
            setattr(found, name, content["arrays"][name].numpy())
        for name in _VALUES:
            setattr(found, name, content["values"][name])
        values, dtype = content["classes"]
        found.classes_, found._prior_counts = np.asarray(values, dtype=dtype), content["prior_counts"]
        if content["feature_names"] is not None:
            found.feature_names_in_ = np.asarray(content["feature_names"], dtype=object)
        found.network_ = perceptron(found.n_features_in_, found._layers(), found._prior_counts.shape[1], None)
        found.network_.load_state_dict(content["network"])
        found._learner = Learner(found.network_, found._settings(), found._prior(), found.device)
        return found

    # ---- inputs ------------------------------------------------------------------------------------------------------

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        tags.classifier_tags.multi_label = True
        tags.input_tags.sparse = True
        return tags

    def _validated(self, X: Any, y: Any, weight: Any, *, reset: bool) -> tuple[Array, Array, Array]:
        """Return X (dense or CSR), y and the weights as arrays."""
        options = dict(accept_sparse="csr", dtype=[np.float64, np.float32])
        y = y.toarray() if hasattr(y, "toarray") else y
        shape = () if y is None else np.asarray(y).shape
        if len(shape) == 2 and shape[1] > 1:
            X = validate_data(self, X, reset=reset, **options)
            y = check_array(y, dtype=np.float64, ensure_all_finite="allow-nan", input_name="y")
            same = len(y) == X.shape[0]
            require(same, "y", y.shape, f"must have {X.shape[0]} rows, like X", "Pass one row of labels per example.")
        else:
            X, y = validate_data(self, X, y, reset=reset, **options)
            y = column_or_1d(y, warn=True)
            check_classification_targets(y)
        weight = _check_sample_weight(weight, X, dtype=np.float64, ensure_non_negative=True)
        return X, y, weight

    def _encoded(self, y: Array, classes: Any) -> Tensor:
        """Return labels (n, C) in {0, 1, NaN} and set ``classes_`` unless they are given by an earlier call."""
        if y.ndim == 2:
            known = y[~np.isnan(y)]
            ok = bool(np.isin(known, (0, 1)).all())
            require(ok, "y", np.unique(known)[:5].tolist(), "must be 0, 1 or NaN", "Use one column per label.")
            if classes is not None and hasattr(self, "classes_"):
                require(y.shape[1] == len(classes), "y", y.shape, f"must have {len(classes)} columns", "As at first.")
            self.classes_, self._multilabel = np.arange(y.shape[1]), True
            return torch.from_numpy(y.astype(np.float32))
        found = np.unique(y if classes is None else classes)
        if len(found) > 2:
            kind = type_of_target(y, input_name="y")
            kind = "multiclass" if kind == "binary" else kind
            raise ValueError(f"Only binary classification is supported. The type of the target is {kind}.")
        if len(found) < 2:
            raise ValueError(f"y has 1 class, {found.tolist()}: two classes are needed; pass examples of both.")
        if not np.isin(y, found).all():
            raise ValueError(f"y has classes outside of {found.tolist()}: pass both classes in the first call.")
        self.classes_, self._multilabel = found, False
        return torch.from_numpy((y == found[1]).astype(np.float32))[:, None]

    def _settings(self) -> Settings:
        """Validate the arguments."""
        require(self.metric in METRICS, "metric", self.metric, f"must be one of {METRICS}", "Try metric='auroc'.")
        if self.lr is not None:
            validate_rate("lr", self.lr, "Try lr=1e-3.")
        validate_rate("dual_lr", self.dual_lr, "Try dual_lr=1e-2.")
        validate_beta("beta", self.beta)
        if self.weight_decay is not None:
            validate_rate("weight_decay", self.weight_decay, "Try weight_decay=0.0.")
        for name, remedy in (("batch_size", "Try 32."), ("max_epochs", "Try 50."), ("patience", "Try 15.")):
            validate_integer(name, getattr(self, name), remedy)
        self._layers()
        ok = is_real(self.validation_fraction) and 0 <= self.validation_fraction < 1
        require(ok, "validation_fraction", self.validation_fraction, "must lie in [0, 1)", "Try 0.2.")
        ok = is_real(self.max_fpr) and 0 < self.max_fpr < 1
        require(ok, "max_fpr", self.max_fpr, "must lie in (0, 1)", "Try max_fpr=0.3.")
        if isinstance(self.threshold, str):
            ok = self.threshold in ("youden", "f1")
            require(ok, "threshold", self.threshold, "must be 'youden', 'f1', a probability or costs", "Try 'youden'.")
        else:
            _probability(self.threshold)
        return Settings(self.metric, self._rate(), float(self.dual_lr), float(self.beta), float(self.weight_decay or 0),
                        int(self.batch_size), float(self.max_fpr))  # fmt: skip

    def _layers(self) -> tuple[int, ...]:
        """Return the sizes of the hidden layers."""
        remedy = "Try hidden=(64, 64), or () for a linear model."
        sizes = self.hidden if isinstance(self.hidden, Iterable) else (self.hidden,)
        return tuple(validate_integer("hidden", size, remedy) for size in sizes)

    def _decay(self, size: int) -> float:
        """Return the weight decay for ``fit`` with this many training examples."""
        if self.weight_decay is not None:
            return float(self.weight_decay)
        if self.module is not None or not self._layers():
            return 0.0
        steps = math.ceil(size / self.batch_size)
        return TOTAL_DECAY / (self._rate() * steps * sum(cosine(k, self.max_epochs) for k in range(self.max_epochs)))

    def _rate(self) -> float:
        """Return the learning rate; by default it is larger for a linear model, whose weights must move further."""
        if self.lr is not None:
            return float(self.lr)
        return 1e-2 if self.module is None and not self._layers() else 1e-3

    def _network(self, generator: torch.Generator) -> nn.Module:
        if self.module is None:
            return perceptron(self.n_features_in_, self._layers(), self._prior_counts.shape[1], generator)
        own = copy.deepcopy(self.module) if isinstance(self.module, nn.Module) else self.module(self.n_features_in_)
        if not isinstance(own, nn.Module):
            raise TypeError(f"module returned {type(own).__name__}: it must return a torch.nn.Module")
        return own

    def _new_learner(self, network: nn.Module, settings: Settings) -> Learner:
        return Learner(network, settings, self._prior(), self.device, own=self.module is not None)

    @contextlib.contextmanager
    def _isolated(self, generator: torch.Generator) -> Iterator[None]:
        """Compute on the CPU unless ``device`` says otherwise, whatever torch's default device is.

        Seed torch for your own module, which may draw numbers itself, and restore its state afterwards.
        """
        with torch.device("cpu"):
            if self.module is None:
                yield
                return
            with torch.random.fork_rng():
                torch.manual_seed(int(torch.randint(2**31, (), generator=generator)))
                yield

    def _standardization(self, X: Array, weight: Array) -> None:
        self._mean, self._scale = np.zeros(X.shape[1]), np.ones(X.shape[1])
        if self.standardize:
            self._mean, self._scale = moments(X, weight)

    def _part(self, X: Array, b: Tensor, weight: Array, rows: Array) -> Data:
        return Data(Rows(X[rows], self._mean, self._scale), b[torch.from_numpy(rows)], weight[rows])

    def _prior(self) -> Tensor:
        """Return the share of positives of each label; 0.5 for a label without both classes, which is skipped."""
        positive, known = self._prior_counts
        return torch.where((positive > 0) & (positive < known), positive / known.clamp_min(1e-300), 0.5).float()

    def _split(self, b: Tensor, generator: torch.Generator) -> Array:
        """Return the rows of the validation part, stratified by class (with several labels: by the rarest one)."""
        if self.validation_fraction == 0:
            return np.arange(0)
        positives = b.nan_to_num(0)
        rarity = 1 / positives.sum(0).clamp_min(1)
        kind = torch.where(positives.any(1), (positives * rarity).argmax(1), -1)
        held = []
        for one in np.unique(kind.numpy()).tolist():
            rows = (kind == one).nonzero().flatten()
            count = round(len(rows) * float(self.validation_fraction))
            held.append(rows[torch.randperm(len(rows), generator=generator)[:count]])
        index = torch.cat(held).sort().values
        rest = torch.ones(len(b), dtype=torch.bool).index_fill_(0, index, False)
        smallest = min(int(((b[index] == value).sum(0)).min()) for value in (0, 1))
        left = min(int(((b[rest] == value).sum(0)).min()) for value in (0, 1))
        if smallest >= SMALLEST_VALIDATION and left > 0:
            return index.numpy()
        warnings.warn(
            f"validation_fraction={self.validation_fraction} holds out {smallest} examples of the rarest class, fewer "
            f"than {SMALLEST_VALIDATION}: all examples are used for training, without early stopping, and calibration "
            "and threshold come from training scores. Pass validation_fraction=0 to choose this.",
            stacklevel=3,
        )
        return np.arange(0)


_ARRAYS = ("_mean", "_scale", "_calibration", "threshold_")
_VALUES = ("n_features_in_", "best_epoch_", "calibrated_on_", "history_", "_multilabel")


def _plain(value: Any) -> Any:
    """Return NumPy numbers as Python's and mappings as dicts."""
    if isinstance(value, np.generic):
        return value.item()
    return {name: _plain(one) for name, one in value.items()} if isinstance(value, Mapping) else value


def _count(data: Data) -> Tensor:
    """Return the weights of the positives and of all known labels, (2, C)."""
    w = torch.from_numpy(data.weight)[:, None]
    return torch.stack([(w * (data.labels == 1)).sum(0), (w * ~data.labels.isnan()).sum(0)])


def _uneven(weight: Array) -> Array | None:
    """Return the weights, or None if they are all 1."""
    return None if len(weight) == 0 or (weight == 1).all() else weight


def _validate_classes(b: Tensor) -> None:
    """Raise unless each label has both classes."""
    for k, column in enumerate(b.T):
        if not ((column == 1).any() and (column == 0).any()):
            where = f"column {k} of y" if b.shape[1] > 1 else "y"
            raise ValueError(f"{where} has one class among the examples of weight > 0: both classes are needed.")


def _probability(threshold: Any) -> float:
    """Return the probability above which an example is positive, from a number or from costs."""
    remedy = "Try threshold=0.5, or costs such as {'fp': 1, 'fn': 10}."
    if isinstance(threshold, Mapping):
        ok = set(threshold) == {"fp", "fn"} and all(is_real(c) and 0 < c < np.inf for c in threshold.values())
        require(ok, "threshold", dict(threshold), "must have the costs 'fp' and 'fn', both > 0", remedy)
        return float(threshold["fp"] / (threshold["fp"] + threshold["fn"]))
    ok = is_real(threshold) and 0 < threshold < 1
    require(ok, "threshold", threshold, "must be 'youden', 'f1', a probability in (0, 1) or costs", remedy)
    return float(threshold)
