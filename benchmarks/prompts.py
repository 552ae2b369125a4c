"""The prompts of the benchmarks by kind, or those of a file."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np

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

PROSE = (
    "The old lighthouse keeper climbed the stairs every evening, and when the wind",
    "In the first years after the war the town had only one school, which",
    "Bread needs four things: flour, water, salt and time. The last of them",
    "She had read the letter three times before she understood that her brother",
    "A river does not run straight for long, because the water on the outer side",
    "The committee met on Thursday to discuss the bridge, and most of those present",
    "There are two ways to learn a language as an adult. The first is",
    "When the train finally stopped, nobody on the platform seemed to know",
)

_EDITED = (
    "class Counter:\n    def __init__(self):\n        self.total = 0\n\n"
    "    def add(self, amount):\n        self.total += amount\n        return self.total\n",
    "def read_config(path):\n    values = {}\n    with open(path) as stream:\n"
    "        for line in stream:\n            key, value = line.split('=', 1)\n"
    "            values[key.strip()] = value.strip()\n    return values\n",
    "def quicksort(items):\n    if len(items) < 2:\n        return items\n    pivot = items[0]\n"
    "    left = [x for x in items[1:] if x < pivot]\n"
    "    right = [x for x in items[1:] if x >= pivot]\n"
    "    return quicksort(left) + [pivot] + quicksort(right)\n",
    "class Point:\n    def __init__(self, x, y):\n        self.x = x\n        self.y = y\n\n"
    "    def distance(self, other):\n        dx = self.x - other.x\n        dy = self.y - other.y\n"
    "        return (dx * dx + dy * dy) ** 0.5\n",
    "def parse_header(line):\n    name, _, value = line.partition(':')\n    if not value:\n"
    "        raise ValueError('missing value: %r' % line)\n"
    "    return name.strip().lower(), value.strip()\n",
    "def retry(function, times=3):\n    for attempt in range(times):\n        try:\n"
    "            return function()\n        except OSError as error:\n            last = error\n"
    "    raise last\n",
    "class Stack:\n    def __init__(self):\n        self.items = []\n\n    def push(self, item):\n"
    "        self.items.append(item)\n\n    def pop(self):\n        return self.items.pop()\n",
    "def word_counts(text):\n    counts = {}\n    for word in text.lower().split():\n"
    "        counts[word] = counts.get(word, 0) + 1\n"
    "    return sorted(counts.items(), key=lambda item: -item[1])\n",
)

# The file twice over, and once more begun: an assistant that edits a file writes it again.
EDIT = tuple(f"{file}\n\n{file}\n\n{file[: len(file) // 4]}" for file in _EDITED)

_RANDOM_TOKENS = 48


def random_tokens(vocab_size: int, count: int) -> list[tuple[int, ...]]:
    """Prompts without any sense, the same ones every time."""
    drawn = np.random.default_rng(0).integers(vocab_size, size=(count, _RANDOM_TOKENS))
    return [tuple(row) for row in drawn.tolist()]


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
