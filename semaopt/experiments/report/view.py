"""The view model: what the HTML and the Markdown templates show, as plain text in the order of the page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from semaopt.checks.result import MARGIN
from semaopt.checks.result import CheckResult as Check
from semaopt.experiments.report import figures, style, wording
from semaopt.experiments.report.style import Look
from semaopt.experiments.results import claims
from semaopt.experiments.results.model import Final, Finding, Results, StudyResult
from semaopt.experiments.results.statistics import number_text, spread_text
from semaopt.experiments.results.trials import Trial
from semaopt.experiments.sweep.tuning import rungs
from semaopt.experiments.training.metrics import is_share


@dataclass(frozen=True)
class Row:
    """A row of a table; the first cell is the row header."""

    cells: tuple[str, ...]
    look: Look | None = None
    """The look of the method that the row is about."""
    kind: str = ""
    """"chosen", the outcome of a comparison, or "pass" and "fail"."""
    hint: str = ""
    """Details that a page shows on hover."""


@dataclass(frozen=True)
class Table:
    """A table with a caption."""

    caption: str
    head: tuple[str, ...]
    rows: tuple[Row, ...]
    sortable: bool = False


@dataclass(frozen=True)
class Trials:
    """All trials of one method in one study."""

    title: str
    look: Look
    table: Table


@dataclass(frozen=True)
class Experiment:
    """One experiment: verdict, evidence, protocol, runs."""

    name: str
    title: str
    about: str
    claimed_by: str
    claim: str
    outcome: str
    line: str
    comparisons: Table | None
    differences_caption: str
    curves_caption: str
    panels: tuple[tuple[str, str], ...]
    """Metrics that are drawn, with a description of each panel."""
    ends: Table
    times: Table | None
    chosen: Table | None
    protocol: str
    pairing: str
    methods: Table
    tuning: tuple[str, ...]
    growth: Table | None
    trials: tuple[Trials, ...]
    runs: tuple[Table, ...]
    origin: str
    rerun: str
    environment: str


@dataclass(frozen=True)
class CheckFigure:
    """The figure of a theorem check."""

    name: str
    file: str
    title: str
    caption: str


@dataclass(frozen=True)
class Page:
    """Everything that a report shows."""

    title: str
    notes: tuple[str, ...]
    reading: str
    experiments: tuple[Experiment, ...]
    checks_line: str
    checks: Table | None
    counterexample: tuple[CheckFigure, ...]
    check_figures: tuple[CheckFigure, ...]
    session: str
    command: str
    origins: Table
    environments: tuple[Table, ...]


_COUNTEREXAMPLE = "counterexample"


def page(results: Results) -> Page:
    """Build the view of all results."""
    looks = method_looks(results)
    drawn = [_check_figure(check) for check in results.checks]
    return Page(
        title=wording.page_title(results.scale),
        notes=(*results.notes, *wording.notes(results.findings)),
        reading=wording.READING,
        experiments=tuple(_experiment(finding, looks) for finding in results.findings),
        checks_line=wording.checks(results.checks) if results.checks else "",
        checks=_checks(results.checks) if results.checks else None,
        counterexample=tuple(one for one in drawn if one.name == _COUNTEREXAMPLE),
        check_figures=tuple(one for one in drawn if one.name != _COUNTEREXAMPLE),
        session=wording.session(results.session),
        command=results.session.command,
        origins=_origins(results.findings),
        environments=_environments(results),
    )


def method_looks(results: Results) -> dict[str, Look]:
    """Return one look per method name for all figures of a report."""
    methods = (final.method.name for finding in results.findings for final in finding.finals)
    groups = (name for finding in results.findings for name in finding.spec.claim.groups)
    return style.looks([*methods, *groups])


def _experiment(finding: Finding, looks: Mapping[str, Look]) -> Experiment:
    spec, panels = finding.spec, figures.panel_keys(finding)
    return Experiment(
        name=finding.name,
        title=spec.title,
        about=spec.about,
        claimed_by=wording.CLAIMED_BY[spec.claim.source],
        claim=spec.claim.text,
        outcome=claims.verdict(finding).outcome,
        line=wording.evidence_line(finding),
        comparisons=_comparisons(finding, looks),
        differences_caption=wording.differences_caption(finding),
        curves_caption=figures.caption(finding),
        panels=tuple((key, wording.panel(finding, key)) for key in panels),
        ends=_ends(finding, looks),
        times=_times(finding, looks),
        chosen=_chosen(finding, looks),
        protocol=wording.protocol(finding),
        pairing=f"{wording.PAIRING} {wording.STUDIES if finding.replicated else wording.ONE_STUDY} {wording.PARTS}",
        methods=_methods(finding, looks),
        tuning=_tuning(finding),
        growth=_growth(finding, looks),
        trials=tuple(_all_trials(finding, looks)),
        runs=tuple(_runs(finding, metric) for metric in spec.metrics),
        origin=wording.origin(finding.origin),
        rerun=finding.origin.rerun,
        environment=wording.environment(finding.origin.environment),
    )


def _comparisons(finding: Finding, looks: Mapping[str, Look]) -> Table | None:
    def row(claim: claims.ClaimRow) -> Row:
        one = claim.comparison
        cells = (wording.pair(finding, one), claim.outcome, one.text, f"{one.probability:.2f}")
        return Row(cells, looks[one.method], claim.outcome)

    found = claims.verdict(finding)
    rows = tuple(map(row, (*found.rows, *found.controls)))
    caption = wording.comparisons_caption(finding)
    return Table(caption, ("comparison", "verdict", "difference (interval)", "P"), rows) if rows else None


def _ends(finding: Finding, looks: Mapping[str, Look]) -> Table:
    metrics = finding.spec.metrics

    def row(final: Final) -> Row:
        name = final.method.name
        cells = [
            spread_text(finding.ends(name, metric), percent=is_share(metric), is_ratio=finding.is_ratio(metric))
            for metric in metrics
        ]
        return Row((final.method.label, *cells), looks[name])

    head = ("method", *(wording.metric(finding, metric) for metric in metrics))
    return Table(wording.ends_caption(finding), head, tuple(map(row, finding.finals)), sortable=True)


def _times(finding: Finding, looks: Mapping[str, Look]) -> Table | None:
    """Tabulate when each method reaches the target; None if the claim has none."""
    found = finding.times_to_target()
    rows = [Row((finding.label(one.method), *wording.time_cells(one)), looks[one.method]) for one in found]
    return Table(wording.times_caption(finding, found[0]), wording.TIME_HEAD, tuple(rows), True) if found else None


def _chosen(finding: Finding, looks: Mapping[str, Look]) -> Table | None:
    """Tabulate the selected hyper-parameters of every method, one row per study."""
    axes = wording.sorted_axes({name for study in finding.studies for one in study.finals for name in one.values})
    if not axes:
        return None
    rows = [
        Row(
            (
                final.method.label,
                *([str(study.number + 1)] if finding.replicated else []),
                *(wording.value(study.finals[k].values.get(name, "")) for name in axes),
            ),
            looks[final.method.name],
        )
        for k, final in enumerate(finding.finals)
        for study in finding.studies
    ]
    head = ("method", *(["study"] if finding.replicated else []), *map(wording.axis, axes))
    return Table(wording.CHOSEN_CAPTION, head, tuple(rows), sortable=True)


def _methods(finding: Finding, looks: Mapping[str, Look]) -> Table:
    def row(final: Final) -> Row:
        method = final.method
        fixed = ", ".join(f"{name} {wording.value(setting)}" for name, setting in method.options.items())
        cells = (method.label, method.algorithm, ", ".join(method.decays) or "nothing", fixed)
        return Row(cells, looks[method.name])

    head = ("method", "algorithm", "decays", "fixed settings")
    return Table(wording.METHODS_CAPTION, head, tuple(map(row, finding.finals)))


def _tuning(finding: Finding) -> tuple[str, ...]:
    found = [wording.tuning(finding, rungs(finding.spec))]
    for study in finding.studies:
        if study.tuning is None:
            continue
        prefix = f"{wording.study(study.number)}: " if finding.replicated else ""
        found += [prefix + wording.extension(finding, one) for one in study.tuning.extensions]
        found += [
            prefix + wording.on_edge(finding, study.tuning, axis, end, names)
            for (axis, end), names in study.tuning.on_edge.items()
        ]
    return tuple(found)


def _growth(finding: Finding, looks: Mapping[str, Look]) -> Table | None:
    """Compare the best trials before and after the grid was extended; None if it was not, or with several studies."""
    tuning = finding.tuning
    if tuning is None or not tuning.extensions or finding.replicated:
        return None
    axes = list(dict.fromkeys(extension.axis for extension in tuning.extensions))

    def cells(trial: Trial) -> list[str]:
        return [wording.trial_mean(trial), *(wording.value(trial.values.get(axis, "")) for axis in axes)]

    rows = [
        Row((final.method.label, *cells(tuning.best_before(name)), *cells(tuning.best(name))), looks[name])
        for final in finding.finals
        for name in [final.method.name]
    ]
    return Table(wording.GROWTH_CAPTION, ("method", *wording.growth_columns(finding, axes)), tuple(rows))


def _all_trials(finding: Finding, looks: Mapping[str, Look]) -> Iterable[Trials]:
    for study in finding.studies:
        prefix = f"{wording.study(study.number)}, " if finding.replicated else ""
        for final in study.finals if study.tuning is not None else ():
            table = _trials(finding, study, final)
            title = f"{prefix}{final.method.label}: {wording.plural(len(table.rows), 'trial')}"
            yield Trials(title, looks[final.method.name], table)


def _trials(finding: Finding, study: StudyResult, final: Final) -> Table:
    assert study.tuning is not None  # the caller has looked
    trials = sorted(study.tuning.trials[final.method.name].values(), key=lambda trial: trial.order)
    axes = wording.sorted_axes(final.values)
    most = max(len(trial.measured) for trial in trials)

    def row(trial: Trial) -> Row:
        settings = [wording.value(trial.values.get(name, "")) for name in axes]
        measured = [number_text(value, 4) for value in trial.measured]
        cells = (*settings, wording.trial_mean(trial), *measured, *([""] * (most - len(measured))))
        return Row(cells, kind="chosen" if trial == final.chosen else "")

    head = (*map(wording.axis, axes), "mean", *(f"run {k + 1}" for k in range(most)))
    return Table(wording.trials_caption(finding), head, tuple(map(row, trials)), sortable=True)


def _runs(finding: Finding, metric: str) -> Table:
    """Tabulate the last value of every run, one row per seed and one column per method."""
    columns = [
        [wording.end(value, percent=is_share(metric)) for value in final.last(metric)] for final in finding.finals
    ]
    rows = tuple(
        Row((str(seed), *cells)) for seed, cells in zip(finding.seeds, zip(*columns, strict=True), strict=True)
    )
    head = ("seed", *(final.method.label for final in finding.finals))
    return Table(wording.runs_caption(finding, metric), head, rows, sortable=True)


def _checks(checks: Sequence[Check]) -> Table:
    rows = [
        Row(
            (
                *(check.name, wording.check_outcome(line.passed), check.theorem, line.claim),
                *(f"{line.measured:.3g}", f"{line.promised:.3g}", line.margin),
            ),
            kind="pass" if line.passed else "fail",
            hint=line.detail,
        )
        for check in checks
        for line in check.lines
    ]
    head = ("check", "outcome", "theorem", "claim", "measured", "promised", "margin")
    return Table(MARGIN, head, tuple(rows), sortable=True)


def _check_figure(check: Check) -> CheckFigure:
    file = f"check-{figures.check_slug(check.name)}.svg"
    return CheckFigure(check.name, file, wording.check_title(check), wording.check_caption(check))


def _origins(findings: Sequence[Finding]) -> Table:
    rows = [
        Row(
            (
                *(one.name, one.origin.rerun, str(one.origin.runs)),
                *(wording.duration(one.origin.seconds), wording.duration(one.origin.wall_seconds), one.origin.finished),
            )
        )
        for one in findings
    ]
    head = ("experiment", "command", "runs", "compute", "wall time", "finished (UTC)")
    return Table(wording.ORIGINS_CAPTION, head, tuple(rows))


def _environments(results: Results) -> tuple[Table, ...]:
    """Tabulate each environment in which runs were made, or the current one if there are no runs."""
    found: list[tuple[dict[str, str], list[str]]] = []
    for finding in results.findings:
        several = len(finding.environments) > 1
        for own, numbers in finding.environments:
            name = f"{finding.name} ({wording.numbered(numbers)})" if several else finding.name
            names = next((names for known, names in found if known == own), None)
            if names is None:
                found.append((own, [name]))
            else:
                names.append(name)
    found = found or [(results.environment, [])]
    return tuple(
        Table(
            wording.environment_caption(names if len(found) > 1 else ()),
            ("package", "version"),
            tuple(Row((key, value)) for key, value in known.items()),
        )
        for known, names in found
    )
