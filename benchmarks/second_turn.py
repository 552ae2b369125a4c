"""Compares the second turn of a conversation with and without a session, which keeps the cache.

    python benchmarks/second_turn.py BUNDLE

The model answers a history of code (numbered functions), and then a follow-up in the same session.
The same prompt also runs without the session. Both take turns, each time with another history. The
times to the first token and the texts are compared.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from common import add_threads, count, exit_code, print_result, print_table

from edgespec import LLM
from edgespec.api.loading import DRAFTS
from edgespec.measuring.equality import Judge, tally, worst
from edgespec.models.embedded import BUNDLE

if TYPE_CHECKING:
    from collections.abc import Sequence

_WANTED = 0.15  # of the time of a cold start
_FOLLOW_UP = "\n\n\ndef next_one(n):\n"


@dataclass(frozen=True)
class Turn:
    """A second turn, with and without a session.

    Attributes:
        prompt_tokens: tokens of the prompt, including history and answer.
        reused: number of these tokens that the session had in its cache.
        session_ms: milliseconds to the first token in the session.
        cold_ms: milliseconds to the first token without it.
        equal: comparison of both texts, see `equality.VERDICTS`.
    """

    prompt_tokens: int
    reused: int
    session_ms: float
    cold_ms: float
    equal: str


def main() -> None:
    arguments = _parse_arguments()
    with LLM(
        arguments.bundle, draft=arguments.draft, device=arguments.device, threads=arguments.threads
    ) as llm:
        judge = Judge(llm.target, llm.tokenizer)
        turns = [
            _turn(llm, judge, _history(llm, arguments.history, number), arguments.new_tokens)
            for number in range(arguments.repeat + 1)
        ][1:]  # the first warms up
    warm, cold = median(t.session_ms for t in turns), median(t.cold_ms for t in turns)
    prompt, reused = median(t.prompt_tokens for t in turns), median(t.reused for t in turns)
    ratio, verdicts = round(warm / cold, 3), [turn.equal for turn in turns]
    print_table(
        ["prompt", "reused", "session ms", "cold ms", "ratio", "wanted", "equal"],
        [[prompt, reused, round(warm, 1), round(cold, 1), ratio, _WANTED, tally(verdicts)]],
    )
    print_result(
        "second_turn",
        {
            "bundle": llm.bundle.manifest.provenance,
            "draft": llm.draft,
            "threads": arguments.threads,
            "new_tokens": arguments.new_tokens,
            "ratio": ratio,
            "wanted": _WANTED,
            "equal": worst(verdicts),
            "turns": [asdict(turn) for turn in turns],
        },
    )


def _history(llm: LLM, length: int, number: int) -> list[int]:
    """Returns the tokens of a text whose beginning is unique to this number."""
    source = "".join(
        f"def step_{number}_{line}(x):\n    return x * {line} + {number}\n\n\n"
        for line in range(length)
    )
    return llm.tokenizer.encode(source)[:length]


def _turn(llm: LLM, judge: Judge, history: Sequence[int], new_tokens: int) -> Turn:
    with llm.session() as session:
        answer = session.generate(history, max_new_tokens=new_tokens)
        follow_up = llm.tokenizer.encode(_FOLLOW_UP, add_special=False)
        prompt = [*history, *answer.tokens, *follow_up]
        warm = session.generate(prompt, max_new_tokens=new_tokens)
    cold = llm.generate(prompt, max_new_tokens=new_tokens)
    return Turn(
        prompt_tokens=len(prompt),
        reused=warm.reused,
        session_ms=warm.ttft_ms,
        cold_ms=cold.ttft_ms,
        equal=judge.verdict(prompt, cold.tokens, warm.tokens),
    )


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="The second turn of a conversation.")
    parser.add_argument("bundle", type=Path, nargs="?", default=BUNDLE, help="folder of the bundle")
    parser.add_argument(
        "--history", type=count, default=1000, help="tokens of the history (default 1000)"
    )
    parser.add_argument(
        "--new-tokens", type=count, default=32, help="tokens of each answer (default 32)"
    )
    parser.add_argument("--repeat", type=count, default=3, help="conversations (default 3)")
    parser.add_argument("--draft", choices=DRAFTS, default="auto")
    parser.add_argument("--device", default="cpu", help="device of the target (default cpu)")
    add_threads(parser)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(exit_code(main))
