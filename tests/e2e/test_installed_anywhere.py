"""The package in a folder of any name, where nobody may write, for a user who can keep nothing."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from installs import NAME, bound, install, protect

from edgespec import LLM

PROMPT, SCHEMA = "def gcd(a, b):", {"type": "array", "items": {"type": "integer"}}
PROGRAM = f"""
import edgespec

print(edgespec.__file__)
with edgespec.LLM(threads=1) as llm:
    print(llm.generate({PROMPT!r}, max_tokens=16, json_schema={SCHEMA!r}).text)
"""
_HOMES = ("HOME", "USERPROFILE", "LOCALAPPDATA", "XDG_CACHE_HOME")


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("programs") / NAME
    install(folder)
    protect(folder)
    return folder


@pytest.fixture
def run(installed):
    """Runs Python with arguments; returns the process that ended."""
    rest = {name: value for name, value in os.environ.items() if name not in _HOMES}
    paths = [str(installed), *filter(None, [os.environ.get("PYTHONPATH")])]
    own = {"PYTHONPATH": os.pathsep.join(paths), "EDGESPEC_CACHE": str(installed / "cache")}

    def run(*arguments):
        return subprocess.run(
            bound(sys.executable, "-P", *arguments),
            cwd=installed,
            env=rest | own,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            timeout=120,
            check=False,
        )

    return run


def says_what_it_cannot_keep(done, installed):
    warnings = [line for line in done.stderr.splitlines() if "cannot write to" in line]
    assert len(warnings) == 1
    assert f"cannot write to the cache folder {installed / 'cache'} (" in warnings[0]
    assert "set EDGESPEC_CACHE to a writable folder" in warnings[0]


def test_a_program_writes_text_in_a_form(run, installed):
    done = run("-c", PROGRAM)
    with LLM(threads=1) as llm:
        text = llm.generate(PROMPT, max_tokens=16, json_schema=SCHEMA).text
    assert done.stdout.splitlines() == [str(installed / "edgespec" / "__init__.py"), text]
    says_what_it_cannot_keep(done, installed)


@pytest.mark.parametrize("arguments", [["run", "-n4", f"-p{PROMPT}"], ["completion", "bash"]])
def test_a_command_does_what_it_can(run, installed, arguments):
    done = run("-m", "edgespec", *arguments)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False)
    assert done.stdout.strip()
    says_what_it_cannot_keep(done, installed)


def test_what_needs_the_folder_is_refused(run, installed):
    done = run("-m", "edgespec", "list")
    assert done.returncode == 2
    assert done.stderr.endswith("there is no cache folder: set EDGESPEC_CACHE to a writable one\n")
    says_what_it_cannot_keep(done, installed)
