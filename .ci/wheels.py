"""Builds the wheels of every system on one Linux machine, with zig as the compiler.

    pip install ".[wheels]"
    python .ci/wheels.py dist              # all of them
    python .ci/wheels.py dist win_amd64    # one

The sources, flags and instruction sets are those of setup.py. A wheel without its library, or with
one that would not work everywhere on its platform, is an error.
"""

from __future__ import annotations

import argparse
import os
import re
import runpy
import subprocess
import sys
import tempfile
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
SETUP = runpy.run_path(str(ROOT / "setup.py"), run_name="setup")  # it lies in no package
LIBRARY: dict[str, str] = SETUP["LIBRARY"]
SETS: dict[str, dict[str, tuple[str, str]]] = SETUP["SETS"]

EXPORTS = {
    "RegisterCustomOps",
    "edgespec_kernels",
    "edgespec_multiply_add",
    "edgespec_usable_kernels",
}
# C++'s allocation, which zig's linker for macOS cannot hide, and symbols of the linker.
VISIBLE = r"_Z(na|nw|da|dl)\w+|__dso_handle|_mh_dylib_header"


@dataclass(frozen=True)
class Platform:
    """What wheels are built for."""

    zig: str
    """The target by zig's name for it, with the oldest system that it runs on."""
    host: str
    """What `sysconfig.get_platform()` says there."""
    system: str
    """What `sys.platform` is there."""
    family: str
    """The processors, as setup.py names them."""
    libraries: str
    """A pattern of the libraries that are part of every such system."""


GLIBC = r"lib(c|m|dl|pthread)\.so\.\d|ld-linux-.*"
UCRT = r"KERNEL32\.dll|ntdll\.dll|api-ms-win-crt-.*\.dll"
LIBSYSTEM = r"/usr/lib/libSystem\.B\.dylib"
PLATFORMS = {
    "manylinux_2_28_x86_64": Platform(
        "x86_64-linux-gnu.2.28", "linux-x86_64", "linux", "x86", GLIBC
    ),
    "manylinux_2_28_aarch64": Platform(
        "aarch64-linux-gnu.2.28", "linux-aarch64", "linux", "arm", GLIBC
    ),
    "win_amd64": Platform("x86_64-windows-gnu", "win-amd64", "win32", "x86", UCRT),
    "win_arm64": Platform("aarch64-windows-gnu", "win-arm64", "win32", "arm", UCRT),
    "macosx_14_0_arm64": Platform(
        "aarch64-macos.14.0", "macosx-14.0-arm64", "darwin", "arm", LIBSYSTEM
    ),
}
"""By the tags of their wheels."""


class WheelError(Exception):
    """A wheel that must not be given to anybody, and why."""


def main() -> None:
    """Builds wheels, checks each, and prints its size and the seconds that it took."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="where the wheels go")
    parser.add_argument("tags", nargs="*", metavar="TAG", help=f"some of {', '.join(PLATFORMS)}")
    given = parser.parse_args()
    if unknown := set(given.tags) - PLATFORMS.keys():
        parser.error(f"unknown tags {', '.join(unknown)}: choose from {', '.join(PLATFORMS)}")
    for tag in given.tags or PLATFORMS:
        began, spent = time.monotonic(), _spent()
        wheel = build(tag, given.folder)
        try:
            check(wheel, tag)
        except WheelError as error:
            wheel.unlink()
            sys.exit(f"{wheel.name}: {error}")
        print(
            f"{wheel.name}: {wheel.stat().st_size / 1e6:.2f} MB, {time.monotonic() - began:.0f} s, "
            f"{_spent() - spent:.0f} s of processor time",
            flush=True,
        )


def build(tag: str, folder: Path) -> Path:
    """Returns the path of a new wheel in the folder.

    Raises:
        subprocess.CalledProcessError: The package could not be built.
    """
    platform = PLATFORMS[tag]
    zig = f"{sys.executable} -m ziglang"
    environment = {
        **os.environ,
        "CC": f"{zig} cc -target {platform.zig}",
        "CXX": f"{zig} c++ -target {platform.zig}",
        "_PYTHON_HOST_PLATFORM": platform.host,
        "EDGESPEC_BUILD_KERNELS": " ".join(SETS[platform.family]),
    }
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as work:
        command = [sys.executable, "setup.py", "-q", "build", "--build-base", f"{work}/build"]
        command += ["egg_info", "--egg-base", work, "bdist_wheel", "--plat-name", tag]
        command += ["--bdist-dir", f"{work}/wheel", "--dist-dir", f"{work}/dist"]
        subprocess.run(command, cwd=ROOT, env=environment, check=True)
        (built,) = Path(work, "dist").glob("*.whl")
        wheel = folder / built.name
        wheel.write_bytes(built.read_bytes())
    return wheel


def check(wheel: Path, tag: str) -> None:
    """Checks that the library of a wheel is there, whole, and needs nothing but the system.

    Raises:
        WheelError: It is not so, or the wheel is of another platform or has files of a linker.
    """
    platform = PLATFORMS[tag]
    if not wheel.name.endswith(f"-py3-none-{tag}.whl"):
        raise WheelError(f"its name does not end in py3-none-{tag}")
    name = "edgespec/runtime/kernels/" + LIBRARY.get(platform.system, "libedgespec.so")
    with zipfile.ZipFile(wheel) as file:
        names = set(file.namelist())
        if name not in names:
            raise WheelError(f"{name} is missing: the compiler's errors are above")
        content = file.read(name)
    if others := {each for each in names if re.search(r"\.(lib|pdb|exp|a|o)$", each)}:
        raise WheelError(f"it has {', '.join(sorted(others))}, which only linkers need")
    # Each set's name is a string in its own object file.
    sets = (*SETS[platform.family], "plain")
    if missing := [each for each in sets if f"{each}\0".encode() not in content]:
        raise WheelError(f"its library has no {', '.join(missing)}")
    _check_symbols(content, Path(name).name, platform)


def _check_symbols(content: bytes, name: str, platform: Platform) -> None:
    import lief

    lief.logging.disable()  # it says in many lines what it makes of zig's libraries
    binary = lief.parse(content)
    if binary is None:
        raise WheelError(f"{name} is no library")
    exported = {_named(each).removeprefix("_") for each in binary.exported_functions}
    if absent := EXPORTS - exported:
        raise WheelError(f"{name} does not export {', '.join(sorted(absent))}")
    allowed = VISIBLE if platform.system == "darwin" else "$^"
    if more := {each for each in exported - EXPORTS if not re.fullmatch(allowed, each)}:
        raise WheelError(f"{name} exports {', '.join(sorted(more))}, which are its own")
    # A library for macOS names itself first.
    needed = {_named(each) for each in binary.libraries} - {f"@rpath/{name}"}
    if foreign := {each for each in needed if not re.fullmatch(platform.libraries, each)}:
        raise WheelError(f"{name} needs {', '.join(sorted(foreign))}, which is not everywhere")


def _named(entry: object) -> str:
    """The name of a symbol or library: for some kinds of file lief gives names alone."""
    name = getattr(entry, "name", entry)
    return name.decode() if isinstance(name, bytes) else str(name)


def _spent() -> float:
    """Seconds of processor time of all children so far."""
    times = os.times()
    return times.children_user + times.children_system


if __name__ == "__main__":
    main()
