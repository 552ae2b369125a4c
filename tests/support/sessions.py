"""Bundles with sessions, prompts for them, texts without any session, and texts at once."""

from __future__ import annotations

import random
import threading

from pairs import ENGINES, LONG_PROMPT

from edgespec import LLM
from edgespec.errors import DeviceError

DRAFTS = ("none", "model", "parallel", "auto")
OPTIONS = {"max_new_tokens": 40, "seed": 3}


def load(pairs, draft="auto", name="llama", **options):
    """Load a bundle of the test's own, so that its sessions do not affect other tests."""
    place = {"device": ENGINES[0], "draft_device": ENGINES[0], "threads": 1}
    return LLM(pairs.pair(name).path, draft=draft, **{**place, **options})


def fresh(pairs, prompt, **options):
    """Returns the text of a prompt without any session."""
    llm = pairs.llm("llama", ENGINES[0], "none")
    return llm.generate(prompt, **{**OPTIONS, **options})


def turns(llm, count, seed=0):
    """Yields prompts that continue each other's texts, go back in them, or begin anew."""
    rng, text = random.Random(seed), llm.tokenizer.encode(LONG_PROMPT)
    for _ in range(count):
        yield text
        kept = rng.choice([0, len(text) // 3, len(text), len(text)])
        text = text[:kept] + [rng.randrange(1, 300) for _ in range(rng.randrange(1, 40))]


def check_cancelling_leaves_others(llm, prompts, alone, tokens):
    """Of three texts at once the second is cancelled; others stay what they are `alone`."""
    streams = [llm.stream(prompt, max_new_tokens=tokens) for prompt in prompts]
    pieces = [iter(stream) for stream in streams]
    for each in pieces:
        next(each)
    streams[1].cancel()
    for each in pieces:
        for _ in each:
            pass
    assert [streams[n].result.tokens for n in (0, 2)] == [alone[0], alone[2]]
    assert streams[1].result.finish_reason == "cancelled"
    assert streams[1].result.tokens == alone[1][: len(streams[1].result.tokens)]
    assert llm.generate(prompts[1], max_new_tokens=tokens).tokens == alone[1]


def together(llm, asked, sessions=None):
    """Makes texts on a thread each, or in sessions; returns their results or errors."""
    found = [None] * len(asked)

    def work(number):
        prompt, options = asked[number]
        try:
            found[number] = (sessions[number] if sessions else llm).generate(prompt, **options)
        except DeviceError as error:
            found[number] = error

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(asked))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(240)
    return found
