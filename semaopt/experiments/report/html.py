"""The report as one HTML file that loads nothing else."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from semaopt.experiments.report import figures, style, view
from semaopt.experiments.results.model import Results


@dataclass(frozen=True)
class Drawings:
    """The SVG elements of a page."""

    differences: Mapping[str, Markup | None]
    """By experiment; None where nothing is compared."""
    panels: Mapping[str, Mapping[str, Markup]]
    """By experiment and metric."""
    checks: Mapping[str, Markup]
    """By check."""


def render(results: Results) -> str:
    """Render the whole page."""
    looks = view.method_looks(results)
    return _render(
        results,
        Drawings(
            {one.name: _markup(figures.differences(one, looks)) for one in results.findings},
            {
                one.name: {metric: Markup(svg) for metric, svg in figures.panels(one, looks).items()}
                for one in results.findings
            },
            {check.name: Markup(figures.check_panel(check, figures.check_svg(check))) for check in results.checks},
        ),
    )


def _markup(svg: str | None) -> Markup | None:
    return None if svg is None else Markup(svg)


def _render(results: Results, drawings: Drawings) -> str:
    loader = PackageLoader("semaopt.experiments.report")
    environment = Environment(
        loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined
    )
    script = loader.get_source(environment, "sort.js")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    css = environment.get_template("style.css.j2").render(
        ink=(style.INK_LIGHT, style.INK_DARK), hues=(style.variables(), style.variables(dark=True))
    )
    return environment.get_template("page.html.j2").render(
        page=view.page(results), drawings=drawings, css=Markup(css), script=Markup(script), digest=f"sha256-{digest}"
    )
