"""How long a step takes: ours, torch's, the peers' that are installed, and the limit that memory sets.

    semaopt bench step [--sizes one net resnet50 large] [--threads 2] [--seconds 30] [--out DIR]

Everything of one size is measured in turns in one process, so a busy moment meets all alike. A ratio is the median of
the ratios within a turn. Turns go on until every such median is known to 2%, or the time is over; then it is said that
the machine was too noisy. The limit reads and writes the same bytes of the same memory and computes nothing.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import semaopt
from semaopt.experiments.bench.contestants import BASE, CONTESTANTS, LIMITS, Contestant, Pool, stream

#: How well the median of a ratio should be known.
CLOSE = 0.02
FEWEST_TURNS, MOST_TURNS = 9, 400
#: A turn of a contestant lasts at least this long, by repeating short steps.
TURN_SECONDS = 2e-3
MOST_THREADS = 1024


def resnet50() -> list[tuple[int, ...]]:
    """The shapes of its 161 parameter tensors, 25.6M numbers."""
    shapes: list[tuple[int, ...]] = [(64, 3, 7, 7), (64,), (64,)]
    inputs = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            convolutions = [(width, inputs, 1, 1), (width, width, 3, 3), (4 * width, width, 1, 1)]
            convolutions += [(4 * width, inputs, 1, 1)] if block == 0 else []
            for convolution in convolutions:
                shapes += [convolution, (convolution[0],), (convolution[0],)]
            inputs = 4 * width
    return [*shapes, (1000, 2048), (1000,)]


SIZES: dict[str, tuple[str, list[tuple[int, ...]]]] = {
    "one": ("1 element", [(1,)]),
    "net": ("30 tensors, 97,200 elements", [(80, 80), (80,)] * 15),
    "resnet50": ("ResNet-50's 161 tensors, 25.6M elements", resnet50()),
    "large": ("1 tensor, 100M elements", [(100_000_000,)]),
}


@dataclass
class Times:
    """The seconds a step of one contestant took in each turn."""

    name: str
    seconds: list[float] = field(default_factory=list)

    def ratios(self, base: Times) -> list[float]:
        return [mine / its for mine, its in zip(self.seconds, base.seconds, strict=True)]

    def row(self, base: Times) -> Row:
        ratios = self.ratios(base)
        low, middle, high = statistics.quantiles(ratios, n=4)
        # The notch of a box plot (McGill, Tukey, Larsen 1978): about 95% for the median.
        error = 1.57 * (high - low) / math.sqrt(len(ratios)) / middle
        return Row(self.name, statistics.median(self.seconds), min(self.seconds), middle, low, high, error)


@dataclass(frozen=True)
class Row:
    """One line of the table: median and shortest seconds of a step, the median of its ratios to the base, their
    quartiles, and the relative error of that median.
    """

    name: str
    median: float
    shortest: float
    ratio: float
    low: float
    high: float
    error: float


@dataclass(frozen=True)
class Result:
    """One size measured."""

    size: str
    title: str
    rows: list[Row]
    turns: int
    noisy: list[str]
    absent: dict[str, str]
    load: float


def seconds_of(step: Callable[[], Any], repeats: int) -> float:
    """Of one step, over ``repeats`` of them; short ones after one that finds its way back into the caches."""
    if repeats > 1:
        step()
    start = time.perf_counter()
    for _ in range(repeats):
        step()
    return (time.perf_counter() - start) / repeats


def prepare(contestant: Contestant, xs: list[Tensor], pools: Sequence[Pool] = ()) -> Callable[[], Any]:
    """The contestant's step after three of them: states exist, pages are there."""
    optimizer = contestant.build(xs)
    for _ in range(3):
        optimizer.step()
    for pool in pools:
        pool.lend(optimizer)
    step: Callable[[], Any] = optimizer.step
    return step


def parameters(shapes: list[tuple[int, ...]]) -> list[Tensor]:
    """Random parameters with random gradients."""
    generator = torch.Generator().manual_seed(0)
    xs: list[Tensor] = [torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]
    for x in xs:
        x.grad = torch.randn(x.shape, generator=generator)
    return xs


def measure(size: str, seconds: float, names: Sequence[str] | None = None) -> Result:
    """All contestants on the parameters of one size, in turns for at most so many seconds."""
    title, shapes = SIZES[size]
    steps: dict[str, Callable[[], Any]] = {}
    absent: dict[str, str] = {}
    shared = parameters(shapes)
    big = sum(x.numel() for x in shared) > 10**7
    pools = [Pool(x) for x in shared] if big else []
    for contestant in CONTESTANTS:
        if (names is None or contestant.name in (*names, BASE)) and not (big and contestant.slow and size == "large"):
            why = contestant.absent()
            if why:
                absent[contestant.name] = why
            else:  # what is larger than the caches may be shared: nobody finds it there anyway
                steps[contestant.name] = prepare(contestant, shared if big else parameters(shapes), pools)
    if big and semaopt.kernels.available():
        wanted = {limit: arrays for limit, arrays in LIMITS.items() if names is None or limit in names}
        steps.update({limit: stream(arrays, pools) for limit, arrays in wanted.items()})
    times = in_turns(steps, seconds, pools)
    base = times[BASE]
    rows = [t.row(base) for t in times.values()]
    noisy = [row.name for row in rows if row.error > CLOSE]
    return Result(size, title, rows, len(base.seconds), noisy, absent, os.getloadavg()[0])


