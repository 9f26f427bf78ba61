"""Time the experiment engine against straightforward alternatives, as ratios within one process.

    python benchmarks/experiments.py [mpnn sweep overhead ...] [--threads 1] [--turns 11] [--root DIR]

mpnn: an epoch of training on BBBP, batch 32 (forward, backward, Adam). The alternatives are a kernel per edge built in
each step (as in PyTorch Geometric's NNConv and the Keras example), such kernels built once per batch, and sums per atom
and feature. The alternatives pad a batch to its largest molecule. All process the same batches in each round.

sweep: five seeds of one setting, in runs per hour. Compares three ways to train them: in
parallel single-threaded processes (as ``semaopt run`` does), as one vectorized model if the model allows it, and one
after another with two threads. Uses an MLP on digits and, if BBBP is available, the MPNN on a part of it.

overhead: the cost of the engine (key, store, checkpoints every 10 s) over a bare loop with the same steps and
measurements.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from semaopt.experiments import data, models
from semaopt.experiments.data.molecule_batches import MoleculeBatch
from semaopt.experiments.models import mpnn
from semaopt.experiments.models.messages import Step
from semaopt.experiments.spec.schema import load
from semaopt.experiments.sweep.engines.local import InProcess, Workers
from semaopt.experiments.sweep.run import make, units
from semaopt.experiments.sweep.runner import Runner, Workspace
from semaopt.experiments.sweep.store import Store
from semaopt.experiments.training.loop import task, train
from semaopt.experiments.training.run import Machine, Run, Unit
from semaopt.experiments.training.single import SingleRun

BATCH, BATCHES = 32, 2


def kernels_once(batch: MoleculeBatch, edge: torch.nn.Linear) -> Step:
    units = round(edge.out_features**0.5)
    source, target, features = batch.edges()
    kernels = edge(features).view(-1, units, units)

    def step(h: torch.Tensor) -> torch.Tensor:
        sent = torch.matmul(h[source][:, None, :], kernels).squeeze(1)
        return torch.zeros_like(h).index_add(0, target, sent)

    return step


def mpnn_epoch(options: argparse.Namespace) -> None:
    task = data.load("bbbp", root=options.root)
    contestants = {
        "semaopt": models.build("mpnn", task),
        "sums per feature": models.build("mpnn", task, implementation="general"),
        "kernels once a batch": models.build("mpnn", task, implementation="plain"),
        "kernels in each step": models.build("mpnn", task, implementation="plain"),
    }
    mpnn.IMPLEMENTATIONS["once"] = kernels_once
    contestants["kernels once a batch"].implementation = "once"
    optimizers = {name: torch.optim.Adam(model.parameters(), fused=True) for name, model in contestants.items()}
    part = task.train

    def turn(name: str, rows: list[torch.Tensor]) -> float:
        started = time.perf_counter()
        for index in rows:
            optimizers[name].zero_grad()
            scores = contestants[name](part.inputs(index))
            binary_cross_entropy_with_logits(scores, part.labels[index].float()).backward()
            optimizers[name].step()
        return (time.perf_counter() - started) / len(rows)

    times: dict[str, list[float]] = {name: [] for name in contestants}
    for k in range(options.turns + 1):
        rows = list(torch.randperm(len(part))[: BATCH * BATCHES].split(BATCH))
        for name in contestants:
            seconds = turn(name, rows)
            if k > 0:  # the first round is a warm-up
                times[name].append(seconds)
    batches = len(part) / BATCH
    print(
        f"mpnn, BBBP, {len(part)} molecules, batch {BATCH}, {torch.get_num_threads()} threads, {options.turns} rounds"
    )
    for name, seconds in times.items():
        ratio = statistics.median(a / b for a, b in zip(seconds, times["semaopt"], strict=True))
        print(f"  {name:22} {statistics.median(seconds) * batches:6.2f} s/epoch   {ratio:5.2f} x semaopt's time")


def seeds_of(name: str, count: int, **changes: object) -> list[Run]:
    spec = load(name, "small")
    spec = spec.model_copy(update={"epochs": changes.pop("epochs"), "data": spec.data.model_copy(update=changes)})
    values = {"lr": 1e-3, "g0": 1e-7}
    return [make(spec, spec.method("adam"), values, seed=k, purpose="final", machine=Machine()) for k in range(count)]


def one_after_another(work: list[Unit], threads: int) -> float:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    started = time.perf_counter()
    for unit in work:
        train(unit)
    seconds = time.perf_counter() - started
    torch.set_num_threads(before)
    return seconds


def sweep(options: argparse.Namespace) -> None:
    cases = {"mlp on digits": ("figure1-digits", {"epochs": 30})}
    if is_available("bbbp"):
        cases["mpnn on 400 molecules of BBBP"] = ("figure1-bbbp", {"epochs": 3, "subset": 400})
    with Workers(2) as pool:
        for title, (name, changes) in cases.items():
            runs = seeds_of(name, 5, **changes)
            alone = units(runs, 1)
            list(pool.run(train, [*units(runs[:1], 1)] * 2, lambda _: None))  # start the processes
            times: dict[str, list[float]] = {"sequential, 2 threads": [], "parallel, 2 processes": []}
            if "mlp" in title:
                times["one vectorized model"] = []
            for _ in range(max(3, options.turns // 4)):
                times["sequential, 2 threads"].append(one_after_another(alone, 2))
                started = time.perf_counter()
                list(pool.run(train, alone, lambda _: None))
                times["parallel, 2 processes"].append(time.perf_counter() - started)
                if "mlp" in title:
                    times["one vectorized model"].append(one_after_another(units(runs, 5), 1))
            plain = times["sequential, 2 threads"]
            print(f"sweep, {title}, 5 seeds, {len(plain)} rounds")
            for way, seconds in times.items():
                ratio = statistics.median(a / b for a, b in zip(plain, seconds, strict=True))
                print(f"  {way:30} {5 * 3600 / statistics.median(seconds):7.0f} runs/hour   {ratio:5.2f} x")


def is_available(name: str) -> bool:
    try:
        data.load(name)
    except data.DataError:
        return False
    return True


class Quiet:
    def plan(self, _: int) -> None: ...
    def done(self, _: int) -> None: ...
    def say(self, _: str) -> None: ...


def overhead(options: argparse.Namespace) -> None:
    (run,) = seeds_of("figure1-digits", 1, epochs=60)

    def bare() -> float:
        started = time.perf_counter()
        trainee = SingleRun(run, task(run.data))
        for _ in range(run.until):
            trainee.draw()
            for k in range(trainee.steps):
                trainee.step(k)
            trainee.end_epoch()
            trainee.measure()
        return time.perf_counter() - started

    def engine(out: Path) -> float:
        started = time.perf_counter()
        with Store(out / "runs.sqlite") as store:
            runner = Runner(store, InProcess(), Quiet(), Workspace(out, Machine()))
            runner.results(runner.units([run]))
        return time.perf_counter() - started

    bare()
    pairs = []
    for _ in range(options.turns):
        with tempfile.TemporaryDirectory() as folder:
            pairs.append((engine(Path(folder)), bare()))
    ratio = statistics.median(a / b for a, b in pairs)
    print(f"overhead, mlp on digits, {run.until} epochs, {options.turns} pairs")
    seconds = statistics.median(b for _, b in pairs)
    print(f"  the engine takes {ratio:.3f} x the time of a bare loop ({seconds:.2f} s)")


BENCHMARKS: dict[str, Callable[[argparse.Namespace], None]] = {
    "mpnn": mpnn_epoch,
    "sweep": sweep,
    "overhead": overhead,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(BENCHMARKS)}; default: all")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--turns", type=int, default=11)
    parser.add_argument("--root", type=Path, help="data folder; default: SEMAOPT_DATA, else your cache")
    options = parser.parse_args()
    for name in options.names:
        if name not in BENCHMARKS:
            parser.error(f"{name!r} is unknown; available: {', '.join(BENCHMARKS)}")
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    for name in options.names or BENCHMARKS:
        BENCHMARKS[name](options)


if __name__ == "__main__":
    main()
