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
from semaopt.experiments.results.model import Final, Finding
from semaopt.experiments.training.metrics import BOUNDS, PARTS, is_share

Array = npt.NDArray[np.float64]
Looks = Mapping[str, Look]

_MOST_COLUMNS = 3  # panels side by side
_PANEL = (5.2, 3.9)  # inches; about as wide as a phone
_WIDTH = 10.0  # inches of a whole figure
_ROW = 0.46  # inches per comparison
_LINE = 0.14  # inches per further line of its text
_CHARACTERS = 15  # of that text per inch
_SATURATED = 0.99  # shares are drawn as 1 - share on a logarithmic axis if the best method ends above this
_SMALLEST = 1e-12  # smallest value on a logarithmic axis
_LONGEST_LABEL = 18  # characters of a label at the end of a line
_MANY = 12  # methods in a legend; more have smaller letters
_MOST_SHIFT = 0.14  # of the height of the axes, for a label at the end of a line
_MOST_LINES = 7  # curves in a panel


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
    """Return the metrics that are drawn: the claim's metric and the last of the others, training before test.

    A claim about the scaling s has all quantiles of s.
    """
    claimed = finding.spec.claim.metric
    if claimed in BOUNDS:
        return [metric for metric in BOUNDS if metric in finding.spec.metrics]
    others = [metric for metric in finding.spec.metrics if metric != claimed]
    return sorted([claimed, *others[-1:]], key=_part)


def panel_keys(finding: Finding) -> list[str]:
    """Return what the panels show: one metric each or, for a claim about the scaling s, one method each."""
    if finding.spec.claim.metric in BOUNDS:
        return [final.method.name for final in finding.finals]
    return panel_metrics(finding)


def drawn_methods(finding: Finding) -> list[Final]:
    """Return the methods whose curves are drawn: all or, if they are too many, only the methods of the claim."""
    claim = finding.spec.claim
    named = {*claim.order, *claim.beats, *(name for others in claim.beats.values() for name in others)}
    if len(finding.finals) <= _MOST_LINES or not named:
        return list(finding.finals)
    return [final for final in finding.finals if final.method.name in named]


def _part(metric: str) -> int:
    return PARTS.index(metric.partition("_")[0]) if metric.partition("_")[0] in PARTS else len(PARTS)


