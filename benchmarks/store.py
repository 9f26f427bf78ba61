"""Measure how opening a store, planning a resume and writing the report scale with the number of runs.

    python benchmarks/store.py                       # 100, 1,000 and 10,000 runs
    python benchmarks/store.py --runs 100 1000 --repeats 5

The runs form a grid of three variants of Adam on digits, with synthetic curves: nothing is trained, and every command
finds all runs finished. Times are medians. The last column is the exponent of the growth since the previous size. The
exit status is 1 if this exponent exceeds 1.3 for resuming or for the report.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))
from semaopt.experiments import api, report
from semaopt.experiments.spec import schema
from semaopt.experiments.sweep import study
from semaopt.experiments.sweep.engines.local import InProcess
from semaopt.experiments.sweep.runner import Runner, Workspace
from semaopt.experiments.sweep.store import STORE_FILE, Store
from semaopt.experiments.training.run import Machine, Result, Run

METHODS = 3
SEEDS = 5
LARGEST_POWER = 1.3


def a_spec(runs: int) -> schema.Spec:
    """Return a spec with about ``runs`` runs: a grid of three axes times the tuning seeds, and the final runs."""
    points = max((runs - METHODS * SEEDS) // (METHODS * SEEDS), 1)
    axis = [2.0**-k for k in range(max(round(points ** (1 / 3)), 2))]
    options = {"beta": 0.9, "every": 1, "factor": 0.5}
    names = ("adam", "beta", "both")
    decays = ([], ["gamma"], ["lr", "gamma"])
    methods = [
        {"name": name, "label": name, "algorithm": "ASA", "decays": what, "options": options if what else {"beta": 0.9}}
        for name, what in zip(names, decays, strict=True)
    ]
    raw: dict[str, Any] = {
        "name": "many",
        "title": "Many",
        "loss": "cross_entropy",
        "batch": 32,
        "epochs": 60,
        "metrics": ["train_loss", "test_accuracy"],
        "claim": {"text": "-", "metric": "train_loss", "order": list(names)},
        "data": {"name": "digits"},
        "model": {"name": "mlp"},
        "seeds": {"tuning": list(range(100, 100 + SEEDS)), "final": list(range(SEEDS))},
        "tuning": {
            "metric": "valid_loss",
            "direction": "minimize",
            "rounds": 0,
            "grid": dict.fromkeys(("lr", "g0", "weight_decay"), axis),
        },
        "methods": methods,
    }
    return schema.build(raw)


def synthetic(run: Run) -> Result:
    """Return falling curves that differ slightly between runs."""
    offset = 1e-3 * run.seed + 1e-2 * math.log(run.values["lr"])
    length = run.until if run.purpose == "final" else 1
    return Result({name: [offset + 2.0 / (k + 1) for k in range(length)] for name in run.metrics}, 1.0)


class Synthetic(InProcess):
    """An engine that returns synthetic results at once."""

    def run(self, work: Any, jobs: Any, on_progress: Any) -> Any:
        return iter([(unit, [synthetic(run) for run in unit.runs]) for unit in jobs])


def timed(do: Callable[[], Any], repeats: int) -> tuple[float, Any]:
    times, found = [], None
    for _ in range(repeats):
        started = time.perf_counter()
        found = do()
        times.append(time.perf_counter() - started)
    return statistics.median(times), found


def measure(runs: int, folder: Path, repeats: int) -> tuple[int, dict[str, float]]:
    """Return the number of stored runs and the seconds of each operation."""
    chosen, place = a_spec(runs), Workspace(folder, Machine())

    def conduct(engine: Any) -> Any:
        return study.conduct([chosen], place, engine, api.Silent(), command="semaopt run many")

    def opened() -> int:
        with Store(folder / STORE_FILE) as store:
            return len(store)

    def planned() -> int:
        with Store(folder / STORE_FILE) as store:
            one = study.Study(chosen, Runner(store, Synthetic(), api.Silent(), place))
            one.announce()
            return one.runner.reused

    filling, _ = timed(lambda: conduct(Synthetic()), 1)
    opening, count = timed(opened, repeats)
    planning, _ = timed(planned, repeats)
    resuming, results = timed(lambda: conduct(Synthetic()), repeats)
    assert (results.session.computed, results.session.reused) == (0, count), "a finished run was repeated"
    writing, _ = timed(lambda: report.write(results, folder), repeats)
    size = (folder / STORE_FILE).stat().st_size / 2**20
    return count, {
        "fill": filling, "open": opening, "plan": planning, "resume": resuming, "report": writing, "MB": size
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, nargs="+", default=[100, 1000, 10_000])
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    before: tuple[int, dict[str, float]] | None = None
    grew = False
    for runs in sorted(given.runs):
        with tempfile.TemporaryDirectory() as folder:
            count, found = measure(runs, Path(folder), given.repeats)
        for name, value in found.items():
            power = ""
            if before is not None:
                power = f"{math.log(value / before[1][name]) / math.log(count / before[0]):6.2f}"
                grew |= name in ("resume", "report") and float(power) > LARGEST_POWER
            unit = "" if name == "MB" else " s"
            print(f"{count:7} runs  {name:7} {value:9.4f}{unit:2} {power}", flush=True)
        before = count, found
    return int(grew)


if __name__ == "__main__":
    sys.exit(main())
