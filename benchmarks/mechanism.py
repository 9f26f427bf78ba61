"""When does the moving average pay off? Two measurements behind docs/results/mechanism.md.

    python benchmarks/mechanism.py tracking                  # the tracking error of the average on a network
    python benchmarks/mechanism.py tracking --data bbbp      # the same on the message-passing network (half an hour)
    python benchmarks/mechanism.py phase --out results/phase # increasing beta against lr decay alone

``tracking`` measures |v - grad F|^2 / |grad F|^2 while Adam trains with fixed or falling gamma and lr, at
several batch sizes. ``phase`` tunes and compares the two control arms of Figure 1 in a grid of settings; finished runs
are stored in ``--out`` and reused. Both print a table in Markdown and write a figure.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from semaopt.diagnostics import Monitor
from semaopt.experiments import spec as specs
from semaopt.experiments.report import style
from semaopt.experiments.results.model import Finding
from semaopt.experiments.spec.schema import Spec
from semaopt.experiments.sweep import study
from semaopt.experiments.sweep.engines.local import InProcess
from semaopt.experiments.sweep.run import make
from semaopt.experiments.sweep.runner import Silent, Workspace
from semaopt.experiments.training import loop, metrics
from semaopt.experiments.training.run import Machine
from semaopt.experiments.training.single import SingleRun

ARMS = {
    "γ fixed, lr fixed": [],
    "γ falls, lr fixed": ["gamma"],
    "γ fixed, lr falls": ["lr"],
    "γ falls, lr falls": ["lr", "gamma"],
}
BATCHES = (4, 32, 256)
NOISES, HORIZONS = (0.0, 0.2, 0.5), (3, 12)


def tracking_spec(args: argparse.Namespace, batch: int, decays: list[str]) -> Spec:
    """Return the spec of one arm: Adam with beta 0.9; rates times 0.2 after each third of the epochs."""
    raw = specs.load(f"figure1-{args.data}", scale="quick").model_dump()
    options: dict[str, Any] = {"scaling": "adam", "beta2": 0.999, "bias_correction": True, "beta": 0.9, "lr": args.lr}
    decay = {"every": args.epochs // 3, "factor": 0.2} if decays else {}
    method = {"name": "arm", "label": "arm", "algorithm": "ASA", "decays": decays, "options": {**options, **decay}}
    changes = {
        "batch": batch,
        "epochs": args.epochs,
        "vectorize": 1,
        "studies": 1,
        "tuning": None,
        "methods": [method],
        "data": {**raw["data"], "noise": args.noise, "subset": None},
        "seeds": {"final": [0]},
        "claim": {"text": "-", "metric": "train_loss"},
    }
    return specs.build({**raw, **changes})


def track(spec: Spec, seed: int, measured: int) -> list[float]:
    """Train one run; return the relative tracking error at ``measured`` evenly spaced steps."""
    torch.manual_seed(seed)
    run = make(spec, spec.methods[0], {}, seed=seed, purpose="final", machine=Machine())
    task = loop.task(spec.data)
    one = SingleRun(run, task)
    inputs, labels = task.train.inputs(), task.train.labels

    def full_loss() -> torch.Tensor:
        return metrics.class_loss(one.network(inputs), labels, task.train.noise, task.classes)

    every = max(1, spec.epochs * one.steps // measured)
    with Monitor(one.optimizer, every=every, full_gradient=full_loss) as monitor:
        for _ in range(spec.epochs):
            one.draw()
            for k in range(one.steps):
                one.step(k)
            one.end_epoch()
        records = monitor.history
    return [r.tracking_error / r.gradient_norm**2 for r in records if r.tracking_error and r.gradient_norm]


def tracking(args: argparse.Namespace) -> None:
    """Print the geometric mean of the relative error in the last third of training, and draw all curves."""
    batches = args.batches
    curves: dict[tuple[int, str], np.ndarray] = {}
    for batch in batches:
        for name, decays in ARMS.items():
            spec = tracking_spec(args, batch, decays)
            runs = [track(spec, seed, args.points) for seed in range(args.seeds)]
            length = min(map(len, runs))
            curves[batch, name] = np.array([run[:length] for run in runs])
    print(f"| batch | {' | '.join(ARMS)} |\n|---|{'---|' * len(ARMS)}")
    for batch in batches:
        cells = []
        for name in ARMS:
            last = curves[batch, name][:, -args.points // 3 :]
            logs = np.log(last).mean(1)
            error = logs.std(ddof=1) / math.sqrt(len(logs)) if len(logs) > 1 else 0.0
            cells.append(f"{math.exp(logs.mean()):.2g} (× {math.exp(error):.2f})")
        print(f"| {batch} | {' | '.join(cells)} |")
    looks = [("black", style.DOTTED), ("blue", style.DASHED), ("green", style.DASH_DOT), ("vermillion", style.SOLID)]
    with style.settings():
        figure = style.blank((10 if len(batches) > 1 else 5.2, 3.9))
        for axes, batch in zip(figure.subplots(1, len(batches), squeeze=False, sharey=True)[0], batches, strict=True):
            axes.patch.set_alpha(0)
            for name, (hue, dash) in zip(ARMS, looks, strict=True):
                mean = np.exp(np.log(curves[batch, name]).mean(0))
                x = np.linspace(0, args.epochs, len(mean) + 1)[1:]
                axes.plot(x, mean, color=style.HUES[hue][0], linestyle=dash, label=name)
            axes.axhline(1, color="#888888", linewidth=0.8)
            axes.set_yscale("log")
            axes.set_title(f"batch {batch}", fontsize=10)
            axes.set_xlabel("epoch")
        figure.axes[0].set_ylabel("|v − ∇F|² / |∇F|²")
        handles, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=4, frameon=False, fontsize=9)
        write(args.figure or f"mechanism-{args.data}.svg", style.standalone(style.svg(figure)))


def phase_specs() -> Iterator[tuple[tuple[float, int, int], Spec]]:
    """Yield the settings with their specs: the arms "increasing beta" and "decreasing lr alone" of Figure 1."""
    raw = specs.load("figure1-digits", scale="quick").model_dump()
    for noise in NOISES:
        for batch in BATCHES:
            for epochs in HORIZONS:
                methods = [{**one, "contains": []} for one in raw["methods"] if one["name"] in ("lr", "beta")]
                for one in methods:
                    one["options"] = {**one["options"], "every": epochs // 3}
                    one["grid"] = {"beta": [0.5, 0.9], "factor": [0.5, 0.2, 0.1]}
                changes = {
                    "name": f"phase-{noise:g}-{batch}-{epochs}",
                    "batch": batch,
                    "epochs": epochs,
                    "final_epochs": 1,
                    "methods": methods,
                    "data": {**raw["data"], "noise": noise},
                    "seeds": {"tuning": [100], "final": [0, 1]},
                    "claim": {"text": "-", "metric": "train_loss", "beats": {"beta": ["lr"]}},
                    "studies": 3,
                    "tuning": {**raw["tuning"], "budget": 6},
                }
                yield (noise, batch, epochs), specs.build({**raw, **changes})


def phase(args: argparse.Namespace) -> None:
    """Print and draw the ratio of the training loss with increasing beta to that with lr decay alone."""
    cells = dict(phase_specs())
    place = Workspace(Path(args.out), Machine())
    results = study.conduct(list(cells.values()), place, InProcess(), Silent(), command="benchmarks/mechanism.py phase")
    found: dict[tuple[float, int, int], Finding] = dict(zip(cells, results.findings, strict=True))
    print(f"| label noise | batch | {' | '.join(f'{epochs} epochs' for epochs in HORIZONS)} |\n|---|---|---|---|")
    for noise in NOISES:
        for batch in BATCHES:
            texts = [found[noise, batch, epochs].compare("train_loss", "beta", "lr").text for epochs in HORIZONS]
            print(f"| {noise:g} | {batch} | {' | '.join(texts)} |")
    with style.settings():
        figure = style.blank((4.2 * len(HORIZONS), 3.6))
        for axes, epochs in zip(figure.subplots(1, len(HORIZONS)), HORIZONS, strict=True):
            draw_phase(axes, found, epochs)
        write(args.figure or "mechanism-phase.svg", style.standalone(style.svg(figure)))


def draw_phase(axes: Axes, found: dict[tuple[float, int, int], Finding], epochs: int) -> None:
    """Draw one panel: a square for each noise and batch, its ratio and its verdict as text."""
    axes.patch.set_alpha(0)
    for i, noise in enumerate(NOISES):
        for j, batch in enumerate(BATCHES):
            one = found[noise, batch, epochs].compare("train_loss", "beta", "lr")
            ratio = geometric_mean([a / b for a, b in zip(one.values, one.other_values, strict=True)])
            strength = min(abs(math.log(ratio)) / math.log(3), 1)
            hue = style.HUES["blue" if ratio < 1 else "vermillion"][0]
            axes.add_patch(Rectangle((j, i), 1, 1, color=hue, alpha=0.08 + 0.5 * strength))
            axes.text(j + 0.5, i + 0.5, f"× {ratio:.2f}\n{one.outcome}", ha="center", va="center", fontsize=8.5)
    axes.set_xlim(0, len(BATCHES))
    axes.set_ylim(0, len(NOISES))
    axes.set_xticks([k + 0.5 for k in range(len(BATCHES))], [str(batch) for batch in BATCHES])
    axes.set_yticks([k + 0.5 for k in range(len(NOISES))], [f"{noise:g}" for noise in NOISES])
    axes.set_xlabel("batch size")
    axes.set_ylabel("label noise")
    axes.set_title(f"{epochs} epochs", fontsize=10)


def write(path: str, text: str) -> None:
    """Write a figure and say where."""
    Path(path).write_text(text)
    print(f"\n{path}")


def main() -> None:
    """Parse the command line and run one of the measurements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("tracking")
    one.add_argument("--data", default="digits", choices=["digits", "bbbp"])
    one.add_argument("--batches", type=int, nargs="+", default=BATCHES, help="batch sizes, one panel each")
    one.add_argument("--noise", type=float, default=0.0, help="share of labels replaced each time they are drawn")
    one.add_argument("--epochs", type=int, default=12)
    one.add_argument("--lr", type=float, default=3e-3)
    one.add_argument("--seeds", type=int, default=3)
    one.add_argument("--points", type=int, default=60, help="measurements per run")
    one.add_argument("--figure", help="the SVG file to write")
    one.set_defaults(run=tracking)
    two = commands.add_parser("phase")
    two.add_argument("--out", default="results/phase")
    two.add_argument("--figure", help="the SVG file to write")
    two.set_defaults(run=phase)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