def in_turns(steps: dict[str, Callable[[], Any]], seconds: float, pools: Sequence[Pool] = ()) -> dict[str, Times]:
    """Measure all of them again and again until every ratio has settled or the time is over."""
    repeats = {name: max(1, int(TURN_SECONDS / seconds_of(step, 1))) for name, step in steps.items()}
    times = {name: Times(name) for name in steps}
    order, shuffle = list(steps), random.Random(0).shuffle
    end = time.perf_counter() + seconds
    for turn in range(MOST_TURNS):
        shuffle(order)  # nobody always comes after the same one
        for name in order:
            for pool in pools:
                pool.clear()
            times[name].seconds.append(seconds_of(steps[name], repeats[name]))
        if turn + 1 >= FEWEST_TURNS:
            settled = all(t.row(times[BASE]).error <= CLOSE for t in times.values())
            if settled or time.perf_counter() > end:
                break
    return times


def table(result: Result) -> str:
    """The result as text, fastest first."""
    lines = [
        f"{result.title}: {result.turns} turns, load average {result.load:.1f}",
        f"  {'':34} {'median':>11} {'shortest':>11} {'ratio':>7}   quartiles",
    ]
    for row in sorted(result.rows, key=lambda row: row.ratio):
        times = f"{1e6 * row.median:8,.1f} us {1e6 * row.shortest:8,.1f} us"
        lines.append(f"  {row.name:34} {times} {row.ratio:7.3f}   {row.low:.3f} {row.high:.3f}")
    if result.noisy:
        worst = max(row.error for row in result.rows)
        lines.append(
            f"  Too noisy: {len(result.noisy)} of {len(result.rows)} ratios are known only to {worst:.0%} and not to "
            f"{CLOSE:.0%}. Is there other work on the machine? Repeat when it is quiet, or give more --seconds."
        )
    lines += [f"  without {name}: {why}" for name, why in result.absent.items()]
    return "\n".join(lines)


def environment(threads: int) -> dict[str, Any]:
    """What the numbers depend on."""
    return {
        "semaopt": semaopt.__version__,
        "kernels": str(semaopt.kernels.available()),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "processor": _processor(),
        "threads": threads,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def save(results: list[Result], about: dict[str, Any], out: Path) -> None:
    """``step.json`` and, where matplotlib is installed, ``step.svg``."""
    out.mkdir(parents=True, exist_ok=True)
    document = {"environment": about, "base": BASE, "results": [asdict(result) for result in results]}
    (out / "step.json").write_text(json.dumps(document, indent=1))
    try:
        from semaopt.experiments.bench.figure import draw
    except ImportError as error:
        print(f"no picture: {error}; pip install 'semaopt[experiments]'")
        return
    draw(document, out / "step.svg")


def main(argv: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="semaopt bench step", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES), metavar="SIZE", help=", ".join(SIZES))
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these contestants (and torch's fused Adam)")
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--seconds", type=float, default=30.0, help="at most, for each size")
    parser.add_argument("--out", type=Path, help="directory for step.json and step.svg")
    given = parser.parse_args(argv)
    known = [*(c.name for c in CONTESTANTS), *LIMITS]
    unknown = sorted(set(given.only or ()) - set(known))

    def shown(names: Sequence[str]) -> str:  # some have commas of their own
        return ", ".join(f'"{name}"' for name in names)

    if unknown:
        parser.error(f"--only: unknown {shown(unknown)}; there is: {shown(known)}")
    if not 1 <= given.threads <= MOST_THREADS:
        parser.error(f"--threads {given.threads}: must lie in 1..{MOST_THREADS}")
    if not 0 < given.seconds < math.inf:
        parser.error(f"--seconds {given.seconds}: must be a number above 0")
    if given.out is not None:
        try:
            given.out.mkdir(parents=True, exist_ok=True)
        except (OSError, ValueError) as error:  # ValueError: a null byte in the path
            parser.error(f"--out {str(given.out)!r}: cannot be used ({error}); choose another")
    before = torch.get_num_threads()
    torch.set_num_threads(given.threads)
    try:
        about = environment(given.threads)
        print(", ".join(f"{key} {value}" for key, value in about.items()))
        print(f"ratio: to {BASE}", flush=True)
        results = []
        for size in given.sizes:
            results.append(measure(size, given.seconds, given.only))
            print(table(results[-1]), flush=True)
        if given.out is not None:
            save(results, about, given.out)
    finally:
        torch.set_num_threads(before)


if __name__ == "__main__":
    main()
