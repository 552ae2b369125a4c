r"""Compares edgespec with other runtimes, on the same GGUF file, prompts and threads.

    python benchmarks/compare.py qwen-1.5b.gguf --draft qwen-0.5b.gguf --cache peers \
        --code HumanEval.jsonl --chat spec_bench.jsonl --rows rows.jsonl --minutes 40

Each peer (`benchmarks/peers`) is a wheel in an environment of its own below --cache, made once.
onnxruntime-genai reads no GGUF file: it makes its own int4 of --checkpoint and --draft-checkpoint.
All settings are loaded side by side, each in its own process, and take turns text by text. Prompts
are token ids. A run that ends by --minutes, or is interrupted, prints what it has, and goes on in
the next run with the same --rows. What cannot be run is listed with the reason.

* code, chat: single texts, plain and with drafts; greedy.
* first: the first token of a prompt of 1,000 tokens.
* several: 8 texts at once, with their prompts.
* behind: tokens behind 8,192 others (--behind).
* second: the first token of 100 further tokens, behind 1,000 that were read before.
* start: from the start of the process to the first token, first with nothing made of the file.

Each test gets an even share of the minutes that are left. Figures are medians of all texts, with
the least and the most. Tokens a second are those after a text's first, by wall time, and
milliseconds a token by the processor time of the peer's process, which counts its waiting threads
that spin. Where the processor tells what energy it takes (RAPL), there are joules a token, too.
Tokens a round of the target are accepted ones and one more, where a peer tells how many those are.

`--head` is a head such as those of `edgespec train-draft`. llama.cpp gets it as its converter
writes it, OpenVINO GenAI as a model of its own, unless it is a DSpark head; each is made once, and
both draft chains with it.

`--beside busy` keeps one core busy with another program meanwhile, as laptops are, and
`--beside nothing,busy` measures both. `--quick` is a first look in 20 minutes: two short texts of
each kind, once, by those peers whose environments are there.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import suppress
from dataclasses import asdict
from itertools import chain, cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING

from common import count, exit_code, names, print_result, print_table
from peers import PLAIN, is_installed, turns
from peers.rows import START, Row, is_wait, overview, peers_of, ratio, row_of
from peers.turns import COMPANIES, HEADS, Task, Turns, Way, ways_of
from prompts import CHAT

from edgespec.measuring.prompts import read_prompts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from edgespec.runtime.text.tokenizer import Tokenizer

TESTS = {
    "code": "HumanEval, greedy",
    "chat": "questions in the model's chat template, greedy",
    "first": "the first token of a prompt of 1,000 tokens",
    "several": "8 texts at once, prompts of 64 tokens among the time",
    "behind": "behind {} tokens, greedy",
    "second": "the first token of 100 further tokens, behind 1,000 that were read before",
    START: "from the start of the process to the first token",
}
_SPECULATING = ("auto", *HEADS, "draft", "lookup")
_FIRST = 1000
_FURTHER = 100
_SEVERAL = 8
_SEVERAL_PROMPT = 64
_QUICK = {"minutes": 20, "limit": 2, "repeat": 1, "n": 32}
"""The most of each option in a first look."""


def main() -> None:
    given = _parse_arguments()
    left_out = _shorten(given) if given.quick else {}
    done = Turns(given, failures=left_out)
    tokenizer = turns.tokenizer_of(given.model)
    plain = ways_of(given, (PLAIN, "auto", "head"))
    every = ways_of(given, (PLAIN, *_SPECULATING))
    measured = [(test, company) for company in given.beside for test in given.tests]
    with suppress(KeyboardInterrupt):
        for number, (test, company) in enumerate(measured):
            tasks = _tasks(test, company, given, tokenizer)
            share = 1 / (len(measured) - number)
            if test == START:
                done.start(tasks, plain, share)
            else:
                ways = every if test in ("code", "chat") else plain
                done.run(tasks, ways, share)
    results = dict[str, list[Row]]()
    for test, company in measured:
        rows = [row for way in every if (row := _row(done, test, way, company))]
        beside = "" if company == COMPANIES[0] else f", beside {company}"
        _print(test, TESTS[test].format(given.behind) + beside, rows)
        results[test + beside] = rows
    print("\n**all, tokens/s or seconds, and edgespec's to the best of the others**\n")
    print_table(["program", "setting", *results], overview(results))
    for way, reason in done.failures.items():
        print(f"not run: {way}: {reason}")
    options = ("model", "draft", "head", "threads", "n", "behind")
    print_result(
        "compare",
        {
            **{name: str(getattr(given, name)) for name in options},
            "settings": turns.settings_of(given.peers),
            "peer_versions": done.versions,
            "failures": done.failures,
            "results": {test: [asdict(row) for row in rows] for test, rows in results.items()},
        },
    )


def _shorten(given: argparse.Namespace) -> dict[str, str]:
    """Makes of what is asked for a first look; returns which peers are left out, and why."""
    for name, most in _QUICK.items():
        setattr(given, name, min(getattr(given, name), most))
    there = [name for name in given.peers if is_installed(name, given.cache)]
    missing = [name for name in given.peers if name not in there]
    given.peers = there
    return dict.fromkeys(missing, "not installed: run once without --quick")


def _tasks(test: str, company: str, given: argparse.Namespace, tokenizer: Tokenizer) -> list[Task]:
    stream = cycle(chain.from_iterable(turns.code_prompts(given, tokenizer)))
    known = 0
    tokens = given.n
    repeats = given.repeat
    if test == "first":
        prompts = [[tuple(islice(stream, _FIRST))]]
        tokens = 1
    elif test == "second":
        # Others each time: one that keeps what it has read would know all of the same.
        prompts = [[tuple(islice(stream, _FIRST + _FURTHER))] for _ in range(given.repeat)]
        known = _FIRST
        tokens = 1
        repeats = 1
    elif test == START:
        prompts = [[tuple(islice(stream, _SEVERAL_PROMPT))]] * (1 + given.repeat)
        tokens = 1
        repeats = 1
    elif test == "behind":
        prompts = [[tuple(islice(stream, given.behind))]]
        repeats = 1
    elif test == "several":
        # Of one length, since some peers take no others.
        prompts = [[tuple(islice(stream, _SEVERAL_PROMPT)) for _ in range(_SEVERAL)]]
    else:
        single = (
            _chats(given, tokenizer)
            if test == "chat"
            else turns.code_prompts(given, tokenizer, given.limit)
        )
        prompts = [[each] for each in single]
    return [
        Task(test, number, tuple(each), tokens, repeat=repeat, known=known, beside=company)
        for repeat in range(repeats)
        for number, each in enumerate(prompts)
    ]


def _chats(given: argparse.Namespace, tokenizer: Tokenizer) -> list[tuple[int, ...]]:
    texts = read_prompts([given.chat], given.limit) if given.chat else CHAT[: given.limit]
    chats = [tokenizer.chat([{"role": "user", "content": text}]) for text in texts]
    return [tuple(tokenizer.encode(text, add_special=False)) for text in chats]


def _row(done: Turns, test: str, way: Way, company: str) -> Row | None:
    plain = done.of(test, (way[0], PLAIN), company)
    return row_of(test, way, done.of(test, way, company), plain)


def _print(test: str, title: str, rows: Sequence[Row]) -> None:
    if not rows:
        return
    print(f"\n**{title}**\n")
    wait = is_wait(test)
    others = [peers_of(rows, plain=True), peers_of(rows)]
    header = ["program", "setting", "texts", "seconds" if wait else "tokens/s", "range"]
    header += ["to the fastest plain peer", "to the fastest peer"]
    if test == START:
        header += ["the first start"]
    elif wait:
        header += ["processor s"]
    else:
        header += ["tokens a round", "processor ms a token", "joules a token"]
        header += ["as its own plain text"]
    table = list[list[object]]()
    for row in rows:
        line: list[object] = [*row.way, row.texts, row.value, f"{row.least} to {row.most}"]
        line += [_times(ratio(row, each, wait)) for each in others]
        if test == START:
            line += [row.begun]
        elif wait:
            line += [row.cpu]
        else:
            told = row.a_round, row.cpu, row.joules
            line += [*("-" if each is None else each for each in told), row.equal]
        table.append(line)
    print_table(header, table)


def _times(times: float | None) -> str:
    return "-" if times is None else f"{times:.2f}x"


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    turns.add_arguments(parser)
    parser.add_argument("--chat", type=Path, help="JSON lines with turns, such as Spec-Bench's")
    parser.add_argument(
        "--tests",
        type=lambda text: names(text, tuple(TESTS)),
        default=list(TESTS),
        help=f"of {','.join(TESTS)} (default all)",
    )
    parser.add_argument(
        "--limit", type=count, default=4, help="prompts of code and of chat (default 4)"
    )
    parser.add_argument(
        "--behind", type=count, default=8192, help="tokens that `behind` reads first (default 8192)"
    )
    parser.add_argument("--repeat", type=count, default=2, help="of each text (default 2)")
    parser.add_argument(
        "--beside",
        type=lambda text: names(text, COMPANIES),
        default=[COMPANIES[0]],
        help="what runs beside: nothing, busy (a program that keeps a core busy), or both",
    )
    parser.add_argument("--quick", action="store_true", help="a first look in 20 minutes")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(exit_code(main))
