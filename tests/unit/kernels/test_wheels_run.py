"""Libraries for other systems run in emulators, in those systems' ONNX Runtime.

`EDGESPEC_TEST_WHEELS` may name a folder of wheels; without it they are built.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import onnx
import onnxruntime
import pytest
from checkout import ROOT
from nodes import needs_library, usable

from edgespec import LLM
from edgespec.bundle import LOGITS
from edgespec.llm.llm import inside
from edgespec.models.embedded import BUNDLE

pytestmark = [pytest.mark.slow, needs_library]

GRAPH = BUNDLE / "target.native.onnx"
HOST = Path(__file__).with_name("native") / "graph_host.cc"
WHEELS = os.environ.get("EDGESPEC_TEST_WHEELS")
VERSION = onnxruntime.__version__
# With these zig has compiled C++'s library for the wheel already.
FLAGS = ("-O3", "-g", "-std=c++17", f"-I{ROOT / 'runtime/kernels'}")
ARM_COMPILER, ARM_EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"
ARM_LIBRARIES = "/usr/aarch64-linux-gnu/lib"
ARM_TAG = "manylinux_2_28_aarch64"
ARM_KERNELS = ("i8mm", "dotprod", "neon", "plain")


class Recorder:
    """Stands for a graph, and keeps a pass of each number of rows.

    Attributes:
        passes: by numbers of rows what went in by name, and then logits and inputs afterwards.
    """

    def __init__(self, graph):
        self._graph = graph
        inputs = onnx.load(GRAPH, load_external_data=False).graph.input
        self._names = [each.name for each in inputs]
        self.passes = {}

    def __call__(self, feeds):
        given = {name: feeds[name].copy() for name in self._names}
        results = self._graph(feeds)
        made = [results[LOGITS], *(feeds[name].copy() for name in self._names)]
        self.passes[len(feeds["input_ids"])] = given, made
        return results


def write_inputs(path, inputs):
    """Writes what `graph_host.cc` reads."""
    with path.open("wb") as file:
        for name, array in inputs.items():
            kind = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
            line = [name, kind, array.ndim, *array.shape, array.nbytes]
            file.write(" ".join(map(str, line)).encode() + b"\n" + array.tobytes())


@pytest.fixture(scope="module")
def passes(tmp_path_factory):
    """Files of passes of the embedded target, and the bytes that each gives here."""
    with LLM(threads=2, context=256) as llm:
        target = inside(llm).engine.target
        target.graph = recorder = Recorder(target.graph)
        llm.generate("def gcd(a, b):", max_new_tokens=24, draft_source="model")
    assert len(recorder.passes) > 3
    folder = tmp_path_factory.mktemp("passes")
    found = {}
    for rows, (inputs, made) in recorder.passes.items():
        path = folder / f"{rows}.pass"
        write_inputs(path, inputs)
        found[path] = b"".join(each.tobytes() for each in made)
    return found


def needs(*programs):
    for program in programs:
        if not shutil.which(program):
            pytest.skip(f"{program} is missing")


def run(*command, cwd=None, **variables):
    """Returns what a program prints."""
    done = subprocess.run(
        command, cwd=cwd, env=os.environ | variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def extracted(wheel, name, folder):
    with zipfile.ZipFile(wheel) as file:
        return file.extract(name, folder)


def operators(tag, name, folder):
    """The library of a wheel, which is built if none is given."""
    if not WHEELS:
        pytest.importorskip("ziglang")
        pytest.importorskip("lief")
        run(sys.executable, ROOT / ".ci/wheels.py", folder, tag)
    (wheel,) = Path(WHEELS or folder).glob(f"edgespec-*-{tag}.whl")
    return extracted(wheel, f"edgespec/runtime/kernels/{name}", folder)


def runtime(tag, name, folder):
    """The library of ONNX Runtime for a system, of the version that runs here."""
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--dest", folder]
    command += ["--only-binary", ":all:", "--platform", tag, f"onnxruntime=={VERSION}"]
    if subprocess.run(command, check=False).returncode:
        pytest.skip(f"onnxruntime {VERSION} for {tag} cannot be downloaded")
    (wheel,) = folder.glob("onnxruntime-*.whl")
    return extracted(wheel, f"onnxruntime/capi/{name}", folder)


def compiled(folder, *compiler):
    """The program that makes passes, for a compiler's system."""
    program = folder / "graph_host.exe"
    run(*compiler, *FLAGS, HOST, "-o", program)
    return program


