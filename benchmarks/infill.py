"""Times suggestions at a cursor over HTTP: the first token, and the whole answer of 32 tokens.

    python benchmarks/infill.py BUNDLE --against http://127.0.0.1:8012

Contexts of 2048 tokens are modules of Python's standard library from which some lines of a function
were taken, three quarters of them before the cursor. Each is asked for once (`cold`), and then as
if the missing line were typed, with some more of its characters each time (`typed`). `edgespec
serve` answers in a process of its own, with its drafts and without any; the server that `--against`
names is started by hand, and speaks llama-server's API. All are asked in turn, each for contexts
with a first line of its own, so that none is known from another.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import random
import re
import sys
import time
from collections import defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from common import add_threads, count, exit_code, facts_of, print_result, print_table
from serving import events, served

from edgespec.errors import InputError
from edgespec.llm.load.options import DRAFTS
from edgespec.runtime.text.tokenizer import Tokenizer

_MODULES = (
    "argparse", "ast", "configparser", "csv", "dataclasses", "difflib", "fractions", "gettext",
    "heapq", "inspect", "ipaddress", "mailbox", "optparse", "pathlib", "pdb", "pickle", "shlex",
    "shutil", "statistics", "string", "tarfile", "textwrap", "tokenize", "zipfile",
)  # fmt: skip
_BEFORE = 0.75  # of a context
_TAKEN = 6  # lines
_METHOD = re.compile(r"^    def \w+\(self.*\):\n", re.M)
_WAYS: dict[str, dict[str, Any]] = {"edgespec": {}, "plain": {"speculative": {"draft": "none"}}}
_AGAINST = "against"


@dataclass(frozen=True)
class Context:
    """A file with a hole.

    Attributes:
        before: text before the hole.
        taken: text that was taken out.
        behind: text behind it.
    """

    before: str
    taken: str
    behind: str


@dataclass(frozen=True)
class Answer:
    """A suggestion.

    Attributes:
        first_ms: milliseconds to the first piece of text, or to the end if there was none.
        whole_ms: milliseconds to the end.
        tokens: number of new tokens.
        prompt_tokens: number of tokens in the prompt.
        read: number of these that were not in the caches.
    """

    first_ms: float
    whole_ms: float
    tokens: int
    prompt_tokens: int
    read: int


def main() -> None:
    arguments = _parse_arguments()
    contexts = _contexts(arguments)
    options = (
        f"--draft={arguments.draft}",
        f"--device={arguments.device}",
        f"--threads={arguments.threads}",
    )
    found: dict[str, list[Answer]] = defaultdict(list)
    with served(arguments.bundle, *options) as (_, url):
        ways = [(name, url, fields) for name, fields in _WAYS.items()]
        if arguments.against is not None:
            ways.append((_AGAINST, arguments.against.rstrip("/"), {}))
        for number, context in enumerate(contexts):
            random.Random(number).shuffle(ways)
            for name, address, fields in ways:
                cold, *typed = _ask_all(address, context, f"{number} {name:8}", arguments, fields)
                if number:  # the first warms up
                    found[f"{name} cold"].append(cold)
                    found[f"{name} typed"] += typed
    _print(arguments, found)


def _print(arguments: argparse.Namespace, found: dict[str, list[Answer]]) -> None:
    names = ("first_ms", "whole_ms", "tokens", "prompt_tokens", "read")
    medians = {
        way: {name: round(median(getattr(each, name) for each in answers), 1) for name in names}
        for way, answers in sorted(found.items())
    }
    print_table(
        ["", "first token, ms", "whole, ms", "tokens", "prompt", "of it read"],
        [[way, *(facts[name] for name in names)] for way, facts in medians.items()],
    )
    print_result(
        "infill",
        {
            **facts_of(arguments.bundle),
            "against": arguments.against,
            "draft": arguments.draft,
            "threads": arguments.threads,
            "new_tokens": arguments.new_tokens,
            "context_tokens": arguments.context_tokens,
            "contexts": arguments.contexts,
            "medians": medians,
            "answers": {way: [asdict(each) for each in answers] for way, answers in found.items()},
        },
    )


def _ask_all(
    url: str, context: Context, name: str, arguments: argparse.Namespace, fields: dict[str, Any]
) -> list[Answer]:
    """Asks for a context, and again after each few characters of the missing text."""
    return [
        _ask(
            url,
            {
                "input_prefix": f"# file {name}\n{context.before}",
                "prompt": context.taken[:typed],
                "input_suffix": context.behind,
                "n_predict": arguments.new_tokens,
                "temperature": 0,
                "cache_prompt": True,
                "prompt_cache_key": "editor",  # or only whole earlier prompts are counted
                "stream": True,
                **fields,
            },
        )
        for typed in range(0, 4 * (arguments.keys + 1), 4)
    ]


def _ask(url: str, body: dict[str, Any]) -> Answer:
    first = None
    last = dict[str, Any]()
    begin = time.perf_counter()
    for last in events(url, "/infill", body):
        if first is None and last["content"]:
            first = time.perf_counter()
    end = time.perf_counter()
    return Answer(
        first_ms=1e3 * ((end if first is None else first) - begin),
        whole_ms=1e3 * (end - begin),
        tokens=last["tokens_predicted"],
        prompt_tokens=last["tokens_evaluated"],
        read=last["timings"]["prompt_n"],
    )


def _contexts(arguments: argparse.Namespace) -> list[Context]:
    """Returns one context more than was asked for, of modules that are long enough."""
    tokenizer = Tokenizer.from_folder(arguments.bundle)
    rng = random.Random(0)
    wanted = arguments.contexts + 1
    before = round(_BEFORE * arguments.context_tokens)
    behind = arguments.context_tokens - before
    found: list[Context] = []
    for name in _MODULES:
        source = inspect.getsource(importlib.import_module(name))
        holes = [match.end() for match in _METHOD.finditer(source)]
        rng.shuffle(holes)
        for hole in holes:
            end = hole + sum(map(len, source[hole:].splitlines(keepends=True)[:_TAKEN]))
            head = tokenizer.encode(source[:hole], add_special=False)
            tail = tokenizer.encode(source[end:], add_special=False)
            if len(head) >= before and len(tail) >= behind:
                cut = Context(
                    tokenizer.decode(head[-before:]),
                    source[hole:end],
                    tokenizer.decode(tail[:behind]),
                )
                found.append(cut)
                break
    if len(found) < wanted:
        raise InputError(
            f"--contexts is {arguments.contexts}: of --context-tokens {arguments.context_tokens} "
            f"there are {max(len(found) - 1, 0)}"
        )
    return found[:wanted]


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Suggestions at a cursor, over HTTP.")
    parser.add_argument("bundle", type=Path, metavar="BUNDLE", help="folder of a code model")
    parser.add_argument("--against", metavar="URL", help="another server with /infill")
    parser.add_argument(
        "--context-tokens", type=count, default=2048, help="tokens of a context (default 2048)"
    )
    parser.add_argument(
        "--new-tokens", type=count, default=32, help="tokens of each answer (default 32)"
    )
    parser.add_argument("--contexts", type=count, default=5, help="contexts (default 5)")
    parser.add_argument(
        "--keys", type=int, default=3, help="times that four characters are typed (default 3)"
    )
    parser.add_argument("--draft", choices=DRAFTS, default="auto")
    parser.add_argument("--device", default="cpu", help="device of the target (default cpu)")
    add_threads(parser)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(exit_code(main))
