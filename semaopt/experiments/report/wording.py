"""Every generated sentence and label of the reports, as plain text."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from semaopt.checks.result import CheckResult as Check
from semaopt.experiments.commands import without
from semaopt.experiments.results import claims
from semaopt.experiments.results.claims import ClaimRow
from semaopt.experiments.results.model import Finding, Origin, Session, TimeToTarget
from semaopt.experiments.results.statistics import (
    CONFIDENCE,
    RATIO_MARGIN,
    SHARE_MARGIN,
    Comparison,
    mean_and_std,
    number_text,
)
from semaopt.experiments.results.trials import Extension, Trial, Tuning
from semaopt.experiments.training.metrics import BOUNDS, is_share

OUTCOMES = ("confirmed", "contradicted", "equivalent", "undecided")
CLAIMED_BY = {"paper": "Claim of the paper", "ours": "Our expectation"}

#: Explanation of the verdicts.
READING = (
    f"Each comparison has a {CONFIDENCE:.0%} confidence interval of the paired difference, or of the ratio for losses "
    "(marked ×), corrected for the number of comparisons in the claim (Holm). Confirmed: the interval lies on the "
    "claimed side of no effect. Contradicted: it lies on the other side. Equivalent: it lies within "
    f"±{SHARE_MARGIN:g} (ratios: within a factor of {RATIO_MARGIN:g}). Undecided: none of these. A claim with several "
    "comparisons gets the weakest of their verdicts. P is the probability that a run of the first method beats a run "
    "of the second."
)
PAIRING = (
    "Runs with equal seeds start from the same network and see the data in the same order, so they are compared in "
    "pairs. A run that diverged counts as the worst possible result."
)
CONTROLS = "The last rows compare with control arms and do not count for the verdict."
ONE_STUDY = "The intervals cover the choice of the seed. They do not cover the choice of the split or the tuning."
STUDIES = "The intervals cover the seeds and the tuning: each study tunes every method again and runs it on new seeds."

#: Readable names of hyper-parameters, in the order of table columns.
_AXES = {
    "lr": "lr",
    "dual_lr": "dual lr",
    "lower_lr": "lower lr",
    "beta": "initial β",
    "g0": "G0",
    "every": "decay every (epochs)",
    "factor": "decay factor",
}
#: Parts of an environment that Markdown tables mention, in this order.
#: More characters would be more than two lines above a figure.
_LONGEST_TITLE = 240
_VERSIONS = ("semaopt", "torch", "numpy", "scikit-learn", "rdkit", "python")


def plural(number: int, noun: str) -> str:
    """Return a number with its noun.

    >>> plural(1, "seed"), plural(5, "seed")
    ('1 seed', '5 seeds')
    """
    return f"{number} {noun}{'' if number == 1 else 's'}"


def join(names: Sequence[str]) -> str:
    """Join names with commas and "and", or with semicolons if a name contains a comma.

    >>> join(["a"]), join(["a", "b"]), join(["a", "b", "c"])
    ('a', 'a and b', 'a, b and c')
    >>> join(["a", "a, no average", "b"])
    'a; a, no average; and b'
    """
    if len(names) > 2 and any(", " in name for name in names):
        return "; ".join([*names[:-1], f"and {names[-1]}"])
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def capital(text: str) -> str:
    """Return the text with a capital first letter."""
    return text[:1].upper() + text[1:]


def duration(seconds: float) -> str:
    """Format a duration.

    >>> duration(42), duration(312), duration(7500)
    ('42 s', '5 min', '2.1 h')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def page_title(scale: str) -> str:
    """Return the title of the page."""
    return f"semaopt, {scale} scale" if scale else "semaopt"


def study(number: int) -> str:
    """Name a study; numbers are from 0, names from 1."""
    return f"Study {number + 1}"


# Unfinished and joined studies


def progress(finding: Finding) -> str:
    """Say how many studies are finished."""
    return f"{studies(finding)} {'is' if len(finding.studies) == 1 else 'are'} finished"


def notes(findings: Iterable[Finding]) -> list[str]:
    """List the findings with missing studies, and those whose studies were not computed alike."""
    found = []
    for finding in findings:
        if finding.missing:
            text = f"{finding.name}: {progress(finding)}, so the results are preliminary"
            found.append(f"{text}. Compute the rest with: {resume(finding)}")
        if len(finding.environments) > 1:
            parts = [(capital(numbered(numbers)), _differing(finding, own)) for own, numbers in finding.environments]
            text = f"{finding.name}: its studies were computed with different code, versions or machines."
            found.append(" ".join([text, *(f"{which}: {entries}." for which, entries in parts)]))
    return found


