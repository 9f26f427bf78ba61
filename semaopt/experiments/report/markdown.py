"""The tables of the page in Markdown, for documentation that is kept under version control."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import unescape

from semaopt.checks.figures import slug
from semaopt.checks.result import MARGIN
from semaopt.checks.result import CheckResult as Check
from semaopt.experiments.report.page import seconds
from semaopt.experiments.report.section import (
    CLAIMED,
    GROWTH,
    axis_name,
    count,
    growth,
    looks,
    spread_text,
    titled,
    tuned_axes,
    tuned_for,
    value_text,
)
from semaopt.experiments.results import claims
from semaopt.experiments.results.model import Final, Finding, Results
from semaopt.experiments.results.statistics import CONFIDENCE
from semaopt.experiments.training.metrics import is_share

_SHOWN = ("semaopt", "torch", "numpy", "scikit-learn", "rdkit", "python")


def text(results: Results) -> str:
    """All of it; the figures are those beside it."""
    parts = [
        "# Results",
        *results.notes,
        *(_claims(results.findings) if results.findings else []),
        *(part for finding in results.findings for part in _figure(finding)),
        *(_checks(results.checks) if results.checks else []),  # the longest table comes last
    ]
    return "\n\n".join(parts) + "\n"


_MARKS = "In tables ± is one standard deviation over the seeds; in figures lines are means and bands that deviation."


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _claims(findings: Sequence[Finding]) -> list[str]:
    rows = []
    for finding in findings:
        found = claims.verdict(finding)
        counted = f"**{found.outcome}**{f' ({found.counted})' if found.counted else ''}"
        rows.append([f"[{finding.spec.title}](#{finding.name})", finding.spec.claim.text, counted, "", ""])
        rows += [["", row.statement, row.outcome, row.difference, row.deviations] for row in found.rows]
    head = ["figure", "claim", "outcome", f"paired difference, {CONFIDENCE:.0%} interval", "in seed deviations"]
    return ["## Which claims came out", f"{claims.tally(findings)}.", f"{claims.READING} {_MARKS}", _table(head, rows)]


def _checks(checks: Sequence[Check]) -> list[str]:
    rows = [
        [
            *(check.name, check.theorem, line.claim, f"{line.measured:.3g}", f"{line.promised:.3g}"),
            *(line.margin, "PASS" if line.passed else "FAIL"),
        ]
        for check in checks
        for line in check.lines
    ]
    head = ["check", "theorem", "claim", "measured", "promised", "margin", ""]
    passed = sum(check.passed for check in checks)
    pictures = [
        f"![{check.figure.message}](check-{slug(check.name)}.svg)" for check in checks if check.name == "counterexample"
    ]
    return [
        "## The theorems",
        f"{passed} of {len(checks)} checks pass, {count(len(rows), 'claim')} in all. {MARGIN}",
        _table(head, rows),
        *pictures,
    ]


def _figure(finding: Finding) -> list[str]:
    origin, spec = finding.origin, finding.spec
    protocol = (
        f"Data {spec.data.name}, model {spec.model.name}, batch {spec.batch}, {spec.epochs} epochs, "
        f"{len(finding.seeds)} seeds, {spec.scale} scale."
    )
    times = (
        f"{origin.runs} runs, {seconds(origin.seconds)} of computing, {seconds(origin.wall_seconds)} from the start of "
        f"the first to the end of the last, pauses included ({origin.finished[:10]})."
    )
    return [
        f'<a id="{finding.name}"></a>',
        f"## {spec.title}",
        spec.about,
        f"{CLAIMED[spec.claim.source]}: {spec.claim.text}",
        f"![{finding.headline}]({finding.name}.svg)",
        f"{protocol} {times}",
        f"```sh\n{origin.rerun}\n```",
        _environment(origin.environment),
        _summary(finding),
        *_tuning(finding),
    ]


def _environment(known: Mapping[str, str]) -> str:
    """Versions, the name of the system without its release, and its cores; an older store has some of them."""
    parts = [f"{name} {known[name]}" for name in _SHOWN if name in known]
    parts += [known["platform"].partition("-")[0]] if "platform" in known else []
    parts += [f"{known['cores']} cores"] if "cores" in known else []
    return ", ".join(parts) + "."


def _summary(finding: Finding) -> str:
    metrics, axes = finding.spec.metrics, tuned_axes(finding)

    def cells(final: Final) -> list[str]:
        spreads = [spread_text(final.last(metric), percent=is_share(metric)) for metric in metrics]
        values = [unescape(value_text(final.values.get(name, ""))) for name in axes]
        return [final.method.label, *spreads, *values]

    head = ["method", *(titled(finding, metric) for metric in metrics), *map(axis_name, axes)]
    return _table(head, [cells(final) for final in finding.finals])


def _tuning(finding: Finding) -> list[str]:
    tuning, options = finding.tuning, finding.spec.tuning
    if tuning is None or options is None:
        return ["Nothing was tuned."]
    counts = {len(trials) for trials in tuning.trials.values()}
    each = f"{min(counts)}" if len(counts) == 1 else f"{min(counts)} to {max(counts)}"
    seeds = count(len(finding.spec.seeds.tuning), "tuning seed")
    epochs = looks(finding)
    after = f"epoch{'' if len(epochs) == 1 else 's'} {', '.join(map(str, epochs))}"
    halving = f", by successive halving after {after}" if epochs else ""
    said = [f"Tuned for the {tuned_for(finding)}, {each} trials for each method{halving}, {seeds}."]
    for extension in tuning.extensions:
        names = " and ".join(finding.label(name) for name in extension.because)
        said.append(f"{axis_name(extension.axis)} {extension.value:.3g} was added for all because of {names}.")
    for (axis, end), because in tuning.on_edge.items():
        names = " and ".join(finding.label(name) for name in because)
        said.append(f"The best {axis_name(axis)} of {names} still lies on the edge, {tuning.edge(axis, end):.3g}.")
    grown = growth(finding, tuning)
    if grown is None:
        return [" ".join(said)]
    head, cells = grown
    rows = [[final.method.label, *map(unescape, own)] for final, own in zip(finding.finals, cells, strict=True)]
    return [" ".join(said), GROWTH, _table(["method", *head], rows)]
