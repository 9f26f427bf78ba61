"""The figures of the checks (needs matplotlib)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from semaopt.checks.result import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Told apart by people who see colours differently (Okabe and Ito).
COLOURS = ("#d55e00", "#0072b2", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")


def slug(name: str) -> str:
    """A check's name as that of a file.

    >>> slug("constant[adam+]")
    'constant-adam+'
    """
    return re.sub(r"[^a-z0-9+-]+", "-", name.lower()).strip("-")


def draw(results: Sequence[Result], out: Path) -> list[Path]:
    """One PNG per check in ``out``; returns the paths."""
    import matplotlib as mpl

    mpl.use("Agg")
    out.mkdir(parents=True, exist_ok=True)
    return [_draw_one(result, out) for result in results]


def plot(axes: Axes, result: Result) -> None:
    """The curves of a check with their bands; a bound has the colour of what it bounds."""
    what = result.figure
    shades, colour = iter(COLOURS), COLOURS[0]
    for curve in what.curves:
        if curve.low is None or curve.high is None:
            alone = "_" if len(curve.x) == 1 else None
            axes.plot(curve.x, curve.y, "--", marker=alone, markersize=16, color=colour, label=curve.label)
            continue
        colour = next(shades)
        axes.plot(
            curve.x, curve.y, marker="o" if what.logarithmic else None, markersize=4, color=colour, label=curve.label
        )
        if len(curve.x) == 1:
            axes.vlines(curve.x, curve.low, curve.high, color=colour, alpha=0.3, linewidth=6)
        axes.fill_between(curve.x, curve.low, curve.high, color=colour, alpha=0.2, linewidth=0)
    if what.logarithmic:
        from matplotlib.ticker import LogLocator

        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.xaxis.set_minor_locator(LogLocator(subs=(2, 5)))  # on a short axis every minor tick is labelled
    axes.set_xlabel(what.x_label)
    axes.set_ylabel(what.y_label)
    axes.grid(which="major", alpha=0.3)


def title(result: Result) -> str:
    """The message of the figure, if it came out so."""
    return result.figure.message if result.passed else f"NOT SO: {result.figure.message}"


def caption(result: Result) -> str:
    """What the curves are."""
    verdict = "PASS" if result.passed else "FAIL"
    return f"{verdict}; {result.theorem}; mean and 5-95% of {result.settings.get('seeds', '')} seeds"


def _draw_one(result: Result, out: Path) -> Path:
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
