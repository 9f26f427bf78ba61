"""Measure the time of one optimizer step: semaopt, torch, installed peers, and the limit that memory sets.

    semaopt bench step [--sizes one net resnet50 large] [--device cuda] [--threads 2] [--seconds 30] [--out DIR]

All candidates of one size take turns in one process, so that other load affects them equally. The reported ratio is
the median over rounds of the ratio within a round. Rounds are repeated until every median is known to 2% or the time
runs out. In the second case the table says that the machine was too noisy. The limit reads and writes the same bytes
of the same memory and computes nothing; it exists on the CPU only.
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
from semaopt.experiments.bench.candidates import BASE, CANDIDATES, LIMITS, Candidate, Pool, stream

#: Largest accepted relative error of a median ratio.
TOLERANCE = 0.02
FEWEST_ROUNDS, MOST_ROUNDS = 9, 400
#: Short steps are repeated until a turn lasts this long.
TURN_SECONDS = 2e-3
MOST_THREADS = 1024


def resnet50() -> list[tuple[int, ...]]:
    """Return the shapes of the 161 parameter tensors of ResNet-50, 25.6M elements in all."""
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
    """Seconds per step of one candidate, one entry per round."""

    name: str
    seconds: list[float] = field(default_factory=list)

    def ratios(self, base: Times) -> list[float]:
        """Return the ratio to the base within each round."""
        return [mine / its for mine, its in zip(self.seconds, base.seconds, strict=True)]

    def row(self, base: Times) -> Row:
        """Summarize all rounds."""
        ratios = self.ratios(base)
        low, middle, high = statistics.quantiles(ratios, n=4)
        # The notch of a box plot (McGill, Tukey, Larsen 1978): about a 95% interval for the median.
        error = 1.57 * (high - low) / math.sqrt(len(ratios)) / middle
        return Row(self.name, statistics.median(self.seconds), min(self.seconds), middle, low, high, error)


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    name: str
    median: float
    """Median seconds per step."""
    shortest: float
    """Shortest seconds per step."""
    ratio: float
    """Median ratio to the base."""
    low: float
    """Lower quartile of the ratios."""
    high: float
    """Upper quartile of the ratios."""
    error: float
    """Relative error of the median ratio."""


@dataclass(frozen=True)
class Result:
    """The measurements of one size."""

    size: str
    title: str
    rows: list[Row]
    rounds: int
    noisy: list[str]
    """Candidates whose ratio is not known to :data:`TOLERANCE`."""
    skipped: dict[str, str]
    """Candidates that could not be measured, with the reason."""
    load: float


def seconds_per_step(step: Callable[[], Any], repeats: int, wait: Callable[[], Any]) -> float:
    """Time ``repeats`` steps; ``wait`` blocks until the device is idle. Short steps are warmed up once."""
    if repeats > 1:
        step()
    wait()
    start = time.perf_counter()
    for _ in range(repeats):
        step()
    wait()
    return (time.perf_counter() - start) / repeats


def prepare(candidate: Candidate, xs: list[Tensor], pools: Sequence[Pool] = ()) -> Callable[[], Any]:
    """Return the candidate's step after three steps, so that its states and their memory pages exist."""
    optimizer = candidate.build(xs)
    for _ in range(3):
        optimizer.step()
    for pool in pools:
        pool.lend(optimizer)
    step: Callable[[], Any] = optimizer.step
    return step


def parameters(shapes: list[tuple[int, ...]], device: torch.device | str = "cpu") -> list[Tensor]:
    """Create random parameters with random gradients on a device."""
    generator = torch.Generator().manual_seed(0)
    xs: list[Tensor] = [torch.nn.Parameter(torch.randn(shape, generator=generator).to(device)) for shape in shapes]
    for x in xs:
        x.grad = torch.randn(x.shape, generator=generator).to(device)
    return xs


