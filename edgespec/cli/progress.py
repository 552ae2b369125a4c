"""Progress bars on stderr."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import (
    BarColumn,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from edgespec.cli.waiting import clear_line
from edgespec.store.progress import bars

_SPEED_SECONDS = 600  # what the last so many seconds brought tells how long the rest will take

Show = Callable[[str, int], None]
"""Shows the current step's name and advances the bar by a number of steps."""


@contextmanager
def progress_bar(steps: int) -> Iterator[Show]:
    """Shows a bar with `steps` steps if stderr is a terminal; otherwise shows nothing."""
    columns = SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn()
    clear_line()
    with bars(*columns, transient=True, speed_estimate_period=_SPEED_SECONDS) as progress:
        bar = progress.add_task("", total=steps)
        yield lambda what, done: progress.update(bar, description=what, advance=done)


@contextmanager
def texts_bar(texts: int, done: int, tokens: Callable[[], int]) -> Iterator[Callable[[], None]]:
    """Shows a bar with texts, tokens per second and the time left, if stderr is a terminal.

    Args:
        texts: number of texts.
        done: number of texts that are there already.
        tokens: returns the number of tokens made since the bar is shown.

    Yields:
        A function to call after each text.
    """
    count = TextColumn("{task.completed:.0f} of {task.total:.0f} texts")
    columns = SpinnerColumn(), count, BarColumn(), _Speed(tokens), TimeRemainingColumn()
    clear_line()
    with bars(*columns, transient=True, speed_estimate_period=_SPEED_SECONDS) as progress:
        bar = progress.add_task("", total=texts, completed=done)
        yield lambda: progress.advance(bar)


class _Speed(ProgressColumn):
    """Tokens per second of all texts together."""

    def __init__(self, tokens: Callable[[], int]) -> None:
        super().__init__()
        self._tokens = tokens

    def render(self, task: Task) -> Text:
        return Text(f"{self._tokens() / max(task.elapsed or 0.0, 1e-3):.1f} tokens/s")
