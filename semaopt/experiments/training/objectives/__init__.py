"""Objectives: one class for each kind of training problem."""

from __future__ import annotations

from semaopt.experiments import plugins
from semaopt.experiments.training import metrics
from semaopt.experiments.training.objectives.auc import AUC
from semaopt.experiments.training.objectives.average_precision import AveragePrecision
from semaopt.experiments.training.objectives.base import Bilevel as Bilevel
from semaopt.experiments.training.objectives.base import Compositional as Compositional
from semaopt.experiments.training.objectives.base import Minimization as Minimization
from semaopt.experiments.training.objectives.base import MinMax as MinMax
from semaopt.experiments.training.objectives.base import Objective as Objective
from semaopt.experiments.training.objectives.base import OfScores as OfScores
from semaopt.experiments.training.objectives.base import Sampled as Sampled
from semaopt.experiments.training.objectives.benchmark import BenchmarkCleaning, BenchmarkRegularization
from semaopt.experiments.training.objectives.cleaning import Cleaning
from semaopt.experiments.training.objectives.cross_entropy import CrossEntropy
from semaopt.experiments.training.objectives.dro import DRO

OBJECTIVES: dict[str, type[Objective]] = {
    "cross_entropy": CrossEntropy,
    "auc": AUC,
    "dro": DRO,
    "cleaning": Cleaning,
    "benchmark_cleaning": BenchmarkCleaning,
    "benchmark_regularization": BenchmarkRegularization,
    "average_precision": AveragePrecision,
}
NAMES = tuple(OBJECTIVES)


def find(name: str) -> type[Objective]:
    """Return the objective of a loss in a spec: one of the package, or a plug-in.

    >>> find("auc").metric_names()[:6]
    ['train_loss', 'train_auc', 'valid_loss', 'valid_auc', 'test_loss', 'test_auc']
    """
    if name in OBJECTIVES:
        return OBJECTIVES[name]
    found = plugins.resolve(name)
    if not (isinstance(found, type) and issubclass(found, (OfScores, Sampled)) and hasattr(found, "problem")):
        bases = "Minimization, MinMax, Bilevel or Compositional"
        raise plugins.PluginError(
            f"{name} is no objective. Make it a subclass of {bases} of semaopt.experiments.training.objectives."
        )
    for attribute in ("title", "metrics"):
        if not hasattr(found, attribute):
            raise plugins.PluginError(
                f"{name} has no {attribute}. Set it in the class, as in the example of its base class."
            )
    unknown = [what for what in found.metrics if what != "loss" and what not in metrics.OF_SCORES]
    if unknown:
        known = ", ".join(("loss", *metrics.OF_SCORES))
        raise plugins.PluginError(f"{name}: metrics={found.metrics} has unknown names. Use some of: {known}.")
    return found
