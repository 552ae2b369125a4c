r"""Counts how many texts with drafts are those of plain decoding, of edgespec and of its peers.

    python benchmarks/exactness.py qwen-1.5b.gguf --draft qwen-0.5b.gguf --cache peers \
        --code HumanEval.jsonl --peers edgespec,xllamacpp --rows exact.jsonl --minutes 60 --limit 50

Questions of arithmetic are drawn by seed in the manner of GSM8K, and asked in the chat template;
prompts of code come from --code. Each is answered greedily and sampled at T = 0.8 by a seed, by 1,
2 and 4 clients at once, twice. A text counts as equal where it is the same peer's plain text for
one client alone, token by token, and as repeated where the second run gives it again. Runs go on
as those of compare.py do.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING

from common import count, counts, exit_code, print_result, print_table
from peers import PLAIN, turns
from peers.turns import Task, Turns, Way, ways_of

if TYPE_CHECKING:
    from collections.abc import Sequence

_TEMPERATURES = (0.0, 0.8)
_NAMES = ("Anna", "Tom", "Maria", "Ben", "Lena", "Omar", "Ida", "Paul")
_THINGS = ("apples", "books", "pencils", "stamps", "cookies", "marbles", "tickets", "eggs")
_SHAPES = (
    "{a} has {x} {t}. {b} has {y} times as many. How many {t} do they have together?",
    "{a} buys {x} boxes with {y} {t} each and gives {z} {t} to {b}. How many {t} are left?",
    "A shop sells {t} for {y} dollars each. {a} sells {x} on Monday and {z} more on Tuesday. How "
    "many dollars does {a} take in on the two days?",
    "{a} reads {x} pages a day for {y} days, and {b} reads {z} pages a day for twice as long. How "
    "many pages more does the one who reads more read?",
    "{a} and {b} share {x} bags of {y} {t} equally after {z} {t} fell out. How many whole {t} does "
    "each get?",
)


def main() -> None:
    given = _parse_arguments()
    done = Turns(given)
    tokenizer = turns.tokenizer_of(given.model)
    questions = [
        tokenizer.chat([{"role": "user", "content": text}]) for text in arithmetic(given.limit)
    ]
    kinds = {
        "arithmetic": [tuple(tokenizer.encode(text, add_special=False)) for text in questions],
        # The first ones, so that a run with a higher limit goes on from one with a lower one.
        "code": turns.code_prompts(given, tokenizer)[: given.limit],
    }
    ways = [way for way in ways_of(given, (PLAIN, "auto", "draft")) if way != ("edgespec", "draft")]
    with suppress(KeyboardInterrupt):
        done.run(_tasks(kinds, given.clients, given.n), ways)
    columns = [(kind, heat) for kind in kinds for heat in _TEMPERATURES]
    rows = list[list[object]]()
    for way in ways:
        for clients in given.clients:
            cells = [_cell(done, way, f"{kind}, T={heat:g}", clients) for kind, heat in columns]
            if any(cell != "-" for cell in cells):
                rows.append([*way, clients, *cells])
    header = ["program", "setting", "clients", *(f"{kind}, T = {heat:g}" for kind, heat in columns)]
    print("\nTexts equal to the program's own plain decoding for one client; given again:\n")
    print_table(header, rows)
    for failed, reason in done.failures.items():
        print(f"not run: {failed}: {reason}")
    facts: dict[str, object] = {
        name: str(getattr(given, name)) for name in ("model", "draft", "threads", "n")
    }
    facts |= {"settings": turns.settings_of(given.peers), "peer_versions": done.versions}
    found = {"header": header, "rows": rows, "failures": done.failures}
    print_result("exactness", {**facts, **found})


def arithmetic(number: int) -> list[str]:
    """Returns questions of arithmetic in words, the same ones every time."""
    drawn = Random(0)
    questions = list[str]()
    for index in range(number):
        one, other = drawn.sample(_NAMES, 2)
        x = drawn.randint(12, 60)
        y = drawn.randint(3, 9)
        z = drawn.randint(2, 30)
        shape = _SHAPES[index % len(_SHAPES)]
        questions.append(shape.format(a=one, b=other, t=drawn.choice(_THINGS), x=x, y=y, z=z))
    return questions


def _tasks(
    kinds: dict[str, list[tuple[int, ...]]], clients: Sequence[int], new_tokens: int
) -> list[Task]:
    """Returns tasks of four prompts after four, so that a run that ends early has whole ones."""
    tasks = list[Task]()
    group = max(clients)
    for begin in range(0, max(map(len, kinds.values())), group):
        for kind, prompts in kinds.items():
            part = prompts[begin : begin + group]
            for heat in _TEMPERATURES:
                for several in clients:
                    for first in range(0, len(part), several):
                        some = tuple(part[first : first + several])
                        test = f"{kind}, T={heat:g}, {several}"
                        tasks += [
                            Task(test, begin + first, some, new_tokens, heat, repeat)
                            for repeat in range(2)
                        ]
    return tasks


def _cell(done: Turns, way: Way, kind: str, clients: int) -> str:
    """Returns how many texts are equal to plain ones, and how many came again."""
    alone = {
        task.prompts[0]: made.tokens[0]
        for task, made in done.of(f"{kind}, 1", (way[0], PLAIN)).items()
        if not task.repeat
    }
    made = done.of(f"{kind}, {clients}", way)
    first = {
        task.number: (task.prompts, texts.tokens) for task, texts in made.items() if not task.repeat
    }
    again = {task.number: texts.tokens for task, texts in made.items() if task.repeat}
    equal = [
        alone[prompt] == text
        for prompts, texts in first.values()
        for prompt, text in zip(prompts, texts, strict=True)
        if prompt in alone
    ]
    same = [
        text == other
        for number, texts in again.items()
        if number in first
        for text, other in zip(texts, first[number][1], strict=True)
    ]
    if not equal:
        return "-"
    return f"{sum(equal)} of {len(equal)}; {sum(same)} of {len(same)}"


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    turns.add_arguments(parser)
    parser.add_argument("--limit", type=count, default=50, help="prompts of each kind (default 50)")
    parser.add_argument(
        "--clients", type=counts, default=[1, 2, 4], help="texts at once; 1 among them (1,2,4)"
    )
    parser.set_defaults(peers=["edgespec", "xllamacpp"])
    given = parser.parse_args()
    if 1 not in given.clients:
        parser.error("--clients: plain decoding for 1 client is what others are compared with")
    return given


if __name__ == "__main__":
    sys.exit(exit_code(main))
