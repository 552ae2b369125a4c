"""Files of requests for `edgespec batch`, and what is to be in their answers."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path

from commandline import FAST

from edgespec.batch.files import Journal

FEW = ["--draft=none", *FAST]
"""Options of a model that loads at once."""

PROMPTS = [f"def f{number}(a, b):\n" for number in range(12)]


def completion(custom_id: str, prompt: object, **fields) -> dict[str, object]:
    """A request for a completion."""
    body = {"prompt": prompt, "max_tokens": 16, **fields}
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/completions", "body": body}


def usual(tokens: int = 16) -> list[dict[str, object]]:
    """Requests of which some are greedy, some sampled without a seed, and some with one."""
    ways = ({"temperature": 0}, {}, {"seed": 5})
    return [
        completion(f"request-{number}", prompt, max_tokens=tokens, **ways[number % 3])
        for number, prompt in enumerate(PROMPTS)
    ]


def write(path: Path, requests: list[object]) -> Path:
    """Write lines; strings and bytes are written as they are."""
    lines = [line if isinstance(line, str | bytes) else json.dumps(line) for line in requests]
    coded = [line.encode() if isinstance(line, str) else line for line in lines]
    path.write_bytes(b"".join(line + b"\n" for line in coded))
    return path


def act_after(monkeypatch, count: int, action: Callable[[], object]) -> None:
    """Do something behind the answer number `count` of a batch."""
    add = Journal.add

    def added(self, number, output):
        add(self, number, output)
        if len(self) == count:
            action()

    monkeypatch.setattr(Journal, "add", added)


def interrupt() -> None:
    """Ctrl-C, as far as a process is concerned."""
    signal.raise_signal(signal.SIGINT)


def answers(path: Path) -> list[dict]:
    """The lines of an output or, with their numbers, of a journal."""
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]
