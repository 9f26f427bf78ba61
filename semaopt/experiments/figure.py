"""The figure: two recorded metrics against epochs, mean and spread over the seeds."""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from semaopt.experiments.results import Finding

Curves = npt.NDArray[np.float64]

#: Told apart by people who see colours differently (Okabe and Ito), and by the line style in print.
COLOURS = ("#d55e00", "#0072b2", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
STYLES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1, 1, 1)))
_TINY = 1e-12  # below what float32 can tell from a loss of 0
_INK = "#010203"  # stands for the page's text colour in panels()
_STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "semaopt",
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
_INKED = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")


@dataclass(frozen=True)
class Drawing:
    """One picture in two formats."""

    svg: str
    png: bytes


def shown(finding: Finding) -> tuple[str, str]:
    """The two metrics that are drawn: that of the claim, and the last other one."""
    claimed = finding.spec.claim.metric
    others = [metric for metric in finding.spec.metrics if metric != claimed]
    return claimed, (others or [claimed])[-1]


def whole(finding: Finding) -> Drawing:
    """Both panels under the headline."""
    with _style("black"):
        figure = Figure(figsize=(10, 4.6), layout="constrained")
        axes = figure.subplots(1, 2)
        for panel, metric in zip(axes, shown(finding), strict=True):
            draw(panel, finding, metric)
        axes[0].legend(frameon=False, fontsize=9)
        sentences = finding.headline.replace(". ", ".\n").splitlines()
        figure.suptitle("\n".join(textwrap.fill(sentence, 110) for sentence in sentences), fontsize=11)
        figure.supxlabel("\n".join(textwrap.wrap(finding.evidence, 130)), fontsize=9)
        return Drawing(_svg(figure), _png(figure))


def panels(finding: Finding) -> dict[str, str]:
    """Each panel as an SVG for a page: without background, in the page's text colour, its ids its own."""
    found = {}
    for metric in dict.fromkeys(shown(finding)):
        with _style(_INK):
            figure = Figure(figsize=(5.2, 3.9), layout="constrained")
            figure.patch.set_alpha(0)
            axes = figure.subplots()
            axes.patch.set_alpha(0)
            draw(axes, finding, metric)
            _legend(figure, axes)
            found[metric] = _inline(_svg(figure), f"{finding.name}-{metric}")
    return found


def draw(axes: Axes, finding: Finding, metric: str) -> None:
    """One metric of all methods: losses and bounds on a logarithmic axis, shares in percent."""
    name = finding.metric_name(metric)
    curves = [np.array(final.curves(metric), dtype=float) for final in finding.finals]
    if metric.endswith(("_accuracy", "_auc")):
        _draw_shares(axes, finding, curves)
        _finish(axes, finding, f"{name} (%)")
    elif min((np.nanmin(one) for one in curves if not np.isnan(one).all()), default=0.0) < 0:
        for k, (final, one) in enumerate(zip(finding.finals, curves, strict=True)):  # the objective of the AUC
            _band(axes, k, final.method.label, one)
        _finish(axes, finding, name)
    else:
        # Of the logarithm: on this axis the band is as wide up as down.
        for k, (final, one) in enumerate(zip(finding.finals, curves, strict=True)):
            _band(axes, k, final.method.label, np.log(np.maximum(one, _TINY)), np.exp)
        axes.set_yscale("log")
        _plain_ticks(axes)
        unit = " (cross-entropy, nats)" if metric.endswith("_loss") else ""
        _finish(axes, finding, f"{name}{unit}")


def _draw_shares(axes: Axes, finding: Finding, curves: list[Curves]) -> None:
    for k, (final, one) in enumerate(zip(finding.finals, curves, strict=True)):
        _band(axes, k, final.method.label, 100 * one)
    # The first steps up from chance would flatten the rest: begin where the slowest is after a tenth of the epochs.
    early = [100 * float(one.mean(0)[one.shape[1] // 10]) for one in curves]
    axes.set_ylim(bottom=min((percent for percent in early if np.isfinite(percent)), default=None))


def _band(axes: Axes, k: int, label: str, values: Curves, back: Callable[[Curves], Curves] = np.asarray) -> None:
    """Method k: the mean over the seeds and a standard deviation to each side, both then mapped by ``back``."""
    colour: str = COLOURS[k % len(COLOURS)]
    style: Any = STYLES[k % len(STYLES)]
    epochs = np.arange(1, values.shape[1] + 1)
    mean = values.mean(0)
    std = values.std(0, ddof=1) if len(values) > 1 else np.zeros_like(mean)
    axes.plot(epochs, back(mean), linestyle=style, color=colour, label=label, linewidth=1.8)
    axes.fill_between(epochs, back(mean - std), back(mean + std), color=colour, alpha=0.2, linewidth=0)


def _finish(axes: Axes, finding: Finding, label: str) -> None:
    for epoch in finding.decay_epochs:
        axes.axvline(epoch, color="#888888", linewidth=0.8, linestyle=":")
    axes.set_xlabel("epoch (dotted: rates decay)" if finding.decay_epochs else "epoch")
    axes.set_ylabel(label)


def _plain_ticks(axes: Axes) -> None:
    """0.001 instead of a power; within a few decades also 2 and 5 between the powers."""
    low, high = axes.get_ylim()
    if high > 1e5 * low:  # powers are shorter
        return
    plain = FuncFormatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_major_formatter(plain)
    if high < 1000 * low:
        axes.yaxis.set_minor_locator(LogLocator(subs=(2, 5)))
    axes.yaxis.set_minor_formatter(plain if high < 1000 * low else NullFormatter())


def _legend(figure: Figure, axes: Axes) -> None:
    """Beside the curves rather than over them."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        loc="outside upper center",
        ncols=min(len(handles), 3),
        frameon=False,
        fontsize=9,
        handlelength=1.6,
        columnspacing=1.2,
    )


@contextmanager
def _style(ink: str) -> Iterator[None]:
    style: dict[Any, Any] = {**_STYLE, **dict.fromkeys(_INKED, ink)}  # matplotlib lists all keys as its key type
    with mpl.rc_context(style):
        yield


def _png(figure: Figure) -> bytes:
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=160, metadata={"Software": None})
    return file.getvalue()


def _svg(figure: Figure) -> str:
    file = io.StringIO()
    figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    return file.getvalue()


def _inline(svg: str, name: str) -> str:
    """An SVG file made fit to stand in a page, beside others."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r' (?:width|height)="[\d.]+pt"', "", svg, count=2)
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r'(url\(|href=")#', rf"\1#{name}-", svg)
    for k, colour in enumerate(COLOURS):
        svg = svg.replace(colour, f"var(--method-{k})")
    return svg.replace(_INK, "currentColor")
