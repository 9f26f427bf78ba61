"""What :func:`semaopt.experiments.run` returns: rows to look at, to write down, to hand to pandas."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from semaopt.experiments.results.model import Finding, Results
from semaopt.experiments.results.statistics import mean_and_std, number_text
from semaopt.experiments.sweep.trials import Tuning


@dataclass(frozen=True)
class Table:
    """Rows as dicts with equal keys.

    >>> table = Table(({"method": "adam", "loss": 0.5}, {"method": "both", "loss": 0.25}))
    >>> print(table.to_markdown())
    | method | loss |
    |---|---|
    | adam | 0.5 |
    | both | 0.25 |
    >>> len(table), [row["loss"] for row in table]
    (2, [0.5, 0.25])
    """

    rows: tuple[dict[str, Any], ...]
    results: Results | None = None
    """All that was found, curves included."""

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows)

    @property
    def columns(self) -> list[str]:
        """The names of all columns, in their order."""
        return list(dict.fromkeys(name for row in self.rows for name in row))

    def to_markdown(self) -> str:
        """A table for a README or a notebook."""
        lines = [self.columns, ["---"] * len(self.columns)]
        body = [[_text(row.get(name, "")) for name in self.columns] for row in self.rows]
        head = [f"| {' | '.join(lines[0])} |", f"|{'|'.join(lines[1])}|"]
        return "\n".join([*head, *(f"| {' | '.join(cells)} |" for cells in body)])

    def _repr_markdown_(self) -> str:
        return self.to_markdown()

    def to_pandas(self) -> Any:
        """A ``pandas.DataFrame``."""
        try:
            import pandas as pd
        except ModuleNotFoundError as missing:
            raise ModuleNotFoundError("to_pandas() needs pandas: pip install pandas", name="pandas") from missing
        return pd.DataFrame(list(self.rows), columns=self.columns)

    def summary(self) -> Table:
        """One row for each method: mean and standard deviation over the seeds."""
        found = () if self.results is None else self.results.findings
        return Table(tuple(row for finding in found for row in _summary(finding)), self.results)


def _text(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value).replace("|", "\\|")


def runs(results: Results) -> Table:
    """One row for each final run."""
    return Table(tuple(row for finding in results.findings for row in _runs(finding)), results)


def _runs(finding: Finding) -> Iterator[dict[str, Any]]:
    for final in finding.finals:
        for seed, run in zip(finding.seeds, final.runs, strict=True):
            last = {metric: run.last(metric) for metric in finding.spec.metrics}
            named = {"experiment": finding.name, "method": final.method.name, "seed": seed, "status": run.status}
            yield {**named, **last, "seconds": run.seconds, **final.values}


def _summary(finding: Finding) -> Iterator[dict[str, Any]]:
    for final in finding.finals:
        spreads = {}
        for metric in finding.spec.metrics:
            mean, std = mean_and_std(final.last(metric))
            spreads[metric] = number_text(mean, 4) + (f" ± {number_text(std)}" if math.isfinite(std) else "")
        yield {"experiment": finding.name, "method": final.method.label, **spreads, **final.values}


def trials(experiment: str, metric: str, tuning: Tuning) -> Table:
    """One row for each tuning trial, best first; ``metric`` is what is tuned for."""
    rows = []
    for method, found in tuning.trials.items():
        for trial in sorted(found.values(), key=lambda trial: trial.order):
            named = {"experiment": experiment, "method": method, metric: trial.mean}
            chosen = {"chosen": trial == tuning.best(method), "pruned": trial.pruned}
            rows.append({**named, **chosen, **trial.values})
    return Table(tuple(rows))
