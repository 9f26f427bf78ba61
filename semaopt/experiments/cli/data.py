"""``semaopt data``: list the data sets and download them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from semaopt.experiments.cli.console import FAILED, INTERRUPTED

app = typer.Typer(no_args_is_help=True, help="List the data sets, or download one.")

Root = Annotated[
    Path | None,
    typer.Option("--root", metavar="DIR", help="Folder of the data. Default: $SEMAOPT_DATA, or your cache folder."),
]


@app.command("list", short_help="List all data sets and whether they are available.")
def list_sets(root: Root = None) -> None:
    """List all data sets: whether each is available, where, how large it is and how to get it."""
    from semaopt.experiments.data.catalogue import SETS
    from semaopt.experiments.data.files import root_folder

    folder = root_folder(root)
    typer.echo(f"Data folder: {folder}")
    for one in SETS.values():
        missing = one.missing(folder)
        size = f"{sum(file.size for file in one.files) / 1e6:.1f} MB"
        if not one.files:
            state = "Available (part of scikit-learn)."
        elif not missing:
            state = f"Available, {size}: {', '.join(sorted({_entry(file.path) for file in one.files}))}"
        else:
            count = "" if len(missing) == len(one.files) else f" ({len(missing)} of {len(one.files)} files missing)"
            state = f"Not found{count}, {size}. Get it with: semaopt data fetch {one.name}"
            state += f"\n{'':14} or by hand from {one.downloads[0].url}"
        typer.echo(f"{one.name:14} {one.about}\n{'':14} {state}")


def _entry(path: str) -> str:
    """Return the entry of the data folder that a file belongs to.

    >>> _entry("cifar-100-python/train"), _entry("libsvm/a9a"), _entry("BBBP.csv")
    ('cifar-100-python', 'libsvm/a9a', 'BBBP.csv')
    """
    folder, _, _ = path.rpartition("/")
    return path if folder in ("", "libsvm") else folder


@app.command(short_help="Download a data set from its official address.")
def fetch(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name from semaopt data list.")], root: Root = None
) -> None:
    """Download the missing or damaged files of a data set from its official address and verify them."""
    from semaopt.experiments.data.errors import DataError
    from semaopt.experiments.data.files import root_folder
    from semaopt.experiments.data.load import find

    console = Console(stderr=True)
    folder = root_folder(root)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    try:
        one = find(name)
    except DataError as error:
        raise typer.BadParameter(str(error), param_hint="NAME") from error
    progress = Progress(*columns, console=console)
    tasks = {d.url: progress.add_task(d.url.rpartition("/")[2], total=None, visible=False) for d in one.downloads}

    def update(url: str, received: int, size: int) -> None:
        progress.start()
        progress.update(tasks[url], completed=received, total=size or None, visible=True)

    try:
        written = one.fetch(folder, update)
    except DataError as error:
        console.print(str(error), markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(FAILED) from None
    except KeyboardInterrupt:
        console.print(f"Interrupted. Incomplete files were discarded. Try again with: semaopt data fetch {name}")
        raise typer.Exit(INTERRUPTED) from None
    finally:
        if progress.live.is_started:
            progress.stop()
    for path in written:
        typer.echo(path)
    if not written:
        where = f"in {folder}; its files were verified" if one.files else "with scikit-learn"
        typer.echo(f"{name} is already available {where}.")
