"""Reports: HTML, Markdown, figures and TensorBoard."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from semaopt.experiments.results.model import Results


def write(results: Results, out: Path) -> None:
    """Write figures, ``results.json``, ``results.md`` and ``report.html``; the page last, when all its files exist."""
    import json

    from semaopt.experiments.files import finite, write_output
    from semaopt.experiments.report import figures, html, markdown, style, view
    from semaopt.experiments.results.export import to_json

    looks = view.method_looks(results)
    for finding in results.findings:
        drawing = figures.whole(finding, looks)
        write_output(out / f"{finding.name}.svg", drawing.svg)
        write_output(out / f"{finding.name}.png", drawing.png)
    for check in results.checks:
        file = out / f"check-{figures.check_slug(check.name)}.svg"
        write_output(file, style.standalone(figures.check_svg(check)))
    write_output(out / "results.json", json.dumps(finite(to_json(results)), indent=1, allow_nan=False) + "\n")
    write_output(out / "results.md", markdown.render(results))
    write_output(out / "report.html", html.render(results))
