"""Progress bars on stderr while a bundle is made."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)

if TYPE_CHECKING:
    from edgespec import export


@contextmanager
def role_bars() -> Iterator[export.Progress]:
    """Shows a bar for each role of a bundle that is made, if stderr is a terminal.

    Yields:
        A function to call with a role's name, and how much of it is done of how much.
    """
    console = Console(stderr=True)
    columns = TextColumn("{task.description:7}"), BarColumn(), TaskProgressColumn()
    left, hidden = TimeRemainingColumn(), not console.is_terminal
    with Progress(*columns, left, console=console, disable=hidden) as progress:
        bars: dict[str, TaskID] = {}

        def show(role: str, done: int, total: int) -> None:
            if role not in bars:
                bars[role] = progress.add_task(role, total=total)
            progress.update(bars[role], completed=done, total=total)

        yield show
