"""Every instruction set of an emulated ARM gives the bits of plain C++ on this processor.

Other tests compare this processor's own sets, as the package has compiled them.
"""

from __future__ import annotations

import ast
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from checkout import ROOT

pytestmark = pytest.mark.slow

KERNELS = ROOT / "runtime" / "kernels"
PROGRAM = Path(__file__).with_name("native") / "kernel_test.cc"
ARM_COMPILER, ARM_EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"
ARM_LIBRARIES = "/usr/aarch64-linux-gnu"


def constants(*names):
    """Constants of setup.py, which is a program and cannot be imported."""
    found = {}
    for node in ast.parse((ROOT / "setup.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and node.targets[0].id in names:
            found[node.targets[0].id] = ast.literal_eval(node.value)
    return [found[name] for name in names]


COMMON, SETS = constants("COMMON", "SETS")


def compiled(compiler, folder, family=None):
    """Compiles the program with the package's own flags, but faster; returns its path.

    Without a family of processors it has plain C++ alone.
    """
    common = COMMON[0].replace("-O3", "-O1").split()
    defines = [f"-DEDGESPEC_{family.upper()}"] if family else []

    def compile_one(source, flags):
        out = folder / f"{source.stem}.o"
        command = [compiler, *common, *flags.split(), *defines, f"-I{KERNELS}", "-c", source]
        subprocess.run([*command, "-o", out], check=True)
        return out

    flags = {KERNELS / f"kernels_{name}.cc": own for name, (own, _) in SETS.get(family, {}).items()}
    flags |= {KERNELS / "kernels_plain.cc": "", PROGRAM: ""}
    with ThreadPoolExecutor(2) as pool:
        objects = list(pool.map(compile_one, flags, flags.values()))
    subprocess.run([compiler, *objects, "-o", folder / "kernel_test"], check=True)
    return folder / "kernel_test"


def results(*command):
    """Returns the names of the sets that were compared, and a number that follows from results."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    names, number = done.stdout.splitlines()
    return names.split(", "), number


def needs(*programs):
    for program in programs:
        if not shutil.which(program):
            pytest.skip(f"{program} is missing")


@pytest.fixture(scope="module")
def arm(tmp_path_factory):
    needs(ARM_COMPILER, ARM_EMULATOR)
    program = compiled(ARM_COMPILER, tmp_path_factory.mktemp("arm"), "arm")
    return {
        processor: results(ARM_EMULATOR, "-cpu", processor, "-L", ARM_LIBRARIES, program)
        for processor in ("max", "neoverse-n1", "cortex-a72")
    }


@pytest.mark.parametrize(
    ("processor", "names"),
    [
        ("max", ["i8mm", "dotprod", "neon", "plain"]),
        ("neoverse-n1", ["dotprod", "neon", "plain"]),
        ("cortex-a72", ["neon", "plain"]),
    ],
)
def test_instruction_sets_of_arm_agree(arm, processor, names):
    assert arm[processor][0] == names


def test_processors_agree(arm, tmp_path):
    needs("c++")
    names, number = results(compiled("c++", tmp_path))
    assert names == ["plain"]
    assert {each for _, each in arm.values()} == {number}
