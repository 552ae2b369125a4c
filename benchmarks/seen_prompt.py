"""Compares the first token of a long prompt in a process that never saw it with that of the next.

    python benchmarks/seen_prompt.py BUNDLE --prompt-tokens 4096

Two processes, one after the other, load the bundle with the same prompt cache, which is empty at
first, and continue the same prompt. Times are those of the loaded bundle; loading comes on top.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from itertools import cycle, islice
from pathlib import Path
from statistics import median

from common import add_threads, count, exit_code, print_result, print_table
from texts import facts_of

from edgespec import LLM
from edgespec.api.loading import DRAFTS
from edgespec.measuring.prompts import PYTHON
from edgespec.models.embedded import BUNDLE

_WANTED = 0.1  # of the first process's time


@dataclass(frozen=True)
class Seen:
    """A prompt in two processes.

    Attributes:
        first_ms: milliseconds to the first token in the first one.
        second_ms: milliseconds to the first token in the second one.
        reused: number of the prompt's tokens that the second one found.
        stored_mib: size of the prompt cache in MiB.
        equal: whether both texts have the same tokens.
    """

    first_ms: float
    second_ms: float
    reused: int
    stored_mib: float
    equal: bool


def main() -> None:
    arguments = _parse_arguments()
    found = [_seen(arguments) for _ in range(arguments.repeat)]
    first, second = (
        median(each.first_ms for each in found),
        median(each.second_ms for each in found),
    )
    ratio, equal = round(second / first, 3), all(each.equal for each in found)
    print_table(
        ["prompt", "reused", "stored MiB", "first ms", "second ms", "ratio", "wanted", "equal"],
        [[
            arguments.prompt_tokens, found[0].reused, round(found[0].stored_mib, 1),
            round(first, 1), round(second, 1), ratio, _WANTED, "yes" if equal else "no",
        ]],
    )  # fmt: skip
    print_result(
        "seen_prompt",
        {
            **facts_of(arguments.bundle),
            "draft": arguments.draft,
            "threads": arguments.threads,
            "prompt_tokens": arguments.prompt_tokens,
            "ratio": ratio,
            "wanted": _WANTED,
            "runs": [asdict(each) for each in found],
        },
    )


def _seen(arguments: argparse.Namespace) -> Seen:
    with tempfile.TemporaryDirectory() as folder:
        first = _in_new_process(arguments, folder)
        size = sum(file.stat().st_size for file in Path(folder).iterdir())
        second = _in_new_process(arguments, folder)
    return Seen(first[0], second[0], second[1], size / (1 << 20), first[2] == second[2])


def _in_new_process(arguments: argparse.Namespace, folder: str) -> tuple[float, int, list[int]]:
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, spawn) as process:
        return process.submit(_text, arguments, folder).result()


def _text(arguments: argparse.Namespace, folder: str) -> tuple[float, int, list[int]]:
    """Returns milliseconds to the first token, tokens reused, and the new tokens."""
    with LLM(
        arguments.bundle, draft=arguments.draft, threads=arguments.threads,
        context=arguments.prompt_tokens + arguments.new_tokens, prompt_cache=folder,
    ) as llm:  # fmt: skip
        llm.generate([1, 2, 3], max_new_tokens=2)  # warms up
        text = llm.tokenizer.encode("\n\n".join(PYTHON))
        prompt = list(islice(cycle(text), arguments.prompt_tokens))
        result = llm.generate(prompt, max_new_tokens=arguments.new_tokens)
    return result.ttft_ms, result.reused, result.tokens


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A prompt that another process has seen.")
    parser.add_argument("bundle", type=Path, nargs="?", default=BUNDLE, help="folder of the bundle")
    parser.add_argument(
        "--prompt-tokens", type=count, default=4096, help="tokens of the prompt (default 4096)"
    )
    parser.add_argument(
        "--new-tokens", type=count, default=32, help="tokens of each text (default 32)"
    )
    parser.add_argument("--repeat", type=count, default=3, help="pairs of processes (default 3)")
    parser.add_argument("--draft", choices=DRAFTS, default="auto")
    add_threads(parser)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(exit_code(main))
