"""The peer's side of the pipe: a line of JSON asks, a line of JSON answers.

Runs in the peer's environment, of which nothing is expected but the peer.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import sys
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from peers import peer
from peers.base import Checkpoints, Loading, Request

if TYPE_CHECKING:
    from collections.abc import Callable

    from peers.base import Decoder, PassTimer, Peer


def serve(name: str) -> None:
    """Answer until nobody asks any more; the first question is `convert` or `load`."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # libraries print, and stdout is for answers
    served = _Served(peer(name))
    for line in sys.stdin:
        verb, arguments = json.loads(line)
        ask: Callable[..., Any] = getattr(served, verb)
        try:
            answer = {"answer": ask(**arguments)}
        except Exception as error:  # whatever it is, it is the reason in the table
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)


class _Served:
    """The questions."""

    def __init__(self, served: Peer) -> None:
        self._peer = served
        self._decoder: Decoder | None = None

    def convert(self, target: str, draft: str | None, output: str) -> None:
        draft_path = None if draft is None else Path(draft)
        self._peer.convert(Checkpoints(Path(target), draft_path), Path(output))

    def load(self, folder: str, eos_ids: list[int], **rest: Any) -> dict[str, str]:
        loading = Loading(folder=Path(folder), eos_ids=tuple(eos_ids), **rest)
        self._decoder = self._peer.load(loading)
        return versions(self._peer.requirements)

    def make(self, **request: Any) -> dict[str, Any]:
        assert self._decoder is not None, "load comes first"
        return asdict(self._decoder.make(_request(request)))

    def verdict(self, request: dict[str, Any], expected: list[int], found: list[int]) -> str:
        assert self._decoder is not None, "load comes first"
        return self._decoder.verdict(_request(request), expected, found)

    def seconds(self, rows: int, length: int) -> float:
        return cast("PassTimer", self._decoder).seconds(rows, length)


def _request(fields: dict[str, Any]) -> Request:
    return Request(**{**fields, "prompt": tuple(fields["prompt"])})


def versions(requirements: tuple[str, ...]) -> dict[str, str]:
    """Of the packages that requirements name."""
    names = [re.split(r"[<>=~! \[;]", text, maxsplit=1)[0] for text in requirements]
    return {name: importlib.metadata.version(name) for name in names}
