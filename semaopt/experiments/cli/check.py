"""``semaopt check``: the table, the figures, the JSON and the exit status."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Annotated, Any

import typer

import semaopt
from semaopt import checks
from semaopt.checks.result import Result
from semaopt.experiments.cli.console import INTERRUPTED, WORKERS, writable


def check(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME", help="constant[adam], constant, thm:2, ... Default: all.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Shorter runs: within a minute.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON instead of a table.")] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="DIR", help="Write the figures and check.json there; finished checks are kept there too."
        ),
    ] = None,
    workers: WORKERS = None,
) -> None:
    """Compare every theorem with what is measured: bounds, rates, and that no averaging means no progress.

    With --out what is finished is kept in DIR/runs.sqlite and not done again: an interrupted command goes on where it
    was. The exit status is 1 if anything failed.
    """
    from semaopt.experiments.api import default_workers
    from semaopt.experiments.files import write_output

    try:
        chosen = checks.select(names, quick)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="NAME") from error
    if out is not None:
        writable(out)
    results = _results(chosen, quick, default_workers() if workers is None else workers, out)
    report = plain(results, quick)
    if as_json:
        typer.echo(json.dumps(report, indent=1))
    else:
        _print(results)
    if out is not None:
        from semaopt.checks.figures import draw

        write_output(out / "check.json", json.dumps(report, indent=1))
        paths = draw(results, out)
        typer.echo(f"{len(paths)} figures and check.json in {out}", err=as_json)
    if not report["passed"]:
        raise typer.Exit(1)


def plain(results: list[Result], quick: bool) -> dict[str, Any]:
    """What ``--json`` prints."""
    return {
        "semaopt": semaopt.__version__,
        "quick": quick,
        "passed": all(result.passed for result in results),
        "seconds": sum(result.seconds for result in results),
        "checks": [result.plain() for result in results],
    }


def _results(chosen: list[str], quick: bool, workers: int, out: Path | None) -> list[Result]:
    from semaopt.experiments.files import OutputError

    try:
        return _run(chosen, quick, workers) if out is None else _go_on(chosen, quick, workers, out)
    except KeyboardInterrupt:
        kept = (
            "only --out DIR keeps what is finished"
            if out is None
            else "what is finished is kept: the same command goes on"
        )
        typer.echo(f"Interrupted; {kept}.", err=True)
        raise typer.Exit(INTERRUPTED) from None
    except OutputError as error:
        raise typer.BadParameter(str(error), param_hint="--out") from error
    except BrokenProcessPool:
        typer.echo("A worker process was killed (out of memory?); try --workers 1", err=True)
        raise typer.Exit(1) from None


def _go_on(chosen: list[str], quick: bool, workers: int, out: Path) -> list[Result]:
    """The results of all; those that are not kept in the folder are run, and kept."""
    from semaopt.experiments.files import locked
    from semaopt.experiments.sweep import theorem_checks
    from semaopt.experiments.sweep.store import STORE_FILE, Store

    with locked(out), Store(out / STORE_FILE) as store:
        found = theorem_checks.stored(store, chosen, quick)
        if found:
            typer.echo(f"{len(found)} of {len(chosen)} checks are done already, kept in {out}", err=True)
        missing = [name for name in chosen if name not in found]
        fresh = (
            _run(missing, quick, workers, lambda result: theorem_checks.save(store, result, quick)) if missing else []
        )
    found.update({result.name: result for result in fresh})
    return [found[name] for name in chosen]


def _run(
    chosen: list[str], quick: bool, workers: int, keep: Callable[[Result], None] = lambda result: None
) -> list[Result]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("checks", total=len(chosen))

        def done(result: Result) -> None:
            keep(result)
            progress.update(task, advance=1, description=f"{result.name} {'PASS' if result.passed else 'FAIL'}")

        return checks.run(chosen, quick, workers, done)


def _print(results: list[Result]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title="Measured against promised", title_justify="left")
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
        console.print(f"PASS: {len(results)} checks, {count} claims, {seconds:.0f} s of work")
    else:
        console.print(f"FAIL: {', '.join(failed)}", markup=False)
        for result in results:
            for line in result.lines:
                if not line.passed:
                    console.print(f"{result.name}: {line.claim}: {line.detail}", markup=False)
