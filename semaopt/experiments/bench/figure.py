"""The picture of ``semaopt bench step``: one panel for each size, a bar for each contestant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

#: Told apart by people who see colours differently (Okabe and Ito).
COLOURS = {"semaopt": "#0072b2", "torch": "#d55e00", "limit": "#999999"}
OTHER = "#e69f00"


def draw(document: dict[str, Any], path: Path) -> None:
    """Write the results of :func:`semaopt.experiments.bench.step.save` as a picture."""
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "semaopt", "font.size": 9}):
        results = document["results"]
        heights = [len(result["rows"]) + 3 for result in results]
        figure = Figure(figsize=(8, 0.22 * sum(heights)), layout="constrained")
        panels = figure.subplots(len(results), 1, squeeze=False, height_ratios=heights)[:, 0]
        for axes, result in zip(panels, results, strict=True):
            panel(axes, result)
        about = document["environment"]
        figure.supxlabel(
            f"time of a step, ratio to {document['base']} (log scale; median, quartiles)\n"
            f"{about['processor']}, {about['threads']} threads, torch {about['torch']}",
            fontsize=9,
        )
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def panel(axes: Axes, result: dict[str, Any]) -> None:
    """One size: the fastest on top."""
    rows = sorted(result["rows"], key=lambda row: -row["ratio"])
    for place, row in enumerate(rows):
        colour = COLOURS.get(row["name"].split()[0], OTHER)
        axes.barh(place, row["ratio"], color=colour, height=0.7)
        axes.plot([row["low"], row["high"]], [place, place], color="black", linewidth=1)
        axes.annotate(
            f" {row['ratio']:.2f}  {_time(row['median'])}",
            (max(row["high"], row["ratio"]), place),
            va="center",
            fontsize=7,
        )
    axes.set_yticks(range(len(rows)), [row["name"] for row in rows])
    axes.set_xscale("log")
    axes.set_xlim(right=axes.get_xlim()[1] * 2)
    axes.axvline(1.0, color="black", linewidth=0.5)
    noisy = "; too noisy" if result["noisy"] else ""
    axes.set_title(f"{result['title']} ({result['turns']} turns{noisy})", fontsize=9, loc="left")
    axes.spines[["top", "right"]].set_visible(False)


def _time(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{1e6 * seconds:.3g} us"
