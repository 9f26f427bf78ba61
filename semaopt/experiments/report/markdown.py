"""The tables of the report in Markdown, for documentation under version control."""

from __future__ import annotations

from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from semaopt.experiments.report import view
from semaopt.experiments.results.model import Results


def render(results: Results) -> str:
    """Render all results; figures are referred to by file name."""
    environment = Environment(
        loader=PackageLoader("semaopt.experiments.report"),
        autoescape=True,
        finalize=escape,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )
    environment.filters["md"] = escape  # for values that pass through join
    return environment.get_template("results.md.j2").render(page=view.page(results), code=Markup)


def escape(value: Any) -> Any:
    r"""Escape what Markdown would take for HTML, a table border or emphasis; keep :class:`Markup` unchanged.

    >>> print(escape("a|b <script>"))
    a\|b &lt;script&gt;
    """
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    for character, instead in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("|", "\\|"), ("*", "\\*")):
        value = value.replace(character, instead)
    return Markup(value)
