"""``semaopt data``: what there is, and getting what is missing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

app = typer.Typer(no_args_is_help=True, help="List the data sets, or fetch one.")

Root = Annotated[
    Path | None,
    typer.Option("--root", metavar="DIR", help="Where the files are. Default: SEMAOPT_DATA, or your cache."),
]


@app.command("list", short_help="Which sets there are, and where.")
def list_sets(root: Root = None) -> None:
    """Say of each set whether it is there, where, how large it is and how to get it."""
    from semaopt.experiments.data.catalogue import SETS
    from semaopt.experiments.data.files import root_folder

    folder = root_folder(root)
    typer.echo(f"data root: {folder}")
    for one in SETS.values():
        missing = one.missing(folder)
        size = f"{sum(file.size for file in one.files) / 1e6:.1f} MB"
        if not one.files:
            state = "there, with scikit-learn"
        elif not missing:
            state = f"there, {size}: {', '.join(sorted({_top(file.path) for file in one.files}))}"
        else:
            some = f"{len(missing)} of {len(one.files)} files missing"
            state = f"{some}, {size}: semaopt data fetch {one.name}, or by hand from {one.downloads[0].url}"
        typer.echo(f"{one.name:14} {one.about}\n{'':14} {state}")


def _top(path: str) -> str:
    """What one sees in the root folder, or the file if it is alone there.

    >>> _top("cifar-100-python/train"), _top("libsvm/a9a"), _top("BBBP.csv")
    ('cifar-100-python', 'libsvm/a9a', 'BBBP.csv')
    """
    folder, _, _ = path.rpartition("/")
    return path if folder in ("", "libsvm") else folder


@app.command(short_help="Download a set from its official address.")
def fetch(name: Annotated[str, typer.Argument(metavar="NAME", help="As in list.")], root: Root = None) -> None:
    """Download what is missing of a set, or is not what it should be, from its official address."""
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
    try:
        with Progress(*columns, console=console) as bar:
            tasks = {d.url: bar.add_task(d.url.rpartition("/")[2], total=None, visible=False) for d in one.downloads}
            done = one.fetch(
                folder, lambda url, have, of: bar.update(tasks[url], completed=have, total=of or None, visible=True)
            )
    except DataError as error:
        console.print(str(error), markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        console.print(f"Interrupted; nothing was put in place. To go on: semaopt data fetch {name}")
        raise typer.Exit(130) from None
    for path in done:
        typer.echo(path)
    if not done:
        where = f"under {folder}, checked" if one.files else "with scikit-learn"
        typer.echo(f"{name} is there, {where}")