def resume(finding: Finding) -> str:
    """Return the command that computes the missing studies."""
    command = without(finding.origin.rerun, "--out")
    if not command.startswith("semaopt run "):  # a function or a script, which takes no options
        return finding.origin.rerun
    folder = shlex.quote(finding.studies[-1].folder)
    return " ".join([command, f"--out {folder}", *(f"--study {number + 1}" for number in finding.missing)])


def numbered(numbers: Sequence[int]) -> str:
    """Name studies by their numbers.

    >>> numbered([0]), numbered([0, 2])
    ('study 1', 'studies 1 and 3')
    """
    listed = join([str(number + 1) for number in numbers])
    return f"{'study' if len(numbers) == 1 else 'studies'} {listed}"


def _differing(finding: Finding, environment: Mapping[str, str]) -> str:
    """List the entries of an environment that are not the same in all studies."""
    shared = finding.origin.environment
    names = dict.fromkeys(name for known, _ in finding.environments for name in known if name not in shared)
    return ", ".join(f"{name} {environment.get(name, 'unknown')}" for name in names)


# Claims and comparisons


def evidence_line(finding: Finding) -> str:
    """Return the numbers behind the verdict on a claim in one line, grouped by outcome if comparisons disagree.

    If studies are missing, the line ends with the number of those that are finished.
    """
    found = claims.verdict(finding)
    if not found.rows:
        line = f"{capital(_range(finding))}."
    elif finding.replicated and len(finding.studies) == 1:
        line = "No verdict: an interval over studies needs at least two of them."
    else:
        line = f"{_claimed(finding, found.rows)}{_controls(finding, found.controls)}"
    return f"{line} {progress(finding)}." if finding.missing else line


def _controls(finding: Finding, rows: Sequence[ClaimRow]) -> str:
    """List the comparisons with control arms, each with its verdict."""
    if not rows:
        return ""
    listed = "; ".join(f"{pair(finding, row.comparison)} {_value(row.comparison)} ({row.outcome})" for row in rows)
    return f" Controls: {listed}."


def _claimed(finding: Finding, rows: Sequence[ClaimRow]) -> str:
    if len(rows) == 1:
        return f"{pair(finding, rows[0].comparison)}: {rows[0].comparison.text}."
    groups = {outcome: [row.comparison for row in rows if row.outcome == outcome] for outcome in OUTCOMES}
    groups = {outcome: found for outcome, found in groups.items() if found}
    parts = [_grouped(finding, found) for found in groups.values()]
    if len(groups) == 1:
        return f"{parts[0]}."
    return " ".join(f"{capital(outcome)}: {part}." for outcome, part in zip(groups, parts, strict=True))


def _grouped(finding: Finding, found: Sequence[Comparison]) -> str:
    """List comparisons by method: "A vs B (+0.1), C (+0.2); D vs B (0.0)"."""
    methods = dict.fromkeys(one.method for one in found)
    parts = []
    for method in methods:
        against = [f"{finding.label(one.against)} ({_value(one)})" for one in found if one.method == method]
        parts.append(f"{finding.label(method)} vs {', '.join(against)}")
    return "; ".join(parts)


def _value(one: Comparison) -> str:
    return one.text.partition(" (")[0]


def headline(finding: Finding) -> str:
    """Return title, verdict and evidence of an experiment in one line."""
    return f"{finding.spec.title}: {claims.verdict(finding).outcome}. {evidence_line(finding)}"


def figure_title(finding: Finding) -> str:
    """Return the headline, without its evidence if that is long: the figure shows every comparison."""
    line = headline(finding)
    if len(line) <= _LONGEST_TITLE:
        return line
    short = f"{finding.spec.title}: {claims.verdict(finding).outcome}."
    return f"{short} {progress(finding)}." if finding.missing else short


def pair(finding: Finding, one: Comparison) -> str:
    """Name the two methods of a comparison."""
    return f"{finding.label(one.method)} vs {finding.label(one.against)}"


def _range(finding: Finding) -> str:
    """Return the smallest and the largest mean of the claim's metric, for a claim without comparisons."""
    metric = finding.spec.claim.metric
    means = [(mean_and_std(finding.ends(final.method.name, metric))[0], final.method.label) for final in finding.finals]
    means = [one for one in means if math.isfinite(one[0])] or means
    digits = 4 if is_share(metric) else 2  # shares of different methods are close to each other
    (low, lowest), (high, highest) = min(means), max(means)
    ends = f"{number_text(low, digits)} ({lowest}) to {number_text(high, digits)} ({highest})"
    return f"{finding.metric_name(metric)} from {ends}"


