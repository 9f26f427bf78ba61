"""The commands. Each imports what it needs when it runs, so that ``--help`` is fast."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

import semaopt
from semaopt.experiments.cli import data as data_command
from semaopt.experiments.cli.check import check
from semaopt.experiments.cli.console import (
    FAILED,
    WORKERS,
    command_line,
    conclude,
    open_bar,
    require_choice,
    running,
)
from semaopt.experiments.cli.progress import Bar

_EPILOG = (
    "Exit status: 0 success, 1 a run or a theorem check failed, 2 wrong input or missing data, 130 interrupted. "
    "Long commands can be interrupted and resumed: finished runs are stored and never computed twice."
)
app = typer.Typer(
    name="semaopt", add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False, epilog=_EPILOG
)


def _version(requested: bool) -> None:
    if requested:
        typer.echo(f"semaopt {semaopt.__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _main(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Stochastic optimization with the moving-average gradient estimator (SEMA)."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


_SPEC = Annotated[
    str,
    typer.Argument(
        metavar="SPEC", help="A TOML file, a shipped spec (figure1-digits) or, for run, a group (beta-study)."
    ),
]
_SCALE = Annotated[
    str | None, typer.Option(metavar="NAME", help="A scale of the spec, such as quick. Default: the spec as written.")
]
_OUT = Annotated[Path | None, typer.Option(metavar="DIR", help="Output folder. Default: results/NAME.")]
_ONLY = Annotated[list[str] | None, typer.Option(metavar="METHOD", help="Run only this method. Can be repeated.")]
_ENGINE = Annotated[str, typer.Option(metavar="NAME", help="local (processes on this machine) or ray (a Ray cluster).")]
_ADDRESS = Annotated[
    str | None, typer.Option(metavar="ADDRESS", help="Address of a Ray cluster. Default: start one on this machine.")
]
_DEVICE = Annotated[str, typer.Option(metavar="DEVICE", help="Device of the models: cpu, cuda, cuda:1.")]
_DTYPE = Annotated[str, typer.Option(metavar="DTYPE", help="Dtype of the models: float32, float64 or bfloat16.")]
_SECONDS = Annotated[float, typer.Option(min=0.0, metavar="SECONDS", help="Time between two checkpoints of a run.")]
_TENSORBOARD = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Write TensorBoard scalars of the final runs to this folder.")
]


@app.command(short_help="Run all theorem checks and experiments of the paper.")
def reproduce(  # noqa: PLR0917  # typer turns arguments into options
    scale: Annotated[
        str, typer.Option(metavar="NAME", help="quick (minutes), small (hours) or paper (days without a GPU).")
    ] = "quick",
    only: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Run one part: checks, a shipped spec, or a group such as figure1."),
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Output folder. Default: results/SCALE.")] = None,
    workers: WORKERS = None,
    device: _DEVICE = "cpu",
    dtype: _DTYPE = "float32",
) -> None:
    """Run every theorem check and every experiment of the paper, then write the report.

    Experiments whose data are not available are skipped; nothing is downloaded. Finished runs are stored in
    DIR/runs.sqlite, so an interrupted command resumes where it stopped. The exit status is 1 if a check fails.
    """
    from semaopt.experiments import api

    bar = open_bar()
    with running(bar):
        results = api.reproduce(
            scale, only, out, workers=workers, device=device, dtype=dtype, watch=bar, command=command_line()
        )
    conclude(bar, results, Path("results", scale) if out is None else out)
    if not all(check.passed for check in results.checks):
        raise typer.Exit(FAILED)


@app.command(short_help="Tune and run one experiment.")
def run(  # noqa: PLR0917  # typer turns arguments into options
    spec: _SPEC,
    scale: _SCALE = None,
    out: _OUT = None,
    only: _ONLY = None,
    engine: _ENGINE = "local",
    address: _ADDRESS = None,
    workers: WORKERS = None,
    tensorboard: _TENSORBOARD = None,
    device: _DEVICE = "cpu",
    dtype: _DTYPE = "float32",
    checkpoint_seconds: _SECONDS = 10.0,
    study: Annotated[
        list[int] | None,
        typer.Option(metavar="N", help="Compute only this study, counted from 1. Can be repeated."),
    ] = None,
    aa: Annotated[
        bool, typer.Option("--aa", help="A/A check: tune each method against itself, and count wrong verdicts.")
    ] = False,
    aa_resamples: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Comparisons per method in the A/A check. Default: 20000.")
    ] = None,
) -> None:
    """Tune and run one experiment, then write its figure and its report.

    Finished runs are stored in DIR/runs.sqlite and never computed twice. An interrupted run resumes from its
    checkpoint. Under torchrun all processes train each run together.
    """
    from semaopt.experiments import api
    from semaopt.experiments.sweep.reproduction import GROUPS
    from semaopt.experiments.training import distributed

    table, bar = _call(
        api.run,
        spec,
        scale=scale,
        out=out,
        only=only or (),
        engine=engine,
        address=address,
        workers=workers,
        device=device,
        dtype=dtype,
        checkpoint_seconds=checkpoint_seconds,
        tensorboard=tensorboard,
        command=command_line(),
        studies=study or (),
        aa=aa,
        aa_resamples=aa_resamples,
    )
    if aa and distributed.leading():
        typer.echo(table.to_markdown())
    elif distributed.leading():
        name = spec if spec in GROUPS else table.results.findings[0].name
        conclude(bar, table.results, Path("results", name) if out is None else out)


@app.command(short_help="Tune one experiment without its final runs.")
def tune(  # noqa: PLR0917  # typer turns arguments into options
    spec: _SPEC,
    scale: _SCALE = None,
    out: _OUT = None,
    only: _ONLY = None,
    engine: _ENGINE = "local",
    address: _ADDRESS = None,
    workers: WORKERS = None,
    device: _DEVICE = "cpu",
    dtype: _DTYPE = "float32",
    checkpoint_seconds: _SECONDS = 10.0,
) -> None:
    """Tune one experiment and print the table of all trials, best first.

    semaopt run with the same spec and the same output folder reuses the trials.
    """
    from semaopt.experiments import api
    from semaopt.experiments.training import distributed

    table, _ = _call(
        api.tune,
        spec,
        scale=scale,
        out=out,
        only=only or (),
        engine=engine,
        address=address,
        workers=workers,
        device=device,
        dtype=dtype,
        checkpoint_seconds=checkpoint_seconds,
    )
    if distributed.leading():
        typer.echo(table.to_markdown())


def _call(function: Callable[..., Any], spec: str, **options: Any) -> tuple[Any, Bar]:
    """Call a function of the API under a progress bar."""
    from semaopt.experiments.training import distributed

    bar = open_bar()
    bar.progress.disable = not distributed.leading()
    with running(bar):
        return function(spec, watch=bar, **options), bar


@app.command(short_help="Write the report of stored results again.")
def report(
    folders: Annotated[
        list[Path], typer.Argument(metavar="DIR", help="Output folders of semaopt run or semaopt reproduce.")
    ],
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Output folder. Default: DIR, if only one is given.")
    ] = None,
) -> None:
    """Write report.html, results.md and the figures again from stored results, without training anything.

    Several folders are merged into one report; studies of one spec are joined. If a run was interrupted, the report
    shows its finished studies.
    """
    from semaopt.experiments import api
    from semaopt.experiments.report import wording

    if out is None and len(folders) > 1:
        text = f"{len(folders)} folders are merged into one report, which needs a folder of its own. Add --out DIR."
        raise typer.BadParameter(text, param_hint="--out")
    target = folders[0] if out is None else out
    bar = open_bar()
    with running(bar, "DIR"):
        results = api.report(folders, target, command=command_line())
        for note in (*results.notes, *wording.notes(results.findings)):
            bar.say(note)
    typer.echo(target / "report.html")


app.command(short_help="Compare each theorem with measurements.")(check)
app.add_typer(data_command.app, name="data", short_help="List or download data sets.")


@app.command(
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    short_help="Time one optimizer step against torch and installed peers.",
)
def bench(
    context: typer.Context, name: Annotated[str, typer.Argument(metavar="NAME", help="The benchmark: step.")] = "step"
) -> None:
    """Time one optimizer step against torch and installed peers. See semaopt bench step --help."""
    from semaopt.experiments.bench import step

    args = context.args
    if name.startswith("-"):  # an option: the name was omitted
        name, args = "step", [name, *args]
    require_choice("NAME", name, ["step"])
    step.main(args)
