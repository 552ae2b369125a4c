"""What was typed in earlier chats, for the arrow keys."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path

from edgespec.errors import InputError
from edgespec.system.cachedir import cache_folder, warn_unwritable
from edgespec.system.files import replaced

_MOST = 1000  # entries that are kept
_PRIVATE = 0o600


class TypedHistory:
    """Entries in a file of the user's cache folder, which only the user may read.

    Each is a line of JSON, since a pasted entry has several lines. As in shells, an entry that
    begins with a space is not kept.
    """

    def __init__(self) -> None:
        folder = cache_folder("chat")
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
            with suppress(InputError), replaced(self._file) as partial:
                partial.write_bytes(b"".join(map(_line, entries)))
        self._last = entries[-1] if entries else None
        return entries

    def add(self, entry: str) -> None:
        """Appends an entry, unless it is blank, begins with a space or equals the last one."""
        if self._file is None or not entry.strip() or entry.startswith(" ") or entry == self._last:
            return
        try:
            number = os.open(self._file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, _PRIVATE)
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
