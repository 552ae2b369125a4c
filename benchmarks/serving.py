"""A server of edgespec in a process of its own."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from edgespec.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def served(bundle: Path, *options: str) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """Yields the server's process and address; at the end, a signal stops the server.

    Args:
        bundle: folder of the bundle.
        options: options of `edgespec serve`.

    Raises:
        DeviceError: if the server does not start.
    """
    command = [sys.executable, "-m", "edgespec", "serve", str(bundle), "--port=0", *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
        try:
            assert process.stderr is not None
            for line in process.stderr:
                if found := re.search(rb"is served on (http://\S+):", line):
                    yield process, found[1].decode()
                    break
                sys.stderr.buffer.write(line)
            else:
                raise DeviceError("edgespec serve has ended: run it by hand")
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()
