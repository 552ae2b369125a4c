"""The Python prompts of the benchmarks, or those of a file."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from edgespec.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

PYTHON = (
    'def moving_average(values, size):\n    """Average of each window of `size` values."""\n',
    "class Matrix:\n    def __init__(self, rows):\n        self.rows = rows\n\n"
    "    def transpose(self):\n",
    'import json\n\n\ndef load_settings(path):\n    """Settings from a JSON file."""\n    try:\n',
    "def binary_search(items, wanted):\n    low, high = 0, len(items) - 1\n"
    "    while low <= high:\n",
    "import unittest\n\n\nclass TestStack(unittest.TestCase):\n    def setUp(self):\n"
    "        self.stack = Stack()\n\n    def test_push(self):\n",
    "import argparse\n\n\ndef main():\n"
    "    parser = argparse.ArgumentParser(description='Count words')\n",
    "class Node:\n    def __init__(self, value, left=None, right=None):\n"
    "        self.value = value\n        self.left = left\n        self.right = right\n\n"
    "    def __repr__(self):\n",
    "def read_lines(stream, encoding='utf-8'):\n    for number, line in enumerate(stream):\n",
)


def load_prompts(path: Path | None, limit: int | None = None) -> list[str]:
    """The first `limit` prompts of a JSON-lines file; of `PYTHON` without one.

    A line holds `prompt` (HumanEval) or `turns`, of which the first counts (MT-Bench, Spec-Bench).

    Raises:
        InputError: If the file is missing, or holds something else or nothing.
    """
    if path is None:
        return list(PYTHON[:limit])
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read ({error}): give a file of JSON lines") from error
    prompts = []
    for number, line in enumerate(lines[:limit], 1):
        try:
            record = json.loads(line)
            prompt = record["prompt"] if "prompt" in record else record["turns"][0]
        except (ValueError, KeyError, TypeError, IndexError):
            prompt = None
        if not isinstance(prompt, str):
            raise InputError(f"{path}:{number} is no object with prompt or turns: give JSON lines")
        prompts.append(prompt)
    if not prompts:
        raise InputError(f"{path} holds no prompts: give at least one line")
    return prompts