def measure(
    size: str, seconds: float, names: Sequence[str] | None = None, device: torch.device | str = "cpu"
) -> Result:
    """Measure all candidates on the parameters of one size for at most ``seconds``."""
    title, shapes = SIZES[size]
    device = torch.device(device)
    steps: dict[str, Callable[[], Any]] = {}
    skipped: dict[str, str] = {}
    shared = parameters(shapes, device)
    big = sum(x.numel() for x in shared) > 10**7
    pools = [Pool(x) for x in shared] if big else []
    for candidate in CANDIDATES:
        if (names is not None and candidate.name not in (*names, BASE)) or (candidate.slow and size == "large"):
            continue
        if candidate.missing():
            skipped[candidate.name] = candidate.missing()
            continue
        # Parameters larger than the caches can be shared: no candidate finds them in a cache.
        xs = shared if big else parameters(shapes, device)
        try:
            steps[candidate.name] = prepare(candidate, xs, pools)
        except (RuntimeError, ValueError) as error:
            if device.type == "cpu" or candidate.name == BASE:
                raise
            skipped[candidate.name] = f"unsupported on {device.type} ({str(error).splitlines()[0]})"
    wanted = {limit: arrays for limit, arrays in LIMITS.items() if names is None or limit in names}
    if big and device.type == "cpu" and semaopt.kernels.available():
        steps.update({limit: stream(arrays, pools) for limit, arrays in wanted.items()})
    times = take_turns(steps, seconds, pools, wait=waiter(device))
    base = times[BASE]
    rows = [t.row(base) for t in times.values()]
    noisy = [row.name for row in rows if row.error > TOLERANCE]
    return Result(size, title, rows, len(base.seconds), noisy, skipped, os.getloadavg()[0])


def waiter(device: torch.device) -> Callable[[], Any]:
    """Return the function that waits for a device: launches of kernels return before the kernels end."""
    return lambda: getattr(torch, device.type).synchronize()


def take_turns(
    steps: dict[str, Callable[[], Any]],
    seconds: float,
    pools: Sequence[Pool] = (),
    wait: Callable[[], Any] = lambda: None,
) -> dict[str, Times]:
    """Measure all steps in rounds until every ratio is known to :data:`TOLERANCE` or the time is over."""
    repeats = {name: max(1, int(TURN_SECONDS / seconds_per_step(step, 1, wait))) for name, step in steps.items()}
    times = {name: Times(name) for name in steps}
    order, shuffle = list(steps), random.Random(0).shuffle
    end = time.perf_counter() + seconds
    for number in range(MOST_ROUNDS):
        shuffle(order)  # no candidate always follows the same one
        for name in order:
            for pool in pools:
                pool.clear()
            times[name].seconds.append(seconds_per_step(steps[name], repeats[name], wait))
        if number + 1 >= FEWEST_ROUNDS:
            settled = all(t.row(times[BASE]).error <= TOLERANCE for t in times.values())
            if settled or time.perf_counter() > end:
                break
    return times


def table(result: Result) -> str:
    """Format the result as text, fastest first."""
    lines = [
        f"{result.title}: {result.rounds} rounds, load average {result.load:.1f}",
        f"  {'':34} {'median':>11} {'shortest':>11} {'ratio':>7}   quartiles",
    ]
    for row in sorted(result.rows, key=lambda row: row.ratio):
        times = f"{1e6 * row.median:8,.1f} us {1e6 * row.shortest:8,.1f} us"
        lines.append(f"  {row.name:34} {times} {row.ratio:7.3f}   {row.low:.3f} {row.high:.3f}")
    if result.noisy:
        worst = max(row.error for row in result.rows)
        lines.append(
            f"  Too noisy: {', '.join(result.noisy)}: ratios known only to {worst:.0%} instead of {TOLERANCE:.0%}. "
            "Repeat on an idle machine or with more --seconds."
        )
    lines += [f"  Skipped {name}: {why}" for name, why in result.skipped.items()]
    return "\n".join(lines)


