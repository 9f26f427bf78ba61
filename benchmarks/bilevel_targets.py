"""Print, for the stores of ``semaopt run bilevel-ijcnn1`` or ``bilevel-mnist``, when each method reaches a target.

    python benchmarks/bilevel_targets.py results/bilevel-ijcnn1/runs.sqlite --metric train_gradient_norm --below 0.01
    python benchmarks/bilevel_targets.py results/bilevel-ijcnn1/runs.sqlite --figure curves.svg --only soba smb_tracked

A method reaches the target at the first measurement from which on all measurements are below it. Earlier ones may be
below it too: near the start of ijcnn1 the gradient of the value function is small, because the penalties are large.
The numbers are medians over the final runs, and a diverged run counts as the worst; "-" means that at most half of
the runs reach the target.
"""

from __future__ import annotations

import argparse
import json
import math
import sqlite3
import statistics
from collections import defaultdict
from pathlib import Path


def curves(paths: list[Path]) -> dict[str, list[dict[str, list[float]]]]:
    """Return the curves of the final runs of each method."""
    found: dict[str, list[dict[str, list[float]]]] = defaultdict(list)
    for path in paths:
        connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
        for key, method in connection.execute("SELECT key, method FROM runs WHERE purpose = 'final' ORDER BY seed"):
            run: dict[str, list[float]] = {}
            for metric, epochs in connection.execute("SELECT metric, epochs FROM curves WHERE key = ?", (key,)):
                run[metric] = [math.nan if value is None else float(value) for value in json.loads(epochs)]
            found[method].append(run)
    return found


def reached(run: dict[str, list[float]], metric: str, below: float) -> int | None:
    """Return the first epoch from which on the metric stays below the target."""
    last = [k for k, value in enumerate(run[metric]) if not value < below]
    first = last[-1] + 1 if last else 0
    return first if first < len(run[metric]) else None


def last(curve: list[float]) -> float:
    """Return the last value; inf if it is NaN, since a diverged run is the worst."""
    return math.inf if math.isnan(curve[-1]) else curve[-1]


def median_curves(runs: list[dict[str, list[float]]], name: str) -> list[list[float]]:
    """Return the lower quartile, the median and the upper quartile over the runs at each epoch; NaN counts as inf."""
    columns = zip(*([math.inf if math.isnan(value) else value for value in run[name]] for run in runs), strict=True)
    ordered = [sorted(column) for column in columns]
    k = (len(runs) - 1) // 4  # statistics.quantiles would interpolate, and 0 * inf is NaN
    return [[c[k] for c in ordered], [statistics.median(c) for c in ordered], [c[-1 - k] for c in ordered]]


def draw(found: dict[str, list[dict[str, list[float]]]], path: Path) -> None:
    """Draw the value function against oracle calls and CPU seconds."""
    from semaopt.experiments.report import style

    looks = style.looks(found)
    with style.settings():
        figure = style.blank((10, 4.2))
        axes = figure.subplots(1, 2, sharey=True)
        for ax, name, label in zip(axes, ("calls", "seconds"), ("oracle calls", "CPU seconds"), strict=True):
            for method, runs in found.items():
                low, middle, high = median_curves(runs, "train_value")
                across, look = median_curves(runs, f"train_{name}")[1], looks[method]
                drawn = [k for k, value in enumerate(middle) if math.isfinite(value)]
                xs, ys = [across[k] for k in drawn], [middle[k] for k in drawn]
                ax.plot(xs, ys, color=look.colour, linestyle=look.dash, marker=look.marker, ms=4, label=method)
                bands = [low[k] for k in drawn], [high[k] if math.isfinite(high[k]) else middle[k] for k in drawn]
                ax.fill_between(xs, *bands, color=look.colour, alpha=0.12, linewidth=0)
            ax.set_xlabel(label)
            ax.patch.set_alpha(0)
        axes[0].set_ylabel("value function")
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right center", frameon=False, fontsize=9)
        path.write_text(style.standalone(style.svg(figure)), encoding="utf-8")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("stores", nargs="+", type=Path)
    parser.add_argument("--metric", default="train_value")
    parser.add_argument("--below", type=float, default=0.3)
    parser.add_argument("--only", nargs="+", help="the methods; by default all")
    parser.add_argument("--figure", type=Path, help="draw curves to this SVG file")
    options = parser.parse_args(arguments)
    found = curves(options.stores)
    found = {name: runs for name, runs in found.items() if options.only is None or name in options.only}
    ends = {name: statistics.median(last(run["train_value"]) for run in runs) for name, runs in found.items()}
    found = {name: found[name] for name in sorted(found, key=ends.__getitem__)}
    if options.figure:
        draw(found, options.figure)
    print("| method | runs | diverged | value function | gradient norm | CPU s | reached by | calls | CPU s |")
    print("|---|---|---|---|---|---|---|---|---|")
    for method, runs in found.items():
        when = [(run, reached(run, options.metric, options.below)) for run in runs]
        hits = [(run, k) for run, k in when if k is not None]
        names = ("train_value", "train_gradient_norm", "train_seconds")
        lost = sum(math.isnan(run["train_value"][-1]) for run in runs)
        cells = [str(lost), *(f"{statistics.median(last(run[name]) for run in runs):.4g}" for name in names)]
        middle = ["-", "-"]
        if 2 * len(hits) > len(runs):
            names = ("train_calls", "train_seconds")
            middle = [f"{statistics.median(run[name][k] for run, k in hits):.4g}" for name in names]
        print(f"| {method} | {len(runs)} | {' | '.join(cells)} | {len(hits)} | {' | '.join(middle)} |")


if __name__ == "__main__":
    main()
