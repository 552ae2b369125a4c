"""Compiles the operators of runtime/kernels to a library beside their package.

All else is in pyproject.toml. The library has nothing of Python in it, so one wheel serves every
version. Without a compiler, or with one that fails, the package is installed without the library.
EDGESPEC_BUILD_KERNELS names the instruction sets to compile besides plain C++; CXX and CXXFLAGS are
heeded. What was compiled is kept in the user's cache folder. `.ci/wheels.py` runs this for other
systems.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
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
KEPT_BYTES = 64 << 20  # of objects, which have two to five million a build
# What compilers heed besides their arguments.
ENVIRONMENT = ("CPATH", "CPLUS_INCLUDE_PATH", "MACOSX_DEPLOYMENT_TARGET", "INCLUDE")
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


class KeptObjects:
    """Objects that were compiled before, by a hash of all that they were compiled from.

    pip builds in an empty folder each time, so each further extra would compile all of them again.
    A file begins with the hash of the rest: one that is damaged counts as none. Nothing here fails:
    what cannot be kept is compiled the next time.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def restore(self, key: str, to: Path) -> bool:
        """Writes an object to a path; returns whether there is one."""
        if self._folder is None:
            return False
        try:
            file = self._folder / key
            kept = file.read_bytes()
            os.utime(file)
        except OSError:
            return False
        start = hashlib.sha256().digest_size
        if kept[:start] != hashlib.sha256(kept[start:]).digest():
            return False
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_bytes(kept[start:])
        return True

    def keep(self, key: str, made: Path) -> None:
        """Takes in an object, at once for all who look for it."""
        if self._folder is None:
            return
        from edgespec.errors import InputError
        from edgespec.system.files import replaced

        content = made.read_bytes()
        with suppress(InputError), replaced(self._folder / key) as file:
            file.write_bytes(hashlib.sha256(content).digest() + content)

    def trim(self) -> None:
        """Removes what was not used for longest, if all have more than KEPT_BYTES."""
        if self._folder is None:
            return
        with suppress(OSError):
            files = {each: each.stat() for each in self._folder.iterdir() if each.is_file()}
            left = KEPT_BYTES
            for each in sorted(files, key=lambda file: -files[file].st_mtime):
                left -= files[each].st_size
                if left < 0:
                    each.unlink()


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
        self._look_for_kept(ext)
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
                    objects.append(job.result())
                except CompileError:
                    print(f"edgespec: this compiler has no {name}")
                    left_out.add(name)
            objects += [plain.result(), *(job.result() for job in others)]
            without = [(f"EDGESPEC_WITHOUT_{name.upper()}", None) for name in sorted(left_out)]
            objects.append(self._compile(sources["kernels"], ("", ""), [*defines, *without]))
        self._kept.trim()
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

    def _look_for_kept(self, ext: Extension) -> None:
        sys.path.insert(0, str(Path.cwd()))  # pip's builds have not even this folder there
        from edgespec.system.cachedir import cache_folder

        version = self._version()
        self._kept = KeptObjects(cache_folder("objects") if version else None)
        headers = [Path(each).read_bytes() for each in ext.depends]
        heeded = [os.environ.get(name) for name in ENVIRONMENT]
        self._common_parts = [version, heeded, headers]

    def _version(self) -> str:
        """What the compiler says of itself; empty: nothing."""
        if self._is_msvc():
            return str(self.compiler.cc)  # its folders are named by the version
        command = [*self.compiler.compiler_so_cxx, "--version"]
        folder = Path(self.build_temp)
        folder.mkdir(parents=True, exist_ok=True)  # zig leaves an empty object where it is asked
        try:
            answer = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
        except (OSError, subprocess.CalledProcessError):
            return ""
        return answer.stdout

    def _is_msvc(self) -> bool:
        return bool(self.compiler.compiler_type == "msvc")

    def _compile(self, source: str, flags: tuple[str, str], defines: list[Define]) -> str:
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
        (made,) = self.compiler.object_filenames([source], output_dir=self.build_temp)
        parts = [command, Path(source).read_bytes(), *self._common_parts]
        key = hashlib.sha256(repr(parts).encode()).hexdigest()
        if not self._kept.restore(key, Path(made)):
            self.compiler.compile([source], self.build_temp, defines, extra_postargs=arguments)
            self._kept.keep(key, Path(made))
        return str(made)

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
