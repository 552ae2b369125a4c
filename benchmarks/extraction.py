"""Counts right answers under a JSON schema, by the white space that the schema allows.

    python benchmarks/extraction.py MODEL [MODEL ...]

A model is asked for the name and the age of a person in a sentence: as JSON under a schema, and as
the arguments of a tool that it must call, if its chat template knows tools. Each of ten sentences
is sampled three times, as the model's authors ask. The name must be that of the sentence, with or
without a title, and the age the same number.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from common import add_threads, count, exit_code, print_result, print_table

from edgespec import LLM, Result
from edgespec.errors import InputError
from edgespec.runtime.text.schema.spacing import SPACINGS

_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
_PEOPLE = (
    ("Person: Alice, 31 years, from Rome", "Alice", 31),
    ("My brother Tom turned 12 yesterday.", "Tom", 12),
    ("Dr. Maria Lopez (age 58) opened the meeting.", "Maria Lopez", 58),
    ("Bob is 5.", "Bob", 5),
    ("Kenji, who is 44, likes tea.", "Kenji", 44),
    ("At 67, Ingrid still swims every morning.", "Ingrid", 67),
    ("The winner is Omar; he is 23 years old.", "Omar", 23),
    ("Our neighbour Chloe celebrates her 90th birthday: she is 90.", "Chloe", 90),
    ("name=Yuki age=19", "Yuki", 19),
    ("Samuel, a carpenter of 36, lives in Oslo.", "Samuel", 36),
)
_TITLE = 4  # characters that may come beside a name, such as "Dr. "
_NEW_TOKENS = 96


def main() -> None:
    arguments = _parse_arguments()
    rows = list[list[object]]()
    facts = dict[str, object]()
    for path in arguments.models:
        with LLM(path, threads=arguments.threads) as llm:
            for kind in ("schema", "tool"):
                try:
                    found = [_counted(llm, kind, spacing, arguments.seeds) for spacing in SPACINGS]
                except InputError as error:
                    print(f"{path}: no answers with a {kind}: {error}", file=sys.stderr)
                    continue
                rows.append([Path(path).name, kind, *[f"{right} of {n}" for right, n, _ in found]])
                rows.append(["", "tokens", *[tokens for _, _, tokens in found]])
                facts[f"{Path(path).name}, {kind}"] = dict(zip(SPACINGS, found, strict=True))
    print_table(["model", "answers", *SPACINGS], rows)
    print_result("extraction", {"seeds": arguments.seeds, **facts})


def _counted(llm: LLM, kind: str, spacing: str, seeds: int) -> tuple[int, int, int]:
    """Returns how many answers are right, how many there are, and their tokens."""
    right = number = tokens = 0
    schema = {**_SCHEMA, "x-guidance": SPACINGS[spacing]}
    for sentence, name, age in _PEOPLE:
        for seed in range(seeds):
            result = _answer(llm, kind, schema, sentence, seed)
            right += _is_right(result, name, age)
            tokens += result.new_tokens
            number += 1
    return right, number, tokens


def _answer(llm: LLM, kind: str, schema: Mapping[str, Any], sentence: str, seed: int) -> Result:
    how: dict[str, Any] = {"seed": seed, "max_new_tokens": _NEW_TOKENS, **llm.sampling}
    if kind == "schema":
        return llm.chat(sentence, json_schema=dict(schema), **how)
    function = {"name": "save_person", "description": "Saves a person.", "parameters": schema}
    tools = [{"type": "function", "function": function}]
    choice: dict[str, Any] = {"tool_choice": "required", "parallel_tool_calls": False}
    return llm.chat(sentence, tools=tools, **choice, **how)


def _is_right(result: Result, name: str, age: int) -> bool:
    try:
        found = result.tool_calls[0].arguments if result.tool_calls else json.loads(result.text)
    except ValueError:  # it did not end
        return False
    told = found["name"]
    return name in told and len(told) <= len(name) + _TITLE and found["age"] == age


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Right answers by the white space in JSON.")
    parser.add_argument("models", nargs="+", help="models or bundles")
    parser.add_argument("--seeds", type=count, default=3, help="samples of a sentence (default 3)")
    add_threads(parser)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(exit_code(main))
