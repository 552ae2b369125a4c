"""Prompts for sessions."""

from __future__ import annotations

import random

from pairs import LONG_PROMPT

OPTIONS = {"max_new_tokens": 40, "seed": 3}


def turns(llm, count, seed=0):
    """Yields prompts that continue each other's texts, go back in them, or begin anew."""
    rng = random.Random(seed)
    text = llm.tokenizer.encode(LONG_PROMPT)
    for _ in range(count):
        yield text
        kept = rng.choice([0, len(text) // 3, len(text), len(text)])
        text = text[:kept] + [rng.randrange(1, 300) for _ in range(rng.randrange(1, 40))]
