"""Progress bars on stderr, such as those while a bundle is made."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)

if TYPE_CHECKING:
    from edgespec import export


def bars(*columns: str | ProgressColumn, **how: Any) -> Progress:
    """Returns bars on stderr, which nobody sees where that is no terminal."""
    console = Console(stderr=True)
    return Progress(*columns, console=console, disable=not console.is_terminal, **how)


@contextmanager
def role_bars() -> Iterator[export.Progress]:
    """Shows a bar for each role of a bundle that is made, if stderr is a terminal.

    Yields:
        A function to call with a role's name, and how much of it is done of how much.
    """
    columns = TextColumn("{task.description:7}"), BarColumn(), TaskProgressColumn()
    with bars(*columns, TimeRemainingColumn()) as progress:
        roles: dict[str, TaskID] = {}

        def show(role: str, done: int, total: int) -> None:
            if role not in roles:
                roles[role] = progress.add_task(role, total=total)
            progress.update(roles[role], completed=done, total=total)

        yield show
