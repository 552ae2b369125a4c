"""Reads typed or pasted messages from the terminal."""

from __future__ import annotations

import select
import sys

_BURST = 0.05  # longest time in seconds between two lines of a paste; nobody types as fast


class Typed:
    """Reads messages from stdin: each is one line, or all lines that are pasted at once.

    Attributes:
        by_hand: whether stdin is a terminal.
    """

    def __init__(self) -> None:
        self.by_hand = sys.stdin is not None and sys.stdin.isatty()
        # Without bracketed paste, lines that arrive at once count as a paste. Windows has no
        # `select` for stdin. `input` uses readline only if stdin and stdout are terminals.
        marked = sys.stdout.isatty() and _enable_bracketed_paste()
        self._guesses = self.by_hand and not marked and sys.platform != "win32"

    def read(self, mark: str) -> str:
        """Reads the next message, and removes newlines around it.

        Args:
            mark: prompt to show in a terminal.

        Raises:
            EOFError: at the end of the input.
            KeyboardInterrupt: on Ctrl-C.
            UnicodeDecodeError: if the message is not UTF-8.
        """
        lines = [input(mark if self.by_hand else "")]
        while self._guesses and select.select([sys.stdin], [], [], _BURST)[0]:
            try:
                lines.append(input(". "))
            except EOFError:  # the message is returned first
                break
        return "\n".join(lines).strip("\n")


def _enable_bracketed_paste() -> bool:
    """Enables line editing, and returns whether a paste then arrives as one message."""
    try:
        import readline
    except ImportError:
        return False
    if "libedit" in (readline.__doc__ or ""):
        return False
    # Python switches it off for its interactive prompt.
    readline.parse_and_bind("set enable-bracketed-paste on")
    return True
