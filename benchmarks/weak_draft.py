"""What a draft model or head costs `auto` where it brings little.

    python benchmarks/weak_draft.py MODEL DRAFT --code HumanEval.jsonl --threads 1

The model is loaded with and without the draft. Texts by `auto` are greedy and take turns between
both, a prompt of code and a chat one after the other. Processor time is the least of the repeats,
text by text, with the prompts. In one table every text begins without experience, in the other each
repeat does, so that its texts learn from those before them.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from common import add_threads, count, exit_code, print_result, print_table
from prompts import CHAT

from edgespec import LLM, Result
from edgespec.measuring.prompts import read_prompts


def main() -> None:
    arguments = _parse_arguments()
    threads = arguments.threads
    rows = []
    with (
        LLM(arguments.model, draft="auto", threads=threads) as without,
        LLM(arguments.model, draft=arguments.draft, threads=threads) as having,
    ):
        llms = (without, having)
        for llm in llms:
            llm.warm_up()
        prompts = _prompts(without, arguments)
        for each_anew in (True, False):
            repeats = [
                _turns(llms, prompts, arguments.n, each_anew) for _ in range(arguments.repeat)
            ]
            rows.append(_row("a text" if each_anew else "a repeat", repeats))
    print_table(
        ["anew", "ms a token without", "with", "ratio", "tokens a round without", "with", "same"],
        rows,
    )
    settings = {"model": arguments.model, "draft": arguments.draft, "threads": threads}
    print_result("weak_draft", {**settings, "rows": rows})


Text = tuple[float, Result]
"""Seconds of processor time, and what came of them."""


def _turns(
    llms: Sequence[LLM], prompts: Sequence[list[int]], length: int, each_anew: bool
) -> list[tuple[Text, ...]]:
    """Returns the texts of all prompts, each by all models."""
    found = []
    for number, prompt in enumerate(prompts):
        if each_anew or not number:
            for llm in llms:
                llm.forget()
        found.append(tuple(_timed(llm, prompt, length) for llm in llms))
    return found


def _timed(llm: LLM, prompt: list[int], length: int) -> Text:
    begin = time.process_time()
    result = llm.generate(prompt, temperature=0, max_new_tokens=length)
    return time.process_time() - begin, result


def _row(anew: str, repeats: Sequence[Sequence[tuple[Text, ...]]]) -> list[object]:
    """Returns a row of the table, of texts by repeat, prompt and model."""
    texts = [*zip(*repeats, strict=True)]  # by prompt
    times, lengths, answers = [], [], []
    for number in range(2):
        made = [[each[number] for each in repeated] for repeated in texts]
        results = [[result for _, result in each] for each in made]
        tokens = sum(each[0].new_tokens for each in results)
        seconds = sum(min(seconds for seconds, _ in each) for each in made)
        rounds = sum(result.rounds for each in results for result in each)
        times.append(seconds * 1e3 / tokens)
        lengths.append(round(tokens * len(repeats) / rounds, 2))
        answers.append([each[0].tokens for each in results])
    same = sum(one == other for one, other in zip(*answers, strict=True))
    ratio = round(times[1] / times[0], 3)
    shown = [round(each, 2) for each in times]
    return [anew, *shown, ratio, *lengths, f"{same} of {len(texts)}"]


def _prompts(llm: LLM, arguments: argparse.Namespace) -> list[list[int]]:
    """Returns prompts of code and chats in turns."""
    code = read_prompts([arguments.code], arguments.limit)
    pairs = zip(code, CHAT[: arguments.limit], strict=False)
    return [
        tokens
        for text, asked in pairs
        for tokens in (
            llm.tokenizer.encode(text),
            llm.chat_tokens([{"role": "user", "content": asked}]),
        )
    ]


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="What a weak draft costs `auto`.")
    parser.add_argument("model", help="bundle, GGUF file or checkpoint with a chat template")
    parser.add_argument("draft", help="draft model or head")
    parser.add_argument("--code", type=Path, required=True, help="JSON lines of prompts")
    parser.add_argument("--limit", type=count, default=8, help="prompts of a kind (default 8)")
    parser.add_argument("--repeat", type=count, default=3, help="repeats (default 3)")
    parser.add_argument("-n", type=count, default=64, help="most new tokens (default 64)")
    add_threads(parser)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(exit_code(main))
