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
    SpinnerColumn,
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
    """Shows one bar for all stages of a bundle that is made, if stderr is a terminal.

    It is there at once, before the first stage has told anything.

    Yields:
        A function to call with a stage's name, such as a role, and how much of it is done of how
        much.
    """
    columns = SpinnerColumn(), TextColumn("{task.description:8}"), BarColumn(), TaskProgressColumn()
    with bars(*columns, TimeRemainingColumn()) as progress:
        between = shown = progress.add_task("begins", total=None)
        stages: dict[str, TaskID] = {}

        def put(task: TaskID) -> None:
            nonlocal shown
            if task != shown:
                progress.update(shown, visible=False)
                progress.update(task, visible=True)
                shown = task

        def show(stage: str, done: int, total: int) -> None:
            if stage not in stages:
                stages[stage] = progress.add_task(stage, visible=False)
            progress.update(stages[stage], completed=done, total=total)
            progress.update(between, description=stage)
            put(stages[stage] if done < total else between)  # where it goes on in a moment

        yield show
        put(next(reversed(stages.values()), between))
