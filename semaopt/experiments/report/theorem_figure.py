"""The figure of a theorem check, in the colours of where it is shown; its message is said beside it."""

from __future__ import annotations

from semaopt.checks.figures import plot, slug
from semaopt.checks.result import CheckResult
from semaopt.experiments.report import style


def element(check: CheckResult) -> str:
    """Drawn once, for a page and for a file."""
    with style.style(style.INK):
        figure = style.blank((5.2, 3.9), style.INK)
        axes = figure.subplots()
        axes.patch.set_alpha(0)
        plot(axes, check)
        style.legend(figure, axes, 2)
        return style.element(figure)


def panel(check: CheckResult, svg: str) -> str:
    """For a page; ``svg`` is its :func:`element`."""
    return style.inline(svg, f"check-{slug(check.name).replace('+', '-plus')}")
