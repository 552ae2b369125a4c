"""Copies of the package as a wheel installs it, and processes that may write nothing there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from checkout import ROOT

NAME = "Müller ü 日本"
"""Of a folder, as users' may be called."""

_CAPABILITIES = "--bounding-set=-dac_override,-dac_read_search"


def install(folder: Path) -> None:
    """Installs the package, what it tells other programs of itself, and the operators."""
    command = [sys.executable, "setup.py", "-q", "build_py", "--build-lib", str(folder)]
    command += ["egg_info", "--egg-base", str(folder)]
    subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    kernels = find_spec("edgespec.runtime.kernels")
    assert kernels is not None
    assert kernels.origin is not None
    for library in Path(kernels.origin).parent.glob("*edgespec.*"):
        shutil.copy(library, folder / "edgespec/runtime/kernels")


def protect(folder: Path) -> None:
    """Lets nobody write to a folder and what is in it."""
    for path in (folder, *folder.rglob("*")):
        if not path.is_symlink():
            path.chmod(path.stat().st_mode & ~0o222)


def bound(*command: str | Path) -> list[str]:
    """Returns a command for which the modes of files hold, as they do for all users but root."""
    if sys.platform == "win32":
        pytest.skip("modes of Windows' folders stop nobody")
    if os.geteuid():
        return [*map(str, command)]
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        pytest.skip("root may write anywhere, and there is no setpriv")
    return [setpriv, _CAPABILITIES, *map(str, command)]
