"""Programs of a test's own, each in a new process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import edgespec


def finished(
    *command: str | Path, folder: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs Python with these arguments, in a folder, to an end that must be good."""
    path = os.pathsep.join([str(Path(edgespec.__file__).parents[1]), *sys.path])
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=folder,
        env={**os.environ, **environment, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done


def ended(program: str, *arguments: str) -> list[str]:
    """Returns the lines of a program that ends well, and says nothing on stderr."""
    done = finished("-P", "-c", program, *arguments)
    assert done.stderr == ""
    return done.stdout.split("\n")[:-1]
