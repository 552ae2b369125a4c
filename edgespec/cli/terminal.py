"""What is written to the user's terminal, whoever wrote it: text that a terminal shows, not obeys.

Commands print with these alone; `tests/e2e/cli/test_cli_terminal.py` holds them to that.
"""

from __future__ import annotations

import sys
from typing import TextIO

from edgespec.errors import harmless


def tell(*lines: object, stream: TextIO | None = None, end: str = "\n") -> None:
    """Writes lines at once: to a terminal without what would steer it, elsewhere as they are.

    Args:
        lines: what is told, with newlines between them.
        stream: where; None: stdout.
        end: what follows the last one.
    """
    out = sys.stdout if stream is None else stream
    if out is not None:  # else closed
        text = "\n".join(map(str, lines))
        print(harmless(text) if out.isatty() else text, end=end, file=out, flush=True)
