"""The commands. What they need is imported when they run, so that ``--help`` is quick."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

import semaopt
from semaopt.experiments.cli import data as data_command
from semaopt.experiments.cli.check import check
from semaopt.experiments.cli.console import WORKERS, command_line, conclude, one_of, start, told

app = typer.Typer(name="semaopt", add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
app.add_typer(data_command.app, name="data")


def _version(asked: bool) -> None:
    if asked:
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
    str, typer.Argument(metavar="SPEC", help="A TOML file, or the name of a shipped spec; an unknown one lists them.")
]
_SCALE = Annotated[str | None, typer.Option(help="One of the file's scales. Default: the file as it stands.")]
_OUT = Annotated[Path | None, typer.Option(metavar="DIR", help="Where to write. Default: results/NAME.")]
_ONLY = Annotated[list[str] | None, typer.Option(metavar="METHOD", help="Only this method; may be given again.")]
_ENGINE = Annotated[str, typer.Option(help="Who does the runs: local or ray.")]
_ADDRESS = Annotated[str | None, typer.Option(help="Of a Ray cluster. Default: one is started here.")]
_DEVICE = Annotated[str, typer.Option(help="Where models are: cpu, cuda, cuda:1.")]
_DTYPE = Annotated[str, typer.Option(help="float32, float64 or bfloat16.")]
_SECONDS = Annotated[float, typer.Option(min=0.0, help="Seconds between checkpoints of a run.")]
_BOARD = Annotated[Path | None, typer.Option(metavar="DIR", help="Write TensorBoard scalars of the final runs.")]


@app.command()
def reproduce(  # noqa: PLR0917  # typer makes options of them
    scale: Annotated[str, typer.Option(help="How large: quick (minutes), small (hours), paper.")] = "quick",
    only: Annotated[
        str | None, typer.Option(metavar="NAME", help="checks, a figure, or a group: figure1, bilevel, ...")
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Where to write. Default: results/SCALE.")] = None,
    workers: WORKERS = None,
    device: _DEVICE = "cpu",
    dtype: _DTYPE = "float32",
) -> None:
    """Every theorem check and every figure, then the report.

    Sets of data that have to be downloaded are used where they are; nothing is downloaded. What is finished is kept in
    DIR/runs.sqlite: an interrupted command goes on where it was. The exit status is 1 if a check failed.
    """
    from semaopt.experiments import api
    from semaopt.experiments.sweep import reproduction

    one_of("--scale", scale, reproduction.SCALES)
    if only is not None:
        one_of("--only", only, reproduction.names())
    command, bar = start()
    out = Path("results", scale) if out is None else out
    with told(bar, command):
        results = api.reproduce(
            scale, only, out, workers=workers, device=device, dtype=dtype, watch=bar, command=command
        )
    conclude(bar, results, out)
    if not all(check.passed for check in results.checks):
        raise typer.Exit(1)  # as semaopt check does


@app.command(short_help="The page and tables again from what is stored.")
def report(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR", help="What reproduce or run has written.")],
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where to write. Default: into the folder, if it is one.")
    ] = None,
) -> None:
    """Make the page, the figures and the tables again from what is stored; several folders are joined into one page.

    Nothing is trained. Also writes results.md, the tables in Markdown.
    """
    from semaopt.experiments import api

    command, bar = start()
    if out is None and len(folders) > 1:
        raise typer.BadParameter(f"{len(folders)} folders are joined; say where to write", param_hint="--out")
    with told(bar, command, "DIR"):
        target = folders[0] if out is None else out
        results = api.report(folders, target, command=command)
        for note in results.notes:
            bar.say(note)
    typer.echo(target / "report.html")


def _go(do: Callable[..., Any], spec: str, out: Path | None, options: dict[str, Any]) -> Any:
    """Call a function of the API with a progress bar."""
    from semaopt.experiments.training import distributed

    command, bar = start()
    bar.progress.disable = not distributed.leading()
    with told(bar, command):
        return do(spec, out=out, watch=bar, **options), bar


@app.command()
def run(  # noqa: PLR0917  # typer makes options of them
    spec: _SPEC,
    scale: _SCALE = None,
    out: _OUT = None,
    only: _ONLY = None,
    engine: _ENGINE = "local",
    address: _ADDRESS = None,
    workers: WORKERS = None,
    tensorboard: _BOARD = None,
    device: _DEVICE = "cpu",
    dtype: _DTYPE = "float32",
    checkpoint_seconds: _SECONDS = 10.0,
) -> None:
    """Tune and run one experiment, and write its figure and page.

    What is finished is kept in DIR/runs.sqlite and never done again; what was cut off goes on from its checkpoint.
    Under torchrun each run is trained by all processes together.
    """
    from semaopt.experiments import api
    from semaopt.experiments.training import distributed

    given = {"engine": engine, "address": address, "workers": workers, "device": device, "dtype": dtype}
    options = {**given, "scale": scale, "only": only or (), "checkpoint_seconds": checkpoint_seconds}
    table, bar = _go(api.run, spec, out, {**options, "tensorboard": tensorboard, "command": command_line()})
    if distributed.leading():
        conclude(bar, table.results, Path("results", table.results.findings[0].name) if out is None else out)


@app.command(short_help="Only the tuning of an experiment.")
def tune(  # noqa: PLR0917  # typer makes options of them
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
    """Only the tuning of an experiment: prints the table of all trials, best first."""
    from semaopt.experiments import api
    from semaopt.experiments.training import distributed

    given = {"engine": engine, "address": address, "workers": workers, "device": device, "dtype": dtype}
    options = {**given, "scale": scale, "only": only or (), "checkpoint_seconds": checkpoint_seconds}
    table, _ = _go(api.tune, spec, out, options)
    if distributed.leading():
        typer.echo(table.to_markdown())


app.command(short_help="Compare the theorems with what is measured.")(check)

_PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True}


@app.command(
    add_help_option=False, context_settings=_PASSED_ON, short_help="Time a step beside torch and installed peers."
)
def bench(
    context: typer.Context, name: Annotated[str, typer.Argument(metavar="[NAME]", help="What: step.")] = "step"
) -> None:
    """Measure the time of a step beside torch and installed peers; semaopt bench step --help says more."""
    from semaopt.experiments.bench import step

    args = context.args
    if name.startswith("-"):  # an option: step may be left out
        name, args = "step", [name, *args]
    one_of("NAME", name, ["step"])
    step.main(args)
