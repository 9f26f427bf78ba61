"""The commands. What they need is imported when they run, so that ``--help`` is quick."""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
from collections.abc import Iterable
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

import semaopt
from semaopt.experiments.check import check
from semaopt.experiments.data import command as data_command

_INTERRUPTED = 130  # what a shell reports for a command that Ctrl-C ended

app = typer.Typer(name="semaopt", add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
app.add_typer(data_command.app, name="data")


class Bar:
    """A progress bar with the time left, on standard error; :class:`semaopt.experiments.study.Watch`."""

    def __init__(self, console: Console) -> None:
        self.progress = Progress(
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("trials,"),
            TimeElapsedColumn(),
            TextColumn("so far,"),
            TimeRemainingColumn(),
            TextColumn("left"),
            console=console,
        )
        self.task = self.progress.add_task("trials", total=0, visible=False)
        self.total = 0

    def plan(self, points: int) -> None:
        self.total += points
        self.progress.update(self.task, total=self.total, visible=self.total > 0)

    def done(self, points: int) -> None:
        self.progress.advance(self.task, points)

    def say(self, text: str) -> None:
        self.progress.console.print(text, markup=False, highlight=False, soft_wrap=True)


def _one_of(option: str, value: str, known: Iterable[str]) -> None:
    known = list(known)
    if value not in known:
        raise typer.BadParameter(f"{value!r} is unknown; there is: {', '.join(known)}", param_hint=option)


def _writable(out: Path) -> None:
    """Fail before the work, not after it."""
    hint = "--out"
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out):
            return
    except (FileExistsError, NotADirectoryError) as error:
        raise typer.BadParameter(f"{str(out)!r} is not a directory, or lies below a file", param_hint=hint) from error
    except OSError as error:
        raise typer.BadParameter(f"{str(out)!r} cannot be written to: {error.strerror}", param_hint=hint) from error


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"semaopt {semaopt.__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _main(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Say which.")] = False,
) -> None:
    """Stochastic optimization with the moving-average gradient estimator (SEMA)."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command()
def reproduce(
    scale: Annotated[str, typer.Option(help="How large: quick.")] = "quick",
    only: Annotated[str | None, typer.Option(metavar="NAME", help="Only digits, or only digits-noisy.")] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Where to write; else results/SCALE.")] = None,
) -> None:
    """Tune and train the paper's three variants of Adam, and write a figure and a page.

    Finished runs are kept in DIR/runs: an interrupted command goes on where it was.
    """
    from semaopt.experiments.catalogue import SCALES
    from semaopt.experiments.runs import OutputError
    from semaopt.experiments.study import conduct

    _one_of("--scale", scale, SCALES)
    studies = SCALES[scale]
    if only is not None:
        _one_of("--only", only, [study.name for study in studies])
        studies = tuple(study for study in studies if study.name == only)
    out = Path("results", scale) if out is None else out
    _writable(out)
    command = shlex.join(["semaopt", *sys.argv[1:]])
    bar = Bar(Console(stderr=True))
    try:
        with bar.progress:
            results = conduct(studies, out, bar, scale=scale, command=command, workers=_cores())
    except KeyboardInterrupt:
        bar.say(f"Interrupted; what is finished is kept. To go on: {command}")
        raise typer.Exit(_INTERRUPTED) from None
    except BrokenProcessPool:
        bar.say(f"A worker process was killed (out of memory?); what is finished is kept. To go on: {command}")
        raise typer.Exit(1) from None
    except OutputError as error:
        raise typer.BadParameter(str(error), param_hint="--out") from error
    session = results.session
    bar.say(f"{session.computed} trials run, {session.reused} reused, in {session.wall_seconds:.0f} s")
    for finding in results.findings:
        bar.say(f"{finding.headline}.\n  {finding.evidence}.")
    typer.echo(out / "report.html")


app.command()(check)

_PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True}


@app.command(add_help_option=False, context_settings=_PASSED_ON)
def bench(
    context: typer.Context, name: Annotated[str, typer.Argument(metavar="[NAME]", help="What: step.")] = "step"
) -> None:
    """Measure the time of a step beside torch and installed peers; semaopt bench step --help says more."""
    from semaopt.experiments import bench_step

    if name == "--help":
        name = "step"
        context.args.append("--help")
    _one_of("NAME", name, ["step"])
    bench_step.main(context.args)


def _cores() -> int:
    """The cores this process may use, at most 8: more workers would take longer to start than they save."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(usable, 8)
