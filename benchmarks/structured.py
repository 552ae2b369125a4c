"""Checks that constrained texts are valid by their schemas, and how fast they are beside free ones.

    python benchmarks/structured.py BUNDLE

Texts under a JSON schema, and calls of tools if the bundle's chat template knows tools, take turns
with free texts, sampled at the same temperature from the same prompts. The jsonschema package
validates every constrained text; a call that did not end within the limit of tokens is not valid.
Speeds are tokens per second over all texts of a kind, without the first token of each.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import jsonschema
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
from edgespec.errors import InputError
from edgespec.llm.load.options import DRAFTS
from edgespec.measuring.prompts import PYTHON
from edgespec.models.embedded import BUNDLE

_NEW_TOKENS = 192
_SCHEMA = {
    "type": "object",
    "properties": {
        "function": {"type": "string", "minLength": 1, "maxLength": 16},
        "arguments": {
            "type": "array",
            "maxItems": 3,
            "items": {
                "type": "object",
                "properties": {
                    "name": {"type": "string", "maxLength": 12},
                    "kind": {"enum": ["integer", "string", "list"]},
                    "default": {"type": ["integer", "null"], "minimum": -99, "maximum": 99},
                },
                "required": ["name", "kind", "default"],
                "additionalProperties": False,
            },
        },
        "pure": {"type": "boolean"},
    },
    "required": ["function", "arguments", "pure"],
    "additionalProperties": False,
}


def _tool(name: str, description: str, required: list[str], **properties: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "required": required}
    function = {"name": name, "description": description, "parameters": schema}
    return {"type": "function", "function": function}


_TEXT = {"type": "string", "maxLength": 60}
_MONEY = {"type": "string", "pattern": "^[A-Z]{3}$"}
TOOLS = [
    _tool(
        "get_weather", "Tells the weather forecast of a city.", ["city"],
        city=_TEXT, days={"type": "integer", "minimum": 1, "maximum": 14},
        unit={"enum": ["celsius", "fahrenheit"]},
    ),
    _tool(
        "convert_currency", "Converts an amount of money.", ["amount", "source", "target"],
        amount={"type": "number", "minimum": 0, "maximum": 1000000}, source=_MONEY, target=_MONEY,
    ),
    _tool(
        "create_event", "Enters an event in the calendar.", ["title", "date", "guests"],
        title=_TEXT, date={"type": "string", "format": "date"},
        minutes={"type": ["integer", "null"], "minimum": 5, "maximum": 600},
        guests={
            "type": "array", "maxItems": 4,
            "items": {
                "type": "object",
                "properties": {"name": _TEXT, "optional": {"type": "boolean"}},
                "required": ["name"], "additionalProperties": False,
            },
        },
    ),
    _tool("current_time", "Tells the time.", []),
]  # fmt: skip
REQUESTS = [
    "What will the weather be in Lisbon in the next three days?",
    "How many Swiss francs are 250 US dollars?",
    "Enter a meeting with Ada and Grace about compilers on the 3rd of May 2027, for 45 minutes.",
    "What time is it?",
    "Is it cold in Oslo today? In Fahrenheit, please.",
    "Convert 1999.50 yen to euros.",
    "Plan a dinner on 2027-12-24 with Alan, who need not come.",
]
_CALL: dict[str, Any] = {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False}

Texts = list[Result]


def main() -> None:
    arguments = _parse_arguments()
    how = {"temperature": arguments.temperature}
    with LLM(arguments.bundle, draft=arguments.draft, threads=arguments.threads) as llm:
        made = {"schema": _texts(llm, arguments.texts, how)}
        try:
            made["call"] = _calls(llm, arguments.texts, how)
        except InputError as error:
            print(f"no calls: {error}", file=sys.stderr)
    rows = list[list[object]]()
    facts = dict[str, object]()
    for kind, (shaped, free) in made.items():
        valid = sum(map(_is_valid_text if kind == "schema" else _is_valid_call, shaped))
        ratio = round(speed(shaped) / speed(free), 2)
        rows += [
            [kind, f"{valid} of {len(shaped)}", speed(shaped), ratio, mean_length(shaped)],
            [f"free beside {kind}", "", speed(free), 1.0, mean_length(free)],
        ]
        sources = sum((Counter(each.sources) for each in shaped), Counter[str]())
        facts[kind] = {
            "texts": len(shaped),
            "valid": valid,
            "ratio": ratio,
            "tokens_per_second": [speed(shaped), speed(free)],
            "tokens_a_round": [mean_length(shaped), mean_length(free)],
            "rounds_by_source": dict(sources.most_common()),
        }
    print_table(["text", "valid", "tokens/s", "to free text", "tokens a round"], rows)
    settings = {"draft": arguments.draft, "threads": arguments.threads, **how}
    print_result("structured", {**facts_of(arguments.bundle), **settings, **facts})


def _texts(llm: LLM, number: int, how: dict[str, Any]) -> tuple[Texts, Texts]:
    """Returns texts under the schema, and free ones of the same lengths."""
    shaped = Texts()
    free = Texts()
    for seed in range(number):
        prompt = PYTHON[seed % len(PYTHON)]
        text = llm.generate(
            prompt, seed=seed, json_schema=_SCHEMA, max_new_tokens=_NEW_TOKENS, **how
        )
        shaped.append(text)
        length = max(2, text.new_tokens)
        free.append(llm.generate(prompt, seed=seed, max_new_tokens=length, **how))
    return shaped, free


def _calls(llm: LLM, number: int, how: dict[str, Any]) -> tuple[Texts, Texts]:
    """Returns answers that call a tool, and free ones of the same lengths."""
    called = Texts()
    free = Texts()
    for seed in range(number):
        messages = [{"role": "user", "content": REQUESTS[seed % len(REQUESTS)]}]
        called.append(llm.chat(messages, seed=seed, max_new_tokens=_NEW_TOKENS, **how, **_CALL))
        length = max(2, called[-1].new_tokens)
        free.append(llm.chat(messages, seed=seed, max_new_tokens=length, **how))
    return called, free


def _is_valid_text(result: Result) -> bool:
    try:
        jsonschema.validate(json.loads(result.text), _SCHEMA)
    except (ValueError, jsonschema.ValidationError):
        return False
    return True


def _is_valid_call(result: Result) -> bool:
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in TOOLS}
    if result.finish_reason != "tool_calls" or len(result.tool_calls) != 1:
        return False
    [call] = result.tool_calls
    checker = jsonschema.FormatChecker()
    try:
        jsonschema.validate(call.arguments, schemas[call.name], format_checker=checker)
    except (ValueError, KeyError, jsonschema.ValidationError):
        return False
    return True


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Texts under a schema, calls, and free texts.")
    parser.add_argument("bundle", type=Path, nargs="?", default=BUNDLE, help="folder of the bundle")
    parser.add_argument("--texts", type=count, default=200, help="texts of each kind (default 200)")
    parser.add_argument(
        "--temperature", type=float, default=1.0, help="sampling temperature (default 1)"
    )
    parser.add_argument("--draft", choices=DRAFTS, default="auto")
    add_threads(parser)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(exit_code(main))
