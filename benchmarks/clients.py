"""Times servers with several clients at once: first tokens, the time between tokens, and the speed.

    python benchmarks/clients.py BUNDLE --prompts HumanEval.jsonl --clients 8
    python benchmarks/clients.py BUNDLE --prompts HumanEval.jsonl --against http://127.0.0.1:8012

Each client asks `/v1/completions` for greedy streamed texts, one after the other. When all are at
it, a further client sends a long prompt, so that the longest pause that it makes for the others can
be seen. `edgespec serve` answers in a process of its own, with drafts and without; the server that
`--against` names is started by hand with room for as many texts. Servers take turns, each with all
clients.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
from common import add_threads, count, exit_code, facts_of, names, print_result, print_table
from serving import events, model_name, served

from edgespec.errors import InputError
from edgespec.measuring.prompts import read_prompts
from edgespec.runtime.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_OWN: dict[str, Any] = {}
_LLAMA = {"cache_prompt": False}  # no prompt is asked twice
_DRAFTS = ("none", "lookup", "model", "head", "auto")


@dataclass(frozen=True)
class Answer:
    """A text of a client; times are seconds of the same clock.

    Attributes:
        begin: when it was asked for.
        pieces: when each piece of text came.
        tokens: number of new tokens.
    """

    begin: float
    pieces: tuple[float, ...]
    tokens: int

    @property
    def first(self) -> float:
        """Seconds to the first piece."""
        return self.pieces[0] - self.begin

    @property
    def pauses(self) -> list[float]:
        """Seconds between pieces."""
        return [float(pause) for pause in np.diff(self.pieces)]


@dataclass(frozen=True)
class Turn:
    """What a server did for all clients.

    Attributes:
        answers: the clients' texts.
        seconds: from the first request to the last token.
        long: the long prompt's text.
    """

    answers: tuple[Answer, ...]
    seconds: float
    long: Answer

    def facts(self) -> dict[str, float]:
        """Returns the figures of the table, in milliseconds unless they say otherwise."""
        firsts = [1e3 * each.first for each in self.answers]
        by_token = [
            1e3 * (each.pieces[-1] - each.pieces[0]) / max(each.tokens - 1, 1)
            for each in self.answers
        ]
        pauses = [1e3 * pause for each in self.answers for pause in each.pauses]
        return {
            "tokens_per_second": round(sum(each.tokens for each in self.answers) / self.seconds, 1),
            "first_median": round(median(firsts), 1),
            "first_95": round(float(np.percentile(firsts, 95)), 1),
            "per_token_median": round(median(by_token), 1),
            "pause_median": round(median(pauses), 1),
            "pause_95": round(float(np.percentile(pauses, 95)), 1),
            "pause_longest": round(max(pauses), 1),
            "long_first": round(1e3 * self.long.first, 1),
        }


def main() -> None:
    arguments = _parse_arguments()
    prompts = read_prompts(arguments.prompts, arguments.clients * arguments.texts)
    tokenizer = Tokenizer.from_folder(arguments.bundle)
    stream = [token for prompt in prompts for token in tokenizer.encode(prompt)]
    long = tokenizer.decode((stream * arguments.long)[: arguments.long])
    found: dict[str, list[Turn]] = {}
    for number in range(arguments.repeat):
        for way in (*arguments.drafts, *(["against"] if arguments.against else [])):
            if way == "against":
                turn = _turn(arguments.against.rstrip("/"), prompts, long, arguments, _LLAMA)
            else:
                options = (
                    f"--draft={way}",
                    f"--device={arguments.device}",
                    f"--threads={arguments.threads}",
                    f"--parallel={arguments.clients + 1}",
                    f"--context={arguments.context}",
                )
                with served(arguments.bundle, *options) as (_, url):
                    turn = _turn(url, prompts, long, arguments)
            found.setdefault(way, []).append(turn)
            print(f"{number} {way}: {turn.facts()}", flush=True)
    _print(arguments, found)


def _turn(
    url: str,
    prompts: Sequence[str],
    long: str,
    arguments: argparse.Namespace,
    fields: Mapping[str, Any] = _OWN,
) -> Turn:
    """Lets all clients ask one server; `fields` are further ones of its requests."""
    fields = {**fields, "model": model_name(url)}
    _ask(url, prompts[0], 4, fields)  # the first text prepares shapes and buffers
    answers = list[Answer]()
    failures = list[InputError]()
    others: list[Answer] = []

    def asks(mine: Sequence[str]) -> None:
        try:
            for prompt in mine:
                answers.append(_ask(url, prompt, arguments.new_tokens, fields))
        except InputError as error:
            failures.append(error)

    def asks_late() -> None:
        time.sleep(arguments.late)
        try:
            others.append(_ask(url, long, 4, fields))
        except InputError as error:
            failures.append(error)

    parts = [prompts[first :: arguments.clients] for first in range(arguments.clients)]
    threads = [threading.Thread(target=asks, args=(part,)) for part in parts]
    threads.append(threading.Thread(target=asks_late))
    begin = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    end = max(each.pieces[-1] for each in answers)
    return Turn(tuple(answers), end - begin, others[0])


def _ask(url: str, prompt: str, new_tokens: int, fields: Mapping[str, Any]) -> Answer:
    body: dict[str, Any] = {
        "prompt": prompt,
        "max_tokens": new_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        **fields,
    }
    pieces = list[float]()
    tokens = 0
    begin = time.perf_counter()
    for event in events(url, "/v1/completions", body):
        if event.get("usage"):
            tokens = event["usage"]["completion_tokens"]
        if any(choice.get("text") for choice in event.get("choices", ())):
            pieces.append(time.perf_counter())
    if not pieces or not tokens:
        raise InputError(f"{url} made no text for a prompt: give prompts that are to be continued")
    return Answer(begin, tuple(pieces), tokens)


def _print(arguments: argparse.Namespace, found: dict[str, list[Turn]]) -> None:
    facts = {way: [turn.facts() for turn in turns] for way, turns in found.items()}
    medians = {
        way: {name: median(each[name] for each in turns) for name in turns[0]}
        for way, turns in facts.items()
    }
    print_table(
        [
            "",
            "tokens/s together",
            "first token, ms",
            "95 %",
            "ms/token",
            "pause, ms",
            "95 %",
            "longest",
            "long prompt's first token, ms",
        ],
        [[way, *each.values()] for way, each in medians.items()],
    )
    print_result(
        "clients",
        {
            **facts_of(arguments.bundle),
            "clients": arguments.clients,
            "texts": arguments.texts,
            "new_tokens": arguments.new_tokens,
            "long": arguments.long,
            "threads": arguments.threads,
            "against": arguments.against,
            "turns": facts,
            "medians": medians,
        },
    )


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Several clients of a server at once.")
    parser.add_argument("bundle", type=Path, metavar="BUNDLE")
    parser.add_argument("--prompts", type=Path, nargs="+", required=True, help="JSON lines")
    parser.add_argument("--against", metavar="URL", help="another server with OpenAI's API")
    parser.add_argument(
        "--drafts",
        type=lambda text: names(text, _DRAFTS),
        default=["none", "auto"],
        help="draft sources (default none,auto)",
    )
    parser.add_argument("--clients", type=count, default=8)
    parser.add_argument("--texts", type=count, default=2, help="texts of each client (default 2)")
    parser.add_argument("--new-tokens", type=count, default=48, help="of each text (default 48)")
    parser.add_argument("--long", type=count, default=1024, help="tokens of the long prompt")
    parser.add_argument("--late", type=float, default=5.0, help="seconds before the long prompt")
    parser.add_argument("--context", type=count, default=2048)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeat", type=count, default=1)
    add_threads(parser)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(exit_code(main))