def scale(finding: Finding, metric: str) -> Scale:
    """Choose the axis of a metric: percent for shares, log for errors near zero and positive values, else linear."""
    name = finding.metric_name(metric)
    samples = [np.array(final.curves(metric), dtype=float) for final in drawn_methods(finding)]
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
    ends = [np.mean(final.curves(metric), axis=0)[-1] for final in drawn_methods(finding)]
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
    keys, rows = panel_keys(finding), comparable(finding)
    columns = min(len(keys), _MOST_COLUMNS)
    lines = -(-len(keys) // columns)
    curves = 4.3 if lines == 1 else 2.9 * lines
    heights = [_height(finding, _WIDTH), curves] if rows else [curves]
    with style.settings(ink):
        figure = style.blank((_WIDTH, sum(heights) + 0.6), ink)
        parts = figure.subfigures(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0]
        for part in parts:
            part.patch.set_alpha(0)
        if rows:
            draw_differences(_axes(parts[0].subplots(), ink), finding, looks, _WIDTH)
        grid = parts[-1].subplots(lines, columns, squeeze=False, sharey=lines > 1).flatten()
        for unused in grid[len(keys) :]:
            unused.set_visible(False)
        panels = [_axes(axes, ink) for axes in grid[: len(keys)]]
        drawn = [draw_panel(panel, finding, key, looks) for panel, key in zip(panels, keys, strict=True)]
        figure.suptitle(style.plain(textwrap.fill(wording.figure_title(finding), 120)), fontsize=11)
        parts[-1].supxlabel(style.plain(textwrap.fill(caption(finding), 140)), fontsize=9)
        _name_lines(panels, drawn, finding, looks, height=3.9)
        return figure


def _axes(axes: Axes, ink: str = style.INK) -> Axes:
    axes.patch.set_alpha(0 if ink == style.INK else 1)
    return axes


def panels(finding: Finding, looks: Looks) -> dict[str, str]:
    """Draw each panel as an SVG for a page: transparent, in the page's text colour."""
    found = {}
    for key in panel_keys(finding):
        with style.settings():
            figure = style.blank(_PANEL)
            axes = _axes(figure.subplots())
            drawn = draw_panel(axes, finding, key, looks)
            _name_lines([axes], [drawn], finding, looks, height=_PANEL[1])
            found[key] = style.inline(style.svg(figure), f"{finding.name}-{key}")
    return found


def caption(finding: Finding) -> str:
    """Describe the panels."""
    claim = finding.spec.claim
    if claim.metric in BOUNDS:
        return wording.quantiles_caption(finding)
    if claim.stability is not None:
        return wording.stability_caption(finding)
    saturated = any(saturates(finding, metric) for metric in panel_metrics(finding))
    some = len(drawn_methods(finding)) < len(finding.finals)
    return wording.curves_caption(finding, saturated=saturated, some=some)


def draw_panel(axes: Axes, finding: Finding, key: str, looks: Looks) -> Scale | None:
    """Draw one panel; return the scale of its curves, or None if its lines have their own legend."""
    claim = finding.spec.claim
    if claim.metric in BOUNDS:
        draw_quantiles(axes, finding, key, looks)
    elif claim.stability is not None:
        draw_stability(axes, finding, key, looks)
    else:
        return draw_curves(axes, finding, key, looks)
    return None


def draw_quantiles(axes: Axes, finding: Finding, method: str, looks: Looks) -> None:
    """Draw the quantiles of s of one method over the epochs, as geometric means over the runs."""
    final, look = finding.final(method), looks[method]
    epochs = np.arange(1, finding.spec.epochs + 1)
    lines = {
        name: np.exp(np.mean(np.log(np.array(final.curves(name), dtype=float)), axis=0))
        for name in panel_metrics(finding)
    }
    for low, high, alpha in (("s_min", "s_max", 0.12), ("s_q01", "s_q99", 0.18), ("s_q25", "s_q75", 0.3)):
        if low in lines and high in lines:
            axes.fill_between(epochs, lines[low], lines[high], color=look.colour, alpha=alpha, linewidth=0)
    for name, line in lines.items():
        middle = name == "s_median"
        axes.plot(epochs, line, color=look.colour, linewidth=1.8 if middle else 0.6, linestyle="-")
    axes.set_yscale("log")
    axes.set_title(style.plain(final.method.label), fontsize=10)
    axes.margins(x=0.02)
    axes.set_xlabel("epoch")
    axes.set_ylabel("s")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))


def draw_stability(axes: Axes, finding: Finding, metric: str, looks: Looks) -> None:
    """Draw the final value of a metric against the claim's axis; a cross marks each run that diverged."""
    axis, percent = finding.spec.claim.stability or "", is_share(metric)
    factor = 100 if percent else 1
    for finals in _by_other_settings(finding, axis).values():
        look = looks[finals[0].method.name]
        places = [float(final.method.options[axis]) for final in finals]  # type: ignore[arg-type]  # the rules check it
        scores = [factor * np.array(finding.scores(final.method.name, metric)) for final in finals]
        means = [float(np.mean(each)) for each in scores]
        axes.plot(places, means, color=look.colour, linestyle=look.dash, marker=look.marker, linewidth=1.8)
        for place, each, final in zip(places, scores, finals, strict=True):
            ok = np.isfinite(finding.ends(final.method.name, metric))
            axes.plot([place] * len(each), each, ".", color=look.colour, alpha=0.35, markersize=4)
            axes.plot([place] * int((~ok).sum()), each[~ok], "x", color=look.colour, markersize=7)
        label = finals[0].method.label.rpartition(", ")[0]
        axes.plot([], [], color=look.colour, linestyle=look.dash, marker=look.marker, label=style.plain(label))
    axes.set_xscale("log")
    ticks = sorted({float(final.method.options[axis]) for final in finding.finals})  # type: ignore[arg-type]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel(style.plain(wording.axis(axis)))
    axes.set_ylabel(style.plain(wording.metric(finding, metric)))


def _by_other_settings(finding: Finding, axis: str) -> dict[str, list[Final]]:
    """Group the methods by everything but the axis and the rates that change with it."""
    groups: dict[str, list[Final]] = {}
    for final in finding.finals:
        fixed = {name: value for name, value in final.method.options.items() if name not in (axis, f"dual_{axis}")}
        groups.setdefault(f"{final.method.algorithm} {sorted(fixed.items())}", []).append(final)
    return groups


