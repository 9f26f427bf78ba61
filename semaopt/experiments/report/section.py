"""The section of one figure on the page: protocol, curves, comparisons, tuning, every seed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from semaopt.checks.figures import COLOURS
from semaopt.experiments.report.figures import shown
from semaopt.experiments.report.page import table
from semaopt.experiments.results.model import Final, Finding
from semaopt.experiments.results.statistics import CONFIDENCE, Comparison, mean_and_std, number_text, signed
from semaopt.experiments.results.trials import Trial, Tuning
from semaopt.experiments.sweep.tuning import rungs
from semaopt.experiments.training.metrics import is_share


def section(finding: Finding, panels: Mapping[str, str]) -> str:
    """All of it; ``panels`` are the SVG elements that :mod:`semaopt.experiments.report.figures` drew."""
    parts = [
        f'<h2 id="{escape(finding.name)}">{escape(finding.spec.title)}</h2>',
        f'<p class="soft">{escape(finding.headline)}. {escape(finding.evidence)}.</p>',
        _protocol(finding),
        _figure(finding, panels),
        _summary(finding),
        *(_comparisons(finding, metric) for metric in shown(finding)),
        _PAIRS,
        *(["<h3>Tuning</h3>", _tuning(finding, finding.tuning)] if finding.tuning is not None else []),
        "<h3>Every seed</h3>",
        "".join(_seeds(finding, metric) for metric in finding.spec.metrics),
    ]
    return "\n".join(parts)


CLAIMED = {"paper": "The paper", "ours": "Beyond the paper"}


def _protocol(finding: Finding) -> str:
    spec, sizes = finding.spec, finding.facts.get("sizes", {})
    counts = ", ".join(f"{count} {name}" for name, count in sizes.items()) or "sizes not stored"
    options = ", ".join(f"{name} {value}" for name, value in spec.model.options.items())
    words = "share of wrong labels" if spec.loss == "cleaning" else "label noise"
    noise = f", {words} {spec.data.noise:g}" if spec.data.noise else ""
    rows = [("", [_name(finding, final.method.name), *_method(final)]) for final in finding.finals]
    return (
        f"<p>{escape(spec.about)}</p><p>{CLAIMED[spec.claim.source]}: {escape(spec.claim.text)}</p>"
        f"<p>Data {escape(spec.data.name)} ({escape(counts)}{noise}), model {escape(spec.model.name)}"
        f"{escape(f' ({options})' if options else '')}, loss {escape(spec.loss)}, batch {spec.batch}, {spec.epochs} "
        f"epochs, {len(finding.seeds)} seeds.</p>"
        + table("The methods, and what is fixed for each.", ("method", "algorithm", "decays", "fixed"), rows)
    )


def _method(final: Final) -> list[str]:
    method = final.method
    fixed = ", ".join(f"{name} {value_text(value)}" for name, value in method.options.items())
    return [escape(method.algorithm), escape(", ".join(method.decays)) or "nothing", fixed]


def value_text(value: Any) -> str:
    """A hyper-parameter, escaped."""
    return f"{value:.3g}" if isinstance(value, float) else escape(str(value))


def _figure(finding: Finding, panels: Mapping[str, str]) -> str:
    drawn = "".join(
        svg.replace("<svg", f'<svg role="img" aria-label="{escape(finding.metric_name(metric))} against epochs"', 1)
        for metric, svg in panels.items()
    )
    return (
        f'<figure><div class="panels">{drawn}</div><figcaption>Mean and one standard deviation over '
        f"{len(finding.seeds)} seeds; on logarithmic axes, of the logarithm. What is called training is the whole "
        "training set, measured after each epoch.</figcaption></figure>"
    )


def _name(finding: Finding, name: str) -> str:
    k = [final.method.name for final in finding.finals].index(name)
    colour = f"--method-{k % len(COLOURS)}"
    return f'<i class="swatch" style="background: var({colour})"></i>{escape(finding.label(name))}'


def spread_text(values: Sequence[float], percent: bool = False) -> str:
    """The mean and the standard deviation."""
    mean, std = mean_and_std(values)
    if not math.isfinite(mean):
        return "diverged"
    if percent:
        mean, std = 100 * mean, 100 * std
    first, second = (f"{mean:.2f}", f"{std:.2f}") if percent else (number_text(mean, 3), number_text(std))
    return first if math.isnan(std) else f"{first} ± {second}"


def titled(finding: Finding, metric: str) -> str:
    """The metric with its unit."""
    return finding.metric_name(metric) + (", %" if is_share(metric) else "")


def tuned_axes(finding: Finding) -> list[str]:
    """What is tuned for any of the methods; a store does not keep the order that a spec has."""
    order = {name: place for place, name in enumerate(_AXES)}
    return sorted({name for one in finding.finals for name in one.values}, key=lambda n: (order.get(n, len(order)), n))


def _summary(finding: Finding) -> str:
    metrics, axes = finding.spec.metrics, tuned_axes(finding)

    def cells(final: Final) -> list[str]:
        spreads = [spread_text(final.last(metric), percent=is_share(metric)) for metric in metrics]
        return [_name(finding, final.method.name), *spreads, *(value_text(final.values.get(name, "")) for name in axes)]

    head = ("method", *(titled(finding, metric) for metric in metrics), *map(axis_name, axes))
    caption = f"After the last epoch, mean ± standard deviation over {len(finding.seeds)} seeds, with the tuned values."
    return table(caption, head, (("", cells(final)) for final in finding.finals), sorts=True)


def _comparisons(finding: Finding, metric: str) -> str:
    def cells(c: Comparison) -> list[str]:
        pair = f"{escape(finding.label(c.method))} against {escape(finding.label(c.against))}"
        noise = "" if c.deviations is None else signed(c.deviations)
        return [pair, c.text, escape(c.verdict), noise]

    found = finding.comparisons(metric)
    kind = "ratio" if found and found[0].is_ratio else "difference"
    head = ("paired over seeds", f"{finding.metric_name(metric)}, {kind}", "it is", "in seed deviations")
    caption = f"{_capital(finding.metric_name(metric))}; in brackets {CONFIDENCE:.0%} intervals (Student's)."
    return table(caption, head, (("", cells(c)) for c in found))


_PAIRS = (
    '<p class="soft">Equal seeds start from equal networks and see the data in the same order. The intervals cover the '
    "choice of the seed, each for itself; they do not cover the choice of the split, nor the luck of the tuning.</p>"
)


def _tuning(finding: Finding, tuning: Tuning) -> str:
    options = finding.spec.tuning
    assert options is not None  # there are no trials otherwise
    budget = {len(trials) for trials in tuning.trials.values()}
    each = f"{min(budget)}" if len(budget) == 1 else f"{min(budget)} to {max(budget)} different"
    sampler = (
        "the whole grid"
        if options.sampler == "grid"
        else "the first ten at random, then proposed by tree estimators (TPE)"
    )
    notes = [
        f"{each} trials for each method, {sampler}, {count(len(finding.spec.seeds.tuning), 'seed')} each, none of them "
        f"a final one. The trial with the best {escape(tuned_for(finding))} after the last epoch is chosen; the test "
        f"set is not looked at. {_halving(finding)}"
        f"An axis grows, for all methods alike and at most {_times(options.rounds)}, while a best value lies on its "
        "edge and is better than inside by more than the noise of the seeds."
    ]
    notes += [
        f"The best {axis_name(e.axis)} of {_labels(finding, e.because)} lay on the edge: {axis_name(e.axis)} "
        f"{e.value:.3g} was added for all methods."
        for e in tuning.extensions
    ]
    notes += [
        f"The best {axis_name(axis)} of {_labels(finding, names)} still lies on the edge, {tuning.edge(axis, end):.3g}."
        for (axis, end), names in tuning.on_edge.items()
    ]
    items = "".join(f"<p>{note}</p>" for note in notes)
    grown = growth(finding, tuning)
    if grown is not None:
        head, rows = grown
        named = [_name(finding, final.method.name) for final in finding.finals]
        body = (("", [name, *cells]) for name, cells in zip(named, rows, strict=True))
        items += table(GROWTH, ("method", *head), body)
    return items + "".join(_trials(finding, final, tuning) for final in finding.finals)


def count(number: int, what: str) -> str:
    """A number of things.

    >>> count(1, "seed"), count(5, "seed")
    ('1 seed', '5 seeds')
    """
    return f"{number} {what}{'' if number == 1 else 's'}"


def looks(finding: Finding) -> list[int]:
    """The epochs after which successive halving gave trials up."""
    options = finding.spec.tuning
    return [] if options is None or options.pruner == "none" else rungs(finding.spec.epochs, options.first_look)


def _halving(finding: Finding) -> str:
    epochs = ", ".join(map(str, looks(finding)))
    if not epochs:
        return ""
    return (
        f"By successive halving: from epoch {epochs} a trial goes on only if it is in the best "
        "quarter of those of its method that have come so far. "
    )


def tuned_for(finding: Finding) -> str:
    """The metric by which trials are chosen, as people call it."""
    assert finding.spec.tuning is not None  # there are no trials otherwise
    return finding.metric_name(finding.spec.tuning.metric)


GROWTH = "What the growth of the grid changed: the best trials before and after it."


def growth(finding: Finding, tuning: Tuning) -> tuple[list[str], list[list[str]]] | None:
    """Heads, and for each method the metric and the values of the grown axes of its best trial before and after.

    None if nothing grew, or an older record does not say which trials came first.
    """
    methods = [final.method.name for final in finding.finals]
    before, after = [tuning.best_before(name) for name in methods], [tuning.best(name) for name in methods]
    if not tuning.extensions or None in before:
        return None
    axes = list(dict.fromkeys(extension.axis for extension in tuning.extensions))

    def cells(trial: Trial) -> list[str]:
        return [mean_text(trial), *(value_text(trial.values.get(axis, "")) for axis in axes)]

    named = (tuned_for(finding), *map(axis_name, axes))
    head = [f"{what}, {when}" for when in ("first grid", "grown grid") for what in named]
    return head, [cells(a) + cells(b) for a, b in zip(before, after, strict=True) if a is not None]


def mean_text(trial: Trial) -> str:
    """Of the metric that is tuned for, and whether the trial came to its end."""
    note = "" if trial.pruned is None else f" (given up after epoch {trial.pruned})"
    return number_text(trial.mean, 4) + note


def _times(count: int) -> str:
    return {0: "never", 1: "once", 2: "twice"}.get(count, f"{count} times")


#: As people call them, and in the order of columns.
_AXES = {
    "lr": "lr",
    "dual_lr": "dual lr",
    "lower_lr": "lower lr",
    "beta": "first β",
    "g0": "G0",
    "every": "decay every, epochs",
    "factor": "decay factor",
}


def axis_name(name: str) -> str:
    """A hyper-parameter as people call it."""
    return _AXES.get(name, name)


def _labels(finding: Finding, names: Iterable[str]) -> str:
    return " and ".join(escape(finding.label(name)) for name in names)


def _trials(finding: Finding, final: Final, tuning: Tuning) -> str:
    trials = sorted(tuning.trials[final.method.name].values(), key=lambda trial: trial.order)
    axes = [name for name in tuned_axes(finding) if name in final.values]

    def cells(trial: Trial) -> list[str]:
        values = [value_text(trial.values.get(name, "")) for name in axes]
        return [*values, mean_text(trial), *(number_text(value, 4) for value in trial.measured)]

    seeds = [f"seed {seed}" for seed in finding.spec.seeds.tuning]
    rows = (("chosen" if trial == final.chosen else "", cells(trial)) for trial in trials)
    shown_trials = table(
        f"{_capital(tuned_for(finding))}, best first.", (*map(axis_name, axes), "mean", *seeds), rows, sorts=True
    )
    return (
        f"<details><summary>{_name(finding, final.method.name)}: {len(trials)} trials</summary>{shown_trials}</details>"
    )


def _seeds(finding: Finding, metric: str) -> str:
    def cell(value: float) -> str:
        if is_share(metric):
            return f"{100 * value:.2f}" if math.isfinite(value) else "diverged"
        return number_text(value, 3)

    columns = [[cell(value) for value in final.last(metric)] for final in finding.finals]
    rows = (("", [str(seed), *row]) for seed, row in zip(finding.seeds, zip(*columns, strict=True), strict=True))
    head = ("seed", *(final.method.label for final in finding.finals))
    return table(f"{_capital(titled(finding, metric))}, after the last epoch.", head, rows, sorts=True)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
