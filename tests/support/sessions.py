"""Bundles with sessions of their own, prompts for them, and what is right without any session."""

from __future__ import annotations

import random

from pairs import ENGINES, LONG_PROMPT

from edgespec import LLM

DRAFTS = ("none", "model", "auto")
OPTIONS = {"max_new_tokens": 40, "seed": 3}


def load(pairs, draft="auto", name="llama", **options):
    """A bundle of its own: what sessions do is not seen by other tests."""
    place = {"device": ENGINES[0], "draft_device": ENGINES[0], "threads": 1}
    return LLM(pairs.pair(name).path, draft=draft, **{**place, **options})


def fresh(pairs, prompt, **options):
    """The text that a prompt has without any session."""
    llm = pairs.llm("llama", ENGINES[0], "none")
    return llm.generate(prompt, **{**OPTIONS, **options})


def turns(llm, count, seed=0):
    """Prompts that go on from each other's texts, go back, or begin anew."""
    rng, text = random.Random(seed), llm.tokenizer.encode(LONG_PROMPT)
    for _ in range(count):
        yield text
        kept = rng.choice([0, len(text) // 3, len(text), len(text)])
        text = text[:kept] + [rng.randrange(1, 300) for _ in range(rng.randrange(1, 40))]