def difference_label(finding: Finding, row: ClaimRow) -> str:
    """Describe one row of the plot of differences."""
    return f"{pair(finding, row.comparison)}: {row.comparison.text}, {row.outcome}"


def difference_axis(finding: Finding, one: Comparison) -> str:
    """Name the axis of the plot of differences and the side that supports the claim."""
    kind, middle = ("ratio", "1") if one.is_ratio else ("difference", "0")
    side = "left" if one.better == "lower" else "right"
    return f"{finding.metric_name(one.metric)}, {kind}; {side} of {middle} supports the claim"


def differences_caption(finding: Finding) -> str:
    """Describe the plot of differences."""
    return (
        f"Dots are mean differences over {units(finding)}, lines their confidence intervals. The grey band marks "
        "equivalence."
    )


def comparisons_caption(finding: Finding) -> str:
    """Describe the table of comparisons."""
    text = f"{capital(finding.metric_name(finding.spec.claim.metric))}: comparisons over {units(finding)}."
    return f"{text} {CONTROLS}" if claims.verdict(finding).controls else text


def units(finding: Finding) -> str:
    """Return what intervals are made from: studies, or the seeds of a single study."""
    return studies(finding) if finding.replicated else plural(len(finding.seeds), "seed")


def studies(finding: Finding) -> str:
    """Return the number of studies, and how many are finished if some are not."""
    number = finding.spec.studies
    return f"{len(finding.studies)} of {number} studies" if finding.missing else f"{number} studies"


def quantiles_caption(finding: Finding) -> str:
    """Describe the panels of quantiles of s."""
    return (
        "s over all coordinates: the line is the median, the bands are 25% to 75%, 1% to 99% and smallest to largest. "
        f"All are geometric means over {plural(len(finding.seeds), 'run')}."
    )


def stability_caption(finding: Finding) -> str:
    """Describe the panels of final values against a hyper-parameter."""
    last = plural(finding.spec.final_epochs, "epoch")
    return (
        f"Lines are means over {plural(len(finding.seeds), 'run')}, each the mean of the last {last}; dots are single "
        "runs. Crosses are runs that diverged; they count as the worst result."
    )


def curves_caption(finding: Finding, *, saturated: bool, some: bool = False) -> str:
    """Describe the panels of curves."""
    parts = [
        f"Lines are means over {plural(len(finding.seeds), 'run')}, bands are ± one standard error (on logarithmic "
        "axes, of the logarithm)."
    ]
    if saturated:
        parts.append("Where methods come close to 1, one minus the metric is drawn: lower is better.")
    if some:
        parts.append("Only the methods of the claim are drawn; the table has all.")
    if finding.decay_epochs:
        parts.append("Dotted vertical lines mark the decays of step sizes or γ.")
    if any(not math.isfinite(value) for final in finding.finals for value in final.last(finding.spec.claim.metric)):
        parts.append("A line ends where a run diverged.")
    return " ".join(parts)


def panel(finding: Finding, name: str) -> str:
    """Describe one panel for readers who cannot see it."""
    claim = finding.spec.claim
    if claim.metric in BOUNDS:
        return f"quantiles of s over epochs, {finding.label(name)}"
    return f"{finding.metric_name(name)} {'over epochs' if claim.stability is None else f'against {claim.stability}'}"


# Numbers in tables


def end(value: float, percent: bool = False) -> str:
    """Format the last value of one run."""
    if not percent or not math.isfinite(value):
        return number_text(value, 3)
    return f"{100 * value:.2f}"


def value(setting: Any) -> str:
    """Format a hyper-parameter."""
    return f"{setting:.3g}" if isinstance(setting, float) else str(setting)


def metric(finding: Finding, name: str) -> str:
    """Name a metric with its unit."""
    return finding.metric_name(name) + (" (%)" if is_share(name) else "")


def axis(name: str) -> str:
    """Name a hyper-parameter."""
    return _AXES.get(name, name)


def sorted_axes(names: Iterable[str]) -> list[str]:
    """Sort hyper-parameters as columns; a store does not keep the order of the spec."""
    order = list(_AXES)
    return sorted(names, key=lambda name: (order.index(name) if name in order else len(order), name))


