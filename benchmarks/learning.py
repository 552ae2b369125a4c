"""Measures what a draft model's learning brings on texts of one kind (`--learn`).

    python benchmarks/learning.py BUNDLE --domain notes.md --temperature 0.8

Prompts are passages of the given files, each from another place. The same texts are made by a model
that learns and by one that does not, in turns. Acceptance and speed are shown for one part of the
texts after the other, so that a gain is seen to grow, or not. Nothing is learned before the first
text; what is learned is thrown away.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from common import add_threads, count, exit_code, print_result, print_table

from edgespec import LLM
from edgespec.models.embedded import BUNDLE
from edgespec.runtime.deployment.options import LEARNING_DRAFTS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from edgespec.api.result import GenerationResult

_PARTS = 4  # of the texts, in the order in which they were made
_DOMAIN = sorted((Path(__file__).parent.parent / "runtime" / "drafters").glob("*.py"))

Texts = list[tuple["GenerationResult", "GenerationResult"]]  # without learning, and with it


@dataclass(frozen=True)
class Part:
    """One line of the table: some texts, without learning and with it.

    Attributes:
        texts: their numbers.
        tokens_a_round: tokens per round without learning.
        learning_tokens_a_round: the same with it.
        gain: their ratio.
        tokens_per_second: speed after the first token without learning.
        learning_tokens_per_second: the same with it.
        learned: number of tokens that the correction in use for the last of the texts was learned
            from; 0 if none was in use.
    """

    texts: str
    tokens_a_round: float
    learning_tokens_a_round: float
    gain: float
    tokens_per_second: float
    learning_tokens_per_second: float
    learned: int


def main() -> None:
    arguments = _parse_arguments()
    options = {
        "draft": arguments.draft, "device": arguments.device, "draft_device": arguments.device,
        "threads": arguments.threads, "context": arguments.prompt_tokens + arguments.new_tokens + 1,
    }  # fmt: skip
    with (
        tempfile.TemporaryDirectory() as folder,
        LLM(arguments.bundle, **options) as plain,
        LLM(arguments.bundle, learn=Path(folder) / "learned", **options) as learning,
    ):
        made: Texts = []
        prompts = list(_prompts(plain, arguments)) * arguments.repeat
        for number, prompt in enumerate(prompts):
            how = {
                "max_new_tokens": arguments.new_tokens,
                "temperature": arguments.temperature,
                "seed": number,
            }
            made.append((plain.generate(prompt, **how), learning.generate(prompt, **how)))
        provenance = plain.bundle.manifest.provenance
    equal = sum(without.tokens == taught.tokens for without, taught in made)
    parts = list(_parts(made))
    print_table(
        ["texts", "tokens/round", "learning", "gain", "tokens/s", "learning", "learned from"],
        [list(asdict(part).values()) for part in parts],
    )
    print(f"\n{equal} of {len(made)} texts are the same with and without learning")
    print_result(
        "learning",
        {
            "bundle": provenance,
            "draft": arguments.draft,
            "domain": [path.name for path in arguments.domain],
            "temperature": arguments.temperature,
            "threads": arguments.threads,
            "new_tokens": arguments.new_tokens,
            "prompt_tokens": arguments.prompt_tokens,
            "repeat": arguments.repeat,
            "equal": equal,
            "parts": [asdict(part) for part in parts],
            "by_text": [
                [each.mean_accepted_length for each in results]
                for results in zip(*made, strict=True)
            ],
        },
    )


def _prompts(llm: LLM, arguments: argparse.Namespace) -> Iterator[list[int]]:
    text = "\n".join(path.read_text(encoding="utf-8") for path in arguments.domain)
    tokens, draw = llm.tokenizer.encode(text), random.Random(0)
    for _ in range(arguments.texts):
        start = draw.randrange(max(1, len(tokens) - arguments.prompt_tokens))
        yield tokens[start : start + arguments.prompt_tokens]


def _parts(made: Texts) -> Iterator[Part]:
    size = -(-len(made) // _PARTS)
    for start in range(0, len(made), size):
        without, taught = zip(*made[start : start + size], strict=True)
        before, after = _tokens_a_round(without), _tokens_a_round(taught)
        yield Part(
            texts=f"{start + 1}-{start + len(without)}",
            tokens_a_round=round(before, 3),
            learning_tokens_a_round=round(after, 3),
            gain=round(after / before, 3),
            tokens_per_second=round(_speed(without), 1),
            learning_tokens_per_second=round(_speed(taught), 1),
            learned=taught[-1].learned or 0,
        )


def _tokens_a_round(results: Sequence[GenerationResult]) -> float:
    rounds = sum(result.rounds for result in results)
    return sum(result.new_tokens - 1 for result in results) / max(1, rounds)


def _speed(results: Sequence[GenerationResult]) -> float:
    seconds = sum(result.tpot_ms * (result.new_tokens - 1) for result in results) / 1e3
    return sum(result.new_tokens - 1 for result in results) / max(seconds, 1e-9)


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="What a draft model's learning brings.")
    parser.add_argument("bundle", type=Path, nargs="?", default=BUNDLE, help="folder of the bundle")
    parser.add_argument(
        "--domain", type=Path, nargs="+", default=_DOMAIN, metavar="FILE",
        help="text files that the prompts are passages of (default: code of edgespec)",
    )  # fmt: skip
    parser.add_argument("--texts", type=count, default=40, help="number of prompts (default 40)")
    parser.add_argument(
        "--repeat", type=count, default=1,
        help="how often the same prompts come, each time with other seeds (default 1)",
    )  # fmt: skip
    parser.add_argument(
        "--prompt-tokens", type=count, default=200, help="tokens of each prompt (default 200)"
    )
    parser.add_argument(
        "--new-tokens", type=count, default=100, help="new tokens of each text (default 100)"
    )
    parser.add_argument("--temperature", type=float, default=0.0, help="(default 0)")
    parser.add_argument("--draft", choices=LEARNING_DRAFTS, default="model", help="(default model)")
    parser.add_argument("--device", default="cpu", help="device of both models (default cpu)")
    add_threads(parser)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(exit_code(main))
