"""What a study found: the record that the figures, the page and the JSON file are made from."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any

import torch

import semaopt
from semaopt.experiments import compare
from semaopt.experiments.compare import Comparison
from semaopt.experiments.digits import Outcome
from semaopt.experiments.tuning import Method, Trial, Tuning

FORMAT = 1


@dataclass(frozen=True)
class Final:
    """A method with the values chosen for it, and its final runs."""

    method: Method
    chosen: Trial
    outcome: Outcome

    @property
    def train_loss(self) -> list[float]:
        """Per seed, after the last epoch."""
        return [curve[-1] for curve in self.outcome.train_loss]

    @property
    def test_loss(self) -> list[float]:
        """Per seed, after the last epoch."""
        return [curve[-1] for curve in self.outcome.held_out_loss]

    @property
    def test_accuracy(self) -> list[float]:
        """Per seed, after the last epoch."""
        return [curve[-1] for curve in self.outcome.held_out_accuracy]


@dataclass(frozen=True)
class Finding:
    """A finished study."""

    name: str
    title: str
    about: str
    settings: dict[str, Any]
    sizes: dict[str, int]
    decay_epochs: tuple[int, ...]
    finals: tuple[Final, ...]
    tuning: Tuning

    @property
    def seeds(self) -> tuple[int, ...]:
        """Of the final runs."""
        return tuple(self.settings["final_seeds"])

    @property
    def loss_name(self) -> str:
        """What the training and test losses are."""
        return "excess loss" if self.settings["noise"] else "loss"

    @property
    def comparisons(self) -> list[Comparison]:
        """Each later method against each earlier one."""
        pairs = [(a, b) for i, b in enumerate(self.finals) for a in self.finals[i + 1 :]]
        return [
            Comparison(
                a.method.name,
                b.method.name,
                compare.paired_ratio(a.train_loss, b.train_loss),
                compare.paired_difference(a.test_accuracy, b.test_accuracy),
            )
            for a, b in pairs
        ]

    @property
    def headline(self) -> str:
        """The one message of the figure."""
        return f"{self.title}: {compare.headline(self._labels, *self.comparisons)}"

    @property
    def evidence(self) -> str:
        """The numbers behind the message."""
        second, third, _ = self.comparisons
        what = f"Final training {self.loss_name}"
        return compare.evidence(self._labels, what, second, third, len(self.seeds))

    @property
    def _labels(self) -> tuple[str, str, str]:
        first, second, third = (final.method.label for final in self.finals)
        return first, second, third

    def label(self, name: str) -> str:
        """A method's name as people read it."""
        return next(final.method.label for final in self.finals if final.method.name == name)


@dataclass(frozen=True)
class Session:
    """What this invocation did; all else in the results is the same however often it was interrupted."""

    command: str
    wall_seconds: float
    run_seconds: float
    """Of all runs, also those that were reused."""
    computed: int
    """How many points were trained, from all their seeds."""
    reused: int
    damaged: tuple[str, ...]


@dataclass(frozen=True)
class Results:
    """All findings of one command."""

    scale: str
    findings: tuple[Finding, ...]
    environment: dict[str, str]
    session: Session


def environment() -> dict[str, str]:
    """Versions and machine: what the numbers may depend on besides the configuration."""
    packages = ("numpy", "scipy", "scikit-learn", "matplotlib")
    return {
        "semaopt": semaopt.__version__,
        "torch": torch.__version__,
        **{name: version(name) for name in packages},
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cores": str(os.cpu_count()),
    }


def to_json(results: Results) -> dict[str, Any]:
    """All of it as plain values."""
    return {
        "format": FORMAT,
        "scale": results.scale,
        "experiments": {finding.name: _finding(finding) for finding in results.findings},
        "environment": results.environment,
        "session": asdict(results.session),
    }


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "title": finding.title,
        "headline": finding.headline,
        "evidence": finding.evidence,
        "loss": f"{finding.loss_name}: cross-entropy in nats, less the entropy of the label noise",
        "settings": finding.settings,
        "examples": finding.sizes,
        "methods": {final.method.name: _final(final, finding.seeds) for final in finding.finals},
        "comparisons": [{**asdict(c), "verdict": c.verdict} for c in finding.comparisons],
        "tuning": _tuning(finding.tuning),
    }


def _final(final: Final, seeds: Sequence[int]) -> dict[str, Any]:
    last = {"train_loss": final.train_loss, "test_loss": final.test_loss, "test_accuracy": final.test_accuracy}
    outcome = final.outcome
    curves = zip(seeds, outcome.train_loss, outcome.held_out_loss, outcome.held_out_accuracy, strict=True)
    return {
        "label": final.method.label,
        "decays": final.method.decays,
        "tuned": {**asdict(final.chosen.point), "validation_loss": final.chosen.loss},
        "summary": {
            name: dict(zip(("mean", "std"), compare.mean_and_std(values), strict=True)) for name, values in last.items()
        },
        "runs": [
            {"seed": seed, "train_loss": train, "test_loss": test, "test_accuracy": accuracy}
            for seed, train, test, accuracy in curves
        ],
    }


def _tuning(tuning: Tuning) -> dict[str, Any]:
    return {
        "grid": asdict(tuning.grid),
        "trials_per_method": {name: len(trials) for name, trials in tuning.trials.items()},
        "extensions": [asdict(extension) for extension in tuning.extensions],
        "still_on_edge": [
            {"axis": axis, "value": getattr(tuning.grid, axis)[end], "methods": names}
            for (axis, end), names in tuning.on_edge.items()
        ],
        "trials": [
            {"method": trial.method, **asdict(trial.point), "losses": trial.losses, "validation_loss": trial.loss}
            for trials in tuning.trials.values()
            for trial in trials.values()
        ],
    }
