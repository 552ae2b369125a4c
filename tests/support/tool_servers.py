"""Servers of tools for tests: one as `mcp` makes them, and one that is quick to start, or odd."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HONEST = Path(__file__).parent / "tool_server.py"
ODD = Path(__file__).parent / "odd_tools.py"
PATIENCE = 60  # seconds


def program(mode: str = "plain", **more: object) -> dict[str, object]:
    """Returns what a file with `mcpServers` says of a server with the tool `weather`."""
    return {"command": sys.executable, "args": [str(ODD), mode], **more}


@contextmanager
def listening() -> Iterator[str]:
    """Run a server as `mcp` makes them at an address."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, str(HONEST), str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + PATIENCE
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                assert time.monotonic() < end
                time.sleep(0.05)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.kill()
        process.wait()
