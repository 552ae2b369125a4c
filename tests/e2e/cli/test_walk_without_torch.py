"""A user's walk, `edgespec export file.gguf -o s && edgespec chat s`, without what tests install.

Processes of their own can import what a plain `pip install edgespec` brings, and nothing else that
is installed here: neither torch nor transformers, and none of what some devices need.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from functools import cache
from importlib.metadata import distribution, packages_distributions
from pathlib import Path

import pytest
from checkout import ROOT
from checkpoints import make_checkpoint, write_tokenizer
from commandline import FAST
from ggufs import write_gguf
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

REAL = Path(os.environ.get("EDGESPEC_REAL_MODELS", ""), "smollm2-135m.gguf")
HOOK = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ABSENT:
            raise ModuleNotFoundError(f"No module named {name!r} here", name=name)

sys.meta_path.insert(0, Absent())
"""


def needed():
    """The names of all distributions that come with the package's own, without extras."""
    found = {"edgespec"}

    @cache
    def visit(line, extra):
        each = Requirement(line)
        if each.marker is None or each.marker.evaluate({"extra": extra}):
            found.add(canonicalize_name(each.name))
            for further in distribution(each.name).requires or ():
                for own in ("", *each.extras):
                    visit(further, own)

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for line in project["dependencies"]:
        visit(line, "")
    return found


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """Runs Python with arguments as in an environment of its own."""
    folder = tmp_path_factory.mktemp("plain")
    allowed = needed()
    absent = {
        module
        for module, owners in packages_distributions().items()
        if not allowed & {canonicalize_name(owner) for owner in owners}
    }
    assert {"torch", "transformers", "pytest"} <= absent
    assert not absent & {"numpy", "onnx", "onnxruntime", "tokenizers", "gguf"}
    (folder / "sitecustomize.py").write_text(f"ABSENT = {absent!r}\n{HOOK}")
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}

    def run(*arguments, stdin=""):
        return subprocess.run(
            [sys.executable, *map(str, arguments)],
            input=stdin,
            cwd=folder,
            env=environment,
            capture_output=True,
            encoding="utf-8",
            timeout=600,
            check=False,
        )

    return run


def walk(plain, file, output, question, *options):
    """Export a file and ask a question; returns the answer."""
    exported = plain("-m", "edgespec", "export", file, "-o", output)
    assert exported.returncode == 0, exported.stderr
    answer = plain("-m", "edgespec", "chat", output, *options, stdin=f"{question}\n")
    assert answer.returncode == 0, answer.stderr
    assert "Traceback" not in exported.stderr + answer.stderr
    return answer.stdout


def test_what_only_tests_need_cannot_be_imported(plain):
    for name in ("torch", "transformers", "openvino", "onnxruntime_ep_webgpu"):
        result = plain("-c", f"import {name}")
        assert result.returncode == 1
        assert f"No module named '{name}' here" in result.stderr


@pytest.mark.parametrize(("device", "extra"), [("webgpu:0", "webgpu"), ("openvino:gpu", "intel")])
def test_a_device_that_needs_an_extra_names_it(plain, device, extra):
    result = plain("-m", "edgespec", "chat", "--device", device)
    [line] = result.stderr.splitlines()
    assert result.returncode == 2
    assert line.startswith(f"edgespec: device {device}: ")
    assert f'pip install ".[{extra}]" in a checkout of edgespec' in line


def test_a_file_is_exported_and_answers(plain, tmp_path):
    make_checkpoint(tmp_path / "model", "llama", hidden_size=64, intermediate_size=128, head_dim=32)
    write_tokenizer(tmp_path / "model", 331)
    template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
    chat = {"tokenizer.chat_template": template}
    write_gguf(tmp_path / "model", tmp_path / "tiny.gguf", "Q8_0", **chat)
    assert walk(plain, tmp_path / "tiny.gguf", tmp_path / "s", "hello", *FAST, "-n", "8").strip()


@pytest.mark.slow
@pytest.mark.skipif(not REAL.is_file(), reason=f"EDGESPEC_REAL_MODELS has no {REAL.name}")
def test_a_real_file_is_exported_and_answers(plain, tmp_path):
    # Greedy: by default a chat draws as the model's authors ask. Of this answer the model is sure;
    # one about France begins with "The" or the French "L", 0.08 nats apart in fp32.
    question = "What is the capital of Germany?"
    greedy = ("-n", "32", "--temperature", "0")
    assert "Berlin" in walk(plain, REAL, tmp_path / "s", question, *greedy)
