"""Compares answers about long texts by the precision of the cache.

    edgespec export CHECKPOINT --precision int8 --kv-precision fp32 -o full    # and fp16, int8
    python benchmarks/needle.py full half small --prompts 100 --tokens 1500

Half of the prompts ask for a fact that is hidden somewhere in a long text, and half of them for two
consecutive notes of it word for word. Answers are greedy. Counted is how many are right, and how
many have the same tokens as those of the first bundle, the reference. Several prompts ask about the
same text in one session, which reads it once.
"""

from __future__ import annotations

import argparse
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from common import add_threads, count, exit_code, print_result, print_table
from haystacks import haystacks
from texts import facts_of

from edgespec import LLM
from edgespec import bundle as bundles
from edgespec.api.loading import DRAFTS
from edgespec.errors import InputError
from edgespec.runtime.text.tokenizer import Tokenizer
from edgespec.system.files import read_utf8

if TYPE_CHECKING:
    from collections.abc import Sequence

    from haystacks import Haystack, Question


@dataclass(frozen=True)
class Prompt:
    """A question and the tokens that ask it, those of its text included."""

    question: Question
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class Answers:
    """The answers of one bundle, in the order of the prompts.

    Attributes:
        engine: engine that ran the model.
        exact: see `GenerationResult`.
        tokens: tokens of each answer.
        texts: text of each answer.
    """

    engine: str
    exact: bool
    tokens: list[list[int]]
    texts: list[str]


def main() -> None:
    arguments = _parse_arguments()
    made = _haystacks(arguments)
    prompts = _prompts(arguments.bundles[0], made)
    for other in arguments.bundles[1:]:
        if _prompts(other, made) != prompts:
            raise InputError(f"{other} reads the texts otherwise: give bundles of the same model")
    flat = [prompt for text in prompts for prompt in text]
    found = [_answers(bundle, prompts, arguments) for bundle in arguments.bundles]
    cards = [
        _card(bundle, flat, answers, found[0])
        for bundle, answers in zip(arguments.bundles, found, strict=True)
    ]
    print_table(
        ["cache", "engine", "exact", "same answers", "needles found", "copies right"],
        [
            [card["cache"], card["engine"], "yes" if card["exact"] else "no",
             f"{card['same']:.0%}", f"{card['needle']:.0%}", f"{card['copy']:.0%}"]
            for card in cards
        ],
    )  # fmt: skip
    print_result(
        "needle",
        {
            "draft": arguments.draft,
            "threads": arguments.threads,
            "prompts": len(flat),
            "prompt_tokens": [len(prompt.tokens) for prompt in flat],
            "caches": cards,
        },
    )


def _haystacks(arguments: argparse.Namespace) -> list[Haystack]:
    tokenizer = Tokenizer.from_folder(bundles.load(arguments.bundles[0]).path)
    asked = min(arguments.asked, math.ceil(arguments.prompts / 2))
    texts = math.ceil(arguments.prompts / (2 * asked))
    given = [read_utf8(path) for path in arguments.text]
    try:
        return haystacks(
            texts, arguments.tokens,
            lambda text: len(tokenizer.encode(text, add_special=False)), asked, given,
        )  # fmt: skip
    except ValueError as error:
        raise InputError(str(error)) from None


def _prompts(bundle: Path, made: Sequence[Haystack]) -> list[list[Prompt]]:
    """Returns the prompts about each text, in the tokens of a bundle."""
    tokenizer = Tokenizer.from_folder(bundles.load(bundle).path)
    return [
        [Prompt(each, tuple(_tokens(tokenizer, text.text, each.text))) for each in text.questions]
        for text in made
    ]


def _tokens(tokenizer: Tokenizer, text: str, question: str) -> list[int]:
    if not tokenizer.has_chat_template:
        return tokenizer.encode(f"{text}\n\nQuestion: {question}\nAnswer:")
    chat = [{"role": "user", "content": f"{text}\n\n{question}"}]
    return tokenizer.encode(tokenizer.chat(chat), add_special=False)


def _answers(
    bundle: Path, prompts: Sequence[Sequence[Prompt]], arguments: argparse.Namespace
) -> Answers:
    longest = max(len(prompt.tokens) for text in prompts for prompt in text)
    results = []
    with LLM(
        bundle, draft=arguments.draft, device=arguments.device, threads=arguments.threads,
        context=longest + arguments.new_tokens,
    ) as llm:  # fmt: skip
        for number, text in enumerate(prompts, 1):
            with llm.session() as session:
                results += [
                    session.generate(prompt.tokens, max_new_tokens=arguments.new_tokens)
                    for prompt in text
                ]
            print(f"{bundle}: {number} of {len(prompts)} texts", file=sys.stderr)
    return Answers(
        results[0].engine,
        all(result.exact for result in results),
        [result.tokens for result in results],
        [result.text for result in results],
    )


def _card(
    bundle: Path, prompts: Sequence[Prompt], answers: Answers, reference: Answers
) -> dict[str, object]:
    """Returns shares of all answers by what is counted, and the numbers of those that differ."""
    same = [one == other for one, other in zip(answers.tokens, reference.tokens, strict=True)]
    held = {
        kind: [
            prompt.question.holds(text)
            for prompt, text in zip(prompts, answers.texts, strict=True)
            if prompt.question.kind == kind
        ]
        for kind in ("needle", "copy")
    }
    return {
        **facts_of(bundle),
        "cache": bundles.load(bundle).target.precision.kv,
        "engine": answers.engine,
        "exact": answers.exact,
        "same": sum(same) / len(same),
        **{kind: sum(found) / len(found) for kind, found in held.items()},
        "different": [number for number, equal in enumerate(same) if not equal],
        "new_tokens": sum(map(len, answers.tokens)),
    }


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Answers by the precision of the cache.")
    parser.add_argument(
        "bundles", type=Path, nargs="+", help="bundles of one model; the first is the reference"
    )
    parser.add_argument(
        "--prompts", type=count, default=100, help="all together, or a few more (default 100)"
    )
    parser.add_argument(
        "--asked", type=count, default=5, help="questions of a kind about a text (default 5)"
    )
    parser.add_argument(
        "--tokens", type=count, default=1500, help="tokens of each text (default 1500)"
    )
    parser.add_argument(
        "--text", type=Path, nargs="+", default=[],
        help="take the notes from the sentences of these files (default: made up)",
    )  # fmt: skip
    parser.add_argument(
        "--new-tokens", type=count, default=96, help="of each answer at most (default 96)"
    )
    parser.add_argument("--draft", choices=DRAFTS, default="none")
    parser.add_argument("--device", default="cpu", help="device of the target (default cpu)")
    add_threads(parser)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(exit_code(main))
