"""Compiles the operators of runtime/kernels to a library beside their package.

All else is in pyproject.toml. The library has nothing of Python in it, so one wheel serves every
version. Without a compiler, or with one that fails, the package is installed without the library.
EDGESPEC_BUILD_KERNELS names the instruction sets to compile besides plain C++; CXX and CXXFLAGS are
heeded. `.ci/wheels.py` runs this for other systems.
"""

from __future__ import annotations

import json
import os
import platform
import shlex
import shutil
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

KERNELS = Path("runtime/kernels")
MACHINES = {"x86_64": "x86", "amd64": "x86", "aarch64": "arm", "arm64": "arm"}
# Sources of instruction sets, beside kernels_plain.cc, and what lets a compiler use them, GCC and
# Clang, or Microsoft's, which knows most functions without. A set that it lacks is left out.
# Where a row of lanes takes four registers, GCC orders loads too early for them all to fit.
SETS = {
    "x86": {
        "avx512": (
            "-mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni -mfma -mf16c",
            "/arch:AVX512",
        ),
        "avx2": ("-mavx2 -mfma -mf16c", "/arch:AVX2"),
        "avxvnni": ("-mavx2 -mavxvnni -mfma -mf16c", "/arch:AVX2"),
    },
    "arm": {
        "neon": ("-fno-schedule-insns", ""),
        "dotprod": ("-march=armv8.2-a+dotprod -fno-schedule-insns", ""),
        "i8mm": ("-march=armv8.2-a+dotprod+i8mm -fno-schedule-insns", ""),
    },
}
# No contraction: which products and sums are fused is a part of the result.
COMMON = (
    "-O3 -g0 -std=c++17 -fvisibility=hidden -ffp-contract=off -fno-math-errno "
    "-Wno-psabi -Wno-uninitialized -Wno-maybe-uninitialized "
    "-Wno-unknown-warning-option -Wno-ignored-optimization-argument",
    "/O2 /std:c++17 /fp:strict",
)
EXPORTS = "{ global: RegisterCustomOps; edgespec_*; local: *; };"  # no templates of C++'s library
SMALL = ("-O2", "/O1")  # for plain C++, which is unrolled to three times its size
Define = tuple[str, str | None]
LIBRARY = {"win32": "edgespec.dll", "darwin": "libedgespec.dylib"}


def system() -> str:
    """The system that is compiled for, by the name that `sys.platform` has there.

    `.ci/wheels.py` compiles for others than this one, of which sysconfig is told.
    """
    target = sysconfig.get_platform().partition("-")[0]
    return {"win": "win32", "macosx": "darwin"}.get(target, target)


def machine() -> str:
    """The processor that is compiled for: not always that of this machine."""
    target = sysconfig.get_platform().rpartition("-")[2].lower()
    return platform.machine().lower() if target == "universal2" else target


def without_wheels(system: str, processor: str, libc: tuple[str, str]) -> str | None:
    """Says why ONNX Runtime cannot be installed here, before pip's resolver does; None: it can."""
    if processor.lower() not in MACHINES:
        return f"processors of the kind {processor}"
    if system == "darwin" and MACHINES[processor.lower()] == "x86":
        return "Intel Macs"
    name, version = libc
    if system == "linux" and name != "glibc":
        return "Linux without glibc"
    if system == "linux" and tuple(map(int, version.split(".")[:2])) < (2, 28):
        return f"Linux with glibc {version}, but from 2.28 on"
    return None


