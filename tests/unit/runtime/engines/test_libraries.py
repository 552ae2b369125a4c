"""Before a library is loaded: it tells nobody anything, and only one ONNX Runtime is installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

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


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", "openvino:cpu"])
def test_what_is_generated_is_told_to_nobody(device, tmp_path):
    if device == "openvino:cpu":
        pytest.importorskip("openvino")
    folders = ("HOME", "USERPROFILE", "LOCALAPPDATA", "XDG_CACHE_HOME")
    rest = {name: value for name, value in os.environ.items() if name not in _SILENCING}
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, device],
        env=rest | dict.fromkeys(folders, str(tmp_path)),
        capture_output=True,
        text=True,
        check=True,
    )
    acts, modules = map(json.loads, done.stdout.splitlines())
    assert acts == []
    assert "openvino_telemetry" not in modules
    # ONNX Runtime would keep an identifier and what it has not sent yet.
    assert list(tmp_path.iterdir()) == []


def command(folder, *arguments):
    """Run a command with a folder before all others that Python looks in."""
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    return subprocess.run(
        [sys.executable, "-m", "edgespec", *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    "arguments",
    ["run -p def", "chat", "serve --port=0", "bench", "eval --suite", "devices"],
)
def test_a_second_onnxruntime_is_told_in_a_line(tmp_path, arguments):
    metadata = tmp_path / "onnxruntime_openvino-1.24.0.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: onnxruntime-openvino\nVersion: 1.24.0\n")
    done = command(tmp_path, *arguments.split())
    [line] = done.stderr.splitlines()
    assert line.startswith("edgespec: onnxruntime")
    assert "onnxruntime-openvino" in line
    assert "overwrite each other's files: pip uninstall -y onnxruntime" in line
    assert done.returncode == 2


def test_an_onnxruntime_without_files_is_told_in_a_line(tmp_path):
    """As `pip uninstall` of the second one leaves it."""
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util as util; find = util.find_spec\n"
        "util.find_spec = lambda name: None if name == 'onnxruntime' else find(name)\n"
    )
    done = command(tmp_path, "chat")
    [line] = done.stderr.splitlines()
    assert line.startswith("edgespec: the files of ONNX Runtime are missing: pip install --force-")
