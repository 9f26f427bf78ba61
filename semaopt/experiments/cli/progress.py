"""The progress bar of long commands."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn


class Bar:
    """A progress bar on standard error; implements :class:`semaopt.experiments.sweep.runner.Watch`."""

    def __init__(self, console: Console) -> None:
        self.progress = Progress(
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("elapsed"),
            TimeElapsedColumn(),
            TextColumn("remaining"),
            TimeRemainingColumn(),
            console=console,
            speed_estimate_period=300,
        )
        self.task = self.progress.add_task("epochs", total=0, visible=False)
        self.total = 0

    def __enter__(self) -> None:
        """Do nothing: the bar appears with the first planned epochs."""

    def __exit__(self, *_: object) -> None:
        """Stop the bar, if it has appeared."""
        if self.total:
            self.progress.stop()

    def plan(self, epochs: int) -> None:
        """Add epochs to the total."""
        if not self.total:
            self.progress.start()
        self.total += epochs
        self.progress.update(self.task, total=self.total, visible=self.total > 0)

    def done(self, epochs: int) -> None:
        """Add trained epochs."""
        self.progress.advance(self.task, epochs)

    def say(self, text: str) -> None:
        """Print a line above the bar."""
        self.progress.console.print(text, markup=False, highlight=False, soft_wrap=True)
