"""Our side of the pipe to a peer."""

from __future__ import annotations

import json
import os
import subprocess
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from edgespec.system.machine import proc_field
from peers import peer
from peers.base import PeerError, Text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from peers.base import Checkpoints, Loading, Request

_BENCHMARKS = Path(__file__).resolve().parent.parent
# Our folder comes last, and -P leaves out the current one, so that no name hides a library's.
_START = "import sys; sys.path.append(sys.argv[1]); import peers.serve as s; s.serve(sys.argv[2])"
_GRACE = 5.0  # seconds to end in, once nobody asks any more


class PeerProcess:
    """A peer in a process of its own; a context manager that ends it.

    Args:
        python: Of the peer's environment.
        name: Of the peer.
        log: Where what it prints is appended.

    Attributes:
        started: When, by the system's monotonic clock.
    """

    def __init__(self, python: Path, name: str, log: Path) -> None:
        self._log = log.open("a", encoding="utf-8")
        self._last_words = log
        # What makes us importable may hide modules of the peer's.
        environment = {**os.environ}
        if peer(name).requirements:
            environment.pop("PYTHONPATH", None)
        self.started = time.monotonic()
        self._process = subprocess.Popen(
            [str(python), "-P", "-c", _START, str(_BENCHMARKS), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=environment,
        )

    def convert(self, checkpoints: Checkpoints, output: Path) -> None:
        """See `Peer.convert`.

        Raises:
            PeerError: It failed, here and in all methods.
        """
        paths = {name: path and str(path) for name, path in asdict(checkpoints).items()}
        self._ask("convert", **paths, output=str(output))

    def load(self, loading: Loading) -> dict[str, str]:
        """See `Peer.load`; the versions in use."""
        fields = {**asdict(loading), "folder": str(loading.folder)}
        versions: dict[str, str] = self._ask("load", **fields)
        return versions

    def make(self, request: Request) -> Text:
        """See `Decoder.make`."""
        fields = self._ask("make", **asdict(request))
        return Text(**{**fields, "tokens": tuple(fields["tokens"])})

    def verdict(self, request: Request, expected: Sequence[int], found: Sequence[int]) -> str:
        """See `Decoder.verdict`."""
        words: str = self._ask(
            "verdict", request=asdict(request), expected=list(expected), found=list(found)
        )
        return words

    def seconds(self, rows: int, length: int) -> float:
        """See `PassTimer.seconds`."""
        seconds: float = self._ask("seconds", rows=rows, length=length)
        return seconds

    def peak_mib(self) -> float:
        """Its largest resident memory so far, file-backed pages included. Linux only."""
        return int(proc_field(f"/proc/{self._process.pid}/status", "VmHWM").split()[0]) / 1024

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it may have ended already
            self._process.stdin.close()
        try:
            self._process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def _ask(self, verb: str, **arguments: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps([verb, arguments]) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            status = self._process.wait()
            raise PeerError(f"its process ended with status {status}, see {self._last_words}")
        answer = json.loads(line)
        if "error" in answer:
            raise PeerError(answer["error"])
        return answer["answer"]
