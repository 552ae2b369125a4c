"""What somebody types or pastes, a message at a time."""

from __future__ import annotations

import select
import sys

_BURST = 0.05  # seconds to the next line of a paste at most; nobody types as fast


class Typed:
    """Messages from stdin: a line each, or all lines that are pasted at once.

    Attributes:
        by_hand: stdin is a terminal.
    """

    def __init__(self) -> None:
        self.by_hand = sys.stdin is not None and sys.stdin.isatty()
        # Where nothing tells what is pasted, it is what is there already. Windows cannot be asked.
        told = sys.stdout.isatty() and _edits_pastes()  # `input` edits between two terminals only
        self._guesses = self.by_hand and not told and sys.platform != "win32"

    def read(self, mark: str) -> str:
        """The next message, without newlines around it.

        Args:
            mark: what a terminal shows before it.

        Raises:
            EOFError: if there is none.
            KeyboardInterrupt: on Ctrl-C.
            UnicodeDecodeError: if it is not UTF-8.
        """
        lines = [input(mark if self.by_hand else "")]
        while self._guesses and select.select([sys.stdin], [], [], _BURST)[0]:
            try:
                lines.append(input(". "))
            except EOFError:  # to be answered first
                break
        return "\n".join(lines).strip("\n")


def _edits_pastes() -> bool:
    """Have lines be edited, where the system has that; whether a paste comes as one then."""
    try:
        import readline
    except ImportError:
        return False
    if "libedit" in (readline.__doc__ or ""):
        return False
    # Python switches it off for its own prompt.
    readline.parse_and_bind("set enable-bracketed-paste on")
    return True
