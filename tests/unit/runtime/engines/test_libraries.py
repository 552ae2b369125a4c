"""Before a library is used: it tells nobody anything, and the ONNX Runtime that is there works."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
import venv
from pathlib import Path

import onnxruntime as ort
import pytest
from checkout import ROOT
from packaging.requirements import Requirement

from edgespec.errors import DeviceError
from edgespec.runtime.engines.libraries import OLDEST_ONNXRUNTIME, REINSTALL
from edgespec.runtime.engines.portable.cuda import require_libraries

# What makes the libraries silent by itself, as it may be set where tests run.
_SILENCING = ("CI", "TF_BUILD", "JENKINS_URL", "ORT_DISABLE_TELEMETRY", "ORT_RUNNING_UNIT_TESTS")
_CHILD = """
import json, sys
heard = []
sys.addaudithook(lambda event, _: heard.append(event))
exec(sys.argv[2])
from edgespec import LLM
with LLM(device=sys.argv[1], draft_device=sys.argv[1], draft="model") as llm:
    llm.generate("def f(", max_new_tokens=4)
print(json.dumps([event for event in heard if event in ("socket.connect", "os.fork")]))
print(json.dumps([name for name in sys.modules if sys.modules[name] and "telemetry" in name]))
"""


# What docs/python.md tells programs to do that import these libraries themselves, and before.
_BEFORE = """
import os, sys
os.environ["ORT_DISABLE_TELEMETRY"] = "1"
sys.modules["openvino_telemetry"] = None
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("device", "before"),
    [
        ("cpu", ""),
        ("cpu", _BEFORE + "import onnxruntime"),
        ("openvino:cpu", ""),
        ("openvino:cpu", _BEFORE + "import onnxruntime, openvino"),
    ],
)
def test_what_is_generated_is_told_to_nobody(device, before, tmp_path):
    if device == "openvino:cpu":
        pytest.importorskip("openvino")
    folders = ("HOME", "USERPROFILE", "LOCALAPPDATA", "XDG_CACHE_HOME")
    rest = {name: value for name, value in os.environ.items() if name not in _SILENCING}
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, device, before],
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


def test_a_second_distribution_hinders_nothing(tmp_path):
    metadata = tmp_path / "onnxruntime_openvino-1.24.0.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: onnxruntime-openvino\nVersion: 1.24.0\n")
    done = command(tmp_path, "run", "-n", "2", "-p", "def")
    assert "engine: cpu" in done.stderr
    assert done.returncode == 0


@pytest.mark.parametrize(
    "arguments",
    ["run -p def", "chat", "serve --port=0", "bench", "eval --suite", "devices"],
)
def test_an_older_onnxruntime_is_told_in_a_line(tmp_path, arguments):
    """As another package may bring it, whose files replaced those that edgespec requires."""
    (tmp_path / "onnxruntime.py").write_text('__version__ = "1.24.4"\n')
    done = command(tmp_path, *arguments.split())
    [line] = done.stderr.splitlines()
    assert line.startswith("edgespec: ONNX Runtime 1.24.4 is too old: edgespec needs 1.30 or newer")
    assert f": {REINSTALL} onnxruntime" in line
    assert done.returncode == 2


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "the files of ONNX Runtime are missing"),
        (
            'raise ModuleNotFoundError("No such module", name="onnxruntime")',
            "ONNX Runtime is not installed",
        ),
        (
            'raise ImportError("DLL load failed")',
            "ONNX Runtime cannot be loaded (DLL load failed)",
        ),
    ],
)
def test_an_onnxruntime_that_does_not_work_is_told_in_a_line(tmp_path, content, said):
    (tmp_path / "onnxruntime.py").write_text(content)
    done = command(tmp_path, "chat")
    [line] = done.stderr.splitlines()
    assert line.startswith(f"edgespec: {said}: {REINSTALL} onnxruntime")
    assert done.returncode == 2


def test_the_oldest_version_is_the_one_that_pip_is_asked_for():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    required = [Requirement(each) for each in project["dependencies"] + extras["cuda"]]
    oldest = ".".join(map(str, OLDEST_ONNXRUNTIME))
    assert {f">={oldest}"} == {
        str(each.specifier) for each in required if each.name in ("onnxruntime", "onnxruntime-gpu")
    }


def test_a_build_without_cuda_is_told_with_the_commands_that_bring_it(monkeypatch):
    monkeypatch.setattr(ort, "get_available_providers", lambda: ["CPUExecutionProvider"])
    with pytest.raises(DeviceError, match="has no CUDA") as caught:
        require_libraries.__wrapped__()
    assert f"{REINSTALL} onnxruntime-gpu && pip install" in str(caught.value)


class Environment:
    """An environment with an ONNX Runtime of its own, and else with what is installed here.

    Args:
        folder: folder to create.
        wheels: folder of the wheels that it installs.
    """

    def __init__(self, folder, wheels):
        venv.create(folder, with_pip=False)
        bins = "Scripts" if sys.platform == "win32" else "bin"
        self._python = str(folder / bins / Path(sys.executable).name)
        self._pip = [sys.executable, "-m", "pip", "--python", self._python]
        self._wheels = str(wheels)
        base = {"base": str(folder), "platbase": str(folder)}
        here = [each for each in sys.path if Path(each).name == "site-packages"]
        lines = [f"import site; site.addsitedir({each!r})\n" for each in here]
        packages = Path(sysconfig.get_path("purelib", "venv", base))
        (packages / "here.pth").write_text("".join(lines), encoding="utf-8")

    def install(self, name):
        """Install a distribution, from the wheels alone, over whatever is there."""
        options = ["--force-reinstall", "--no-deps", "--no-index", "-f", self._wheels]
        subprocess.run([*self._pip, "install", *options, name], check=True, capture_output=True)

    def run(self, *arguments):
        """Run Python."""
        command = [self._python, *arguments]
        return subprocess.run(
            command, cwd=self._wheels, capture_output=True, text=True, check=False
        )


@pytest.fixture
def environment():
    """An environment, and wheels of both distributions of ONNX Runtime; large, so not kept."""
    names = [f"{name}=={ort.__version__}" for name in ("onnxruntime", "onnxruntime-gpu")]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        wheels = Path(folder, "wheels")
        pip = [sys.executable, "-m", "pip", "download", "--retries=1", "--no-deps", "-d", wheels]
        if subprocess.run([*pip, *names], capture_output=True, check=False).returncode:
            pytest.skip("the wheels of onnxruntime and onnxruntime-gpu cannot be had here")
        yield Environment(Path(folder, "venv"), wheels)


@pytest.mark.slow
def test_two_distributions_work_in_both_orders(environment):
    """As beside fastembed, magika or markitdown, which require `onnxruntime`."""
    cuda = (
        "from edgespec.runtime.engines.portable import cuda\n"
        "import onnxruntime; print(onnxruntime.__file__)\n"
        "cuda.require_libraries()"
    )
    environment.install("onnxruntime")
    for last in ("onnxruntime-gpu", "onnxruntime"):
        environment.install(last)
        done = environment.run("-m", "edgespec", "run", "-n", "4", "-p", "def")
        assert done.returncode == 0, done.stderr
        asked = environment.run("-c", cuda)
        assert str(Path("venv", "lib")).lower() in asked.stdout.lower()
        assert ("has no CUDA" in asked.stderr) == (last == "onnxruntime")
    # The light way of docs/devices.md.
    for rest in ("bench -n 2 --draft lookup", "devices", "doctor", "eval --suite", "plan"):
        done = environment.run("-m", "edgespec", *rest.split())
        assert done.returncode == 0, done.stderr
