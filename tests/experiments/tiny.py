"""A spec that runs in a second, and a recorder of its progress."""

from pathlib import Path

from semaopt.experiments.spec import schema
from semaopt.experiments.sweep import study
from semaopt.experiments.sweep.engines.local import InProcess, Workers
from semaopt.experiments.sweep.runner import Workspace
from semaopt.experiments.training.run import Machine

_DECAY = {"bias_correction": True, "every": 1, "factor": 0.2}

RAW = {
    "name": "tiny",
    "title": "Tiny",
    "about": "Small.",
    "loss": "cross_entropy",
    "batch": 512,
    "epochs": 3,
    "metrics": ["train_loss", "test_loss", "test_accuracy"],
    "claim": {"text": "Both end lower.", "metric": "train_loss", "order": ["adam", "beta", "both"]},
    "data": {"name": "digits"},
    "model": {"name": "mlp", "options": {"hidden": 8}},
    "seeds": {"tuning": [100, 101], "final": [0, 1, 2]},
    "tuning": {
        "metric": "valid_loss",
        "direction": "minimize",
        "extend": ["lr"],
        "rounds": 1,
        "grid": {"lr": [3e-3, 1e-2], "g0": [1e-7]},
    },
    "methods": [
        {
            "name": "adam",
            "label": "folklore Adam",
            "algorithm": "ASA",
            "options": {"beta": 0.9, "bias_correction": True},
            "multipliers": {"lr": [0.681292, 1.0, 1.4678]},
        },
        {
            "name": "beta",
            "label": "increasing β",
            "algorithm": "ASA",
            "decays": ["gamma"],
            "options": _DECAY,
            "grid": {"beta": [0.99, 0.9, 0.5]},
        },
        {
            "name": "both",
            "label": "increasing β + decreasing lr",
            "algorithm": "ASA",
            "decays": ["lr", "gamma"],
            "options": _DECAY,
            "grid": {"beta": [0.99, 0.9, 0.5]},
        },
    ],
}
EACH = 9  # six points per method and three more: the largest lr is best, so the grid grows
RUNS = 3 * EACH * 2 + 3 * 3  # two tuning seeds, three final seeds


def a_spec(**changes):
    return schema.build(schema.merge(RAW, changes))


AUC = {
    "loss": "auc",
    "metrics": ["train_auc", "test_auc"],
    "data": {"binary": True, "imbalance": 0.2},
    "claim": {"metric": "train_auc", "order": ["sgda", "pdada"]},
    "methods": [
        {"name": "sgda", "label": "SGDA", "algorithm": "SGDA"},
        {
            "name": "pdada",
            "label": "PDAda",
            "algorithm": "PDAda",
            "decays": ["lr", "gamma"],
            "options": {"every": 1, "factor": 0.5, "beta": 0.9},
        },
    ],
    "tuning": {
        "metric": "valid_auc",
        "direction": "maximize",
        "sampler": "tpe",
        "budget": 5,
        "extend": ["lr", "dual_lr"],
        "rounds": 0,
        "grid": {"lr": [1e-2, 1e-1], "dual_lr": [1e-2, 1e-1], "g0": [1e-7, 1e-3]},
    },
}


class Watcher:
    """Records progress and messages; after ``stop_after`` units it raises KeyboardInterrupt, as Ctrl-C does."""

    def __init__(self, stop_after=None):
        self.planned = self.finished = self.units = 0
        self.said = []
        self.stop_after = stop_after

    def plan(self, epochs):
        self.planned += epochs

    def done(self, epochs):
        self.finished += epochs
        self.units += epochs > 0
        if self.stop_after is not None and self.units > self.stop_after:
            raise KeyboardInterrupt

    def say(self, text):
        self.said.append(text)


def go(out, *specs, watch=None, workers=0, every=1000.0, **chosen):
    specs = specs or (a_spec(),)
    place = Workspace(Path(out), Machine(), every)
    watch = watch or Watcher()
    if workers == 0:
        return study.conduct(specs, place, InProcess(), watch, command="semaopt run", **chosen)
    with Workers(workers) as engine:
        return study.conduct(specs, place, engine, watch, command="semaopt run", **chosen)
