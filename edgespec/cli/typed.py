"""Reads typed or pasted messages from the terminal, and keeps them for the arrow keys."""

from __future__ import annotations

import importlib
import json
import os
import select
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from edgespec.cli.terminal import tell
from edgespec.errors import InputError
from edgespec.system.cachedir import cache_folder, warn_unwritable
from edgespec.system.files import PRIVATE, replaced

BLOCK = '"""'
"""Begins and ends a message of several lines."""

_MOST = 1000  # entries that are kept
_BURST = 0.05  # longest time in seconds between two lines of a paste; nobody types as fast

Completer = Callable[[str, bool], Sequence[str]]
"""Returns what a word may become, given also whether it is the first of its line."""


class MessageReader:
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
        self._editor = editor = _readline() if self.by_hand and sys.stdout.isatty() else None
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
            InputError: if the message is not UTF-8.
        """
        lines = [self._input(mark if self.by_hand else "")]
        while self._guesses and select.select([sys.stdin], [], [], _BURST)[0]:
            try:
                lines.append(self._input(". "))
            except EOFError:  # the message is returned first
                break
        return "\n".join(lines).strip("\n")

    def whole(self, line: str) -> str:
        """Reads the message that a line begins; empty if Ctrl-C drops it before its end."""
        if "\n" in line and not line.rstrip().endswith(BLOCK):  # pasted
            return line
        block = line.startswith(BLOCK)
        lines = [line.removeprefix(BLOCK)]
        unfinished = _is_open if block else _goes_on
        try:
            while unfinished(lines[-1]):
                lines.append(self.read(". "))
        except EOFError:
            pass
        except KeyboardInterrupt:
            tell()
            return ""
        if block:
            return "\n".join(lines).rstrip().removesuffix(BLOCK).strip("\n")
        return "\n".join([*(each[:-1] for each in lines[:-1]), lines[-1]])

    def ask(self, question: str) -> str:
        """Returns the answer to a question, which is no message and is not kept; `no` at the end.

        Raises:
            KeyboardInterrupt: on Ctrl-C.
        """
        editor = self._editor
        before = editor and editor.get_current_history_length()
        try:
            answer = input(question)
        except EOFError:
            tell()
            return "no"
        if editor is not None and (now := editor.get_current_history_length()) != before:
            editor.remove_history_item(now - 1)
        return answer

    def _input(self, mark: str) -> str:
        try:
            line = input(mark)
        except UnicodeDecodeError as error:
            raise InputError(f"stdin is not UTF-8 ({error.reason}): convert it") from error
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


def _is_open(line: str) -> bool:
    """Whether the block of a line has not ended with it."""
    return not line.rstrip().endswith(BLOCK)


def _goes_on(line: str) -> bool:
    """Whether a line ends in a backslash that is not itself written as two."""
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


class TypedHistory:
    """Entries in a file of the user's cache folder, which only the user may read.

    Each is a line of JSON, since a pasted entry has several lines. As in shells, an entry that
    begins with a space is not kept.
    """

    def __init__(self) -> None:
        folder = cache_folder("chat", private=True)
        self._file = None if folder is None else folder / "typed.jsonl"
        self._last: str | None = None

    def load(self) -> list[str]:
        """Returns the last entries, oldest first; damaged ones are left out."""
        if self._file is None or not self._file.exists():
            return []
        try:
            found = [_entry(line) for line in self._file.read_bytes().splitlines()]
        except OSError as error:
            self._give_up(self._file, error)
            return []
        entries = [entry for entry in found if entry][-_MOST:]
        if len(found) > 2 * _MOST:
            # Where it cannot be written, it stays long.
            with suppress(InputError), replaced(self._file, private=True) as partial:
                partial.write_bytes(b"".join(map(_line, entries)))
        self._last = entries[-1] if entries else None
        return entries

    def add(self, entry: str) -> None:
        """Appends an entry, unless it is blank, begins with a space or equals the last one."""
        if self._file is None or not entry.strip() or entry.startswith(" ") or entry == self._last:
            return
        try:
            number = os.open(self._file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, PRIVATE)
            with os.fdopen(number, "ab") as file:
                file.write(_line(entry))
        except OSError as error:
            self._give_up(self._file, error)
        self._last = entry

    def _give_up(self, file: Path, error: OSError) -> None:
        warn_unwritable(file.parent, error)
        self._file = None


def _line(entry: str) -> bytes:
    return json.dumps(entry).encode() + b"\n"


def _entry(line: bytes) -> str:
    """Returns the entry of a line; empty if it is damaged, or none that could be typed."""
    try:
        entry = json.loads(line)
        return "" if "\0" in entry else entry.encode().decode()
    except (ValueError, AttributeError, TypeError, RecursionError):
        return ""