def trial_mean(trial: Trial) -> str:
    """Format the tuning metric of a trial and where it was pruned."""
    return number_text(trial.mean, 4) + ("" if trial.pruned is None else f" (pruned after epoch {trial.pruned})")


# Protocol


def protocol(finding: Finding) -> str:
    """Describe data, model, loss and length of training."""
    spec, sizes = finding.spec, finding.facts.get("sizes", {})
    counts = [f"{count} {name}" for name, count in sizes.items()]
    counts += [f"{finding.objective.noise_title} {spec.data.noise:g}"] if spec.data.noise else []
    options = [f"{name} {setting}" for name, setting in spec.model.options.items()]
    return (
        f"Data {spec.data.name}{_brackets(counts)}, model {spec.model.name}{_brackets(options)}, "
        f"loss: {finding.objective.title}, batch size {spec.batch}, {plural(spec.epochs, 'epoch')}, "
        f"{runs_per_method(finding)}, {spec.scale} scale."
    )


def _brackets(parts: Sequence[str]) -> str:
    return f" ({', '.join(parts)})" if parts else ""


def runs_per_method(finding: Finding) -> str:
    """Return the number of final runs per method."""
    seeds = plural(len(finding.spec.seeds.final), "seed")
    return f"{studies(finding)} with {seeds} each" if finding.replicated else seeds


def ends_caption(finding: Finding) -> str:
    """Describe the table of final values."""
    last = finding.spec.final_epochs
    when = "after the last epoch" if last == 1 else f"averaged over the last {last} epochs"
    ratios = [metric for metric in finding.spec.metrics if finding.is_ratio(metric)]
    kinds = ["mean ± standard deviation"] if len(ratios) < len(finding.spec.metrics) else []
    kinds += ["geometric mean ×/÷ geometric standard deviation of losses"] if ratios else []
    return f"Final values {when}: {', '.join(kinds)}; {plural(len(finding.seeds), 'run')}."


TIME_HEAD = ("method", "runs that reach it", "epochs (median)", "compute time (median)")


def times_caption(finding: Finding, one: TimeToTarget) -> str:
    """Describe the table of times to a target."""
    metric, label = finding.metric_name(finding.spec.claim.metric), finding.label(finding.spec.claim.target or "")
    return f"Time to target: when runs first reach a {metric} of {number_text(one.target, 4)}, where {label} ends."


def time_cells(one: TimeToTarget) -> tuple[str, ...]:
    """Format the number of runs that reach a target, and the medians of epochs and seconds."""
    medians = (f"{one.epochs:g}", f"{one.seconds:.2g} s") if math.isfinite(one.epochs) else ("never", "never")
    return f"{one.reached} of {one.runs}", *medians


METHODS_CAPTION = "Methods and their fixed settings."
CHOSEN_CAPTION = "Selected hyper-parameters."
PARTS = "Training metrics are measured on the whole training set after each epoch."


def runs_caption(finding: Finding, name: str) -> str:
    """Describe the table of all runs of one metric."""
    return f"{capital(metric(finding, name))} after the last epoch."


# Tuning


def tuned_for(finding: Finding) -> str:
    """Name the metric that trials are selected by."""
    assert finding.spec.tuning is not None  # only tuned findings have trials
    return finding.metric_name(finding.spec.tuning.metric)


def tuning(finding: Finding, rungs: Sequence[int]) -> str:
    """Describe how hyper-parameters were selected; ``rungs`` are the epochs of successive halving."""
    options = finding.spec.tuning
    if options is None:
        return "No hyper-parameters were tuned."
    counts = {len(trials) for study in finding.studies if study.tuning for trials in study.tuning.trials.values()}
    number = f"{min(counts)}" if len(counts) == 1 else f"{min(counts)} to {max(counts)}"
    per = "method and study" if finding.replicated else "method"
    sentences = [
        f"{capital(number)} trials per {per} ({_SAMPLERS.get(options.sampler, options.sampler)}), each with "
        f"{plural(len(finding.spec.seeds.tuning), 'tuning seed')} that no final run uses. The trial with the best "
        f"{tuned_for(finding)} is selected; the test set is never used."
    ]
    if again := len(finding.spec.seeds.rerank):
        sentences.append(
            f"Before that, the best quarter of the trials is ranked again with {plural(again, 'more seed')}; the "
            "selected trial is one of them."
        )
    if rungs:
        epochs = f"{'epoch' if len(rungs) == 1 else 'epochs'} {join([str(epoch) for epoch in rungs])}"
        sentences.append(f"Successive halving: at {epochs}, only the best quarter of a method's trials continue.")
    if options.extend and options.rounds:
        sentences.append(
            f"An axis is extended for all methods, at most {_times(options.rounds)}, while a best value lies on its "
            "edge and is better than the inner values by more than the noise of the seeds."
        )
    return " ".join(sentences)


