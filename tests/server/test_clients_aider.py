"""The coding agent aider, which edits a small repository with a real model.

Aider wants other versions of many packages: install it in an environment of its own, and have its
`bin` on the path. `EDGESPEC_REAL_MODELS` names a folder with `qwen-coder-1.5b`.
"""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest
from real import needs
from servers import MODEL, serving

from edgespec import LLM

AIDER = shutil.which("aider")
CODER = "qwen-coder-1.5b"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(AIDER is None, reason="aider is missing: pip install aider-chat"),
    needs(CODER),
]

SHAPES = '''"""Areas of shapes."""


def square(side):
    return side * side
'''
MAIN = """from shapes import square

print(square(3))
"""
MESSAGE = "Add a function rectangle(width, height) to shapes.py that returns its area."


@pytest.fixture(scope="module")
def running(real_bundle):
    bundle = real_bundle(CODER, "--no-calibration")
    with LLM(bundle, threads=2, context=4096) as llm, serving(llm) as running:
        yield running


@pytest.fixture
def repository(tmp_path):
    (tmp_path / "shapes.py").write_text(SHAPES)
    (tmp_path / "main.py").write_text(MAIN)
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message", "Begin")
    return tmp_path


def git(folder, *arguments):
    who = ["-c", "user.name=somebody", "-c", "user.email=somebody@example.org"]
    return subprocess.check_output(["git", *who, *arguments], cwd=folder, text=True)


def test_a_file_is_edited_to_the_end(running, repository):
    options = (
        f"--model openai/{MODEL} --openai-api-base {running.url}/v1 --openai-api-key none "
        "--edit-format whole --yes-always --no-stream --map-tokens 0 --no-auto-commits "
        "--no-show-model-warnings --no-check-update --no-gitignore --analytics-disable"
    )
    command = [AIDER, *options.split(), "--message", MESSAGE, "shapes.py"]
    home = {**os.environ, "HOME": str(repository.parent)}  # no settings of whoever runs the test
    done = subprocess.run(
        command, cwd=repository, env=home, capture_output=True, text=True, timeout=1200, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Applied edit to shapes.py" in done.stdout
    found: dict[str, object] = {}
    exec((repository / "shapes.py").read_text(), found)
    assert found["square"](3) == 9
    assert found["rectangle"](3, 4) == 12
    assert (repository / "main.py").read_text() == MAIN
    assert git(repository, "diff", "--name-only").split() == ["shapes.py"]
    metrics = running.metrics()
    assert metrics['edgespec_texts_total{finish_reason="stop"}'] >= 1
