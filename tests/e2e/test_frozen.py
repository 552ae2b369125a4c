"""Programs that PyInstaller froze run where there is no Python."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import pytest
from displays import display
from installs import NAME, bound, install, protect

from edgespec import LLM

pytest.importorskip("PyInstaller", reason="PyInstaller is missing: pip install pyinstaller")
pytestmark = pytest.mark.slow

PROMPT, SCHEMA = "def gcd(a, b):", {"type": "array", "items": {"type": "integer"}}
LINES = f"""
import os

from edgespec import LLM

with open(os.environ["BEGUN"], "a") as file:
    print("once", file=file)
with LLM(threads=1) as llm:
    print(llm.generate({PROMPT!r}, max_tokens=16, json_schema={SCHEMA!r}).text)
"""
WINDOW = f"""
import tkinter

from edgespec import LLM

window = tkinter.Tk()
text = tkinter.Text(window)
text.pack()
with LLM(threads=1) as llm:
    text.insert("end", llm.generate({PROMPT!r}, max_tokens=16).text)
text.wait_visibility()
print(text.get("1.0", "end"))
window.destroy()
"""
# Both programs of one analysis, without what they do not need of what is installed here.
SPEC = """
both = Analysis(["lines.py", "window.py"], excludes=[
    "huggingface_hub", "markdown_it", "openvino", "prometheus_client", "pydantic", "pygments",
    "rich", "starlette", "torch", "transformers", "uvicorn",
])
code = PYZ(both.pure)
own = {"lines": "window", "window": "lines"}
programs = [
    EXE(code, [each for each in both.scripts if each[0] != other], name=name, exclude_binaries=True)
    for name, other in own.items()
]
COLLECT(*programs, both.binaries, both.datas, name="programs")
"""


@pytest.fixture(scope="module")
def frozen():
    """The folder of both programs, which nobody may write to; large, so not kept."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as work:
        yield freeze(Path(work))


def freeze(work):
    install(work / "installed")
    for name, content in (("lines.py", LINES), ("window.py", WINDOW), ("both.spec", SPEC)):
        (work / name).write_text(content, encoding="utf-8")
    path = os.pathsep.join([str(work / "installed"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-P", "-m", "PyInstaller", "--log-level=ERROR", "both.spec"],
        cwd=work,
        env={**os.environ, "PYTHONPATH": path, "PYINSTALLER_CONFIG_DIR": str(work)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    folder = work / NAME
    shutil.copytree(work / "dist" / "programs", folder, symlinks=True)
    shutil.rmtree(work / "dist")
    size = sum(path.stat().st_size for path in folder.rglob("*") if not path.is_symlink())
    print(f"the programs take {size >> 20} MiB")
    protect(folder)
    return folder


@pytest.fixture
def run(frozen):
    """Runs a program, which finds no other one, and returns what it prints."""

    def run(name, **environment):
        done = subprocess.run(
            bound(frozen / name),
            env={"EDGESPEC_CACHE": str(frozen / "cache"), **environment},
            cwd=frozen,
            capture_output=True,
            encoding="utf-8",
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert "cannot write to the cache folder" in done.stderr
        return done.stdout.strip()

    return run


@pytest.fixture
def llm():
    with LLM(threads=1) as loaded:
        yield loaded


def test_a_frozen_program_writes_text_in_a_form_and_begins_once(run, llm, tmp_path):
    begun = tmp_path / "begun"
    expected = llm.generate(PROMPT, max_tokens=16, json_schema=SCHEMA).text
    assert run("lines", BEGUN=str(begun)) == expected
    assert begun.read_text("utf-8").splitlines() == ["once"]


@pytest.mark.skipif(find_spec("_tkinter") is None, reason="Python has no tkinter")
def test_a_frozen_window_shows_text(run, llm):
    with display() as name:
        shown = run("window", DISPLAY=name)
    assert shown == llm.generate(PROMPT, max_tokens=16).text.strip()