class BuildLibrary(build_ext):
    """Compiles sources side by side, each with its flags, and links them to a plain library."""

    user_options: ClassVar = [
        *build_ext.user_options,
        ("compile-commands", None, "write compile_commands.json, from which editors know flags"),
    ]
    boolean_options: ClassVar = [*build_ext.boolean_options, "compile-commands"]

    def initialize_options(self) -> None:
        """Sets what the command line may change."""
        super().initialize_options()
        self.compile_commands = False
        self._commands: list[dict[str, object]] = []

    def get_ext_filename(self, fullname: str) -> str:
        """The library's path: without the suffix of a module of Python."""
        package = Path(*fullname.split(".")[:-1])
        return str(package / LIBRARY.get(system(), "libedgespec.so"))

    def build_extension(self, ext: Extension) -> None:
        """Compiles the library, which `optional` lets fail."""
        self._find_compiler()
        family, out = MACHINES.get(machine(), ""), Path(self.get_ext_fullpath(ext.name))
        kinds = {name: flags for name, flags in SETS.get(family, {}).items() if self._exists(name)}
        defines: list[Define] = [(f"EDGESPEC_{family.upper()}", None)] if kinds else []
        sources = {Path(source).stem: source for source in ext.sources}
        wanted = os.environ.get("EDGESPEC_BUILD_KERNELS", " ".join(kinds)).replace(",", " ").split()
        left_out = kinds.keys() - wanted
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            jobs = {
                name: pool.submit(self._compile, sources[f"kernels_{name}"], flags, defines)
                for name, flags in kinds.items()
                if name in wanted
            }
            plain = pool.submit(self._compile, sources["kernels_plain"], SMALL, defines)
            others = [
                pool.submit(self._compile, source, ("", ""), defines)
                for name, source in sources.items()
                if not name.startswith("kernels")
            ]
            objects = []
            for name, job in jobs.items():
                try:
                    objects += job.result()
                except CompileError:
                    print(f"edgespec: this compiler has no {name}")
                    left_out.add(name)
            objects += plain.result() + [each for job in others for each in job.result()]
            without = [(f"EDGESPEC_WITHOUT_{name.upper()}", None) for name in sorted(left_out)]
            objects += self._compile(sources["kernels"], ("", ""), [*defines, *without])
        # Not in the package, where linkers for Windows would leave files of their own beside it.
        linked = Path(self.build_temp) / out.name
        self._link(objects, linked)
        out.parent.mkdir(parents=True, exist_ok=True)
        out.unlink(missing_ok=True)  # a process may have mapped it
        shutil.copyfile(linked, out)
        if self.compile_commands:
            found = json.dumps(self._commands, indent=1)
            Path("compile_commands.json").write_text(found, "utf-8")

    @staticmethod
    def _exists(name: str) -> bool:
        return (KERNELS / f"kernels_{name}.cc").exists()

    def _find_compiler(self) -> None:
        if self._is_msvc():
            self.compiler.initialize()  # before threads would, each
            return
        for name in ("compiler_cxx", "compiler_so_cxx", "linker_so_cxx"):
            command = getattr(self.compiler, name, [])
            # A Python that was built elsewhere may name a compiler that is not here.
            if command and not shutil.which(command[0]) and shutil.which("c++"):
                setattr(self.compiler, name, ["c++", *command[1:]])

    def _is_msvc(self) -> bool:
        return bool(self.compiler.compiler_type == "msvc")

    def _compile(self, source: str, flags: tuple[str, str], defines: list[Define]) -> list[str]:
        both = [COMMON[self._is_msvc()], flags[self._is_msvc()], os.environ.get("CXXFLAGS", "")]
        given = " ".join(both)
        if "ziglang" in os.environ.get("CXX", ""):  # which takes extensions by -mcpu alone
            given = given.replace("-march=armv8.2-a", "-mcpu=generic")
        arguments = [*self._architecture(), *shlex.split(given)]
        names = [f"-D{name}" for name, _ in defines]
        command = [*getattr(self.compiler, "compiler_so_cxx", ["cl"]), *names, *arguments]
        self._commands.append(
            {"directory": str(Path.cwd()), "file": source, "arguments": [*command, "-c", source]}
        )
        found = self.compiler.compile([source], self.build_temp, defines, extra_postargs=arguments)
        return list(found)

    def _link(self, objects: list[str], out: Path) -> None:
        # GCC's C++ library stays outside: linked in, it would bring needs of a newer glibc's.
        arguments = self._architecture()
        if sys.platform == "linux" and "-g" not in os.environ.get("CXXFLAGS", "").split():
            arguments.append("-s")
        if system() == "linux":
            # Never unloaded before the process ends: what zig links has no code for that.
            exports = Path(self.build_temp) / "exports.map"
            exports.write_text(EXPORTS, encoding="utf-8")
            arguments += ["-Wl,-z,nodelete", f"-Wl,--version-script={exports}"]
        elif system() == "darwin":
            arguments.append(f"-Wl,-install_name,@rpath/{out.name}")
        self.compiler.link_shared_object(
            objects, str(out), target_lang="c++", extra_postargs=arguments
        )

    @staticmethod
    def _architecture() -> list[str]:
        """On macOS, where a Python may compile for two, the one that flags belong to."""
        return ["-arch", machine()] if sys.platform == "darwin" else []


class AnyPython(bdist_wheel):
    """A wheel for every version of Python on one platform."""

    def get_tag(self) -> tuple[str, str, str]:
        """The wheel's tag, of the one processor that the library is for."""
        return "py3", "none", super().get_tag()[2].replace("universal2", machine())


def main() -> None:
    """Builds or installs the package, unless ONNX Runtime has no wheels for this machine."""
    if unsupported := without_wheels(system(), machine(), platform.libc_ver()):
        sys.exit(f"edgespec: ONNX Runtime has no wheels for {unsupported}: see docs/devices.md")
    setup(
        ext_modules=[
            Extension(
                "edgespec.runtime.kernels.library",
                sorted(path.as_posix() for path in KERNELS.glob("*.cc")),
                depends=sorted(path.as_posix() for path in KERNELS.glob("*.h")),
                optional=True,
            )
        ],
        cmdclass={"build_ext": BuildLibrary, "bdist_wheel": AnyPython},
    )


if __name__ == "__main__":
    main()
