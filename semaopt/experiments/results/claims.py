"""The verdict on the claim of an experiment, from the comparisons that the claim consists of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from semaopt.experiments.results.model import Finding
from semaopt.experiments.results.statistics import Comparison, Outcome, holm

ClaimOutcome = Literal[Outcome, "measured"]
#: From the weakest to the strongest.
_STRENGTH: tuple[Outcome, ...] = ("contradicted", "undecided", "equivalent", "confirmed")


@dataclass(frozen=True)
class ClaimRow:
    """One comparison of a claim and its verdict."""

    comparison: Comparison
    outcome: Outcome


@dataclass(frozen=True)
class ClaimVerdict:
    """The verdict on a claim: the verdict on its weakest comparison, or "measured" if it has no comparisons."""

    outcome: ClaimOutcome
    rows: tuple[ClaimRow, ...]
    controls: tuple[ClaimRow, ...] = ()
    """Comparisons with control arms, which do not count for the verdict."""


def verdict(finding: Finding) -> ClaimVerdict:
    """Judge the claim of a finding; the intervals are corrected for the number of its comparisons (Holm).

    The comparisons with control arms are a family of their own.
    """
    rows = tuple(ClaimRow(one, one.outcome) for one in holm(finding.claimed()))
    controls = tuple(ClaimRow(one, one.outcome) for one in holm(finding.controls()))
    if not rows:
        return ClaimVerdict("measured", (), controls)
    return ClaimVerdict(min((row.outcome for row in rows), key=_STRENGTH.index), rows, controls)
