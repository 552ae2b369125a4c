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

Tokens a second are those after a text's first, by wall time, and milliseconds a token by the
processor time of the peer's process, which counts its waiting threads that spin. Where the
processor tells what energy it takes (RAPL), there are joules a token, too.

`--beside busy` keeps one core busy with another program meanwhile, as laptops are.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import suppress
from itertools import chain, cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING

from common import count, exit_code, names, print_result, print_table
from peers import PLAIN, turns
from peers.turns import Task, Turns, Way, ways_of
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
}
_SPECULATING = ("auto", "draft", "lookup")
_FIRST = 1000
_SEVERAL = 8
_SEVERAL_PROMPT = 64


def main() -> None:
    given = _parse_arguments()
    done = Turns(given)
    results = dict[str, list[dict[str, object]]]()
    tokenizer = turns.tokenizer_of(given.model)
    plain = ways_of(given, (PLAIN, "auto"))
    every = ways_of(given, (PLAIN, *_SPECULATING))
    with suppress(KeyboardInterrupt):
        for test in given.tests:
            done.run(_tasks(test, given, tokenizer), every if test in ("code", "chat") else plain)
    for test in given.tests:
        results[test] = [row for way in every if (row := _row(done, test, way))]
        _print(test, TESTS[test].format(given.behind), results[test])
    for way, reason in done.failures.items():
        print(f"not run: {way}: {reason}")
    options = ("model", "draft", "threads", "n", "behind", "beside")
    facts = {name: str(getattr(given, name)) for name in options}
    print_result(
        "compare",
        {
            **facts,
            "settings": turns.settings_of(given.peers),
            "peer_versions": done.versions,
            "failures": done.failures,
            "results": results,
        },
    )


def _tasks(test: str, given: argparse.Namespace, tokenizer: Tokenizer) -> list[Task]:
    stream = cycle(chain.from_iterable(turns.code_prompts(given, tokenizer)))
    if test == "first":
        prompts = [[tuple(islice(stream, _FIRST))]]
        tokens = 1
        repeats = given.repeat
    elif test == "behind":
        prompts = [[tuple(islice(stream, given.behind))]]
        tokens = given.n
        repeats = 1
    elif test == "several":
        # Of one length, since some peers take no others.
        prompts = [[tuple(islice(stream, _SEVERAL_PROMPT)) for _ in range(_SEVERAL)]]
        tokens = given.n
        repeats = given.repeat
    else:
        single = (
            _chats(given, tokenizer)
            if test == "chat"
            else turns.code_prompts(given, tokenizer, given.limit)
        )
        prompts = [[each] for each in single]
        tokens = given.n
        repeats = given.repeat
    return [
        Task(test, number, tuple(each), tokens, repeat=repeat)
        for repeat in range(repeats)
        for number, each in enumerate(prompts)
    ]


def _chats(given: argparse.Namespace, tokenizer: Tokenizer) -> list[tuple[int, ...]]:
    texts = read_prompts([given.chat], given.limit) if given.chat else CHAT[: given.limit]
    chats = [tokenizer.chat([{"role": "user", "content": text}]) for text in texts]
    return [tuple(tokenizer.encode(text, add_special=False)) for text in chats]


def _row(done: Turns, test: str, way: Way) -> dict[str, object]:
    """Returns a way's line of a test: sums over all texts; nothing if there are none."""
    made = done.of(test, way)
    if not made:
        return {}
    all_made = list(made.values())
    row: dict[str, object] = {"peer": way[0], "setting": way[1], "texts": len(made)}
    if test == "first":
        best = min(all_made, key=lambda each: each.first)
        return row | {"seconds": round(best.first, 3), "cpu_seconds": round(best.first_cpu, 3)}
    if test == "several":
        tokens = sum(len(text) for each in all_made for text in each.tokens)
        seconds = sum(each.seconds for each in all_made)
        cpu = sum(each.cpu for each in all_made)
    else:
        tokens = sum(len(text) - 1 for each in all_made for text in each.tokens)
        seconds = sum(each.seconds - each.first for each in all_made)
        cpu = sum(each.cpu - each.first_cpu for each in all_made)
    if not tokens:
        return {}
    plain = done.of(test, (way[0], PLAIN))
    energy = [each.joules for each in all_made if each.joules is not None]
    if len(energy) == len(all_made):
        row["joules_per_token"] = round(sum(energy) / tokens, 2)
    equal = [made[task].tokens == plain[task].tokens for task in made if task in plain]
    return row | {
        "tokens_per_second": round(tokens / seconds, 2),
        "cpu_ms_per_token": round(1e3 * cpu / tokens, 2),
        "equal": f"{sum(equal)} of {len(equal)}",
    }


def _print(test: str, title: str, rows: Sequence[dict[str, object]]) -> None:
    if not rows:
        return
    print(f"\n**{title}**\n")
    theirs = [row for row in rows if row["peer"] != "edgespec"]
    if test == "first":
        print_table(
            ["program", "setting", "wall s", "processor s"],
            [[row["peer"], row["setting"], row["seconds"], row["cpu_seconds"]] for row in rows],
        )
        return
    plain = [row for row in theirs if row["setting"] == PLAIN]
    header = [
        "program",
        "setting",
        "tokens/s",
        "to the fastest plain peer",
        "to the fastest peer",
        "processor ms a token",
        "to the least of a plain peer",
        "joules a token",
        "as its own plain text",
    ]
    print_table(
        header,
        [
            [
                row["peer"],
                row["setting"],
                row["tokens_per_second"],
                _ratio(row, plain, "tokens_per_second"),
                _ratio(row, theirs, "tokens_per_second"),
                row["cpu_ms_per_token"],
                _ratio(row, plain, "cpu_ms_per_token"),
                row.get("joules_per_token", "-"),
                row["equal"],
            ]
            for row in rows
        ],
    )


def _ratio(row: dict[str, object], others: Sequence[dict[str, object]], name: str) -> str:
    """Returns how many times better a row is than the best of the others."""
    values = [float(str(other[name])) for other in others]
    if not values:
        return "-"
    own = float(str(row[name]))
    better = own / max(values) if name == "tokens_per_second" else min(values) / own
    return f"{better:.2f}x"


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
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(exit_code(main))
