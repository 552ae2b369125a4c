"""Prompts in addition to those of edgespec (`edgespec.measuring.prompts`)."""

from __future__ import annotations

import numpy as np

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

CHAT = (
    "Write a Python function that says whether a word is a palindrome, with three tests.",
    "Explain in a few sentences why the sky is blue.",
    "Give me five names for a small bakery, and say in a line each what they suggest.",
    "What is the difference between a list and a tuple in Python? Show an example of each.",
    "Summarize the story of the tortoise and the hare in three sentences.",
    "My meeting starts at 14:20 and takes 95 minutes. When does it end? Think step by step.",
    "Write a short and polite mail that asks a colleague to send a report by Friday.",
    "How do I undo the last commit in git without losing my changes?",
)
"""Questions for a model that was tuned for instructions."""

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
    """Returns prompts of random tokens, the same ones every time."""
    drawn = np.random.default_rng(0).integers(vocab_size, size=(count, _RANDOM_TOKENS))
    return [tuple(row) for row in drawn.tolist()]
