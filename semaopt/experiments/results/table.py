"""Tables that :func:`semaopt.experiments.run` and :func:`semaopt.experiments.tune` return."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from semaopt.experiments.results.model import Finding, Results
from semaopt.experiments.results.statistics import spread_text
from semaopt.experiments.results.trials import Tuning
from semaopt.experiments.spec.search import STUDY_STRIDE


@dataclass(frozen=True)
class Table:
    """Rows as dictionaries.

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
    """The complete results, curves included."""

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows)

    @property
    def columns(self) -> list[str]:
        """The names of all columns, in order of appearance."""
        return list(dict.fromkeys(name for row in self.rows for name in row))

    def to_markdown(self) -> str:
        """Return the table as Markdown."""
        lines = [self.columns, ["---"] * len(self.columns)]
        body = [[_text(row.get(name, "")) for name in self.columns] for row in self.rows]
        head = [f"| {' | '.join(lines[0])} |", f"|{'|'.join(lines[1])}|"]
        return "\n".join([*head, *(f"| {' | '.join(cells)} |" for cells in body)])

    def _repr_markdown_(self) -> str:
        return self.to_markdown()

    def to_pandas(self) -> Any:
        """Return a ``pandas.DataFrame``."""
        try:
            import pandas as pd
        except ModuleNotFoundError as missing:
            raise ModuleNotFoundError("to_pandas() needs pandas: pip install pandas", name="pandas") from missing
        return pd.DataFrame(list(self.rows), columns=self.columns)

    def summary(self) -> Table:
        """Return one row per method: mean and standard deviation over the final runs."""
        found = () if self.results is None else self.results.findings
        return Table(tuple(row for finding in found for row in _summary(finding)), self.results)


def _text(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value).replace("|", "\\|")


def runs(results: Results) -> Table:
    """Return a table with one row per final run."""
    return Table(tuple(row for finding in results.findings for row in _runs(finding)), results)


def _runs(finding: Finding) -> Iterator[dict[str, Any]]:
    for k, first in enumerate(finding.finals):
        for study in finding.studies:
            final, number = study.finals[k], study.number
            for seed, run in zip(finding.spec.seeds.final, final.runs, strict=True):
                named = {"experiment": finding.name, "method": first.method.name}
                place = {"study": number + 1} if finding.replicated else {}
                repeated = {**place, "seed": number * STUDY_STRIDE + seed}
                last = {metric: run.last(metric) for metric in finding.spec.metrics}
                yield {**named, **repeated, "status": run.status, **last, "seconds": run.seconds, **final.values}


def _summary(finding: Finding) -> Iterator[dict[str, Any]]:
    for final in finding.finals:
        spreads = {
            metric: spread_text(finding.ends(final.method.name, metric), 4, is_ratio=finding.is_ratio(metric))
            for metric in finding.spec.metrics
        }
        values = {} if finding.replicated else final.values
        yield {"experiment": finding.name, "method": final.method.label, **spreads, **values}


def trials(experiment: str, metric: str, tunings: Sequence[Tuning]) -> Table:
    """Return a table with one row per trial of these studies, best first; ``metric`` is the tuning metric."""
    rows = []
    for number, tuning in enumerate(tunings, start=1):
        for method, found in tuning.trials.items():
            for trial in sorted(found.values(), key=lambda trial: trial.order):
                named = {"experiment": experiment, **({"study": number} if len(tunings) > 1 else {}), "method": method}
                chosen = {metric: trial.mean, "chosen": trial == tuning.best(method), "pruned": trial.pruned}
                rows.append({**named, **chosen, **trial.values})
    return Table(tuple(rows))
