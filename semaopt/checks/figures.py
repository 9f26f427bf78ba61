"""The figures of the checks (needs matplotlib)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from semaopt.checks.result import Result


def draw(results: Sequence[Result], out: Path) -> list[Path]:
    """One PNG per check in ``out``; returns the paths."""
    import matplotlib as mpl

    mpl.use("Agg")
    out.mkdir(parents=True, exist_ok=True)
    return [_draw_one(result, out) for result in results]


def _draw_one(result: Result, out: Path) -> Path:
    from matplotlib.figure import Figure

    what = result.figure
    figure = Figure(figsize=(6.4, 4.4), layout="constrained")
    axes = figure.subplots()
    shades = iter(("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00"))  # told apart by the colour-blind too
    colour = "#000000"
    for curve in what.curves:
        if curve.low is None or curve.high is None:
            # A bound has the colour of what it bounds.
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
        axes.set_xscale("log")
        axes.set_yscale("log")
    axes.set_xlabel(what.x_label)
    axes.set_ylabel(what.y_label)
    axes.set_title(what.message if result.passed else f"NOT SO: {what.message}", fontsize=9, wrap=True)
    axes.grid(which="major", alpha=0.3)
    axes.legend(fontsize=8)
    verdict = "PASS" if result.passed else "FAIL"
    seeds = result.settings.get("seeds", "")
    figure.text(0.005, 0.003, f"{verdict}; {result.theorem}; mean and 5-95% of {seeds} seeds", fontsize=6, color="0.4")
    path = out / f"{re.sub(r'[^a-z0-9+-]+', '-', result.name.lower()).strip('-')}.png"
    figure.savefig(path, dpi=130)
    return path
