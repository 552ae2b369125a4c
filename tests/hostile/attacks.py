"""Attacks a server by the work that it does for a request before its turn, and by connections.

    python tests/hostile/attacks.py [BUNDLE] [--only NAME]

For each attack `edgespec serve` runs in a separate process. A client reads streams and another asks
for `/health` all the time. It prints whether the server is up behind the attack, the largest gap of
the two clients without and with it, the growth of the server's anonymous and shared memory once it
is over, and how long the server takes to end when it gets SIGTERM while it is attacked again.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import httpx

sys.path += [str(Path(__file__).parents[2] / each) for each in ("benchmarks", "tests/support")]

from common import exit_code, memory, print_result, print_table
from serving import served

from edgespec.errors import InputError
from edgespec.models.embedded import BUNDLE
from edgespec.system.environment import MIB

_PROCESSES = multiprocessing.get_context("fork")
_AT_ONCE = 12
_USUAL_SECONDS, _SETTLE_SECONDS = 3, 5
_MOST_FURTHER = 0.2  # seconds of a gap, beyond the usual one
_MOST_GROWTH = 100  # MiB
_MOST_END = 2.0  # seconds
_HALF_OPEN = 1100
_FACTS = ("up", "usual gap", "gap", "MiB more", "end")

Attack = Callable[[str], None]  # of the server at an address


def _posts(path: str, body: object, leaves: float = 60) -> Attack:
    """Returns many requests at once, whose clients leave after some seconds."""

    def attack(url: str) -> None:
        content = json.dumps(body).encode()
        headers = {"content-type": "application/json"}

        def post(_number: int) -> None:
            with suppress(httpx.HTTPError):
                httpx.post(url + path, content=content, headers=headers, timeout=leaves)

        with ThreadPoolExecutor(_AT_ONCE) as threads:
            list(threads.map(post, range(_AT_ONCE)))

    return attack


def _connections(head: bytes, seconds: float = 3) -> Attack:
    """Returns many connections that begin a request and never end it."""

    def attack(url: str) -> None:
        place = urlsplit(url)
        with ExitStack() as stack:
            for _ in range(_HALF_OPEN):
                with suppress(OSError):
                    sock = socket.create_connection((place.hostname, place.port), 5)
                    stack.enter_context(sock)
                    sock.sendall(head)
            time.sleep(seconds)

    return attack


_WORDS = "one two three four "
_HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\n"
_BODY = _HEAD + b"content-type: application/json\r\ncontent-length: 1000000\r\n\r\n{"
_TEXT = _WORDS * 160_000  # 3 MB
_MB = _WORDS * 50_000
_PREDICTED = {"prediction": {"type": "content", "content": _MB}}
ATTACKS: dict[str, Attack] = {
    "prompt": _posts("/v1/completions", {"prompt": _TEXT, "stream": True}),
    "prompt, left": _posts("/v1/completions", {"prompt": _TEXT}, 0.3),
    "prompts": _posts("/v1/completions", {"prompt": [_WORDS * 400] * 128, "max_tokens": 1}, 2),
    "ids": _posts("/v1/completions", {"prompt": [5] * 290_000}),
    "too many ids": _posts("/v1/completions", {"prompt": [5] * 1_000_000}),
    "prediction": _posts("/v1/completions", {"prompt": "a", "n": 128, **_PREDICTED}, 2),
    "messages": _posts(
        "/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}] * 60_000}
    ),
    "infill": _posts("/infill", {"input_prefix": _MB, "input_suffix": _MB}),
    "tokenize": _posts("/tokenize", {"content": _MB[:500_000]}),
    "tokenize, left": _posts("/tokenize", {"content": _MB[:500_000], "with_pieces": True}, 0.3),
    "too large tokenize": _posts("/tokenize", {"content": _TEXT}),
    "detokenize": _posts("/detokenize", {"tokens": [70] * 290_000}),
    "half heads": _connections(_HEAD),
    "half bodies": _connections(_BODY),
    "long heads": _connections(_HEAD + b"a: " + b"b" * 200_000),
}


class _Clients:
    """Two clients that are always there, and the largest gap between what they get."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._ended = threading.Event()
        self.gaps = {"stream": 0.0, "health": 0.0}
        self._threads = [threading.Thread(target=each) for each in (self._read, self._ask)]

    @contextmanager
    def at_work(self) -> Iterator[_Clients]:
        """Has them at work until the end of the block."""
        for thread in self._threads:
            thread.start()
        try:
            yield self
        finally:
            self._ended.set()
            for thread in self._threads:
                thread.join()

    def largest(self) -> float:
        """Returns the largest gap since it was last asked for."""
        gap = max(self.gaps.values())
        self.gaps = dict.fromkeys(self.gaps, 0.0)
        return gap

    def _note(self, name: str, since: float) -> float:
        now = time.monotonic()
        self.gaps[name] = max(self.gaps[name], now - since)
        return now

    def _read(self) -> None:
        body = {"prompt": "def add(a, b):\n", "stream": True, "max_tokens": 200}
        while not self._ended.is_set():
            with (
                suppress(httpx.HTTPError),
                httpx.stream("POST", f"{self._url}/v1/completions", json=body) as response,
            ):
                came = None  # a text's first piece waits for its turn
                for line in response.iter_lines():
                    if line.startswith("data: {"):
                        came = self._note("stream", came or time.monotonic())
                    if self._ended.is_set():
                        break

    def _ask(self) -> None:
        with httpx.Client(base_url=self._url, timeout=60) as client:
            while not self._ended.wait(0.02):
                asked = time.monotonic()
                with suppress(httpx.HTTPError):
                    client.get("/health")
                self._note("health", asked)


