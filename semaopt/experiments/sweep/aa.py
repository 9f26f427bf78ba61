"""A/A check: one method tuned against itself, to see how often the protocol finds a difference that does not exist.

The method is tuned in twice as many studies as the spec has. Random halves of these studies are compared again and
again like two methods. Both halves are the same method, so every "confirmed" or "contradicted" is wrong.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from semaopt.experiments.results.model import Finding
from semaopt.experiments.results.statistics import Comparison, probability_of_improvement
from semaopt.experiments.results.table import Table
from semaopt.experiments.spec.errors import SpecError
from semaopt.experiments.spec.schema import Spec
from semaopt.experiments.sweep.runner import Runner
from semaopt.experiments.sweep.study import Experiment

RESAMPLES = 200


@dataclass(frozen=True)
class AAResult:
    """The outcome of an A/A check of one method."""

    method: str
    studies: int
    """Studies on each side of a comparison."""
    resamples: int
    decided: int
    """Resamples with the verdict "confirmed" or "contradicted"."""
    equivalent: int

    @property
    def rate(self) -> float:
        """The share of wrong decisions."""
        return self.decided / self.resamples

    @property
    def standard_error(self) -> float:
        """The binomial standard error of the rate; it does not cover the randomness of this set of studies."""
        return math.sqrt(self.rate * (1 - self.rate) / self.resamples)


def check(spec: Spec, runner: Runner, only: Sequence[str] = (), resamples: int = RESAMPLES) -> list[AAResult]:
    """Conduct the A/A check of each method; the runs are stored and reused like all others."""
    if spec.studies < 2:
        raise SpecError(
            f"{spec.name}: studies={spec.studies} is invalid for an A/A check: it must be at least 2. Try studies = 5."
        )
    doubled = spec.model_copy(update={"studies": 2 * spec.studies})
    experiment = Experiment(doubled, runner, only)
    experiment.announce()
    studies = tuple(study.conduct() for study in experiment.studies)
    finding = Finding(doubled, {}, studies)
    return [compare_halves(finding, final.method.name, resamples) for final in finding.finals]


def table(spec: Spec, found: Sequence[AAResult]) -> Table:
    """Return a table with one row per method."""
    return Table(
        tuple(
            {
                "experiment": spec.name,
                "method": one.method,
                "studies per side": one.studies,
                "resamples": one.resamples,
                "decided": one.decided,
                "rate": one.rate,
                "standard error": one.standard_error,
                "equivalent": one.equivalent,
            }
            for one in found
        )
    )


def compare_halves(finding: Finding, method: str, resamples: int = RESAMPLES) -> AAResult:
    """Compare random halves of the studies of one method on the metric of the claim."""
    metric = finding.spec.claim.metric
    better, is_ratio, values = finding.better(metric), finding.is_ratio(metric), list(finding.units(method, metric))
    rng = random.Random(0)
    half = len(values) // 2
    outcomes = []
    for _ in range(resamples):
        sampled = rng.sample(values, 2 * half)
        a, b = tuple(sampled[:half]), tuple(sampled[half:])
        wins = probability_of_improvement(a, b, better)
        outcomes.append(Comparison(method, method, metric, better, is_ratio, a, b, wins).outcome)
    decided = sum(outcome in ("confirmed", "contradicted") for outcome in outcomes)
    return AAResult(method, half, resamples, decided, outcomes.count("equivalent"))
