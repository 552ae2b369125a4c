"""Nothing is told to anybody: what the engines' libraries would send is off before they come."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from pairs import ENGINES

from edgespec.models.embedded import BUNDLE

# What makes the libraries silent by itself, as it may be set where tests run.
_SILENCING = ("CI", "TF_BUILD", "JENKINS_URL", "ORT_DISABLE_TELEMETRY", "ORT_RUNNING_UNIT_TESTS")
_CHILD = """
import json, sys
heard = []
sys.addaudithook(lambda event, _: heard.append(event))
from edgespec import LLM
with LLM(device=sys.argv[1], draft_device=sys.argv[1], draft="model") as llm:
    llm.generate("def f(", max_new_tokens=4)
print(json.dumps([event for event in heard if event in ("socket.connect", "os.fork")]))
print(json.dumps([name for name in sys.modules if sys.modules[name] and "telemetry" in name]))
"""


@pytest.fixture
def silent(tmp_path):
    """The environment of a user who has switched off nothing, and the home folder."""
    folders = ("HOME", "USERPROFILE", "LOCALAPPDATA", "XDG_CACHE_HOME")
    rest = {name: value for name, value in os.environ.items() if name not in _SILENCING}
    return {**rest, **dict.fromkeys(folders, str(tmp_path))}, tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("device", ENGINES)
def test_a_text_is_nobody_elses_business(silent, device):
    environment, home = silent
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, device],
        env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    acts, modules = map(json.loads, done.stdout.splitlines())
    assert acts == []
    assert "openvino_telemetry" not in modules
    # ONNX Runtime would keep an identifier and what it has not sent yet.
    assert list(home.iterdir()) == []


def test_converting_for_openvino_is_nobodys_either(silent, tmp_path):
    from edgespec.runtime.engines.cpu import openvino_ir

    environment, _ = silent
    program = f"""
import runpy, sys
sys.argv[1:] = [{str(BUNDLE / "draft.onnx")!r}, {str(tmp_path / "draft.xml")!r}]
runpy.run_path({openvino_ir.__file__!r}, run_name="__main__")
print("openvino_telemetry.main" in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-P", "-c", program],
        env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.split() == ["False"]
    assert (tmp_path / "draft.xml").exists()
