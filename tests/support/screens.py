"""Commands at a terminal of their own, as a person sees them: what was overwritten is not shown."""

from __future__ import annotations

import codecs
import os
import pty
import re
import select
import signal
import subprocess
import termios
import time
from collections.abc import Mapping
from pathlib import Path

_LINES = 1000
_PATIENCE = 1800  # seconds until what is waited for must have come
_CODE = re.compile(r"\x1b\[([\d;?]*)([A-Za-z])|\x1b[()>=\]][^\x07\x1b]?|.", re.S)


class ScreenError(Exception):
    """A command that ended badly, or shows nothing more; with what it has shown."""


class Screen:
    """A command at a terminal of its own.

    Args:
        folder: where it runs.
        command: a line for the shell.
        environment: its variables, but for the terminal's kind.
        columns: of the terminal.

    Attributes:
        longest_wait: seconds in which nothing new was shown.

    Raises:
        ScreenError: it ended with an error, or shows nothing more; in all methods.
    """

    def __init__(
        self, folder: Path, command: str, environment: Mapping[str, str], columns: int = 80
    ) -> None:
        self._ours, theirs = pty.openpty()
        termios.tcsetwinsize(theirs, (_LINES, columns))
        self._command = command
        self._shown = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._seen = 0
        self.longest_wait = 0.0
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", command],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            cwd=folder,
            env={**environment, "TERM": "xterm"},
            start_new_session=True,
        )
        os.close(theirs)

    def type(self, keys: str) -> None:
        """Types keys."""
        os.write(self._ours, keys.encode())

    def until(self, text: str) -> None:
        """Waits for what is shown behind all that was waited for."""
        while (found := self._text().find(text, self._seen)) < 0:
            if not self._read():
                raise ScreenError(f"{self._command} ended:\n{self._text()}")
        self._seen = found + len(text)

    def rest(self) -> str:
        """Waits for the end, and returns the whole of what was on the screen."""
        while self._read():
            pass
        os.close(self._ours)
        if code := self._process.wait():
            raise ScreenError(f"{self._command} ended with {code}:\n{self._text()}")
        return self._text()

    def _read(self) -> bool:
        begin = time.perf_counter()
        if not select.select([self._ours], [], [], _PATIENCE)[0]:
            os.killpg(self._process.pid, signal.SIGTERM)
            raise ScreenError(f"{self._command} shows nothing more:\n{self._text()}")
        try:
            found = os.read(self._ours, 1 << 16)
        except OSError:  # on Linux, the end
            return False
        self._shown += self._decoder.decode(found)
        self.longest_wait = max(self.longest_wait, time.perf_counter() - begin)
        return bool(found)

    def _text(self) -> str:
        """Returns the lines of the screen, behind all that was overwritten and erased."""
        lines = [""]
        row = 0
        column = 0
        for code in _CODE.finditer(self._shown):
            number = int(code[1]) if (code[1] or "").isdecimal() else 1
            if code[2] == "A":
                row = max(row - number, 0)
            elif code[2] == "K":
                lines[row] = "" if code[1] == "2" else lines[row][:column]
            elif code[0] == "\r":
                column = 0
            elif code[0] == "\b":
                column = max(column - 1, 0)
            elif code[0] == "\n":
                row = row + 1
                column = 0
                lines += [""] * (row == len(lines))
            elif code[0] >= " " and len(code[0]) == 1:
                line = lines[row].ljust(column)
                lines[row] = line[:column] + code[0] + line[column + 1 :]
                column += 1
        return "\n".join(line.rstrip() if n < row else line for n, line in enumerate(lines))
