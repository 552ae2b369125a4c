"""Compares `auto` with plain decoding where prompts are long, and answers short or long.

    python benchmarks/long_prompts.py MODEL --draft DRAFT

A draft model must read a prompt before it drafts, which takes longer than a short answer saves. The
model is asked about Python files, in turn in a sentence and in detail. Texts are greedy, and end
where the model ends them, or with -n tokens. Seconds are those behind the first token, so that the
target's own reading is not among them; each file is asked about once in a setting.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from common import add_threads, count, exit_code, print_result, print_table

from edgespec import LLM, Result
from edgespec.errors import InputError

_HERE = Path(__file__).parent
_QUESTIONS = {
    "short": "What is this file for? Answer in one short sentence.",
    "long": "Explain in detail what each function of this file does.",
}
_SETTINGS = {"plain": "none", "auto": "auto"}


def main() -> None:
    arguments = _parse_arguments()
    found = dict[tuple[str, str], list[Result]]()
    with LLM(arguments.model, draft=arguments.draft, threads=arguments.threads) as llm:
        for number, text in enumerate(_texts(llm, arguments.tokens, 2 * arguments.limit)):
            kind = list(_QUESTIONS)[number % len(_QUESTIONS)]
            content = f"{text}\n\n{_QUESTIONS[kind]}"
            prompt = llm.chat_tokens([{"role": "user", "content": content}])
            for setting, source in _SETTINGS.items():
                how = {"draft_source": source, "max_new_tokens": arguments.n}
                result = llm.generate(prompt, temperature=0, **how)
                found.setdefault((kind, setting), []).append(result)
    rows = [_row(kind, *[found[kind, setting] for setting in _SETTINGS]) for kind in _QUESTIONS]
    print_table(["answers", "tokens", "plain s", "auto s", "plain to auto", "same"], rows)
    print_result(
        "long_prompts", {"model": arguments.model, "tokens": arguments.tokens, "rows": rows}
    )


def _texts(llm: LLM, tokens: int, count: int) -> list[str]:
    """Returns the beginnings, of so many tokens, of the first files that are long enough."""
    files = sorted(_HERE.rglob("*.py"))
    read = (llm.tokenizer.encode(file.read_text("utf-8")) for file in files)
    begun = (words[:tokens] for words in read if len(words) >= tokens)
    texts = list(map(llm.tokenizer.decode, islice(begun, count)))
    if len(texts) < count:
        raise InputError(f"{len(texts)} files have {tokens} tokens, not {count}: give less --limit")
    return texts


def _row(kind: str, plain: Sequence[Result], auto: Sequence[Result]) -> list[object]:
    before, after = _seconds(plain), _seconds(auto)
    same = sum(one.tokens == other.tokens for one, other in zip(plain, auto, strict=True))
    tokens = round(sum(each.new_tokens for each in plain) / len(plain))
    times = [round(before, 2), round(after, 2), round(before / after, 2)]
    return [kind, tokens, *times, f"{same} of {len(plain)}"]


def _seconds(results: Sequence[Result]) -> float:
    """Returns the seconds of all texts behind their first tokens."""
    return sum(each.tpot_ms * (each.new_tokens - 1) / 1e3 for each in results)


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Short and long answers to long prompts.")
    parser.add_argument("model", help="bundle, GGUF file or checkpoint with a chat template")
    parser.add_argument("--draft", default="auto", help="draft model or head")
    parser.add_argument("--tokens", type=count, default=1000, help="of a file (default 1000)")
    parser.add_argument("--limit", type=count, default=6, help="files of each kind (default 6)")
    parser.add_argument("-n", type=count, default=384, help="most new tokens (default 384)")
    add_threads(parser)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(exit_code(main))
