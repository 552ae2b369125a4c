"""Checks that tool calls are valid by their schemas, and compares their speed with free text.

    python benchmarks/tool_calls.py BUNDLE

The bundle's chat template must know tools. Each request asks for something that one of the tools
does, and requires a call. Calls and free answers take turns, sampled at the same temperature from
the same requests. The jsonschema package validates the arguments of every call; one that did not
end within the limit of tokens is not valid. Speeds are tokens per second over all texts of a kind,
without the first token of each.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import jsonschema
from common import add_threads, count, exit_code, print_result, print_table
from texts import mean_length, speed

from edgespec import LLM, GenerationResult
from edgespec.api.loading import DRAFTS

_NEW_TOKENS = 256


def _tool(name: str, description: str, required: list[str], **properties: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "required": required}
    function = {"name": name, "description": description, "parameters": schema}
    return {"type": "function", "function": function}


_TEXT = {"type": "string", "maxLength": 60}
_DATE = {"type": "string", "format": "date"}
TOOLS = [
    _tool(
        "get_weather", "Tells the weather forecast of a city.", ["city"],
        city=_TEXT, days={"type": "integer", "minimum": 1, "maximum": 14},
        unit={"enum": ["celsius", "fahrenheit"]},
    ),
    _tool(
        "convert_currency", "Converts an amount of money.", ["amount", "source", "target"],
        amount={"type": "number", "minimum": 0, "maximum": 1000000},
        source={"type": "string", "pattern": "^[A-Z]{3}$"},
        target={"type": "string", "pattern": "^[A-Z]{3}$"},
    ),
    _tool(
        "create_event", "Enters an event in the calendar.", ["title", "date", "guests"],
        title=_TEXT, date=_DATE,
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
    _tool(
        "search_files", "Finds files by their content.", ["query"],
        query=_TEXT, extensions={"type": "array", "items": {"enum": [".py", ".md", ".c"]},
                                 "maxItems": 3},
        recursive={"type": "boolean"},
    ),
    _tool("current_time", "Tells the time.", []),
]  # fmt: skip
REQUESTS = [
    "What will the weather be in Lisbon in the next three days?",
    "How many Swiss francs are 250 US dollars?",
    "Enter a meeting with Ada and Grace about compilers on the 3rd of May 2027, for 45 minutes.",
    "Find all Python files which use asyncio, in subfolders too.",
    "What time is it?",
    "Is it cold in Oslo today? In Fahrenheit, please.",
    "Convert 1999.50 yen to euros.",
    "Plan a dinner on 2027-12-24 with Alan, who need not come.",
]


def main() -> None:
    arguments = _parse_arguments()
    options: dict[str, Any] = {"max_new_tokens": _NEW_TOKENS, "temperature": arguments.temperature}
    wanted: dict[str, Any] = {
        "tools": TOOLS,
        "tool_choice": "required",
        "parallel_tool_calls": False,
    }
    called: list[GenerationResult] = []
    free: list[GenerationResult] = []
    with LLM(arguments.bundle, draft=arguments.draft, threads=arguments.threads) as llm:
        for seed in range(arguments.calls):
            messages = [{"role": "user", "content": REQUESTS[seed % len(REQUESTS)]}]
            called.append(llm.chat(messages, seed=seed, **options, **wanted))
            length = max(2, called[-1].new_tokens)  # as long, so that caches and shapes are alike
            options_of_free = {**options, "max_new_tokens": length}
            free.append(llm.chat(messages, seed=seed, **options_of_free))
    valid = sum(_is_valid(result) for result in called)
    speeds = {"calls": speed(called), "free": speed(free)}
    ratio = round(speeds["calls"] / speeds["free"], 2)
    lengths = {"calls": mean_length(called), "free": mean_length(free)}
    print_table(
        ["text", "valid", "tokens/s", "to free text", "tokens a round"],
        [
            ["call", f"{valid} of {len(called)}", speeds["calls"], ratio, lengths["calls"]],
            ["free", "", speeds["free"], 1.0, lengths["free"]],
        ],
    )
    sources, names = Counter[str](), Counter[str]()
    for result in called:
        sources.update(result.sources)
        names.update(call.name for call in result.tool_calls)
    print_result(
        "tool_calls",
        {
            "bundle": llm.bundle.manifest.provenance,
            "draft": llm.draft,
            "threads": arguments.threads,
            "temperature": arguments.temperature,
            "calls": len(called),
            "valid": valid,
            "by_tool": dict(names.most_common()),
            "mean_tokens": round(sum(result.new_tokens for result in called) / len(called), 1),
            "tokens_per_second": speeds,
            "ratio": ratio,
            "wanted_ratio": 1.0,
            "tokens_a_round": lengths,
            "rounds_by_source": dict(sources.most_common()),
        },
    )


def _is_valid(result: GenerationResult) -> bool:
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in TOOLS}
    if result.finish_reason != "tool_calls" or len(result.tool_calls) != 1:
        return False
    [call] = result.tool_calls
    try:
        jsonschema.validate(
            call.arguments, schemas[call.name], format_checker=jsonschema.FormatChecker()
        )
    except (ValueError, KeyError, jsonschema.ValidationError):
        return False
    return True


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Tool calls, and free text.")
    parser.add_argument("bundle", type=Path, help="folder of the bundle")
    parser.add_argument("--calls", type=count, default=200, help="number of calls (default 200)")
    parser.add_argument(
        "--temperature", type=float, default=1.0, help="sampling temperature (default 1)"
    )
    parser.add_argument("--draft", choices=DRAFTS, default="auto")
    add_threads(parser)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(exit_code(main))
