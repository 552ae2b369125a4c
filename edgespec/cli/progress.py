"""A progress bar on stderr."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

Show = Callable[[str, int], None]
"""Shows the current step's name and advances the bar by a number of steps."""


@contextmanager
def progress_bar(steps: int) -> Iterator[Show]:
    """Shows a bar with `steps` steps if stderr is a terminal; otherwise shows nothing."""
    console = Console(stderr=True)
    columns = SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
    shown = Progress(*columns, console=console, disable=not console.is_terminal, transient=True)
    with shown as progress:
        bar = progress.add_task("", total=steps)
        yield lambda what, done: progress.update(bar, description=what, advance=done)