_SAMPLERS = {
    "grid": "full grid",
    "tpe": "the first ten random, then tree-structured Parzen estimators",
    "sobol": "scrambled Sobol points",
}


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")


def extension(finding: Finding, one: Extension) -> str:
    """Say which value was added to an axis, and why."""
    return (
        f"The grid was extended to {axis(one.axis)} {one.value:.3g} for all methods: the best {axis(one.axis)} of "
        f"{_labels(finding, one.because)} was on the edge."
    )


def on_edge(finding: Finding, tuning: Tuning, name: str, end: int, methods: Iterable[str]) -> str:
    """Say which best values are at an end of the search space."""
    edge = f"{tuning.edge(name, end):.3g}"
    options = finding.spec.tuning
    assert options is not None  # something was tuned
    if any(name in ranges for ranges in (options.ranges, *(one.ranges for one in options.families.values()))):
        where = "lowest" if end == 0 else "highest"
        labels = _labels(finding, methods)
        return f"The best {axis(name)} of {labels} is in the {where} tenth of its range (end: {edge})."
    return f"The search space ends at the best {axis(name)} of {_labels(finding, methods)} ({edge})."


def _labels(finding: Finding, names: Iterable[str]) -> str:
    return join([finding.label(name) for name in names])


GROWTH_CAPTION = "Effect of extending the grid: the best trial before and after."


def growth_columns(finding: Finding, axes: Sequence[str]) -> list[str]:
    """Name the columns of the table that compares the first grid with the extended one."""
    names = (tuned_for(finding), *map(axis, axes))
    return [f"{name}, {when}" for when in ("first grid", "extended grid") for name in names]


def trials_caption(finding: Finding) -> str:
    """Describe the table of trials of one method."""
    return f"{capital(tuned_for(finding))}, best first; the selected trial is highlighted."


# Where results come from


def origin(one: Origin) -> str:
    """Say how many runs an experiment took and how long."""
    return (
        f"{plural(one.runs, 'run')}, {duration(one.seconds)} of compute, {duration(one.wall_seconds)} of wall time "
        f"including pauses, finished {one.finished[:10]}."
    )


ORIGINS_CAPTION = "Finished runs are kept in the store and reused. Wall time includes pauses."


def environment_caption(names: Sequence[str]) -> str:
    """Describe the table of an environment; ``names`` are its experiments if there are several environments."""
    return f"Environment of {join(names)}." if names else "Environment."


def environment(known: Mapping[str, str]) -> str:
    """Summarize an environment: versions, operating system and cores, as far as known."""
    parts = [f"{name} {known[name]}" for name in _VERSIONS if name in known]
    parts += [known["platform"].partition("-")[0]] if "platform" in known else []
    parts += [f"{known['cores']} cores"] if "cores" in known else []
    return ", ".join(parts) + "."


def session(one: Session) -> str:
    """Summarize one invocation."""
    text = f"{plural(one.computed, 'run')} computed, {one.reused} reused from the store"
    text += f", in {duration(one.wall_seconds)}" if one.wall_seconds else ""
    text += f"; damaged rows computed again: {', '.join(one.damaged)}" if one.damaged else ""
    return f"{text}."


# Theorem checks


def checks(found: Sequence[Check]) -> str:
    """Say whether all theorem checks pass, or name those that fail."""
    failed = [check.name for check in found if not check.passed]
    if not failed:
        return "All theorem checks pass."
    return f"Failed theorem checks: {', '.join(failed)}."


def check_outcome(passed: bool) -> str:
    """Return the word for a check or one of its lines."""
    return "PASS" if passed else "FAIL"


def check_title(check: Check) -> str:
    """Return the message of the figure of a check, marked if the check failed."""
    return check.figure.message if check.passed else f"FAILED: {check.figure.message}"


def check_caption(check: Check) -> str:
    """Describe the curves of a check."""
    seeds = f" of {check.settings['seeds']} seeds" if "seeds" in check.settings else ""
    return f"{check_outcome(check.passed)}; {check.theorem}; lines are means, bands the 5th to 95th percentile{seeds}"
