r"""Goes a newcomer's way, with what README.md says: from nothing to an answer about their file.

    python tests/e2e/newcomer.py model.gguf notes.txt "When is the rent due, says @notes.txt?"

Three commands are typed at a terminal of 80 columns, in an empty folder with the two files: clone,
install, chat. Each is printed with its seconds and the whole of what it shows. Python has an
environment of its own, and nothing was downloaded, compiled or made before.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import tempfile
import time
import venv
from pathlib import Path

sys.path += [str(Path(__file__).parents[2] / each) for each in ("benchmarks", "tests/support")]

from common import exit_code, print_result
from screens import Screen


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
    environment = {
        **os.environ,
        "EDGESPEC_CACHE": str(folder / ".cache"),
        "PIP_CACHE_DIR": str(folder / ".pip"),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PATH": f"{folder / '.venv' / 'bin'}:{os.environ['PATH']}",
    }
    clone = f"git clone {shlex.quote(given.source)} edgespec"
    seconds = {}
    for name, command in {"clone": clone, "install": "pip install ./edgespec"}.items():
        begin = time.perf_counter()
        shown = Screen(folder, command, environment).rest()
        seconds[name] = round(time.perf_counter() - begin, 1)
        print(f"$ {command}    # {seconds[name]} s\n{shown}\n", flush=True)
    command = f"edgespec chat {shlex.quote(given.model.name)}"
    begin = time.perf_counter()
    chat = Screen(folder, command, environment)
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


if __name__ == "__main__":
    sys.exit(exit_code(main))