def draw_curves(axes: Axes, finding: Finding, metric: str, looks: Looks) -> Scale:
    """Draw one metric of all methods over the epochs."""
    chosen = scale(finding, metric)
    epochs = np.arange(1, finding.spec.epochs + 1)
    methods = drawn_methods(finding)
    for k, (final, curve) in enumerate(zip(methods, chosen.curves, strict=True)):
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
            markevery=(k * step // max(1, len(methods)), step),
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
    panels: Sequence[Axes], scales: Sequence[Scale | None], finding: Finding, looks: Looks, *, height: float
) -> None:
    """Label every line at its end if the labels fit, else add one legend above the panels."""
    methods = drawn_methods(finding)
    curves = [one for one in scales if one is not None]
    if len(curves) < len(scales):
        if panels[0].get_legend_handles_labels()[0]:
            legend(panels[0], columns=2 * len(panels))
        return
    gap = 11.5 / (72 * height * 0.75)  # one line of text, of the height of the axes
    labels = [final.method.label for final in methods]
    places = [_label_places(axes, one, gap) for axes, one in zip(panels, curves, strict=True)]
    if max(map(len, labels)) > _LONGEST_LABEL or any(place is None for place in places):
        legend(panels[0], columns=3 * len(panels))
        return
    for axes, place in zip(panels, places, strict=True):
        for final, (at, text_at) in zip(methods, place or (), strict=True):
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
    """Add a legend above the axes instead of over the curves, with as many of ``columns`` as fit."""
    handles, labels = axes.get_legend_handles_labels()
    size = 9.0 if len(handles) <= _MANY else 7.5
    longest = 0.07 * size + 0.0075 * size * max(map(len, labels), default=0)  # inches of the widest entry
    fit = max(1, int(axes.figure.bbox.width / axes.figure.dpi / longest))
    axes.figure.legend(
        handles,
        labels,
        loc="outside upper center",
        ncols=min(len(handles), columns, fit),
        frameon=False,
        fontsize=size,
        handlelength=2.6,
        columnspacing=1.2,
    )


def comparable(finding: Finding) -> list[claims.ClaimRow]:
    """Return the comparisons of the claim, and those with its control arms, that have an interval."""
    found = claims.verdict(finding)
    return [row for row in (*found.rows, *found.controls) if row.comparison.interval is not None]


def differences(finding: Finding, looks: Looks) -> str | None:
    """Draw the comparisons of the claim as an SVG for a page; None if there are none."""
    rows = comparable(finding)
    if not rows:
        return None
    with style.settings():
        figure = style.blank((_PANEL[0], _height(finding, _PANEL[0])))
        axes = _axes(figure.subplots())
        draw_differences(axes, finding, looks, _PANEL[0])
        return style.inline(style.svg(figure), f"{finding.name}-differences")


def _label(finding: Finding, row: claims.ClaimRow, width: float) -> str:
    """Return the text above a comparison, wrapped to a width in inches."""
    return textwrap.fill(wording.difference_label(finding, row), int(_CHARACTERS * width))


def _row_height(finding: Finding, width: float) -> float:
    """Return the height of a comparison in inches: all have room for the longest text."""
    return _ROW + _LINE * max(_label(finding, row, width).count("\n") for row in comparable(finding))


def _height(finding: Finding, width: float) -> float:
    return 0.8 + _row_height(finding, width) * len(comparable(finding))


def draw_differences(axes: Axes, finding: Finding, looks: Looks, width: float) -> None:
    """Draw a dot and an interval for each comparison of the claim, the first on top, under its text."""
    rows = comparable(finding)
    first = rows[0].comparison
    part = _ROW / _row_height(finding, width)
    for k, row in enumerate(rows):
        one, y = row.comparison, len(rows) - 1 - k
        look = looks[one.method]
        assert one.interval is not None  # see comparable
        axes.plot([one.interval.low, one.interval.high], [y, y], color=look.colour, linewidth=2.2)
        axes.plot([one.interval.value], [y], color=look.colour, marker=look.marker, markersize=7)
        axes.annotate(
            style.plain(_label(finding, row, width)),
            xy=(0.0, y + 0.28 * part),
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
        low, high = y - 0.34 * part, y + 0.24 * part
        axes.vlines(none, low, high, color=ink, linewidth=0.9)
        axes.fill_between(first.margin, low, high, color="#888888", alpha=0.2, linewidth=0)
    axes.set_ylim(-0.45 * part, len(rows) - 0.2 * part)
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
