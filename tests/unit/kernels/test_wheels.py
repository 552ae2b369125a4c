"""Wheels that are built on one machine for others: what is no wheel is refused."""

from __future__ import annotations

import importlib
import sys
import zipfile

import pytest
from checkout import ROOT

pytest.importorskip("setuptools")
sys.path.insert(0, str(ROOT / ".ci"))
wheels = importlib.import_module("wheels")
sys.path.remove(str(ROOT / ".ci"))

MAC = "macosx_14_0_arm64"
LIBRARY = "edgespec/runtime/kernels/libedgespec.dylib"
WHOLE = b"plain\0neon\0dotprod\0i8mm\0"


def make_wheel(folder, files, tag=MAC):
    path = folder / f"edgespec-0.1.0-py3-none-{tag}.whl"
    with zipfile.ZipFile(path, "w") as file:
        for name, content in files.items():
            file.writestr(name, content)
    return path


@pytest.mark.parametrize(
    ("files", "tag", "told"),
    [
        ({"edgespec/__init__.py": b""}, MAC, f"{LIBRARY} is missing"),
        ({LIBRARY: WHOLE.replace(b"dotprod", b"")}, MAC, "has no dotprod"),
        ({LIBRARY: WHOLE, "edgespec/edgespec.lib": b""}, MAC, "edgespec/edgespec.lib"),
        ({LIBRARY: WHOLE}, "any", f"does not end in py3-none-{MAC}"),
    ],
)
def test_what_is_no_wheel_is_refused(tmp_path, files, tag, told):
    with pytest.raises(wheels.WheelError, match=told):
        wheels.check(make_wheel(tmp_path, files, tag), MAC)


def test_a_file_of_no_library_is_refused(tmp_path):
    pytest.importorskip("lief")
    with pytest.raises(wheels.WheelError, match="is no library"):
        wheels.check(make_wheel(tmp_path, {LIBRARY: WHOLE}), MAC)


def test_what_cannot_be_compiled_gives_no_wheel(tmp_path, monkeypatch, capfd):
    pytest.importorskip("ziglang")
    monkeypatch.setenv("CXXFLAGS", "--of-no-compiler")
    monkeypatch.setattr(sys, "argv", ["wheels.py", str(tmp_path), MAC])
    with pytest.raises(SystemExit, match=f"{LIBRARY} is missing"):
        wheels.main()
    assert not list(tmp_path.iterdir())
    assert "--of-no-compiler" in capfd.readouterr().err  # what the compiler says


@pytest.mark.slow
def test_a_wheel_for_macs_is_whole(tmp_path, monkeypatch):
    """It cannot run here, but its header says where it does."""
    pytest.importorskip("ziglang")
    lief = pytest.importorskip("lief")
    monkeypatch.setenv("CXXFLAGS", "-O1")  # twice as fast
    wheel = wheels.build(MAC, tmp_path)
    wheels.check(wheel, MAC)
    with zipfile.ZipFile(wheel) as file:
        library = lief.parse(file.read(LIBRARY))
    assert library.header.cpu_type == lief.MachO.Header.CPU_TYPE.ARM64
    assert library.build_version.minos == [14, 0, 0]
    assert library.has_code_signature  # without one macOS loads nothing for this processor
    assert [each.name for each in library.libraries] == [
        "@rpath/libedgespec.dylib",
        "/usr/lib/libSystem.B.dylib",
    ]