def results(kernel, passes, *command, **variables):
    """Makes passes by a program; returns the bytes that they give."""
    printed = run(*command, GRAPH, LOGITS, *passes, EDGESPEC_KERNELS=kernel, **variables)
    assert printed.splitlines()[-1] == kernel
    found = {}
    for path in passes:
        file = Path(f"{path}.results")
        found[path] = file.read_bytes()
        file.unlink()
    return found


def assert_same(found, expected):
    assert [path.name for path in expected if found[path] != expected[path]] == []


def test_windows_gives_the_bits_of_this_system(passes, tmp_path):
    """With each instruction set of the processor."""
    needs("wine")
    pytest.importorskip("ziglang")
    zig = [sys.executable, "-m", "ziglang", "c++", "-target", "x86_64-windows-gnu"]
    command = ["wine", compiled(tmp_path, *zig)]
    command += [runtime("win_amd64", "onnxruntime.dll", tmp_path)]
    command += [operators("win_amd64", "edgespec.dll", tmp_path)]
    variables = {"WINEPREFIX": str(tmp_path / "wine"), "WINEDEBUG": "-all"}
    for kernel in usable():
        assert_same(results(kernel, passes, *command, **variables), passes)


def system_of_arm(folder):
    """Makes files of a processor, without which ONNX Runtime finds those of this machine."""
    (folder / "proc").mkdir(parents=True)
    (folder / "proc/cpuinfo").write_text(
        "processor : 0\nCPU implementer : 0x41\nCPU part : 0xd0c\n"
    )
    processors = folder / "sys/devices/system/cpu"
    processors.mkdir(parents=True)
    (processors / "possible").write_text("0\n")
    (processors / "present").write_text("0\n")
    (folder / "lib").symlink_to(ARM_LIBRARIES)
    return folder


def emulated(folder):
    """The command that makes passes on an emulated ARM, but for the library of the operators."""
    needs(ARM_COMPILER, ARM_EMULATOR)
    command = [ARM_EMULATOR, "-cpu", "max", "-L", system_of_arm(folder / "arm")]
    command += [compiled(folder, ARM_COMPILER)]
    return [*command, runtime(ARM_TAG, f"libonnxruntime.so.{VERSION}", folder)]


def cross_compiled(folder):
    """The library for ARM with NEON and plain C++ alone, which is soon compiled."""
    variables = {
        "CC": ARM_COMPILER,
        "CXX": ARM_COMPILER,
        "CXXFLAGS": "-O1",
        "EDGESPEC_BUILD_KERNELS": "neon",
        "_PYTHON_HOST_PLATFORM": "linux-aarch64",
    }
    command = [sys.executable, "setup.py", "-q", "build_ext"]
    run(*command, "--build-lib", folder, "--build-temp", folder / "objects", cwd=ROOT, **variables)
    return folder / "edgespec/runtime/kernels/libedgespec.so"


def test_arm_gives_the_bits_of_this_processor(passes, tmp_path):
    command = [*emulated(tmp_path), cross_compiled(tmp_path)]
    assert_same(results("neon", passes, *command), passes)


def test_the_wheel_for_arm_gives_the_bits_of_this_processor(passes, tmp_path):
    """With each of its instruction sets."""
    command = [*emulated(tmp_path), operators(ARM_TAG, "libedgespec.so", tmp_path)]
    for kernel in ARM_KERNELS:
        assert_same(results(kernel, passes, *command), passes)
