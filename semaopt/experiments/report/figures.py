"""The figure: recorded metrics against epochs, mean and spread over the seeds."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from semaopt.checks.figures import COLOURS
from semaopt.experiments.report import style as drawing
from semaopt.experiments.results.model import Finding
from semaopt.experiments.training.metrics import BOUNDS, is_share

Curves = npt.NDArray[np.float64]

#: Told apart in print.
STYLES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1, 1, 1)))
_TINY = 1e-12  # below what float32 can tell from a loss of 0


@dataclass(frozen=True)
class Drawing:
    """One picture in two formats."""

    svg: str
    png: bytes


def shown(finding: Finding) -> list[str]:
    """The metrics that are drawn: that of the claim and the last other one; for a claim about s all of s."""
    claimed = finding.spec.claim.metric
    if claimed in BOUNDS:
        return [metric for metric in BOUNDS if metric in finding.spec.metrics]
    others = [metric for metric in finding.spec.metrics if metric != claimed]
    return [claimed, *others[-1:]]


def whole(finding: Finding) -> Drawing:
    """All panels under the headline."""
    return Drawing(
        drawing.standalone(drawing.element(_whole(finding, drawing.INK))), drawing.png(_whole(finding, "black"))
    )


def _whole(finding: Finding, ink: str) -> Figure:
    metrics = shown(finding)
    with drawing.style(ink):
        figure = drawing.blank((10, 4.9), ink)
        axes = figure.subplots(1, len(metrics), squeeze=False)[0]
        for panel, metric in zip(axes, metrics, strict=True):
            panel.patch.set_alpha(figure.patch.get_alpha())
            draw(panel, finding, metric)
        sentences = drawing.plain(finding.headline).replace(". ", ".\n").splitlines()
        # The legend stands above the title, in the two lines that it leaves.
        figure.suptitle("\n".join(["", "", *(textwrap.fill(sentence, 110) for sentence in sentences)]), fontsize=11)
        figure.supxlabel("\n".join(textwrap.wrap(drawing.plain(finding.evidence), 130)), fontsize=9)
        drawing.legend(figure, axes[0], 6)
        return figure


def panels(finding: Finding) -> dict[str, str]:
    """Each panel as an SVG for a page: without background, in the page's text colour, its ids its own."""
    found = {}
    for metric in shown(finding):
        with drawing.style(drawing.INK):
            figure = drawing.blank((5.2, 3.9), drawing.INK)
            axes = figure.subplots()
            axes.patch.set_alpha(0)
            draw(axes, finding, metric)
            drawing.legend(figure, axes, 3)
            found[metric] = drawing.inline(drawing.element(figure), f"{finding.name}-{metric}")
    return found


def draw(axes: Axes, finding: Finding, metric: str) -> None:
    """One metric of all methods: losses and bounds on a logarithmic axis, shares in percent."""
    name = finding.metric_name(metric)
    curves = [np.array(final.curves(metric), dtype=float) for final in finding.finals]
    if is_share(metric):
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
        _band(axes, k, final.method.label, 100 * one, lambda percent: np.clip(percent, 0, 100))
    # The first steps up from chance would flatten the rest: begin where the slowest is after a tenth of the epochs, or
    # later where one falls.
    means = [100 * one.mean(0)[one.shape[1] // 10 :] for one in curves]
    found = np.concatenate(means)
    found = found[np.isfinite(found)]
    if len(found):
        low = float(found.min())
        axes.set_ylim(bottom=max(0.0, min(low - 0.03 * (100 - low), 99.0)))
        bottom, top = axes.get_ylim()
        axes.set_ylim(top=min(top, 100 + 0.02 * (100 - bottom)))  # a line at 100 is seen, no tick is above it


def _band(axes: Axes, k: int, label: str, values: Curves, back: Callable[[Curves], Curves] = np.asarray) -> None:
    """Method k: the mean over the seeds and a standard deviation to each side, both then mapped by ``back``."""
    colour: str = COLOURS[k % len(COLOURS)]
    style: Any = STYLES[k % len(STYLES)]
    epochs = np.arange(1, values.shape[1] + 1)
    mean = values.mean(0)
    std = values.std(0, ddof=1) if len(values) > 1 else np.zeros_like(mean)
    axes.plot(epochs, back(mean), linestyle=style, color=colour, label=drawing.plain(label), linewidth=1.8)
    axes.fill_between(epochs, back(mean - std), back(mean + std), color=colour, alpha=0.2, linewidth=0)


def _finish(axes: Axes, finding: Finding, label: str) -> None:
    for epoch in finding.decay_epochs:
        axes.axvline(epoch, color="#888888", linewidth=0.8, linestyle=":")
    axes.set_xlabel("epoch (dotted: rates decay)" if finding.decay_epochs else "epoch")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
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
