"""``semaopt check``: run theorem checks, print the table, write figures and JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Annotated, Any

import typer

import semaopt
from semaopt import checks
from semaopt.checks.result import CheckResult
from semaopt.experiments.cli.console import FAILED, INTERRUPTED, WORKERS, command_line, require_folder


def check(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME", help="Checks to run: constant[adam], constant, thm:2. Default: all."),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Shorter runs; all checks take about a minute.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Write figures and check.json to DIR, and store finished checks."),
    ] = None,
    workers: WORKERS = None,
) -> None:
    """Compare the bounds and rates of the theorems with measurements; without averaging the error must not shrink.

    With --out, finished checks are stored in DIR/runs.sqlite, so an interrupted command resumes where it stopped.
    The exit status is 1 if a check fails.
    """
    from semaopt.experiments.api import default_workers

    try:
        chosen = checks.select(names, quick)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="NAME") from error
    if out is not None:
        require_folder(out)
    results = _results(chosen, quick, default_workers() if workers is None else workers, out)
    document = to_json(results, quick)
    if as_json:
        typer.echo(json.dumps(document, indent=1))
    else:
        _print(results)
    if out is not None:
        _write(results, document, out)
        typer.echo(f"Wrote check.json and {len(results)} figures to {out}", err=as_json)
    if not document["passed"]:
        raise typer.Exit(FAILED)


def to_json(results: list[CheckResult], quick: bool) -> dict[str, Any]:
    """Return what ``--json`` prints."""
    return {
        "semaopt": semaopt.__version__,
        "quick": quick,
        "passed": all(result.passed for result in results),
        "seconds": sum(result.seconds for result in results),
        "checks": [result.plain() for result in results],
    }


def _write(results: list[CheckResult], document: dict[str, Any], out: Path) -> None:
    from semaopt.experiments.files import write_output
    from semaopt.experiments.report import figures

    for result in results:
        write_output(out / f"{figures.check_slug(result.name)}.png", figures.check_png(result))
    write_output(out / "check.json", json.dumps(document, indent=1))


def _results(chosen: list[str], quick: bool, workers: int, out: Path | None) -> list[CheckResult]:
    from semaopt.experiments.files import OutputError

    try:
        return _run(chosen, quick, workers) if out is None else _resume(chosen, quick, workers, out)
    except KeyboardInterrupt:
        remedy = (
            "Nothing was stored; add --out DIR to store finished checks."
            if out is None
            else f"Finished checks are stored. Resume with: {command_line()}"
        )
        typer.echo(f"Interrupted. {remedy}", err=True)
        raise typer.Exit(INTERRUPTED) from None
    except OutputError as error:
        raise typer.BadParameter(str(error), param_hint="--out") from error
    except BrokenProcessPool:
        typer.echo("A worker process was killed, possibly because memory ran out. Try --workers 1.", err=True)
        raise typer.Exit(FAILED) from None


def _resume(chosen: list[str], quick: bool, workers: int, out: Path) -> list[CheckResult]:
    """Return the results of all checks; run and store those that are not in the folder."""
    from semaopt.experiments.files import locked
    from semaopt.experiments.sweep import theorem_checks
    from semaopt.experiments.sweep.store import STORE_FILE, Store

    with locked(out), Store(out / STORE_FILE) as store:
        found = theorem_checks.stored(store, chosen, quick)
        if found:
            typer.echo(f"{len(found)} of {len(chosen)} checks are stored in {out} and are reused.", err=True)
        missing = [name for name in chosen if name not in found]
        if missing:
            new = _run(missing, quick, workers, lambda result: theorem_checks.save(store, result, quick))
            found.update({result.name: result for result in new})
    return [found[name] for name in chosen]


def _run(
    chosen: list[str], quick: bool, workers: int, save: Callable[[CheckResult], None] = lambda result: None
) -> list[CheckResult]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("checks", total=len(chosen))

        def done(result: CheckResult) -> None:
            save(result)
            progress.update(task, advance=1, description=f"{result.name} {'PASS' if result.passed else 'FAIL'}")

        return checks.run(chosen, quick, workers, done)


def _print(results: list[CheckResult]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from semaopt.experiments.report.wording import plural

    table = Table(title="Measured and promised values", title_justify="left")
    for name, justify in (("check", "left"), ("claim", "left"), ("measured", "right"), ("promised", "right")):
        table.add_column(name, justify=justify, overflow="fold")  # type: ignore[arg-type]
    table.add_column("margin", justify="right")
    table.add_column("")
    for result in results:
        for k, line in enumerate(result.lines):
            verdict = Text("PASS", style="green") if line.passed else Text("FAIL", style="bold red")
            first = Text(f"{result.name}\n{result.theorem}" if k == 0 else "")
            table.add_row(
                first, Text(line.claim), f"{line.measured:.3g}", f"{line.promised:.3g}", Text(line.margin), verdict,
                end_section=k == len(result.lines) - 1,
            )  # fmt: skip
    console = Console()
    console.print(table)
    failed = [result.name for result in results if not result.passed]
    count = sum(len(result.lines) for result in results)
    seconds = sum(result.seconds for result in results)
    if not failed:
        console.print(f"PASS: {plural(len(results), 'check')}, {plural(count, 'claim')}, {seconds:.0f} s of compute")
    else:
        console.print(f"FAIL: {', '.join(failed)}", markup=False)
        for result in results:
            for line in result.lines:
                if not line.passed:
                    console.print(f"{result.name}: {line.claim}: {line.detail}", markup=False)
