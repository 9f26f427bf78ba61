"""How figures are drawn so that they read well in light and in dark, alone or in a page."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from semaopt.checks.figures import COLOURS

INK = "#010203"  # stands for the text colour of where the figure is shown
_STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "semaopt",
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
_INKED = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")

#: The ink and the colours of methods, on white and on black, each told apart from its background.
LIGHT = ("#1b1f24", "#d55e00", "#0072b2", "#009e73", "#a8487e", "#b87700", "#2b8fc7")
DARK = ("#e3e7ec", "#ff8a3d", "#5db4ee", "#35c79b", "#e79cc4", "#f3bd45", "#8fd0f5")


def variables(colours: tuple[str, ...]) -> str:
    """The colours of methods as CSS variables."""
    return " ".join(f"--method-{k}: {colour};" for k, colour in enumerate(colours[1:]))


@contextmanager
def style(ink: str) -> Iterator[None]:
    """Matplotlib's settings; a figure must also be written within it."""
    settings: dict[Any, Any] = {**_STYLE, **dict.fromkeys(_INKED, ink)}  # matplotlib lists all keys as its key type
    with mpl.rc_context(settings):
        yield


def blank(size: tuple[float, float], ink: str) -> Figure:
    """An empty figure; in the ink that stands for another it has no background."""
    figure = Figure(figsize=size, layout="constrained")
    figure.patch.set_alpha(0 if ink == INK else 1)
    return figure


def plain(text: str) -> str:
    """Text that matplotlib shows as it stands, where it would take what is between two dollars for mathematics."""
    return text.replace("$", r"\$")


def legend(figure: Figure, axes: Axes, columns: int) -> None:
    """Beside the curves rather than over them."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        loc="outside upper center",
        ncols=min(len(handles), columns),
        frameon=False,
        fontsize=9,
        handlelength=1.6,
        columnspacing=1.2,
    )


def png(figure: Figure) -> bytes:
    """For those who cannot show SVG."""
    file = io.BytesIO()
    with style("black"):
        figure.savefig(file, format="png", dpi=160, metadata={"Software": None})
    return file.getvalue()


def element(figure: Figure) -> str:
    """The element, its colours variables and its ink that of the text around it."""
    file = io.StringIO()
    with style(INK):
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    svg = file.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    # Matplotlib's style sheet would apply to the whole of a page; the element's own attributes are inherited.
    svg = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", svg, count=1, flags=re.DOTALL)
    svg = svg.replace("<svg", '<svg stroke-linejoin="round"', 1)
    for k, colour in enumerate(COLOURS):
        svg = svg.replace(colour, f"var(--method-{k})")
    return svg.replace(INK, "currentColor")


def inline(svg: str, name: str) -> str:
    """The element made fit to stand in a page beside others: it fills its place, and its ids are its own."""
    svg = re.sub(r' (?:width|height)="[\d.]+pt"', "", svg, count=2)
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    return re.sub(r'(url\(|href=")#', rf"\1#{name}-", svg)


#: Of the style sheet of a file, which a page that takes the element in leaves out.
THEME = "semaopt-theme"


def standalone(svg: str) -> str:
    """The element as a file in the colours that the reader's system prefers."""
    rules = (
        f"svg {{ color: {LIGHT[0]}; {variables(LIGHT)} }} "
        f"@media (prefers-color-scheme: dark) {{ svg {{ color: {DARK[0]}; {variables(DARK)} }} }}"
    )
    svg = re.sub(r"(<svg[^>]*>)", rf'\1<style class="{THEME}">{rules}</style>', svg, count=1)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{svg}'
