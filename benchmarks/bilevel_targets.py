"""Print, for the stores of ``semaopt run bilevel-ijcnn1`` or ``bilevel-mnist``, when each method reaches a target.

    python benchmarks/bilevel_targets.py results/bilevel-ijcnn1/runs.sqlite --metric train_value --below 0.3

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


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("stores", nargs="+", type=Path)
    parser.add_argument("--metric", default="train_value")
    parser.add_argument("--below", type=float, default=0.3)
    options = parser.parse_args(arguments)
    print("| method | runs | diverged | value function | gradient norm | CPU s | reached by | calls | CPU s |")
    print("|---|---|---|---|---|---|---|---|---|")
    for method, runs in curves(options.stores).items():
        ends = {name: [run[name][-1] for run in runs] for name in runs[0]}
        when = [(run, reached(run, options.metric, options.below)) for run in runs]
        hits = [(run, k) for run, k in when if k is not None]
        names = ("train_value", "train_gradient_norm", "train_seconds")
        worst = {name: [math.inf if math.isnan(value) else value for value in ends[name]] for name in names}
        lost = sum(math.isnan(value) for value in ends["train_value"])
        cells = [str(lost), *(f"{statistics.median(worst[name]):.4g}" for name in names)]
        middle = ["-", "-"]
        if 2 * len(hits) > len(runs):
            names = ("train_calls", "train_seconds")
            middle = [f"{statistics.median(run[name][k] for run, k in hits):.4g}" for name in names]
        print(f"| {method} | {len(runs)} | {' | '.join(cells)} | {len(hits)} | {' | '.join(middle)} |")


if __name__ == "__main__":
    main()
