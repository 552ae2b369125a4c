"""Servers: one of edgespec in a process of its own, and what any of them streams."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import httpx

from edgespec.errors import DeviceError, InputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

_PATIENCE = 600  # seconds that an answer may take


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


def model_name(url: str) -> str:
    """Returns the name of the first model that a server has.

    Raises:
        InputError: if no server answers there.
    """
    try:
        name: str = httpx.get(f"{url}/v1/models", timeout=_PATIENCE).json()["data"][0]["id"]
    except httpx.HTTPError as error:
        raise _no_answer(url, error) from error
    return name


def events(url: str, path: str, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields the events that a server streams, each when it comes.

    Args:
        url: address of the server.
        path: the route.
        body: the request, which asks for a stream.

    Raises:
        InputError: if no server answers there, or it refuses the request.
    """
    address = url + path
    try:
        with httpx.stream("POST", address, json=body, timeout=_PATIENCE) as response:
            if response.status_code != httpx.codes.OK:
                raise InputError(f"{address} refuses: {response.read().decode()[:300]}")
            for line in response.iter_lines():
                if line.startswith("data: {"):
                    yield json.loads(line.removeprefix("data: "))
    except httpx.HTTPError as error:
        raise _no_answer(url, error) from error


def _no_answer(url: str, error: httpx.HTTPError) -> InputError:
    return InputError(f"{url} does not answer ({error}): start a server there")
