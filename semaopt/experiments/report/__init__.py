"""Reports: HTML, Markdown, figures and TensorBoard."""

from __future__ import annotations

import json
from pathlib import Path

from semaopt.checks.figures import slug
from semaopt.experiments.files import finite, write_output
from semaopt.experiments.report import figures, html, markdown, style, theorem_figure
from semaopt.experiments.results.export import to_json
from semaopt.experiments.results.model import Results


def write(results: Results, out: Path) -> None:
    """Write figures, tables and pages to a folder; the page comes last and never shows what is missing."""
    for finding in results.findings:
        whole = figures.whole(finding)
        write_output(out / f"{finding.name}.svg", whole.svg)
        write_output(out / f"{finding.name}.png", whole.png)
    drawn = {}
    for check in results.checks:
        svg = theorem_figure.element(check)
        drawn[check.name] = theorem_figure.panel(check, svg)
        write_output(out / f"check-{slug(check.name)}.svg", style.standalone(svg))
    write_output(out / "results.json", json.dumps(finite(to_json(results)), indent=1, allow_nan=False) + "\n")
    write_output(out / "results.md", markdown.text(results))
    panels = {finding.name: figures.panels(finding) for finding in results.findings}
    write_output(out / "report.html", html.page(results, panels, drawn))
