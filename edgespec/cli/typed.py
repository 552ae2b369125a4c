"""Reads typed or pasted messages from the terminal."""

from __future__ import annotations

import importlib
import select
import sys
from collections.abc import Callable, Sequence
from typing import Any

from edgespec.cli.typed_history import TypedHistory

_BURST = 0.05  # longest time in seconds between two lines of a paste; nobody types as fast

Completer = Callable[[str, bool], Sequence[str]]
"""Returns what a word may become, given also whether it is the first of its line."""


class Typed:
    """Reads messages from stdin: each is one line, or all lines that are pasted at once.

    In a terminal, and where Python has readline, the arrow keys bring back what was typed in this
    chat and in earlier ones, and TAB completes words.

    Args:
        complete: completes words; a word that may become nothing else gets a TAB.

    Attributes:
        by_hand: whether stdin is a terminal.
    """

    def __init__(self, complete: Completer | None = None) -> None:
        self.by_hand = sys.stdin is not None and sys.stdin.isatty()
        self._history: TypedHistory | None = None
        # `input` uses readline only if stdin and stdout are terminals.
        editor = _readline() if self.by_hand and sys.stdout.isatty() else None
        marked = editor is not None and _enable_bracketed_paste(editor)
        if editor is not None:
            self._history = TypedHistory()
            for entry in self._history.load():
                editor.add_history(entry)
            if complete is not None:
                _enable_completion(editor, complete)
        # Without bracketed paste, lines that arrive at once count as a paste. Windows has no
        # `select` for stdin.
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
        lines = [self._input(mark if self.by_hand else "")]
        while self._guesses and select.select([sys.stdin], [], [], _BURST)[0]:
            try:
                lines.append(self._input(". "))
            except EOFError:  # the message is returned first
                break
        return "\n".join(lines).strip("\n")

    def _input(self, mark: str) -> str:
        line = input(mark)
        if self._history is not None:
            self._history.add(line)
        return line


def _readline() -> Any:
    """Returns Python's module for line editing, which `input` then uses; None without one."""
    try:
        return importlib.import_module("readline")
    except ImportError:
        return None


def _is_libedit(editor: Any) -> bool:
    return "libedit" in (editor.__doc__ or "")


def _enable_bracketed_paste(editor: Any) -> bool:
    """Returns whether a paste then arrives as one message."""
    if _is_libedit(editor):
        return False
    # Python switches it off for its interactive prompt.
    editor.parse_and_bind("set enable-bracketed-paste on")
    return True


def _enable_completion(editor: Any, complete: Completer) -> None:
    candidates: list[str] = []

    def candidate(word: str, number: int) -> str | None:
        if number == 0:
            first = not editor.get_line_buffer()[: editor.get_begidx()].strip()
            candidates[:] = complete(word, first) or [f"{word}\t"]  # as without completion
        return candidates[number] if number < len(candidates) else None

    editor.set_completer(candidate)
    editor.set_completer_delims(" \t\n")
    editor.parse_and_bind("bind ^I rl_complete" if _is_libedit(editor) else "tab: complete")
