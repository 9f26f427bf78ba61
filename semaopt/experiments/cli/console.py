"""What the commands share: how they refuse, how they show where they are, how they end."""

from __future__ import annotations

import importlib.util
import shlex
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from semaopt.experiments.cli.progress import Bar

WORKERS = Annotated[
    int | None,
    typer.Option(min=0, max=1024, help="Worker processes; 0 runs in this process. Default: one per core, at most 8."),
]
INTERRUPTED = 130  # what a shell reports for a command that Ctrl-C ended


def one_of(option: str, value: str, known: Iterable[str]) -> None:
    known = list(known)
    if value not in known:
        raise typer.BadParameter(f"{value!r} is unknown; there is: {', '.join(known)}", param_hint=option)


def writable(out: Path, hint: str = "--out") -> None:
    """Fail before the work, not after it."""
    from semaopt.experiments.files import OutputError, require_writable

    try:
        require_writable(out)
    except OutputError as error:
        raise typer.BadParameter(str(error), param_hint=hint) from error


@contextmanager
def told(bar: Bar, command: str, place: str = "--out") -> Iterator[None]:
    """Show progress, and end with a line and a status for all that people can do something about."""
    from semaopt.experiments.data import DataError
    from semaopt.experiments.files import OutputError
    from semaopt.experiments.spec.errors import SpecError
    from semaopt.experiments.sweep.runner import RunsError

    try:
        with bar.progress:
            yield
    except KeyboardInterrupt:
        bar.say(f"Interrupted; what is finished is kept, what is under way goes on where it was. To go on: {command}")
        raise typer.Exit(INTERRUPTED) from None
    except RunsError as error:
        same = "These would most likely fail in the same way again. Once what is said of them is put right"
        remedy = "To try these again" if error.transient else same
        bar.say(f"{error}\nAll other runs are kept. {remedy}: {command}")
        raise typer.Exit(1) from None
    except OutputError as error:
        raise typer.BadParameter(str(error), param_hint=error.option or place) from error
    except (SpecError, DataError) as error:
        bar.say(f"Error: {error}")
        raise typer.Exit(2) from None


#: Modules of the extra that are imported only when work is under way, perhaps in another process.
_LATE = ("matplotlib", "optuna", "scipy", "sklearn")


def start() -> tuple[str, Bar]:
    for name in _LATE:  # fail before the work, not after it
        if importlib.util.find_spec(name) is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    return command_line(), Bar(Console(stderr=True))


def command_line() -> str:
    """Return the command as it was typed."""
    return shlex.join(["semaopt", *sys.argv[1:]])


def conclude(bar: Bar, results: Any, out: Path) -> None:
    from semaopt.experiments.report import wording

    session = results.session
    bar.say(f"{session.computed} runs done, {session.reused} reused, in {session.wall_seconds:.0f} s")
    if results.checks:
        failed = [check.name for check in results.checks if not check.passed]
        passed = f"{len(results.checks) - len(failed)} of {len(results.checks)} checks"
        bar.say(f"Theorems: {passed} PASS{'; FAIL: ' if failed else ''}{', '.join(failed)}.")
    for finding in results.findings:
        bar.say(f"{finding.spec.title}: {wording.verdict_line(finding)}")
    typer.echo(out / "report.html")