def environment(threads: int, device: torch.device | str = "cpu") -> dict[str, Any]:
    """Return the versions and the hardware that the times depend on."""
    device = torch.device(device)
    return {
        "semaopt": semaopt.__version__,
        "kernels": str(semaopt.kernels.available()),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "processor": torch.cuda.get_device_name(device) if device.type == "cuda" else _processor(),
        "device": str(device),
        "threads": threads,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def save(results: list[Result], about: dict[str, Any], out: Path) -> None:
    """Write ``step.json`` and, if Matplotlib is installed, ``step.svg``."""
    out.mkdir(parents=True, exist_ok=True)
    document = {"environment": about, "base": BASE, "results": [asdict(result) for result in results]}
    (out / "step.json").write_text(json.dumps(document, indent=1))
    try:
        from semaopt.experiments.bench.plot import draw
    except ImportError as error:
        print(f"No figure: {error}. Install it with: pip install 'semaopt[experiments]'")
        return
    draw(document, out / "step.svg")


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line of ``semaopt bench step``."""
    parser = argparse.ArgumentParser(prog="semaopt bench step", description=(__doc__ or "").partition("\n")[0])
    sizes = "; ".join(f"{name}: {title}" for name, (title, _) in SIZES.items())
    parser.add_argument(
        "--sizes", nargs="+", choices=SIZES, default=list(SIZES), metavar="SIZE", help=f"{sizes} (default: all)"
    )
    parser.add_argument(
        "--only", nargs="+", metavar="NAME", help="measure only these candidates and torch's fused Adam (default: all)"
    )
    parser.add_argument("--device", default="cpu", help="device of the parameters: cpu, cuda, cuda:1 (default: cpu)")
    parser.add_argument(
        "--threads", type=int, default=min(2, os.cpu_count() or 1), help="CPU threads (default: %(default)s)"
    )
    parser.add_argument(
        "--seconds", type=float, default=30.0, help="longest measuring time per size (default: %(default)s)"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="write step.json and step.svg there")
    given = parser.parse_args(argv)
    _validate(parser, given)
    before = torch.get_num_threads()
    torch.set_num_threads(given.threads)
    try:
        about = environment(given.threads, given.device)
        print(", ".join(f"{key} {value}" for key, value in about.items()))
        print(f"Ratios are to {BASE}.", flush=True)
        results = []
        for size in given.sizes:
            results.append(measure(size, given.seconds, given.only, given.device))
            print(table(results[-1]), flush=True)
        if given.out is not None:
            save(results, about, given.out)
    finally:
        torch.set_num_threads(before)


def _validate(parser: argparse.ArgumentParser, given: argparse.Namespace) -> None:
    known = [*(c.name for c in CANDIDATES), *LIMITS]
    unknown = sorted(set(given.only or ()) - set(known))

    def quoted(names: Sequence[str]) -> str:  # some names contain commas
        return ", ".join(f'"{name}"' for name in names)

    if unknown:
        parser.error(f"--only {quoted(unknown)}: unknown candidate. Choose from: {quoted(known)}")
    if not 1 <= given.threads <= MOST_THREADS:
        parser.error(f"--threads {given.threads}: must be between 1 and {MOST_THREADS}. Try --threads 1.")
    if not 0 < given.seconds < math.inf:
        parser.error(f"--seconds {given.seconds}: must be a number above 0. Try --seconds 30.")
    try:
        torch.empty(0, device=given.device)
    except (RuntimeError, AssertionError) as error:  # torch raises both for a missing device
        parser.error(f"--device {given.device}: not available ({str(error).splitlines()[0]}). Try --device cpu.")
    if given.out is not None:
        try:
            given.out.mkdir(parents=True, exist_ok=True)
        except (OSError, ValueError) as error:  # ValueError: a null byte in the path
            parser.error(f"--out {str(given.out)!r}: cannot be created ({error}). Choose another folder.")


if __name__ == "__main__":
    main()
