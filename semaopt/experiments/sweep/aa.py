"""A/A check: one method tuned against itself, to see how often the protocol finds a difference that does not exist.

The method is tuned in twice as many studies as the spec has. Halves of these studies are compared again and again like
two methods. Both halves are the same method, so every "confirmed" or "contradicted" is wrong. All splits into halves
are used equally often, so the rate depends less on random numbers: ten studies have 126 splits.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

from semaopt.experiments.files import write_output
from semaopt.experiments.fingerprint import environment
from semaopt.experiments.results.model import Finding
from semaopt.experiments.results.statistics import Comparison, probability_of_improvement
from semaopt.experiments.results.table import Table
from semaopt.experiments.spec.errors import SpecError
from semaopt.experiments.spec.schema import Spec
from semaopt.experiments.sweep.runner import Runner
from semaopt.experiments.sweep.study import Experiment

RESAMPLES = 20_000
JSON_FILE, TEXT_FILE = "aa.json", "aa.md"
T = TypeVar("T")


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
        """The binomial standard error of the rate, as for independent splits, given these studies."""
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


def write(spec: Spec, found: Sequence[AAResult], out: Path) -> None:
    """Write the result to the output folder, as JSON and as text."""
    document = {
        "experiment": spec.name,
        "scale": spec.scale,
        "metric": spec.claim.metric,
        "methods": [{**asdict(one), "rate": one.rate, "standard_error": one.standard_error} for one in found],
        "environment": environment(),
    }
    text = f"""# A/A check: {spec.title}

Experiment {spec.name} at scale {spec.scale}. Each method was tuned in {2 * spec.studies} studies, and halves of them
were compared on {spec.claim.metric} like two methods. Both halves are the same method, so every decision ("confirmed"
or "contradicted") is wrong. `rate` is the share of decisions; intervals of 95% allow 5%.

{table(spec, found).to_markdown()}
"""
    write_output(out / JSON_FILE, json.dumps(document, indent=1, allow_nan=False) + "\n")
    write_output(out / TEXT_FILE, text)


def compare_halves(finding: Finding, method: str, resamples: int = RESAMPLES) -> AAResult:
    """Compare halves of the studies of one method on the metric of the claim."""
    metric = finding.spec.claim.metric
    better, is_ratio, values = finding.better(metric), finding.is_ratio(metric), list(finding.units(method, metric))
    outcomes = []
    for a, b in halves(values, resamples, random.Random(0)):
        wins = probability_of_improvement(a, b, better)
        outcomes.append(Comparison(method, method, metric, better, is_ratio, a, b, wins).outcome)
    decided = sum(outcome in ("confirmed", "contradicted") for outcome in outcomes)
    return AAResult(method, len(values) // 2, resamples, decided, outcomes.count("equivalent"))


def halves(values: Sequence[T], count: int, rng: random.Random) -> Iterator[tuple[tuple[T, ...], tuple[T, ...]]]:
    """Yield random splits of an even number of values into two halves of random order.

    A split is used again only after all others: which values are together counts, not which half is the first.

    >>> splits = list(halves("abcd", 3, random.Random(0)))
    >>> sorted("".join(sorted(one if "a" in one else other)) for one, other in splits)
    ['ab', 'ac', 'ad']
    """
    half = len(values) // 2
    splits = math.comb(len(values), half) // 2
    used: set[frozenset[int]] = set()
    for _ in range(count):
        if len(used) == splits:
            used.clear()
        while True:
            order = rng.sample(range(len(values)), len(values))
            a, b = order[:half], order[half:]
            split = frozenset(a if 0 in a else b)
            if split not in used:
                break
        used.add(split)
        yield tuple(values[k] for k in a), tuple(values[k] for k in b)
