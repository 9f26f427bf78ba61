"""Which claims came out: each comparison that a claim is made of, its interval, and the noise of the seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from semaopt.experiments.results.model import Finding
from semaopt.experiments.results.statistics import CONFIDENCE, Comparison, signed

Outcome = Literal["came out", "within noise", "the other way", "not comparable", "in part", "measured"]


@dataclass(frozen=True)
class Row:
    """One comparison of a claim."""

    statement: str
    outcome: Outcome
    difference: str
    """With its interval."""
    deviations: str
    """The difference against the noise of the seeds."""


@dataclass(frozen=True)
class Verdict:
    """What became of the claim of a figure."""

    outcome: Outcome
    counted: str
    rows: tuple[Row, ...]


def verdict(finding: Finding) -> Verdict:
    """Of all comparisons that the claim is made of; a claim of none is measured."""
    rows = tuple(_row(finding, one) for one in finding.claimed())
    if not rows:
        return Verdict("measured", "", (Row(_measured(finding), "measured", "", ""),))
    out = sum(row.outcome == "came out" for row in rows)
    return Verdict(_together([row.outcome for row in rows]), f"{out} of {len(rows)}", rows)


def tally(findings: Sequence[Finding]) -> str:
    """How many of all comparisons came out, in words."""
    rows = [row for finding in findings for row in verdict(finding).rows if row.outcome != "measured"]
    if not rows:
        return "Nothing is compared here"
    counts = {kind: sum(row.outcome == kind for row in rows) for kind in dict.fromkeys(row.outcome for row in rows)}
    return f"Of {len(rows)} comparisons " + ", ".join(
        f"{counts[kind]} {words}" for kind, words in _TALLY.items() if kind in counts
    )


#: How the table of claims is to be read.
READING = (
    f"A comparison is within noise if the {CONFIDENCE:.0%} interval of its difference, paired over the seeds, contains "
    "0 (of a ratio, marked ×: 1). The last column is that difference over the standard deviation of single seeds. "
    "The intervals are not corrected for their number: about one in twenty misses by chance. A claim came out if all "
    "of its comparisons did, in part if some did; the other way means that none came out and at least one is reversed."
)
_TALLY = {
    "came out": "came out as claimed",
    "within noise": "lie within noise",
    "the other way": "came out the other way",
    "not comparable": "cannot be made (a seed diverged, or there is only one)",
}


def _row(finding: Finding, one: Comparison) -> Row:
    better = finding.better(one.metric)
    against = {"lower": "higher", "higher": "lower"}[better]
    outcomes: dict[str, Outcome] = {better: "came out", against: "the other way", "no clear difference": "within noise"}
    statement = f"{finding.label(one.method)} ends {better} than {finding.label(one.against)}"
    noise = "" if one.deviations is None else signed(one.deviations)
    return Row(statement, outcomes.get(one.verdict, "not comparable"), one.text, noise)


def _together(outcomes: Sequence[Outcome]) -> Outcome:
    if len(set(outcomes)) == 1:
        return outcomes[0]
    if "came out" in outcomes:
        return "in part"
    return "the other way" if "the other way" in outcomes else "within noise"


def _measured(finding: Finding) -> str:
    """What is said where nothing is compared."""
    return finding.headline.removeprefix(f"{finding.spec.title}: ")
