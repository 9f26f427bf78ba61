"""The figure of ``semaopt bench step``: one panel per size, one bar per candidate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from semaopt.experiments.report.style import HUES

#: Bar colours by the first word of a candidate's name.
COLOURS = {"semaopt": HUES["blue"][0], "torch": HUES["vermillion"][0], "limit": "#999999"}
OTHER = HUES["orange"][0]


def draw(document: dict[str, Any], path: Path) -> None:
    """Draw what :func:`semaopt.experiments.bench.step.save` wrote to ``step.json``."""
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "semaopt", "font.size": 9}):
        results = document["results"]
        heights = [len(result["rows"]) + 3 for result in results]
        figure = Figure(figsize=(8, 0.22 * sum(heights)), layout="constrained")
        panels = figure.subplots(len(results), 1, squeeze=False, height_ratios=heights)[:, 0]
        for axes, result in zip(panels, results, strict=True):
            _panel(axes, result)
        about = document["environment"]
        figure.supxlabel(
            f"time of one step relative to {document['base']} (log scale; median and quartiles)\n"
            f"{about['processor']}, {about['threads']} threads, torch {about['torch']}",
            fontsize=9,
        )
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def _panel(axes: Axes, result: dict[str, Any]) -> None:
    """Draw one size with the fastest candidate on top."""
    rows = sorted(result["rows"], key=lambda row: -row["ratio"])
    for place, row in enumerate(rows):
        colour = COLOURS.get(row["name"].split()[0], OTHER)
        axes.barh(place, row["ratio"], color=colour, height=0.7)
        axes.plot([row["low"], row["high"]], [place, place], color="black", linewidth=1)
        axes.annotate(
            f" {row['ratio']:.2f}  {time_text(row['median'])}",
            (max(row["high"], row["ratio"]), place),
            va="center",
            fontsize=7,
        )
    axes.set_yticks(range(len(rows)), [row["name"] for row in rows])
    axes.set_xscale("log")
    axes.set_xlim(right=axes.get_xlim()[1] * 2)
    axes.axvline(1.0, color="black", linewidth=0.5)
    noisy = "; noisy" if result["noisy"] else ""
    axes.set_title(f"{result['title']} ({result['rounds']} rounds{noisy})", fontsize=9, loc="left")
    axes.spines[["top", "right"]].set_visible(False)


def time_text(seconds: float) -> str:
    """Format a time with its unit.

    >>> time_text(2.0), time_text(0.0345), time_text(12.3e-6)
    ('2 s', '34.5 ms', '12.3 us')
    """
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{1e6 * seconds:.3g} us"
