"""A display that programs of a test may open windows on."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import contextmanager

import pytest


@contextmanager
def display():
    """The name of a display; without one and without Xvfb, the test is skipped."""
    if sys.platform in ("win32", "darwin") or "DISPLAY" in os.environ:
        yield os.environ.get("DISPLAY", "")
        return
    if shutil.which("Xvfb") is None:
        pytest.skip("there is no display, and no Xvfb")
    ours, theirs = os.pipe()
    command = ["Xvfb", "-displayfd", str(theirs), "-nolisten", "tcp"]
    with subprocess.Popen(command, pass_fds=[theirs]) as process:
        os.close(theirs)
        try:
            with open(ours) as told:  # noqa: PTH123
                yield f":{told.readline().strip()}"
        finally:
            process.terminate()
