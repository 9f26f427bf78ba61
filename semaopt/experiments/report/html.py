"""The page: one HTML file that needs nothing else, for any screen, in light and dark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from semaopt.checks.figures import caption as check_caption
from semaopt.checks.figures import title as check_title
from semaopt.checks.result import MARGIN, Line
from semaopt.checks.result import CheckResult as Check
from semaopt.experiments.report.page import frame, seconds, table
from semaopt.experiments.report.section import CLAIMED, section
from semaopt.experiments.results import claims
from semaopt.experiments.results.model import Finding, Origin, Results
from semaopt.experiments.results.statistics import CONFIDENCE

_COUNTEREXAMPLE = "counterexample"
_KINDS = {"came out": "good", "the other way": "bad", "PASS": "good", "FAIL": "bad"}


def page(results: Results, panels: Mapping[str, Mapping[str, str]], drawn: Mapping[str, str]) -> str:
    """The whole page; ``panels`` are the SVG elements of each finding, ``drawn`` those of the checks."""
    parts = [
        "<h1>What the runs say about the paper's claims</h1>",
        *([_claims(results.findings)] if results.findings else []),
        _notes(results),
        *([f'<p><a href="#checks">The theorems</a>: {_passed(results.checks)}.</p>'] if results.checks else []),
        *(section(finding, panels[finding.name]) for finding in results.findings),
        *([_checks(results.checks, drawn)] if results.checks else []),  # the longest table comes last
        '<h2 id="run">How it was run</h2>',
        _run(results),
    ]
    scale = f", {results.scale} scale" if results.scale else ""
    return frame(f"semaopt{scale}", "\n".join(parts))


def _notes(results: Results) -> str:
    return "".join(f'<p class="soft">{escape(note)}</p>' for note in results.notes)


def _claims(findings: Sequence[Finding]) -> str:
    """The summary: a row for each comparison, those of a figure under its claim."""
    head = ("comparison", "outcome", f"paired difference, {CONFIDENCE:.0%} interval", "in seed deviations")
    heads = "".join(f'<th scope="col"{_left(k)}>{escape(name)}</th>' for k, name in enumerate(head))
    body = "".join(_claim(finding) for finding in findings)
    return (
        f"<p><b>{escape(claims.tally(findings))}.</b></p>"
        f'<p class="soft about">{escape(claims.READING)}</p>'
        '<div class="wide" tabindex="0" role="region" aria-label="Claims">'
        f'<table class="claims" aria-label="Claims"><thead><tr>{heads}</tr></thead>{body}</table></div>'
    )


def _left(k: int) -> str:
    return ' class="left"' if k < 2 else ""


def _claim(finding: Finding) -> str:
    found = claims.verdict(finding)
    counted = f" ({found.counted})" if found.counted else ""
    title = (
        f'<tr><th scope="rowgroup" colspan="4"><a href="#{escape(finding.name)}">{escape(finding.spec.title)}</a>: '
        f"{_verdict(found.outcome, counted)}<small>{CLAIMED[finding.spec.claim.source]}: "
        f"{escape(finding.spec.claim.text)} ({escape(finding.name)}, {escape(finding.spec.scale)} scale, "
        f"{len(finding.seeds)} seeds)</small></th></tr>"
    )
    rows = [
        f'<td class="text">{escape(row.statement)}</td><td class="left">{_verdict(row.outcome)}</td>'
        f"<td>{escape(row.difference)}</td><td>{escape(row.deviations)}</td>"
        for row in found.rows
    ]
    return f"<tbody>{title}{''.join(f'<tr>{row}</tr>' for row in rows)}</tbody>"


def _verdict(outcome: str, more: str = "") -> str:
    return f'<span class="{_KINDS.get(outcome, "soft")}">{escape(outcome + more)}</span>'


def _passed(checks: Sequence[Check]) -> str:
    return f"{sum(check.passed for check in checks)} of {len(checks)} checks pass"


def _checks(checks: Sequence[Check], drawn: Mapping[str, str]) -> str:
    count = sum(len(check.lines) for check in checks)
    rows = [("", _line(check, line)) for check in checks for line in check.lines]
    head = ("check", "claim", "measured", "promised", "margin", "")
    caption = (
        f"{_passed(checks)}, {count} claims: bounds and rates of each theorem on problems whose "
        f"constants are known. {MARGIN}"
    )
    others = [check for check in checks if check.name != _COUNTEREXAMPLE]
    example = "".join(_drawn(check, drawn) for check in checks if check.name == _COUNTEREXAMPLE)
    figures = "".join(_drawn(check, drawn) for check in others)
    parts = [
        '<h2 id="checks">The theorems</h2>',
        table(caption, head, rows, sorts=True, kind="left-second"),
        f'<h3>The counter-example</h3><div class="checks">{example}</div>' if example else "",
        f'<details><summary>Figures of the other {len(others)} checks</summary><div class="checks">{figures}</div>'
        "</details>",
        "<p>To run them again: <code>semaopt check</code> (one theorem: <code>semaopt check thm:2</code>), or in small "
        "<code>semaopt reproduce --only checks</code>.</p>",
    ]
    return "\n".join(parts)


def _line(check: Check, line: Line) -> list[str]:
    detail = f' title="{escape(line.detail)}"' if line.detail else ""
    return [
        f'{escape(check.name)} <span class="soft">{escape(check.theorem)}</span>',
        f"<span{detail}>{escape(line.claim)}</span>",
        f"{line.measured:.3g}",
        f"{line.promised:.3g}",
        escape(line.margin),
        _verdict("PASS" if line.passed else "FAIL"),
    ]


def _drawn(check: Check, drawn: Mapping[str, str]) -> str:
    said = escape(check_title(check))
    svg = drawn[check.name].replace("<svg", f'<svg role="img" aria-label="{said}"', 1)
    return f"<figure>{svg}<figcaption>{said}. {escape(check_caption(check))}.</figcaption></figure>"


def _run(results: Results) -> str:
    session = results.session
    done = f"{session.computed} runs done, {session.reused} reused"
    if session.wall_seconds:
        done += f", in {session.wall_seconds:.0f} s"
    if session.damaged:
        done += f"; damaged and done again: {', '.join(session.damaged)}"
    origins = {finding.name: finding.origin for finding in results.findings}
    rows = [("", [escape(name), *_origin(origin)]) for name, origin in origins.items()]
    caption = "Each figure alone; finished runs are kept in the store and reused. Wall time includes pauses."
    head = ("figure", "to run it again", "runs", "computing", "wall time", "finished (UTC)")
    return (
        f"<p>This page was made by the command below ({escape(done)}). All numbers, also the curves, are in "
        f"<code>results.json</code>, the tables in Markdown in <code>results.md</code>.</p>"
        f"<pre>{escape(session.command)}</pre>"
        + (table(caption, head, rows) if rows else "")
        + "".join(_environments(results, origins))
    )


def _origin(origin: Origin) -> list[str]:
    times = (seconds(origin.seconds), seconds(origin.wall_seconds), escape(origin.finished))
    return [f"<code>{escape(origin.rerun)}</code>", str(origin.runs), *times]


def _environments(results: Results, origins: Mapping[str, Origin]) -> list[str]:
    """One table for each environment that runs were made in; this one's if there are none."""
    found: list[tuple[dict[str, str], list[str]]] = []
    for name, origin in origins.items():
        own = dict(origin.environment)
        same = next((names for known, names in found if known == own), None)
        if same is None:
            found.append((own, [name]))
        else:
            same.append(name)
    found = found or [(results.environment, [])]
    return [
        table(
            f"Environment{'' if len(found) == 1 else ' of ' + ', '.join(names)}.",
            ("package", "version"),
            [("", [escape(key), escape(value)]) for key, value in known.items()],
        )
        for known, names in found
    ]
