"""Commands at a terminal, for tests that type and read as a person does."""

from __future__ import annotations

import os
import re
import select
import struct
import subprocess
import sys
import time

import pytest

PATIENCE = 60  # seconds
# As a shell starts it: Ctrl-C comes from the terminal, and is not ignored as in background jobs.
CODE = (
    "import fcntl, signal, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    "signal.signal(signal.SIGINT, signal.default_int_handler); "
    "{before}from edgespec.cli import main; sys.exit(main())"
)
# As a Python without line editing, and one whose readline knows no pastes.
PLAIN = "sys.modules['readline'] = None; "
LIBEDIT = (
    "import types; m = sys.modules['readline'] = types.ModuleType('readline', 'libedit'); "
    "m.__getattr__ = lambda _: lambda *_: None; "
)


class Terminal:
    """A command at a terminal of its own, a chat unless another one is given."""

    def __init__(self, before, *arguments, folder=None, columns=80, command="chat"):
        pty = pytest.importorskip("pty")
        fcntl = pytest.importorskip("fcntl")
        self._ours, theirs = pty.openpty()
        size = struct.pack("4H", 24, columns, 0, 0)
        fcntl.ioctl(theirs, pytest.importorskip("termios").TIOCSWINSZ, size)
        environment = {**os.environ, "TERM": "xterm"}
        environment.pop("COLUMNS", None)  # which counts more than the terminal's own
        self._process = subprocess.Popen(
            [sys.executable, "-c", CODE.format(before=before), command, *map(str, arguments)],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=environment,
            cwd=folder,
            start_new_session=True,
        )
        os.close(theirs)
        self._seen = 0
        self.shown = ""
        self.longest_wait = 0.0  # seconds without a sign, of all that were waited for

    def until(self, pattern):
        """Wait for what is shown after all that was waited for."""
        end = time.monotonic() + PATIENCE
        while (found := re.compile(pattern).search(self.shown, self._seen)) is None:
            begin = time.monotonic()
            assert select.select([self._ours], [], [], end - time.monotonic())[0], self.shown
            self.shown += os.read(self._ours, 4096).decode()
            self.longest_wait = max(self.longest_wait, time.monotonic() - begin)
        self._seen = found.end()

    def type(self, text):
        os.write(self._ours, text.encode())

    def leave(self):
        self.type("/bye\r")
        assert self._process.wait(PATIENCE) == 0

    def close(self):
        self._process.kill()
        self._process.wait()
        os.close(self._ours)


def pasted(text, marked):
    """As a terminal sends it, and Enter."""
    text = text.replace("\n", "\r")
    return f"\x1b[200~{text}\x1b[201~\r" if marked else f"{text}\r"
