"""Figures: differences with their intervals, metrics over epochs, and theorem checks."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from semaopt.checks.result import CheckResult as Check
from semaopt.experiments.report import style, wording
from semaopt.experiments.report.style import Look
from semaopt.experiments.results import claims
from semaopt.experiments.results.model import Finding
from semaopt.experiments.training.metrics import BOUNDS, PARTS, is_share

Array = npt.NDArray[np.float64]
Looks = Mapping[str, Look]

_PANEL = (5.2, 3.9)  # inches; about as wide as a phone
_ROW = 0.46  # inches per comparison
_SATURATED = 0.99  # shares are drawn as 1 - share on a logarithmic axis if the best method ends above this
_SMALLEST = 1e-12  # smallest value on a logarithmic axis
_LONGEST_LABEL = 18  # characters of a label at the end of a line
_MOST_SHIFT = 0.14  # of the height of the axes, for a label at the end of a line


@dataclass(frozen=True)
class Drawing:
    """One picture in two formats."""

    svg: str
    png: bytes


@dataclass(frozen=True)
class Curve:
    """The mean of one method over its seeds with a band of one standard error, in the units of the axis."""

    mean: Array
    low: Array
    high: Array


@dataclass(frozen=True)
class Scale:
    """The vertical axis of one metric, and the curves of all methods on it."""

    label: str
    curves: tuple[Curve, ...]
    kind: str
    """"percent", "linear" or "log"."""


def panel_metrics(finding: Finding) -> list[str]:
    """Return the metrics that are drawn: that of the claim and the last other one, training before test.

    A claim about the scaling s shows all bounds of s.
    """
    claimed = finding.spec.claim.metric
    if claimed in BOUNDS:
        return [metric for metric in BOUNDS if metric in finding.spec.metrics]
    others = [metric for metric in finding.spec.metrics if metric != claimed]
    return sorted([claimed, *others[-1:]], key=_part)


def _part(metric: str) -> int:
    return PARTS.index(metric.partition("_")[0]) if metric.partition("_")[0] in PARTS else len(PARTS)


def scale(finding: Finding, metric: str) -> Scale:
    """Choose the axis of a metric: percent for shares, log for errors near zero and positive values, else linear."""
    name = finding.metric_name(metric)
    samples = [np.array(final.curves(metric), dtype=float) for final in finding.finals]
    if is_share(metric) and saturates(finding, metric):
        errors = [1 - one for one in samples]
        positive = np.concatenate([one[one > 0] for one in errors])
        floor = 0.5 * float(positive.min()) if positive.size else 1e-4
        return Scale(f"1 − {name}", tuple(_log_curve(np.maximum(one, floor)) for one in errors), "log")
    if is_share(metric):
        return Scale(f"{name} (%)", tuple(_curve(100 * one) for one in samples), "percent")
    finite = np.concatenate([one[np.isfinite(one)] for one in samples])
    if finite.size and finite.min() < 0:
        return Scale(name, tuple(_curve(one) for one in samples), "linear")
    return Scale(name, tuple(_log_curve(np.maximum(one, _SMALLEST)) for one in samples), "log")


def saturates(finding: Finding, metric: str) -> bool:
    """Whether a share is so close to 1 that a linear axis would hide the differences between methods."""
    if not is_share(metric):
        return False
    ends = [np.mean(final.curves(metric), axis=0)[-1] for final in finding.finals]
    return any(end >= _SATURATED for end in ends)


def _curve(values: Array) -> Curve:
    mean = values.mean(0)
    error = values.std(0, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else np.zeros_like(mean)
    return Curve(mean, mean - error, mean + error)


def _log_curve(values: Array) -> Curve:
    """Average logarithms, so that the band is as wide above the mean as below it."""
    logs = _curve(np.log(values))
    return Curve(np.exp(logs.mean), np.exp(logs.low), np.exp(logs.high))


def whole(finding: Finding, looks: Looks) -> Drawing:
    """Draw one file with the verdict as its title, the differences, and below them the panels."""
    return Drawing(
        style.standalone(style.svg(_whole(finding, looks, style.INK))), style.png(_whole(finding, looks, "black"))
    )


def _whole(finding: Finding, looks: Looks, ink: str) -> Figure:
    metrics, rows = panel_metrics(finding), comparable(finding)
    heights = [0.8 + _ROW * len(rows), 4.3] if rows else [4.3]
    with style.settings(ink):
        figure = style.blank((10, sum(heights) + 0.6), ink)
        parts = figure.subfigures(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0]
        for part in parts:
            part.patch.set_alpha(0)
        if rows:
            draw_differences(_axes(parts[0].subplots(), ink), finding, looks)
        panels = [_axes(axes, ink) for axes in parts[-1].subplots(1, len(metrics), squeeze=False)[0]]
        drawn = [draw_curves(panel, finding, metric, looks) for panel, metric in zip(panels, metrics, strict=True)]
        figure.suptitle(style.plain(textwrap.fill(wording.headline(finding), 120)), fontsize=11)
        caption = wording.curves_caption(finding, saturated=any(saturates(finding, metric) for metric in metrics))
        parts[-1].supxlabel(style.plain(textwrap.fill(caption, 140)), fontsize=9)
        _name_lines(panels, drawn, finding, looks, height=3.9)
        return figure


def _axes(axes: Axes, ink: str = style.INK) -> Axes:
    axes.patch.set_alpha(0 if ink == style.INK else 1)
    return axes


def panels(finding: Finding, looks: Looks) -> dict[str, str]:
    """Draw each metric as an SVG for a page: transparent, in the page's text colour."""
    found = {}
    for metric in panel_metrics(finding):
        with style.settings():
            figure = style.blank(_PANEL)
            axes = _axes(figure.subplots())
            drawn = draw_curves(axes, finding, metric, looks)
            _name_lines([axes], [drawn], finding, looks, height=_PANEL[1])
            found[metric] = style.inline(style.svg(figure), f"{finding.name}-{metric}")
    return found


