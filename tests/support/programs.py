"""Programs of a test's own, each in a new process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import edgespec


def ended(program: str, *arguments: str) -> list[str]:
    """Returns the lines of a program that ends well, and says nothing on stderr."""
    path = os.pathsep.join([str(Path(edgespec.__file__).parents[1]), *sys.path])
    done = subprocess.run(
        [sys.executable, "-P", "-c", program, *arguments],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split("\n")[:-1]
