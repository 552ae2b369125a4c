"""Children of programs that bring no Python interpreter: they never begin the program again."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from edgespec import freeze_support
from edgespec.errors import InputError
from edgespec.system.jobs import JobLimits, Worker

LIMITS = JobLimits(seconds=2, megabytes=200)
JOBS = f"""
from edgespec.system.jobs import JobLimits, serve

def main(*arguments):
    serve(lambda job: job + " ".join(arguments).encode(), {LIMITS})
"""
# What a frozen program finds: its file is `sys.executable`, whatever its arguments are.
FROZEN = """
sys.frozen = True
sys.executable = PATH
"""
# And one that Nuitka compiled, where that file is not there.
COMPILED = """
import edgespec.system.children
edgespec.system.children.__compiled__ = True
sys.executable = PATH + "/python"
sys.argv[0] = PATH
"""
PROGRAM = f"""
import sys
BY
SUPPORT
print("a window opens", flush=True)
from edgespec.errors import EdgespecError
from edgespec.system.jobs import JobLimits, Worker
try:
    print(Worker("strange_jobs", {LIMITS}, "there").run(b"who is "))
except EdgespecError as error:
    print(error)
"""


@pytest.fixture(params=[FROZEN, COMPILED])
def frozen(request, tmp_path):
    """Runs a program that counts as frozen, and returns the lines that it prints."""
    if sys.platform == "win32":
        pytest.skip("Windows starts no scripts as programs")
    (tmp_path / "strange_jobs.py").write_text(JOBS)
    program = tmp_path / "räksmörgås"

    def run(support):
        code = PROGRAM.replace("BY", request.param).replace("SUPPORT", support)
        code = code.replace("PATH", repr(str(program)))
        program.write_text(f"#!{sys.executable}\n{code}", encoding="utf-8")
        program.chmod(0o700)
        paths = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        done = subprocess.run(
            [program], env=environment, capture_output=True, text=True, timeout=60, check=True
        )
        return done.stdout.splitlines()

    return run


def test_a_frozen_program_is_its_own_child(frozen):
    said = frozen("from edgespec import freeze_support; freeze_support()")
    assert said == ["a window opens", "b'who is there'"]


def test_without_support_a_frozen_program_is_not_started_again(frozen):
    window, error = frozen("")
    assert window == "a window opens"
    assert "is no Python interpreter: call edgespec.freeze_support() first" in error


@pytest.mark.parametrize("program", ["/opt/app/app", "", None])
def test_a_program_that_embeds_python_is_not_started_again(program, monkeypatch):
    monkeypatch.setattr(sys, "executable", program)
    with pytest.raises(InputError, match="no Python interpreter"):
        Worker("edgespec.serve.markdown", LIMITS).run(b"")


def test_with_an_interpreter_support_does_nothing(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["app", "--edgespec-child", "edgespec.nothing"])
    freeze_support()