def draw_curves(axes: Axes, finding: Finding, metric: str, looks: Looks) -> Scale:
    """Draw one metric of all methods over the epochs."""
    chosen = scale(finding, metric)
    epochs = np.arange(1, finding.spec.epochs + 1)
    for k, (final, curve) in enumerate(zip(finding.finals, chosen.curves, strict=True)):
        look = looks[final.method.name]
        step = max(1, len(epochs) // 6)
        axes.plot(
            epochs,
            curve.mean,
            color=look.colour,
            linestyle=look.dash,
            linewidth=1.8,
            marker=look.marker,
            markersize=5,
            markevery=(k * step // max(1, len(finding.finals)), step),
            label=style.plain(final.method.label),
        )
        axes.fill_between(epochs, curve.low, curve.high, color=look.colour, alpha=0.16, linewidth=0)
    if chosen.kind == "percent":
        _limit_shares(axes, chosen.curves)
    elif chosen.kind == "log":
        axes.set_yscale("log")
        _plain_ticks(axes)
    for epoch in finding.decay_epochs:
        axes.axvline(epoch, color="#888888", linewidth=0.8, linestyle=":")
    axes.margins(x=0.02)
    axes.set_xlabel("epoch")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    axes.set_ylabel(style.plain(chosen.label))
    return chosen


def _limit_shares(axes: Axes, curves: Sequence[Curve]) -> None:
    """Start the axis where the slowest method is after a tenth of the epochs, and end it at 100."""
    later = np.concatenate([curve.mean[len(curve.mean) // 10 :] for curve in curves])
    later = later[np.isfinite(later)]
    if len(later):
        low = float(later.min())
        axes.set_ylim(bottom=max(0.0, min(low - 0.03 * (100 - low), 99.0)))
        bottom, top = axes.get_ylim()
        axes.set_ylim(top=min(top, 100 + 0.02 * (100 - bottom)))  # a line at 100 stays visible without a tick above it


def _plain_ticks(axes: Axes) -> None:
    """Write 0.001 instead of a power; within three decades also label 2 and 5 between the powers."""
    low, high = axes.get_ylim()
    if high > 1e5 * low:  # powers are shorter
        return
    text = FuncFormatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_major_formatter(text)
    if high < 1000 * low:
        axes.yaxis.set_minor_locator(LogLocator(subs=(2, 5)))
    axes.yaxis.set_minor_formatter(text if high < 1000 * low else NullFormatter())


def _name_lines(
    panels: Sequence[Axes], scales: Sequence[Scale], finding: Finding, looks: Looks, *, height: float
) -> None:
    """Label every line at its end if the labels fit, else add one legend above the panels."""
    gap = 11.5 / (72 * height * 0.75)  # one line of text, of the height of the axes
    labels = [final.method.label for final in finding.finals]
    places = [_label_places(axes, one, gap) for axes, one in zip(panels, scales, strict=True)]
    if max(map(len, labels)) > _LONGEST_LABEL or any(place is None for place in places):
        legend(panels[0], columns=3 * len(panels))
        return
    for axes, place in zip(panels, places, strict=True):
        for final, (at, text_at) in zip(finding.finals, place or (), strict=True):
            colour = looks[final.method.name].colour
            axes.annotate(
                style.plain(final.method.label),
                xy=(1.0, at),
                xytext=(1.035, text_at),
                xycoords="axes fraction",
                va="center",
                fontsize=9,
                color=colour,
                annotation_clip=False,
                arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.7, "shrinkA": 0, "shrinkB": 0},
            )


def _label_places(axes: Axes, chosen: Scale, gap: float) -> list[tuple[float, float]] | None:
    """Return for each line the height of its end and of its label, in axes fractions; None if labels do not fit."""
    axes.get_ylim()  # updates the limits
    ends = [float(curve.mean[-1]) for curve in chosen.curves]
    if not all(np.isfinite(ends)):
        return None
    to_axes = axes.transScale + axes.transLimits
    heights = [float(to_axes.transform((axes.get_xlim()[1], end))[1]) for end in ends]
    order = sorted(range(len(heights)), key=heights.__getitem__)
    up, down = list(heights), list(heights)
    for below, above in pairwise(order):
        up[above] = max(up[above], up[below] + gap)
    for above, below in pairwise(reversed(order)):
        down[below] = min(down[below], down[above] - gap)
    places = [(a + b) / 2 for a, b in zip(up, down, strict=True)]
    shift = max(0.0, -min(places)) - max(0.0, max(places) - 1)
    places = [place + shift for place in places]
    if any(abs(place - at) > _MOST_SHIFT for place, at in zip(places, heights, strict=True)):
        return None
    return list(zip(heights, places, strict=True))


def legend(axes: Axes, columns: int) -> None:
    """Add a legend above the axes instead of over the curves."""
    handles, labels = axes.get_legend_handles_labels()
    axes.figure.legend(
        handles,
        labels,
        loc="outside upper center",
        ncols=min(len(handles), columns),
        frameon=False,
        fontsize=9,
        handlelength=2.6,
        columnspacing=1.2,
    )


def comparable(finding: Finding) -> list[claims.ClaimRow]:
    """Return the comparisons of the claim and with its control arms that have an interval."""
    found = claims.verdict(finding)
    return [row for row in (*found.rows, *found.controls) if row.comparison.interval is not None]


def differences(finding: Finding, looks: Looks) -> str | None:
    """Draw the comparisons of the claim as an SVG for a page; None if there are none."""
    rows = comparable(finding)
    if not rows:
        return None
    with style.settings():
        figure = style.blank((_PANEL[0], 0.8 + _ROW * len(rows)))
        axes = _axes(figure.subplots())
        draw_differences(axes, finding, looks)
        return style.inline(style.svg(figure), f"{finding.name}-differences")


def draw_differences(axes: Axes, finding: Finding, looks: Looks) -> None:
    """Draw a dot and an interval for each comparison of the claim, the first on top, under a line of text."""
    rows = comparable(finding)
    first = rows[0].comparison
    for k, row in enumerate(rows):
        one, y = row.comparison, len(rows) - 1 - k
        look = looks[one.method]
        assert one.interval is not None  # see comparable
        axes.plot([one.interval.low, one.interval.high], [y, y], color=look.colour, linewidth=2.2)
        axes.plot([one.interval.value], [y], color=look.colour, marker=look.marker, markersize=7)
        axes.annotate(
            style.plain(wording.difference_label(finding, row)),
            xy=(0.0, y + 0.28),
            xycoords=("axes fraction", "data"),
            va="bottom",
            fontsize=8.5,
        )
    if first.is_ratio:
        axes.set_xscale("log")
        _few_ratios(axes)
    none = 1.0 if first.is_ratio else 0.0
    ink = style.INK if axes.patch.get_alpha() == 0 else "black"
    for y in range(len(rows)):  # not across the text
        axes.vlines(none, y - 0.34, y + 0.24, color=ink, linewidth=0.9)
        axes.fill_between(first.margin, y - 0.34, y + 0.24, color="#888888", alpha=0.2, linewidth=0)
    axes.set_ylim(-0.45, len(rows) - 0.2)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.set_xlabel(style.plain(wording.difference_axis(finding, first)), fontsize=9)


def _few_ratios(axes: Axes) -> None:
    """Label 0.5, 1, 2 on a narrow logarithmic axis and powers of ten on a wide one."""
    low, high = axes.get_xlim()
    text = FuncFormatter(lambda value, _: f"{value:g}")
    if high > 1000 * low:
        axes.xaxis.set_minor_formatter(NullFormatter())
        if high < 1e5 * low:
            axes.xaxis.set_major_formatter(text)
        return
    if high < 4 * low:
        axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
        axes.xaxis.set_minor_locator(LogLocator(subs=()))
    else:
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=12))
    axes.xaxis.set_major_formatter(text)
    axes.xaxis.set_minor_formatter(NullFormatter())


def check_slug(name: str) -> str:
    """Turn the name of a check into the name of a file.

    >>> check_slug("constant[adam+]")
    'constant-adam+'
    """
    return re.sub(r"[^a-z0-9+-]+", "-", name.lower()).strip("-")


def check_svg(check: Check) -> str:
    """Draw a theorem check as an SVG element, for a page and for a file."""
    with style.settings():
        figure = style.blank(_PANEL)
        axes = _axes(figure.subplots())
        draw_check(axes, check)
        legend(axes, columns=2)
        return style.svg(figure)


def check_panel(check: Check, element: str) -> str:
    """Prepare the result of :func:`check_svg` for a page."""
    return style.inline(element, f"check-{check_slug(check.name).replace('+', '-plus')}")


def check_png(check: Check) -> bytes:
    """Draw a theorem check with its message and its verdict as PNG."""
    with style.settings("black"):
        figure = style.blank((6.4, 4.4), "black")
        axes = figure.subplots()
        draw_check(axes, check)
        axes.set_title(textwrap.fill(wording.check_title(check), 90), fontsize=9)
        axes.legend(fontsize=8)
        figure.supxlabel(wording.check_caption(check), fontsize=7)
        return style.png(figure)


def draw_check(axes: Axes, check: Check) -> None:
    """Draw the curves of a check with their bands; a bound is dashed, in the colour of what it bounds."""
    figure = check.figure
    colours = iter([drawn for drawn, _, _ in style.HUES.values()])
    colour = next(iter(style.HUES.values()))[0]
    for curve in figure.curves:
        if curve.low is None or curve.high is None:
            single = "_" if len(curve.x) == 1 else None
            axes.plot(curve.x, curve.y, "--", marker=single, markersize=16, color=colour, label=curve.label)
            continue
        colour = next(colours)
        marker = "o" if figure.logarithmic else None
        axes.plot(curve.x, curve.y, marker=marker, markersize=4, color=colour, label=curve.label)
        if len(curve.x) == 1:
            axes.vlines(curve.x, curve.low, curve.high, color=colour, alpha=0.3, linewidth=6)
        axes.fill_between(curve.x, curve.low, curve.high, color=colour, alpha=0.2, linewidth=0)
    if figure.logarithmic:
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.xaxis.set_minor_locator(LogLocator(subs=(2, 5)))  # a short axis labels every minor tick
    axes.set_xlabel(figure.x_label)
    axes.set_ylabel(figure.y_label)
    axes.grid(which="major", alpha=0.3)