def _tried(bundle: Path, attack: Attack) -> dict[str, float]:
    with served(bundle, "--parallel=4") as (process, url):
        with _Clients(url).at_work() as clients:
            time.sleep(_USUAL_SECONDS)
            usual = clients.largest()
            before = memory(process.pid)
            attacker = _PROCESSES.Process(target=attack, args=(url,))  # with a lock of its own
            attacker.start()
            attacker.join()
            gap = clients.largest()
        time.sleep(_SETTLE_SECONDS)
        up = httpx.get(f"{url}/health", timeout=60).status_code == 200
        growth = (memory(process.pid) - before) / MIB
        again = _PROCESSES.Process(target=attack, args=(url,))
        again.start()
        time.sleep(0.5)
        process.terminate()
        began = time.monotonic()
        process.wait()
        end = time.monotonic() - began
        again.join()
    values = map(float, (up, usual, gap, growth, end))
    return {name: round(value, 2) for name, value in zip(_FACTS, values, strict=True)}


def main() -> None:
    parser = argparse.ArgumentParser(description="Attacks on a server, and what others notice.")
    parser.add_argument("bundle", nargs="?", type=Path, default=BUNDLE, metavar="BUNDLE")
    parser.add_argument("--only", metavar="NAME", help=f"one of {', '.join(ATTACKS)}")
    arguments = parser.parse_args()
    if arguments.only not in (None, *ATTACKS):
        raise InputError(f"--only is {arguments.only!r}: give one of {', '.join(ATTACKS)}")
    chosen = [arguments.only] if arguments.only else ATTACKS
    found = {name: _tried(arguments.bundle, ATTACKS[name]) for name in chosen}
    print_table(
        ["attack", *next(iter(found.values()))], [[n, *f.values()] for n, f in found.items()]
    )
    sound = all(
        each["up"]
        and each["gap"] <= each["usual gap"] + _MOST_FURTHER
        and each["MiB more"] <= _MOST_GROWTH
        and each["end"] <= _MOST_END
        for each in found.values()
    )
    print_result("attacks", {"attacks": found, "sound": sound})


if __name__ == "__main__":
    sys.exit(exit_code(main))
