"""Checks that text constrained by a JSON schema is valid, and compares its speed with free text.

    python benchmarks/structured.py

Constrained and free texts take turns, sampled at the same temperature from the same prompts. The
jsonschema package validates every constrained text. Speeds are tokens per second over all texts of
a kind, without the first token of each.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path

import jsonschema
from common import add_threads, count, exit_code, print_result, print_table
from texts import mean_length, speed

from edgespec import LLM, GenerationResult
from edgespec.api.loading import DRAFTS
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


def main() -> None:
    arguments = _parse_arguments()
    options = {"max_new_tokens": _NEW_TOKENS, "temperature": arguments.temperature}
    shaped: list[GenerationResult] = []
    free: list[GenerationResult] = []
    with LLM(arguments.bundle, draft=arguments.draft, threads=arguments.threads) as llm:
        for seed in range(arguments.texts):
            prompt = PYTHON[seed % len(PYTHON)]
            shaped.append(llm.generate(prompt, seed=seed, json_schema=_SCHEMA, **options))
            length = max(2, shaped[-1].new_tokens)  # as long, so that caches and shapes are alike
            free.append(llm.generate(prompt, seed=seed, **{**options, "max_new_tokens": length}))
    valid = sum(_is_valid(result.text) for result in shaped)
    speeds = {"schema": speed(shaped), "free": speed(free)}
    ratio = round(speeds["schema"] / speeds["free"], 2)
    lengths = {"schema": mean_length(shaped), "free": mean_length(free)}
    print_table(
        ["text", "valid", "tokens/s", "to free text", "tokens a round"],
        [
            ["schema", f"{valid} of {len(shaped)}", speeds["schema"], ratio, lengths["schema"]],
            ["free", "", speeds["free"], 1.0, lengths["free"]],
        ],
    )
    sources = Counter[str]()
    for result in shaped:
        sources.update(result.sources)
    print_result(
        "structured",
        {
            "bundle": llm.bundle.manifest.provenance,
            "draft": llm.draft,
            "threads": arguments.threads,
            "temperature": arguments.temperature,
            "texts": len(shaped),
            "valid": valid,
            "tokens_per_second": speeds,
            "ratio": ratio,
            "wanted_ratio": 1.0,
            "tokens_a_round": lengths,
            "rounds_by_source": dict(sources.most_common()),
        },
    )


def _is_valid(text: str) -> bool:
    try:
        jsonschema.validate(json.loads(text), _SCHEMA)
    except (ValueError, jsonschema.ValidationError):
        return False
    return True


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Text under a JSON schema, and free text.")
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
