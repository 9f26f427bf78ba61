"""Figures of the checks. Drawing needs matplotlib."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from semaopt.checks.result import CheckResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Colours that colour-blind readers can distinguish (Okabe and Ito).
COLOURS = ("#d55e00", "#0072b2", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")


def slug(name: str) -> str:
    """Return the file name of a check, without its suffix.

    >>> slug("constant[adam+]")
    'constant-adam+'
    """
    return re.sub(r"[^a-z0-9+-]+", "-", name.lower()).strip("-")


def draw(results: Sequence[CheckResult], out: Path) -> list[Path]:
    """Write one PNG per check into ``out`` and return the paths."""
    import matplotlib as mpl

    mpl.use("Agg")
    out.mkdir(parents=True, exist_ok=True)
    return [_draw_one(result, out) for result in results]


def plot(axes: Axes, result: CheckResult) -> None:
    """Plot the curves of a check with their bands. A bound has the colour of the curve it belongs to."""
    content = result.figure
    shades, colour = iter(COLOURS), COLOURS[0]
    for curve in content.curves:
        if curve.low is None or curve.high is None:
            alone = "_" if len(curve.x) == 1 else None
            axes.plot(curve.x, curve.y, "--", marker=alone, markersize=16, color=colour, label=curve.label)
            continue
        colour = next(shades)
        axes.plot(
            curve.x, curve.y, marker="o" if content.logarithmic else None, markersize=4, color=colour, label=curve.label
        )
        if len(curve.x) == 1:
            axes.vlines(curve.x, curve.low, curve.high, color=colour, alpha=0.3, linewidth=6)
        axes.fill_between(curve.x, curve.low, curve.high, color=colour, alpha=0.2, linewidth=0)
    if content.logarithmic:
        from matplotlib.ticker import LogLocator

        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.xaxis.set_minor_locator(LogLocator(subs=(2, 5)))  # a short axis labels its minor ticks
    axes.set_xlabel(content.x_label)
    axes.set_ylabel(content.y_label)
    axes.grid(which="major", alpha=0.3)


def title(result: CheckResult) -> str:
    """Return the message of the figure, marked if the check contradicts it."""
    return result.figure.message if result.passed else f"CONTRADICTED: {result.figure.message}"


def caption(result: CheckResult) -> str:
    """Return the verdict, the theorem and the meaning of the bands."""
    verdict = "confirmed" if result.passed else "contradicted"
    return f"{verdict}; {result.theorem}; mean and 5th to 95th percentile of {result.settings.get('seeds', '')} seeds"


def _draw_one(result: CheckResult, out: Path) -> Path:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.4), layout="constrained")
    axes = figure.subplots()
    plot(axes, result)
    axes.set_title(title(result), fontsize=9, wrap=True)
    axes.legend(fontsize=8)
    figure.text(0.005, 0.003, caption(result), fontsize=6, color="0.4")
    path = out / f"{slug(result.name)}.png"
    figure.savefig(path, dpi=130)
    return path
