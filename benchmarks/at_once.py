"""Measures how many tokens a second several texts get together, and what a pass of them costs.

    python benchmarks/at_once.py qwen-bundle --prompts HumanEval.jsonl
    python benchmarks/at_once.py qwen-bundle --prompts HumanEval.jsonl --drafts none --texts 8
    python benchmarks/at_once.py qwen-bundle --prompts HumanEval.jsonl --genai bin/python qwen-ir

For each draft source, the first N prompts are made one after the other and then on N threads at
once, in turns. All texts are compared with those made alone. A table of passes follows: T texts
with a row each, beside one text with one row and with T rows. With --genai, the same prompts go to
OpenVINO GenAI's continuous batching in turn, in the Python of an environment that has it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import numpy as np
from common import add_threads, count, counts, exit_code, names, print_result, print_table

from edgespec import LLM
from edgespec.errors import DeviceError
from edgespec.measuring.prompts import read_prompts
from edgespec.runtime.execution.feeds import Rows
from edgespec.runtime.execution.joint import JointPasses
from edgespec.runtime.execution.runner import Runner

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from edgespec.api.result import GenerationResult

_DRAFTS = ("none", "lookup", "recycling", "model", "head", "auto")
_PASSES = 7  # of each kind


class _GenAi:
    """OpenVINO GenAI in a process of its own.

    Args:
        command: a Python that has it, and the folder of the model.
        threads: number of threads.
        precision: "f32" or "bf16".
    """

    def __init__(self, command: Sequence[str], threads: int, precision: str) -> None:
        python, folder = command
        script = str(Path(__file__).with_name("genai_batches.py"))
        self._process = subprocess.Popen(
            [python, "-P", script, folder, str(threads), precision],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def speed(self, prompts: Sequence[list[int]], new_tokens: int) -> float:
        """Returns the tokens per second of all prompts together."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):
            print(json.dumps([prompts, new_tokens]), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line:
            raise DeviceError("OpenVINO GenAI has ended: its last words are above")
        seconds, tokens = json.loads(line)
        return float(tokens / seconds)

    def close(self) -> None:
        """Ends the process."""
        self._process.communicate()


def main() -> None:
    arguments = _parse_arguments()
    prompts = read_prompts(arguments.prompts, max(arguments.texts))
    rows, differing = [], 0
    peer = arguments.genai and _GenAi(arguments.genai, arguments.threads, arguments.genai_precision)
    for draft in arguments.drafts:
        with LLM(
            arguments.bundle, device=arguments.device, draft=draft, threads=arguments.threads,
            context=arguments.context, sessions=max(arguments.texts), prefix_reuse=False,
        ) as llm:  # fmt: skip
            print(f"{draft}: {llm.target.device}, texts share passes: {llm.target.joins_texts}")
            for texts in arguments.texts:
                row, wrong = _compared(llm, prompts[:texts], arguments)
                if peer:
                    tokens = [llm.tokenizer.encode(each) for each in prompts[:texts]]
                    speeds = [
                        peer.speed(tokens, arguments.new_tokens)
                        for _ in range(arguments.repeat + (texts == arguments.texts[0]))
                    ]
                    row["genai"] = round(median(speeds[-arguments.repeat :]), 2)
                rows.append({"draft": draft, "texts": texts, **row})
                differing += wrong
            if draft == arguments.drafts[0]:
                passes = _passes(llm, arguments.texts, arguments.length)
    if peer:
        peer.close()
    print_table(
        ["draft", "texts", "one after the other, tokens/s", "at once, tokens/s", "ratio"]
        + ["OpenVINO GenAI, tokens/s"] * bool(peer),
        [list(row.values()) for row in rows],
    )
    print_table(["texts", "pass, ms", "one text of as many rows, ms"], passes)
    print(f"{differing} texts differ from those made alone")
    print_result(
        "at_once",
        {
            "bundle": arguments.bundle.name, "new_tokens": arguments.new_tokens,
            "threads": arguments.threads, "genai": arguments.genai_precision if peer else None,
            "rows": rows, "passes": passes, "differing": differing,
        },
    )  # fmt: skip


def _compared(
    llm: LLM, prompts: Sequence[str], arguments: argparse.Namespace
) -> tuple[dict[str, float], int]:
    """Returns the speeds of both ways, and how many texts differ."""
    alone, together = [], []
    wrong = 0
    for _ in range(arguments.repeat):
        llm.forget()
        seconds, expected = _timed(lambda: [_text(llm, each, arguments) for each in prompts])
        alone.append(_tokens(expected) / seconds)
        llm.forget()
        seconds, found = _timed(lambda: _at_once(llm, prompts, arguments))
        together.append(_tokens(found) / seconds)
        wrong += sum(a.tokens != b.tokens for a, b in zip(expected, found, strict=True))
    ratios = [b / a for a, b in zip(alone, together, strict=True)]
    return {
        "alone": round(median(alone), 2),
        "together": round(median(together), 2),
        "ratio": round(median(ratios), 2),
    }, wrong


def _at_once(
    llm: LLM, prompts: Sequence[str], arguments: argparse.Namespace
) -> list[GenerationResult]:
    found: dict[int, GenerationResult] = {}

    def work(number: int) -> None:
        found[number] = _text(llm, prompts[number], arguments)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(prompts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[number] for number in range(len(prompts))]


def _text(llm: LLM, prompt: str, arguments: argparse.Namespace) -> GenerationResult:
    return llm.generate(prompt, max_new_tokens=arguments.new_tokens)


def _tokens(results: Sequence[GenerationResult]) -> int:
    return sum(each.new_tokens for each in results)


def _timed(
    work: Callable[[], list[GenerationResult]],
) -> tuple[float, list[GenerationResult]]:
    begin = time.perf_counter()
    found = work()
    return time.perf_counter() - begin, found


def _passes(llm: LLM, texts: Sequence[int], length: int) -> list[list[float]]:
    """Returns, for each number of texts, the milliseconds of a shared pass and of one text's."""
    model, rows = llm.target, Rows.chain([5])
    runners = [Runner(model) for _ in range(max(texts))]
    for runner in runners:
        runner.skip(length)
    lines = []
    for number in texts:
        joint = JointPasses(model)
        shared, own = [], []
        for _ in range(_PASSES):
            begin = time.perf_counter()
            for _made in joint.verify([(runner, rows) for runner in runners[:number]]):
                pass
            shared.append(time.perf_counter() - begin)
            begin = time.perf_counter()
            runners[0].verify(Rows.chain(np.full(number, 5)))
            own.append(time.perf_counter() - begin)
        for runner in runners[:number]:
            runner.stand()
        lines.append([number, *(round(median(each) * 1e3, 2) for each in (shared, own))])
    return lines


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Several texts at once.")
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--prompts", type=Path, nargs="+", required=True, help="JSON lines")
    parser.add_argument(
        "--drafts", type=lambda text: names(text, _DRAFTS), default=["none", "auto"],
        help="draft sources (default none,auto)",
    )  # fmt: skip
    parser.add_argument("--texts", type=counts, default=[1, 2, 4, 8, 16])
    parser.add_argument("--new-tokens", type=count, default=48)
    parser.add_argument("--length", type=count, default=400, help="rows before a timed pass")
    parser.add_argument("--context", type=count, default=1024)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--genai", nargs=2, metavar=("PYTHON", "MODEL"))
    parser.add_argument("--genai-precision", choices=("f32", "bf16"), default="f32")
    parser.add_argument("--repeat", type=count, default=1)
    add_threads(parser)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(exit_code(main))
