"""Compares the speeds of editing a file with and without the old file as a prediction.

    python benchmarks/editing.py BUNDLE

The model is asked for a whole file with a function renamed, and with a parameter added. Its greedy
answers are made by plain decoding, with `auto`, and with `auto` and the old file as a prediction,
one after the other. Speeds are tokens per second after the first token, and texts are compared
token by token. How well the model does what it was asked is told, too, since what it changes
besides costs drafts.
"""

from __future__ import annotations

import argparse
import re
import sys
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

from common import (
    add_threads,
    count,
    exit_code,
    facts_of,
    mean_length,
    print_result,
    print_table,
    speed,
)

from edgespec import LLM, Result

_FILE = Path(__file__).with_name("rounding.py")
_EDITS = {  # what the model is told; what is to change, as a regular expression, and to what
    "rename": (
        "Rename the function `_read` to `_logits_behind` everywhere.",
        r"\b_read\b",
        "_logits_behind",
    ),
    "parameter": (
        "Add a parameter `first: int = _FIRST` to the function `_read`.",
        r"def _read\(model: Model, tokens: list\[int\]\)",
        "def _read(model: Model, tokens: list[int], first: int = _FIRST)",
    ),
}
_SPARE = 64  # tokens that an answer may be longer than five quarters of the file
_FENCED = re.compile(r"```\w*\n(.*?)(?:```|$)", re.DOTALL)


def main() -> None:
    arguments = _parse_arguments()
    lines = _FILE.read_text(encoding="utf-8").splitlines(keepends=True)
    source = "".join(lines[-arguments.lines :])
    settings: dict[str, dict[str, Any]] = {
        "plain": {"draft_source": "none"},
        "auto": {},
        "prediction": {"prediction": source},
    }
    rows = list[list[object]]()
    facts: dict[str, object] = {"lines": len(source.splitlines()), "threads": arguments.threads}
    with LLM(arguments.bundle, device=arguments.device, threads=arguments.threads) as llm:
        most = len(llm.tokenizer.encode(source)) * 5 // 4 + _SPARE
        for name, (ask, old, new) in _EDITS.items():
            prompt = llm.chat_tokens(_messages(source, ask))
            made: dict[str, Result] = {}
            for setting, options in settings.items():
                llm.forget()
                made[setting] = llm.generate(prompt, max_new_tokens=most, **options)
            plain = made["plain"]
            for setting, found in made.items():
                likeness = _likeness(re.sub(old, new, source), found.text)
                row = [
                    found.new_tokens,
                    speed([found]),
                    round(speed([found]) / speed([plain]), 2),
                    mean_length([found]),
                    "yes" if found.tokens == plain.tokens else "no",
                    likeness,
                ]
                rows.append([name, setting, *row])
                facts[f"{name} {setting}"] = row
    header = ["edit", "setting", "tokens", "tokens/s", "to plain", "tokens a round", "as plain"]
    print_table([*header, "lines as asked"], rows)
    print_result("editing", {**facts_of(arguments.bundle), **facts})


def _messages(source: str, ask: str) -> list[dict[str, str]]:
    asked = (
        f"This is a Python file:\n\n```python\n{source}```\n\n{ask} Change nothing else. "
        "Answer with the whole file in one code block, from its first line to its last."
    )
    return [{"role": "user", "content": asked}]


def _likeness(wanted: str, answer: str) -> float:
    """Returns how alike the lines of an answer are to the wanted ones, from 0 to 1."""
    fenced = _FENCED.search(answer)
    lines = (answer if fenced is None else fenced[1]).splitlines()
    return round(SequenceMatcher(None, wanted.splitlines(), lines, autojunk=False).ratio(), 3)


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Editing a file with it as a prediction.")
    parser.add_argument("bundle", type=Path, help="folder of a bundle with a chat template")
    parser.add_argument(
        "--lines",
        type=count,
        default=sys.maxsize,
        help="last lines of the file, for a machine that is short of time (default all)",
    )
    parser.add_argument("--device", default="cpu", help="device of the target (default cpu)")
    add_threads(parser)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(exit_code(main))
