"""The commands. What they need is imported when they run, so that ``--help`` is quick."""

from __future__ import annotations

import importlib.util
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

import semaopt
from semaopt.experiments.check import check
from semaopt.experiments.data import command as data_command
from semaopt.experiments.show import Bar

_INTERRUPTED = 130  # what a shell reports for a command that Ctrl-C ended
_FIGURES = ("figure1-digits", "figure1-digits-noisy")

app = typer.Typer(name="semaopt", add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
app.add_typer(data_command.app, name="data")


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


@contextmanager
def _told(bar: Bar, command: str) -> Iterator[None]:
    """Show progress, and end with a line and a status for all that people can do something about."""
    from semaopt.experiments.data import DataError
    from semaopt.experiments.files import OutputError
    from semaopt.experiments.runner import RunsError
    from semaopt.experiments.spec_errors import SpecError

    try:
        with bar.progress:
            yield
    except KeyboardInterrupt:
        bar.say(f"Interrupted; what is finished is kept, what is under way goes on where it was. To go on: {command}")
        raise typer.Exit(_INTERRUPTED) from None
    except RunsError as error:
        bar.say(f"{error}\nAll other runs are kept. To try these again: {command}")
        raise typer.Exit(1) from None
    except OutputError as error:
        raise typer.BadParameter(str(error), param_hint="--out") from error
    except (SpecError, DataError) as error:
        bar.say(f"Error: {error}")
        raise typer.Exit(2) from None


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


#: Modules of the extra that are imported only when work is under way, perhaps in another process.
_LATE = ("matplotlib", "optuna", "scipy", "sklearn")


def _start() -> tuple[str, Bar]:
    for name in _LATE:  # fail before the work, not after it
        if importlib.util.find_spec(name) is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    return shlex.join(["semaopt", *sys.argv[1:]]), Bar(Console(stderr=True))


@app.command()
def reproduce(
    scale: Annotated[str, typer.Option(help="How large: quick.")] = "quick",
    only: Annotated[str | None, typer.Option(metavar="NAME", help=f"Only one of {', '.join(_FIGURES)}.")] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Where to write; else results/SCALE.")] = None,
) -> None:
    """Tune and train the paper's three variants of Adam, and write a figure and a page.

    Finished runs are kept in DIR/runs.sqlite: an interrupted command goes on where it was.
    """
    from semaopt.experiments import api, ranks, spec, study
    from semaopt.experiments.runner import Place

    _one_of("--scale", scale, ["quick"])
    if only is not None:
        _one_of("--only", only, _FIGURES)
    command, bar = _start()
    out = Path("results", scale) if out is None else out
    _writable(out)
    with _told(bar, command):
        specs = [spec.load(name, scale) for name in _FIGURES if only in (None, name)]
        with api.engine("local", api.cores(), None, ranks.current()) as engine:
            place = Place(out, api.machine("cpu", "float32", ranks.current()))
            results = study.conduct(specs, place, engine, bar, command=command)
        study.write(results, out)
    _conclude(bar, results, out)


def _conclude(bar: Bar, results: Any, out: Path) -> None:
    session = results.session
    bar.say(f"{session.computed} runs done, {session.reused} reused, in {session.wall_seconds:.0f} s")
    for finding in results.findings:
        bar.say(f"{finding.headline}.\n  {finding.evidence}.")
    typer.echo(out / "report.html")


_SPEC = Annotated[str, typer.Argument(metavar="SPEC", help="A TOML file, or the name of a shipped spec.")]
_SCALE = Annotated[str | None, typer.Option(help="One of the file's scales; else the file as it stands.")]
_OUT = Annotated[Path | None, typer.Option(metavar="DIR", help="Where to write; else results/NAME.")]
_ONLY = Annotated[list[str] | None, typer.Option(metavar="METHOD", help="Only this method; may be given again.")]
_ENGINE = Annotated[str, typer.Option(help="Who does the runs: local or ray.")]
_ADDRESS = Annotated[str | None, typer.Option(help="Of a Ray cluster; else one is started here.")]
_WORKERS = Annotated[int | None, typer.Option(min=0, max=1024, help="Processes; 0: this one. Else one a core.")]
_DEVICE = Annotated[str, typer.Option(help="Where models are: cpu, cuda, cuda:1.")]
_DTYPE = Annotated[str, typer.Option(help="float32, float64 or bfloat16.")]
_SECONDS = Annotated[float, typer.Option(min=0.0, help="Seconds between checkpoints of a run.")]
_BOARD = Annotated[Path | None, typer.Option(metavar="DIR", help="Write TensorBoard scalars of the final runs.")]


def _go(do: Callable[..., Any], spec: str, out: Path | None, options: dict[str, Any]) -> Any:
    """Check the spec before anything is written, then do it under the bar."""
    from semaopt.experiments import api, ranks

    command, bar = _start()
    bar.progress.disable = not ranks.leading()
    with _told(bar, command):
        found = api.chosen(spec, options.pop("scale"), options["only"])
        api.check_engine(options["engine_name"], options["address"])
        api.machine(options["device"], options["dtype"], ranks.current())
        out = Path("results", found.name) if out is None else out
        _writable(out)
        bar.say(f"{found.name} at scale {found.scale}: {found.title}")
        return do(found, out=out, watch=bar, command=command, **options), bar, out


@app.command()
def run(  # noqa: PLR0917  # typer makes options of them
    spec: _SPEC,
    scale: _SCALE = None,
    out: _OUT = None,
    only: _ONLY = None,
    engine: _ENGINE = "local",
    address: _ADDRESS = None,
    workers: _WORKERS = None,
    tensorboard: _BOARD = None,
    device: _DEVICE = "cpu",
    dtype: _DTYPE = "float32",
    checkpoint_seconds: _SECONDS = 10.0,
) -> None:
    """Tune and run one experiment, and write its figure and page.

    What is finished is kept in DIR/runs.sqlite and never done again; what was cut off goes on from its checkpoint.
    Under torchrun each run is trained by all processes together.
    """
    from semaopt.experiments import api, ranks

    given = {"engine_name": engine, "address": address, "workers": workers, "device": device, "dtype": dtype}
    options = {**given, "scale": scale, "only": only or (), "checkpoint_seconds": checkpoint_seconds}
    table, bar, place = _go(api.run, spec, out, {**options, "tensorboard": tensorboard})
    if ranks.leading():
        _conclude(bar, table.results, place)


@app.command()
def tune(  # noqa: PLR0917  # typer makes options of them
    spec: _SPEC,
    scale: _SCALE = None,
    out: _OUT = None,
    only: _ONLY = None,
    engine: _ENGINE = "local",
    address: _ADDRESS = None,
    workers: _WORKERS = None,
    device: _DEVICE = "cpu",
    dtype: _DTYPE = "float32",
    checkpoint_seconds: _SECONDS = 10.0,
) -> None:
    """Only the tuning of an experiment: prints the table of all trials, best first."""
    from semaopt.experiments import api, ranks

    given = {"engine_name": engine, "address": address, "workers": workers, "device": device, "dtype": dtype}
    options = {**given, "scale": scale, "only": only or (), "checkpoint_seconds": checkpoint_seconds}
    table, _, _ = _go(api.tune, spec, out, options)
    if ranks.leading():
        typer.echo(table.to_markdown())


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
