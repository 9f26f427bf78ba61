"""The page: one HTML file that needs nothing else, for any screen, in light and dark."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape

from semaopt.experiments.compare import CONFIDENCE, Comparison, Interval, mean_and_std, number, ratio_text
from semaopt.experiments.figure import COLOURS
from semaopt.experiments.results import Final, Finding, Results
from semaopt.experiments.tuning import Trial

_CSS = """
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #57606a; --line: #d5dae0; --back: #fff; --mark: #eef6ff;
  --method-0: #d55e00; --method-1: #0072b2; --method-2: #009e73; }
@media (prefers-color-scheme: dark) { :root { --ink: #e3e7ec; --soft: #9aa4af; --line: #363d46; --back: #14171b;
  --mark: #1b2a3c; --method-0: #ff8a3d; --method-1: #5db4ee; --method-2: #35c79b; } }
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
        "<h1>Increasing β and decreasing lr: the paper's Figure 1, on digits</h1>",
        "<ul>" + "".join(f"<li>{_message(finding)}</li>" for finding in results.findings) + "</ul>",
        *(_section(finding, panels[finding.name]) for finding in results.findings),
        "<h2>How it was run</h2>",
        _run(results),
    ]
    title = f"semaopt reproduce, {results.scale} scale"
    return _FRAME.format(title=escape(title), css=_CSS, body="\n".join(parts))


def _message(finding: Finding) -> str:
    first, _, rest = finding.headline.partition(". ")
    return f'<b>{escape(first)}.</b> {escape(rest)}. <span class="soft">{escape(finding.evidence)}.</span>'


def _section(finding: Finding, panels: Mapping[str, str]) -> str:
    parts = [
        f"<h2>{escape(finding.title)}</h2>",
        _protocol(finding),
        _figure(finding, panels),
        _summary(finding),
        _comparisons(finding),
        "<h3>Tuning</h3>",
        _tuning(finding),
        "<h3>Every seed</h3>",
        _seeds(finding),
    ]
    return "\n".join(parts)


def _protocol(finding: Finding) -> str:
    settings, sizes = finding.settings, finding.sizes
    decays = " and ".join(str(epoch) for epoch in finding.decay_epochs)
    return (
        f"<p>{escape(finding.about)}</p>"
        f"<p>Digits of scikit-learn ({sizes['train']} images to train on, {sizes['valid']} to validate, "
        f"{sizes['test']} to test), a network 64-{settings['hidden']}-10, cross-entropy, batch {settings['batch']}, "
        f"{settings['epochs']} epochs, {len(finding.seeds)} seeds. All methods are <code>semaopt.ASA</code> with "
        "Adam's scaling and bias correction. Folklore Adam keeps β = 0.9 and its lr; the others multiply γ = 1 − β, or "
        f"γ and lr, by {settings['factor']:g} after epochs {decays}.</p>"
    )


def _figure(finding: Finding, panels: Mapping[str, str]) -> str:
    names = {"loss": f"Training {finding.loss_name} against epochs", "accuracy": "Test accuracy against epochs"}
    drawn = "".join(
        svg.replace("<svg", f'<svg role="img" aria-label="{escape(names[name])}"', 1) for name, svg in panels.items()
    )
    return (
        f'<figure><div class="panels">{drawn}</div><figcaption>Mean and one standard deviation over '
        f"{len(finding.seeds)} seeds; for the loss, of its logarithm. The training loss is that of the whole training "
        "set after each epoch.</figcaption></figure>"
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


def _measured(finding: Finding) -> tuple[str, ...]:
    return "method", f"training {finding.loss_name}", "test accuracy, %", f"test {finding.loss_name}"


def _summary(finding: Finding) -> str:
    def cells(final: Final) -> list[str]:
        point = final.chosen.point
        return [
            _name(finding, final.method.name),
            _spread(final.train_loss),
            _spread(final.test_accuracy, percent=True),
            _spread(final.test_loss),
            f"{point.lr:.3g}",
            f"{point.beta:g}",
            f"{point.g0:g}",
        ]

    head = (
        "method",
        f"training {finding.loss_name}",
        "test accuracy, %",
        f"test {finding.loss_name}",
        "lr",
        "first β",
        "G0",
    )
    caption = f"After the last epoch, mean ± standard deviation over {len(finding.seeds)} seeds, with the tuned values."
    return _table(caption, head, (("", cells(final)) for final in finding.finals))


def _comparisons(finding: Finding) -> str:
    def points(interval: Interval | None) -> str:
        if interval is None:
            return "not comparable"
        return f"{100 * interval.value:+.2f} ({100 * interval.low:+.2f} to {100 * interval.high:+.2f})"

    def cells(c: Comparison) -> list[str]:
        pair = f"{escape(finding.label(c.method))} against {escape(finding.label(c.against))}"
        return [pair, ratio_text(c.loss_ratio), escape(c.verdict), points(c.accuracy_difference)]

    head = ("paired over seeds", f"training {finding.loss_name}, ratio", "loss is", "test accuracy, points")
    caption = f"In brackets {CONFIDENCE:.0%} intervals (Student's, each for itself)."
    return (
        _table(caption, head, (("", cells(c)) for c in finding.comparisons))
        + '<p class="soft">Equal seeds start from equal networks and see the images in the same order. The intervals '
        "cover the choice of the seed; they do not cover the choice of the split, nor the luck of the tuning.</p>"
    )


def _tuning(finding: Finding) -> str:
    tuning, settings = finding.tuning, finding.settings
    budget = {len(trials) for trials in tuning.trials.values()}
    each = f"{min(budget)}" if len(budget) == 1 else f"{min(budget)} to {max(budget)}"
    notes = [
        f"{each} trials for each method, {len(settings['tuning_seeds'])} seeds each, none of them a final one. The "
        "trial with the smallest validation loss after the last epoch is chosen. The test set is not looked at. "
        "Folklore Adam has one β, so it tries three lr where the others try three first β. The grid grows, for all "
        f"methods alike and at most {_times(settings['rounds'])}, while a best value lies on its edge and the loss "
        "falls towards it by more than the noise of the seeds."
    ]
    notes += [
        f"The best {_AXES[e.axis]} of {_labels(finding, e.because)} lay on the edge of the grid: "
        f"{_AXES[e.axis]} {e.value:.3g} was added for all methods."
        for e in tuning.extensions
    ]
    notes += [
        f"The best {_AXES[axis]} of {_labels(finding, names)} still lies on the edge, "
        f"{getattr(tuning.grid, axis)[end]:.3g}."
        for (axis, end), names in tuning.on_edge.items()
    ]
    items = "".join(f"<p>{note}</p>" for note in notes)
    return items + "".join(_trials(finding, final) for final in finding.finals)


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")


_AXES = {"lr": "lr", "g0": "G0"}


def _labels(finding: Finding, names: Iterable[str]) -> str:
    return " and ".join(escape(finding.label(name)) for name in names)


def _trials(finding: Finding, final: Final) -> str:
    trials = sorted(finding.tuning.trials[final.method.name].values(), key=lambda trial: (trial.loss, trial.point))

    def cells(trial: Trial) -> list[str]:
        values = (f"{trial.point.lr:.3g}", f"{trial.point.beta:g}", f"{trial.point.g0:g}")
        return [*values, number(trial.loss, 4), *(number(loss, 4) for loss in trial.losses)]

    seeds = [f"seed {seed}" for seed in finding.settings["tuning_seeds"]]
    rows = (("chosen" if trial == final.chosen else "", cells(trial)) for trial in trials)
    table = _table("Validation loss, best first.", ("lr", "first β", "G0", "mean", *seeds), rows)
    return f"<details><summary>{_name(finding, final.method.name)}: {len(trials)} trials</summary>{table}</details>"


def _seeds(finding: Finding) -> str:
    def table(what: str, cells: Callable[[Final], list[str]]) -> str:
        columns = [cells(final) for final in finding.finals]
        rows = (("", [str(seed), *row]) for seed, row in zip(finding.seeds, zip(*columns, strict=True), strict=True))
        return _table(what, ("seed", *(final.method.label for final in finding.finals)), rows)

    def loss(final: Final) -> list[str]:
        return [number(value, 3) for value in final.train_loss]

    def accuracy(final: Final) -> list[str]:
        return [f"{100 * value:.2f}" if math.isfinite(value) else "diverged" for value in final.test_accuracy]

    return table(f"Training {finding.loss_name} after the last epoch.", loss) + table("Test accuracy, %.", accuracy)


def _run(results: Results) -> str:
    session = results.session
    done = f"{session.computed} trials run, {session.reused} reused, {session.wall_seconds:.0f} s"
    if session.damaged:
        done += f"; damaged and done again: {', '.join(session.damaged)}"
    rows = [("", [escape(name), escape(value)]) for name, value in results.environment.items()]
    return (
        f"<p>The command below runs it again; finished runs are kept beside this page and reused ({escape(done)} this "
        f"time, {session.run_seconds:.0f} s of computing for all runs). All numbers, also the curves, are in "
        f"<code>results.json</code>.</p><pre>{escape(session.command)}</pre>"
        + _table("Environment.", ("package", "version"), rows)
    )
