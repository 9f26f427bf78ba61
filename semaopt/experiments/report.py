"""The page: one HTML file that needs nothing else, for any screen, in light and dark."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from semaopt.experiments.compare import CONFIDENCE, Comparison, mean_and_std, number
from semaopt.experiments.figure import COLOURS, shown
from semaopt.experiments.results import Final, Finding, Results
from semaopt.experiments.tuning import Trial, Tuning

_CSS = """
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #57606a; --line: #d5dae0; --back: #fff; --mark: #eef6ff;
  --method-0: #d55e00; --method-1: #0072b2; --method-2: #009e73; --method-3: #a8487e; --method-4: #b87700;
  --method-5: #2b8fc7; }
@media (prefers-color-scheme: dark) { :root { --ink: #e3e7ec; --soft: #9aa4af; --line: #363d46; --back: #14171b;
  --mark: #1b2a3c; --method-0: #ff8a3d; --method-1: #5db4ee; --method-2: #35c79b; --method-3: #e79cc4;
  --method-4: #f3bd45; --method-5: #8fd0f5; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 66rem; padding: 1rem 1.25rem 3rem; background: var(--back); color: var(--ink);
  font: 1rem/1.55 system-ui, sans-serif; }
h1 { font-size: 1.35rem; line-height: 1.3; margin: 1rem 0 .5rem; text-wrap: pretty; }
h2 { font-size: 1.2rem; margin: 2.6rem 0 .5rem; padding-top: .8rem; border-top: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 1.8rem 0 .4rem; }
p, li { max-width: 44rem; }
.soft, figcaption { color: var(--soft); font-size: .9rem; }
.panels { display: flex; flex-wrap: wrap; gap: 1rem; margin: 1rem 0 .3rem; }
.panels svg { flex: 1 1 20rem; min-width: 0; max-width: 100%; height: auto; }
figure { margin: 0; }
li { margin-bottom: .5rem; }
.wide { overflow-x: auto; margin: 0 0 1.1rem; }
table { border-collapse: collapse; font-size: .92rem; font-variant-numeric: tabular-nums; }
.about { margin: 1.2rem 0 .2rem; }
th, td { padding: .28rem .9rem .28rem 0; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
thead th { font-weight: 600; vertical-align: bottom; }
tbody th { font-weight: 400; }
tr.chosen td, tr.chosen th { background: var(--mark); font-weight: 600; }
i.swatch { display: inline-block; width: .8em; height: .8em; border-radius: 2px; margin-right: .45em; }
code, pre { font: .88rem/1.5 ui-monospace, monospace; }
pre { border: 1px solid var(--line); border-radius: 6px; padding: .6rem .8rem; overflow-x: auto; }
summary { cursor: pointer; margin: .6rem 0; }
@media (max-width: 40rem) { ul { padding-left: 1.2rem; } tbody th { white-space: normal; min-width: 9rem; } }
"""

_FRAME = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title>
<style>{css}</style>
</head>
<body>
{body}
</body>
</html>
"""


def page(results: Results, panels: Mapping[str, Mapping[str, str]]) -> str:
    """The whole page; ``panels`` are the SVG elements that :mod:`semaopt.experiments.figure` drew for each finding."""
    parts = [
        "<h1>What the runs say about the paper's figures</h1>",
        "<ul>" + "".join(f"<li>{_message(finding)}</li>" for finding in results.findings) + "</ul>",
        *(_section(finding, panels[finding.name]) for finding in results.findings),
        "<h2>How it was run</h2>",
        _run(results),
    ]
    title = f"semaopt, {results.scale} scale"
    return _FRAME.format(title=escape(title), css=_CSS, body="\n".join(parts))


def _message(finding: Finding) -> str:
    first, _, rest = finding.headline.partition(". ")
    return f'<b>{escape(first)}.</b> {escape(rest)}. <span class="soft">{escape(finding.evidence)}.</span>'


def _section(finding: Finding, panels: Mapping[str, str]) -> str:
    parts = [
        f"<h2>{escape(finding.spec.title)}</h2>",
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


def _protocol(finding: Finding) -> str:
    spec, sizes = finding.spec, finding.facts.get("sizes", {})
    counts = ", ".join(f"{count} {name}" for name, count in sizes.items())
    options = ", ".join(f"{name} {value}" for name, value in spec.model.options.items())
    noise = f", label noise {spec.data.noise:g}" if spec.data.noise else ""
    rows = [("", [_name(finding, final.method.name), *_method(final)]) for final in finding.finals]
    return (
        f"<p>{escape(spec.about)}</p><p>The paper: {escape(spec.claim.text)}</p>"
        f"<p>Data {escape(spec.data.name)} ({escape(counts)}{noise}), model {escape(spec.model.name)}"
        f"{escape(f' ({options})' if options else '')}, loss {escape(spec.loss)}, batch {spec.batch}, {spec.epochs} "
        f"epochs, {len(finding.seeds)} seeds.</p>"
        + _table("The methods, and what is fixed for each.", ("method", "algorithm", "decays", "fixed"), rows)
    )


def _method(final: Final) -> list[str]:
    method = final.method
    fixed = ", ".join(f"{name} {_value(value)}" for name, value in method.options.items())
    return [escape(method.algorithm), escape(", ".join(method.decays)) or "nothing", fixed]


def _value(value: Any) -> str:
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


def _table(caption: str, head: Sequence[str], rows: Iterable[tuple[str, Sequence[str]]]) -> str:
    """``rows`` are a class and cells of HTML; ``caption`` and ``head`` are plain text."""
    body = "".join(_row(kind, cells) for kind, cells in rows)
    heads = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    return (
        f'<p class="soft about">{escape(caption)}</p><div class="wide"><table aria-label="{escape(caption)}">'
        f"<thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _row(kind: str, cells: Sequence[str]) -> str:
    first, *rest = cells
    opening = f'<tr class="{kind}">' if kind else "<tr>"
    return f'{opening}<th scope="row">{first}</th>{"".join(f"<td>{cell}</td>" for cell in rest)}</tr>'


def _name(finding: Finding, name: str) -> str:
    k = [final.method.name for final in finding.finals].index(name)
    colour = f"--method-{k % len(COLOURS)}"
    return f'<i class="swatch" style="background: var({colour})"></i>{escape(finding.label(name))}'


def _spread(values: Sequence[float], percent: bool = False) -> str:
    mean, std = mean_and_std(values)
    if not math.isfinite(mean):
        return "diverged"
    if percent:
        mean, std = 100 * mean, 100 * std
    first, second = (f"{mean:.2f}", f"{std:.2f}") if percent else (number(mean, 3), number(std))
    return first if math.isnan(std) else f"{first} ± {second}"


def _is_share(metric: str) -> bool:
    return metric.endswith(("_accuracy", "_auc"))


def _titled(finding: Finding, metric: str) -> str:
    return finding.metric_name(metric) + (", %" if _is_share(metric) else "")


def _axes(finding: Finding) -> list[str]:
    """What is tuned for any of the methods."""
    return list(dict.fromkeys(name for final in finding.finals for name in final.values))


def _summary(finding: Finding) -> str:
    metrics, axes = finding.spec.metrics, _axes(finding)

    def cells(final: Final) -> list[str]:
        spreads = [_spread(final.last(metric), percent=_is_share(metric)) for metric in metrics]
        return [_name(finding, final.method.name), *spreads, *(_value(final.values.get(name, "")) for name in axes)]

    head = ("method", *(_titled(finding, metric) for metric in metrics), *map(_axis, axes))
    caption = f"After the last epoch, mean ± standard deviation over {len(finding.seeds)} seeds, with the tuned values."
    return _table(caption, head, (("", cells(final)) for final in finding.finals))


def _comparisons(finding: Finding, metric: str) -> str:
    def cells(c: Comparison) -> list[str]:
        pair = f"{escape(finding.label(c.method))} against {escape(finding.label(c.against))}"
        return [pair, c.text, escape(c.verdict)]

    found = finding.comparisons(metric)
    kind = "ratio" if found and found[0].is_ratio else "difference"
    head = ("paired over seeds", f"{finding.metric_name(metric)}, {kind}", "it is")
    caption = f"{finding.metric_name(metric).capitalize()}; in brackets {CONFIDENCE:.0%} intervals (Student's)."
    return _table(caption, head, (("", cells(c)) for c in found))


_PAIRS = (
    '<p class="soft">Equal seeds start from equal networks and see the data in the same order. The intervals cover the '
    "choice of the seed, each for itself; they do not cover the choice of the split, nor the luck of the tuning.</p>"
)


def _tuning(finding: Finding, tuning: Tuning) -> str:
    budget = {len(trials) for trials in tuning.trials.values()}
    each = f"{min(budget)}" if len(budget) == 1 else f"{min(budget)} to {max(budget)} different"
    options = finding.spec.tuning
    rounds = 0 if options is None else options.rounds
    sampler = "the whole grid" if options is None or options.sampler == "grid" else "proposed by tree estimators (TPE)"
    notes = [
        f"{each} trials for each method, {sampler}, {len(finding.spec.seeds.tuning)} seeds each, none of them a final "
        f"one. The trial with the best {escape(finding.metric_name(options.metric if options else 'valid_loss'))} "
        "after the last epoch is chosen. The test set is not looked at. "
        f"An axis grows, for all methods alike and at most {_times(rounds)}, while a best value lies on its edge and "
        "is better than inside by more than the noise of the seeds."
    ]
    notes += [
        f"The best {_axis(e.axis)} of {_labels(finding, e.because)} lay on the edge: {_axis(e.axis)} {e.value:.3g} was "
        "added for all methods."
        for e in tuning.extensions
    ]
    notes += [
        f"The best {_axis(axis)} of {_labels(finding, names)} still lies on the edge, {tuning.grid[axis][end]:.3g}."
        for (axis, end), names in tuning.on_edge.items()
    ]
    items = "".join(f"<p>{note}</p>" for note in notes)
    return items + "".join(_trials(finding, final, tuning) for final in finding.finals)


def _times(count: int) -> str:
    return {0: "never", 1: "once", 2: "twice"}.get(count, f"{count} times")


_AXES = {"g0": "G0", "beta": "first β", "dual_lr": "dual lr", "every": "decay every, epochs", "factor": "decay factor"}


def _axis(name: str) -> str:
    return _AXES.get(name, name)


def _labels(finding: Finding, names: Iterable[str]) -> str:
    return " and ".join(escape(finding.label(name)) for name in names)


def _trials(finding: Finding, final: Final, tuning: Tuning) -> str:
    trials = sorted(tuning.trials[final.method.name].values(), key=lambda trial: trial.order)
    axes = list(final.values)

    def cells(trial: Trial) -> list[str]:
        values = [_value(trial.values.get(name, "")) for name in axes]
        note = [] if trial.pruned is None else [f" (given up after epoch {trial.pruned})"]
        return [*values, number(trial.mean, 4) + "".join(note), *(number(value, 4) for value in trial.measured)]

    seeds = [f"seed {seed}" for seed in finding.spec.seeds.tuning]
    rows = (("chosen" if trial == final.chosen else "", cells(trial)) for trial in trials)
    table = _table("On the validation part, best first.", (*map(_axis, axes), "mean", *seeds), rows)
    return f"<details><summary>{_name(finding, final.method.name)}: {len(trials)} trials</summary>{table}</details>"


def _seeds(finding: Finding, metric: str) -> str:
    def cell(value: float) -> str:
        if _is_share(metric):
            return f"{100 * value:.2f}" if math.isfinite(value) else "diverged"
        return number(value, 3)

    columns = [[cell(value) for value in final.last(metric)] for final in finding.finals]
    rows = (("", [str(seed), *row]) for seed, row in zip(finding.seeds, zip(*columns, strict=True), strict=True))
    head = ("seed", *(final.method.label for final in finding.finals))
    return _table(f"{_titled(finding, metric).capitalize()}, after the last epoch.", head, rows)


def _run(results: Results) -> str:
    session = results.session
    done = f"{session.computed} runs done, {session.reused} reused, {session.wall_seconds:.0f} s"
    if session.damaged:
        done += f"; damaged and done again: {', '.join(session.damaged)}"
    rows = [("", [escape(name), escape(value)]) for name, value in results.environment.items()]
    return (
        f"<p>The command below runs it again; finished runs are kept beside this page and reused ({escape(done)} this "
        f"time, {session.run_seconds:.0f} s of computing for all runs). All numbers, also the curves, are in "
        f"<code>results.json</code>.</p><pre>{escape(session.command)}</pre>"
        + _table("Environment.", ("package", "version"), rows)
    )
