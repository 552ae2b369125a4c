"""Measures the time to the first token: cold, warm, in a session, and of a prompt on disk.

    python benchmarks/first_token.py BUNDLE --prompt-tokens 1024

* start: `edgespec run` in a new process, from its start to the first character, with the bundle in
  the disk's cache. The first run is not counted.
* cold: a loaded model's first token behind a prompt that it has never seen.
* session: the next turn of a conversation of which a session keeps prompt and answer.
* stored: the same prompt in a new process, with the prompt cache that another process has filled.

Texts of the last two are compared with those of a model that has seen nothing.
"""

from __future__ import annotations

import argparse
import multiprocessing
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from itertools import cycle, islice
from pathlib import Path
from statistics import median

from common import add_threads, count, exit_code, facts_of, print_result, print_table

from edgespec import LLM
from edgespec.api.loading import DRAFTS
from edgespec.errors import DeviceError
from edgespec.measuring.prompts import PYTHON
from edgespec.models.embedded import BUNDLE

_NEW_TOKENS = 16
_FOLLOW_UP = "\n\n\ndef next_one(n):\n"

Times = dict[str, list[float]]
"""Milliseconds of each repeat, by what was measured."""


def main() -> None:
    arguments = _parse_arguments()
    times: Times = {"start": [_start(arguments) for _ in range(1 + arguments.repeat)][1:]}
    with _loaded(arguments) as llm:
        turns, equal = _turns(llm, arguments)
    times |= turns
    for _ in range(arguments.repeat):
        with tempfile.TemporaryDirectory() as folder:
            unseen, tokens, _ = _in_new_process(arguments, folder)
            stored, again, reused = _in_new_process(arguments, folder)
        times.setdefault("unseen, new process", []).append(unseen)
        times.setdefault("stored, new process", []).append(stored)
        equal &= tokens == again
    print_table(
        ["first token, ms", "median", "least", "most"],
        [
            [name, *(round(of(each), 1) for of in (median, min, max))]
            for name, each in times.items()
        ],
    )
    print(f"\nequal texts: {'yes' if equal else 'no'}; {reused} prompt tokens came from the disk")
    settings = {name: getattr(arguments, name) for name in ("draft", "threads", "prompt_tokens")}
    facts = {"ms": times, "reused": reused, "equal": equal}
    print_result("first_token", {**facts_of(arguments.bundle), **settings, **facts})


def _loaded(arguments: argparse.Namespace, folder: str | None = None) -> LLM:
    return LLM(
        arguments.bundle, draft=arguments.draft, threads=arguments.threads, prompt_cache=folder
    )


def _prompt(llm: LLM, length: int, number: int = 0) -> list[int]:
    """Returns tokens of code whose beginning is this number's own."""
    text = llm.tokenizer.encode(f"# {number}\n" + "\n\n".join(PYTHON))
    return list(islice(cycle(text), length))


def _start(arguments: argparse.Namespace) -> float:
    """Returns the milliseconds until `edgespec run` prints its first character."""
    command = [
        sys.executable, "-m", "edgespec", "run", str(arguments.bundle), PYTHON[0], "-n", "8",
        f"--draft={arguments.draft}", f"--threads={arguments.threads}",
    ]  # fmt: skip
    begin = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        process.stdout.read(1)
        seconds = time.perf_counter() - begin
        process.stdout.read()
    if process.returncode:
        raise DeviceError(f"edgespec run ended with status {process.returncode}: run it by hand")
    return 1e3 * seconds


def _turns(llm: LLM, arguments: argparse.Namespace) -> tuple[Times, bool]:
    """Returns the times of first turns, and of second ones with and without a session.

    Also whether both texts of each second turn are equal.
    """
    times: Times = {"cold": [], "second turn, cold": [], "second turn, session": []}
    equal = True
    llm.warm_up()
    for number in range(1 + arguments.repeat):  # the first one is not counted
        history = _prompt(llm, arguments.prompt_tokens, number)
        with llm.session() as session:
            first = session.generate(history, max_new_tokens=_NEW_TOKENS)
            follow_up = llm.tokenizer.encode(_FOLLOW_UP, add_special=False)
            prompt = [*history, *first.tokens, *follow_up]
            warm = session.generate(prompt, max_new_tokens=_NEW_TOKENS)
        llm.forget()
        cold = llm.generate(prompt, max_new_tokens=_NEW_TOKENS)
        equal &= cold.tokens == warm.tokens
        if number:
            for each, result in zip(times.values(), (first, cold, warm), strict=True):
                each.append(result.ttft_ms)
    return times, equal


def _in_new_process(arguments: argparse.Namespace, folder: str) -> tuple[float, list[int], int]:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        return process.submit(_text, arguments, folder).result()


def _text(arguments: argparse.Namespace, folder: str) -> tuple[float, list[int], int]:
    """Returns milliseconds to the first token, the text, and the number of reused tokens."""
    with _loaded(arguments, folder) as llm:
        llm.warm_up()
        prompt = _prompt(llm, arguments.prompt_tokens)
        result = llm.generate(prompt, max_new_tokens=_NEW_TOKENS)
    return result.ttft_ms, result.tokens, result.reused


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="First tokens: cold, in a session, from the disk.")
    parser.add_argument("bundle", type=Path, nargs="?", default=BUNDLE, help="folder of the bundle")
    parser.add_argument(
        "--prompt-tokens", type=count, default=1024, help="tokens of the prompt (default 1024)"
    )
    parser.add_argument("--draft", choices=DRAFTS, default="auto")
    parser.add_argument("--repeat", type=count, default=3, help="repeats (default 3)")
    add_threads(parser)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(exit_code(main))
