r"""Types everything that README.md says, and compares what is shown with what it shows.

    pip wheel --no-deps -w dist .
    python tests/e2e/rehearsal.py --wheel dist/edgespec-*.whl --model smollm2-135m.gguf

Each command and program is typed at a terminal, in an empty folder, with an empty cache folder and
none of this environment's variables. `pip install .` installs the wheel into a Python environment
of its own; without --wheel, it is left out, and the edgespec of this environment is rehearsed.
--model is the file that every name of the catalogue then means, at a stand-in of the Hub on this
machine; without it, the Hub is asked. A chat is asked one question.

What is shown is printed. `tests/support/documents.py` says which of it must be the page's. The
command fails if anything fails, or is not as the page shows it.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import sys
import tempfile
import time
import venv
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

sys.path += [str(Path(__file__).parents[2] / each) for each in ("benchmarks", "tests/support")]

from checkout import ROOT
from common import exit_code, print_result
from documents import Step, missing, steps
from hubs import Hub, hub
from screens import Screen, ScreenError

from edgespec.store.catalogue import Catalogue

_KEPT = ("HOME", "LANG", "PIP_", "SSL_", "http", "HTTP", "no_proxy", "NO_PROXY")
_INSTALLATION = re.compile(r"pip install \.(\[[\w,]+\])?")
_COLUMNS = 120
_TYPED = ("/set seed 1", "/set max_new_tokens 60", "What is the capital of France?")


def main() -> None:
    """Types all of the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--wheel", type=Path, help="what is installed")
    parser.add_argument("--model", type=Path, help="GGUF file of a model that chats")
    given = parser.parse_args()
    failures = dict[str, str]()
    seconds = dict[str, float]()
    with tempfile.TemporaryDirectory() as home, ExitStack() as stack:
        folder = Path(home)
        environment = _environment(folder, given.wheel is not None)
        if given.model is not None:
            environment |= _stand_in(stack, given.model).environment(folder / "hub")
        for step in steps((ROOT / "README.md").read_text(encoding="utf-8")):
            command = _typed(step, folder, given.wheel)
            if not command:
                continue
            print(f"$ {command}", flush=True)
            begin = time.perf_counter()
            failure = _failure(step, command, folder, environment)
            seconds[step.text] = round(time.perf_counter() - begin, 1)
            print(f"# {seconds[step.text]} s: {failure or 'good'}\n", flush=True)
            if failure is not None:
                failures[step.text] = failure
    print_result("rehearsal", {"seconds": seconds, "failures": failures})
    if failures:
        sys.exit(1)


def _environment(folder: Path, own: bool) -> dict[str, str]:
    """Returns the variables of a fresh machine, with a Python environment of its own or ours."""
    programs = Path(sys.executable).parent
    if own:
        venv.create(folder / ".venv", with_pip=True)
        programs = folder / ".venv" / "bin"
    kept = {name: value for name, value in os.environ.items() if name.startswith(_KEPT)}
    return kept | {
        "EDGESPEC_CACHE": str(folder / ".cache"),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PATH": f"{programs}:{os.environ['PATH']}",
    }


def _stand_in(stack: ExitStack, model: Path) -> Hub:
    """Runs a Hub on which each file of the catalogue is the model."""
    server = stack.enter_context(hub())
    for entry in Catalogue.read().models.values():
        files = server.repositories.setdefault(entry.repository, {})
        files |= {file.file: model for file in entry.files}
    return server


def _typed(step: Step, folder: Path, wheel: Path | None) -> str:
    """Returns the line for the shell, empty if nothing of it is to be typed."""
    if step.program:
        (folder / "program.py").write_text(step.text, encoding="utf-8")
        return "python program.py"
    parts = step.text.split(" && ")
    if wheel is None:
        return " && ".join(part for part in parts if not _INSTALLATION.fullmatch(part))
    name = shlex.quote(str(wheel.resolve()))
    return " && ".join(_INSTALLATION.sub(rf"pip install {name}\1", part) for part in parts)


def _failure(step: Step, command: str, folder: Path, environment: Mapping[str, str]) -> str | None:
    """Types a step, prints what it shows, and says what is wrong with it."""
    try:
        screen = Screen(folder, command, environment, _COLUMNS)
        if "edgespec chat" in command:
            for line in _TYPED:
                screen.until("> ")
                screen.type(f"{line}\n")
            screen.until("\n> ")
            screen.type("\x04")  # Ctrl-D
        shown = screen.rest()
    except ScreenError as error:
        return str(error)
    print(shown, flush=True)
    line = missing(step.shown, shown)
    return None if line is None else f"the page shows {line!r}, which does not come there"


if __name__ == "__main__":
    sys.exit(exit_code(main))
