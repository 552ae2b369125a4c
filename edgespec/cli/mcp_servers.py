"""The servers of tools that a command is to use."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from edgespec.cli.waiting import waiting

if TYPE_CHECKING:
    from edgespec.mcp.toolbox import Toolbox


def toolbox_of(path: Path | None) -> AbstractContextManager[Toolbox | None]:
    """Returns the tools of a file's servers, which are started; None without a file.

    Raises:
        EdgespecError: see `Toolbox.of`.
    """
    if path is None:
        return nullcontext()
    with waiting("the MCP servers are started"):
        from edgespec.mcp.toolbox import Toolbox

        return Toolbox.of(path)
