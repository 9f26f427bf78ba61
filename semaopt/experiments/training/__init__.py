"""Training runs: objectives, algorithms, metrics and the epoch loop."""

from semaopt.experiments.extra import require

require("semaopt.experiments.training", "numpy", "pydantic", "sklearn", "filelock")
