r"""Goes a newcomer's way, with what README.md says: from nothing to an answer about their file.

    python tests/e2e/newcomer.py model.gguf notes.txt "When is the rent due, says @notes.txt?"

Three commands are typed at a terminal of 80 columns, in an empty folder with the two files: clone,
install, chat. Each is printed with its seconds and the whole of what it shows. Python has an
environment of its own, and nothing was downloaded, compiled or made before.
"""

from __future__ import annotations

import argparse
import os
import pty
import re
import select
import shlex
import subprocess
import sys
import tempfile
import termios
import time
import venv
from pathlib import Path

sys.path += [str(Path(__file__).parents[2] / each) for each in ("benchmarks", "tests/support")]

from common import exit_code, print_result

_COLUMNS, _LINES = 80, 1000
_PATIENCE = 1800  # seconds until what is waited for must have come
_CODE = re.compile(r"\x1b\[([\d;?]*)([A-Za-z])|\x1b[()>=\]][^\x07\x1b]?|.", re.S)


def main() -> None:
    """Goes the way, and prints it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=_Raw)
    parser.add_argument("model", type=Path, help="GGUF file of a model that chats")
    parser.add_argument("file", type=Path, help="text file of the newcomer's own")
    parser.add_argument("question", help="what they ask, with @FILE in it")
    parser.add_argument("--source", default=str(Path(__file__).parents[2]), help="what to clone")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home)
        venv.create(folder / ".venv", with_pip=True)
        (folder / given.model.name).symlink_to(given.model.resolve())
        (folder / given.file.name).write_bytes(given.file.read_bytes())
        seconds = _way(folder, given)
    print_result("newcomer", {"commands": 3, "seconds": seconds})


def _way(folder: Path, given: argparse.Namespace) -> dict[str, float]:
    clone = f"git clone {shlex.quote(given.source)} edgespec"
    seconds = {}
    for name, command in {"clone": clone, "install": "pip install ./edgespec"}.items():
        begin = time.perf_counter()
        shown = _Terminal(folder, command).rest()
        seconds[name] = round(time.perf_counter() - begin, 1)
        print(f"$ {command}    # {seconds[name]} s\n{shown}\n", flush=True)
    command = f"edgespec chat {shlex.quote(given.model.name)}"
    begin = time.perf_counter()
    chat = _Terminal(folder, command)
    chat.until("> ")
    ready = time.perf_counter()
    chat.type(f"{given.question}\n")
    chat.until("\n> ")
    end = time.perf_counter()
    chat.type("\x04")  # Ctrl-D
    seconds |= {"chat is ready": round(ready - begin, 1), "answer": round(end - ready, 1)}
    seconds["longest wait without a sign"] = round(chat.longest_wait, 1)
    print(f"$ {command}    # {seconds['chat is ready']} s, and {seconds['answer']} s to the answer")
    print(chat.rest(), flush=True)
    return seconds


class _Raw(argparse.RawDescriptionHelpFormatter):
    pass


class _Terminal:
    """A command at a terminal of its own."""

    def __init__(self, folder: Path, command: str) -> None:
        self._ours, theirs = pty.openpty()
        termios.tcsetwinsize(theirs, (_LINES, _COLUMNS))
        self._command = command
        self._shown = ""
        self._seen = 0
        self.longest_wait = 0.0  # seconds in which nothing new was shown
        environment = {
            **os.environ,
            "TERM": "xterm",
            "EDGESPEC_CACHE": str(folder / ".cache"),
            "PIP_CACHE_DIR": str(folder / ".pip"),
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "PATH": f"{folder / '.venv' / 'bin'}:{os.environ['PATH']}",
        }
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", command],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            cwd=folder,
            env=environment,
            start_new_session=True,
        )
        os.close(theirs)

    def type(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def until(self, text: str) -> None:
        """Waits for what is shown behind all that was waited for."""
        while (found := self._text().find(text, self._seen)) < 0:
            if not self._read():
                raise RuntimeError(f"{self._command} ended:\n{self._text()}")
        self._seen = found + len(text)

    def rest(self) -> str:
        """Waits for the end, and returns the whole of what was on the screen."""
        while self._read():
            pass
        os.close(self._ours)
        if code := self._process.wait():
            raise RuntimeError(f"{self._command} ended with {code}:\n{self._text()}")
        return self._text()

    def _read(self) -> bool:
        begin = time.perf_counter()
        if not select.select([self._ours], [], [], _PATIENCE)[0]:
            raise RuntimeError(f"{self._command} shows nothing more:\n{self._text()}")
        try:
            found = os.read(self._ours, 1 << 16)
        except OSError:  # on Linux, the end
            return False
        self._shown += found.decode(errors="replace")
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


if __name__ == "__main__":
    sys.exit(exit_code(main))
