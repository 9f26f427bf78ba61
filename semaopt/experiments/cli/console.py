"""Shared parts of the commands: options, error messages, exit statuses, and the last lines."""

from __future__ import annotations

import difflib
import importlib.util
import shlex
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from semaopt.experiments.cli.progress import Bar

if TYPE_CHECKING:
    from semaopt.experiments.results.model import Results

WORKERS = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=1024,
        metavar="N",
        help="Number of worker processes; 0 runs in this process. Default: one per core, at most 8.",
    ),
]
#: Exit statuses. Wrong input has Click's status 2; 130 is what shells report after Ctrl-C.
FAILED, WRONG_INPUT, INTERRUPTED = 1, 2, 130

#: Modules of the extra that are imported only during the work, possibly in another process.
_LATE = ("jinja2", "matplotlib", "optuna", "scipy", "sklearn")


def command_line() -> str:
    """Return the command as it was typed."""
    return shlex.join(["semaopt", *sys.argv[1:]])


def open_bar() -> Bar:
    """Return a progress bar, after making sure that all modules of the extra are installed."""
    for name in _LATE:
        if importlib.util.find_spec(name) is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    return Bar(Console(stderr=True))


def require_choice(option: str, value: str, known: Iterable[str]) -> None:
    """Refuse a value that is not among the known ones, with a suggestion."""
    known = list(known)
    if value not in known:
        close = difflib.get_close_matches(value, known, n=1)
        hint = f"Did you mean {close[0]!r}? " if close else ""
        raise typer.BadParameter(f"{value!r} is unknown. {hint}Choose from: {', '.join(known)}", param_hint=option)


def require_folder(out: Path, option: str = "--out") -> None:
    """Refuse an output folder that cannot be written to, before the work starts."""
    from semaopt.experiments.files import OutputError, require_writable

    try:
        require_writable(out)
    except OutputError as error:
        raise typer.BadParameter(str(error), param_hint=option) from error


@contextmanager
def running(bar: Bar, folder_option: str = "--out") -> Iterator[None]:
    """Show progress, and end with a message and an exit status on errors that the user can fix."""
    from semaopt.experiments.data import DataError
    from semaopt.experiments.files import OutputError
    from semaopt.experiments.spec.errors import SpecError
    from semaopt.experiments.sweep.runner import RunsError

    try:
        with bar:
            yield
    except KeyboardInterrupt:
        bar.say(
            "Interrupted. Finished runs are stored; unfinished runs resume from their checkpoints. "
            f"Resume with: {command_line()}"
        )
        raise typer.Exit(INTERRUPTED) from None
    except RunsError as error:
        retry = "Retry with" if error.transient else "The same command will most likely fail again. Fix the cause, then"
        bar.say(f"{error}\nAll other runs are stored. {retry}: {command_line()}")
        raise typer.Exit(FAILED) from None
    except OutputError as error:
        raise typer.BadParameter(str(error), param_hint=error.option or folder_option) from error
    except (SpecError, DataError) as error:
        bar.say(f"Error: {error}")
        raise typer.Exit(WRONG_INPUT) from None


def conclude(bar: Bar, results: Results, out: Path) -> None:
    """Print one line per result and, on standard output, the path of the report."""
    from semaopt.experiments.report import wording

    bar.say(wording.session(results.session))
    if results.checks:
        bar.say(wording.checks(results.checks))
    for finding in results.findings:
        bar.say(wording.headline(finding))
    for note in wording.notes(results.findings):
        bar.say(note)
    typer.echo(out / "report.html")
