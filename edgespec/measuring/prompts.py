"""The prompts of a benchmark, from files or built in."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from edgespec.errors import InputError
from edgespec.system.files import read_utf8

_JSON_SUFFIXES = (".jsonl", ".json", ".ndjson")
_SHOWN = 5  # malformed lines that an error names


def read_prompts(paths: Sequence[Path], limit: int | None = None) -> list[str]:
    """Reads prompts from files; without files, returns those in `PYTHON`.

    Each line of a .jsonl file has `prompt` (HumanEval) or `turns` (MT-Bench, Spec-Bench). Only the
    first turn is used, since later ones ask about an answer. Any other file is one prompt.

    Args:
        paths: files to read.
        limit: maximum number of prompts, which are taken from all parts of the files.

    Raises:
        InputError: if a file cannot be read or is not UTF-8, a line is malformed, or there is no
            prompt.
    """
    if not paths:
        return list(PYTHON[:limit])
    prompts: list[str] = []
    for path in paths:
        text = _read(path)
        prompts += _lines(path, text) if path.suffix.lower() in _JSON_SUFFIXES else [text]
    step = max(1, len(prompts) // limit) if limit else 1
    return prompts[::step][:limit]


def _read(path: Path) -> str:
    try:
        text = read_utf8(path, "the prompts")
    except OSError as error:
        raise InputError(
            f"{path} cannot be read ({error.strerror}): give a file with prompts"
        ) from error
    if not text.strip():
        raise InputError(f"{path} is empty: give at least one prompt")
    return text


def _lines(path: Path, text: str) -> list[str]:
    """Reads the prompts from JSON lines; blank lines are skipped."""
    prompts = []
    wrong = []
    # Not splitlines(): JSON strings may contain other line separators.
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            prompts.append(_prompt(line))
        except ValueError as error:
            wrong.append(f"line {number} {error}")
    if wrong:
        more = f"; and {len(wrong) - _SHOWN} more lines" if len(wrong) > _SHOWN else ""
        raise InputError(
            f"{path}: {'; '.join(wrong[:_SHOWN])}{more}: give JSON objects with prompt or turns"
        )
    return prompts


def _prompt(line: str) -> str:
    """Reads the prompt of a JSON line; a ValueError says how it is malformed."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        raise ValueError("is not JSON") from None
    if not isinstance(record, dict):
        raise ValueError("is not a JSON object")
    if "prompt" in record:
        field = "prompt"
        prompt = record["prompt"]
    elif "turns" in record:
        turns = record["turns"]
        field = "turns[0]"
        prompt = turns[0] if isinstance(turns, list) and turns else None
    else:
        raise ValueError("has neither prompt nor turns")
    if not isinstance(prompt, str) or not prompt:
        raise ValueError(f"has {json.dumps(prompt):.40} for {field}, not a text")
    return prompt


PYTHON = tuple(read_prompts([Path(__file__).with_name("python.jsonl")]))
"""Built-in prompts: beginnings of Python code, which suit the embedded pair and other models."""
