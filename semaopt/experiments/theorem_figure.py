"""The figure of a theorem check, in the colours of where it is shown."""

from __future__ import annotations

import textwrap

from matplotlib.figure import Figure

from semaopt.checks.figures import caption, plot, slug, title
from semaopt.checks.result import Result
from semaopt.experiments import drawing


def panel(check: Result) -> str:
    """An SVG element for a page, which says the message beside it."""
    return drawing.inline(_drawn(check, titled=False), f"check-{slug(check.name).replace('+', '-plus')}")


def whole(check: Result) -> str:
    """An SVG file that says its message itself."""
    return drawing.standalone(_drawn(check, titled=True))


def _drawn(check: Result, *, titled: bool) -> Figure:
    with drawing.style(drawing.INK):
        figure = drawing.blank((5.2, 4.2 if titled else 3.9), drawing.INK)
        axes = figure.subplots()
        axes.patch.set_alpha(0)
        plot(axes, check)
        drawing.legend(figure, axes, 2)
        if titled:
            figure.suptitle(textwrap.fill(title(check), 62), fontsize=11)
            figure.supxlabel(caption(check), fontsize=8)
        return figure
