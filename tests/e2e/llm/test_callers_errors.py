"""Errors of a caller's, as of a timeout's signal handler, arrive as they are; drafting goes on."""

from __future__ import annotations

import random
import signal
from contextlib import suppress
from types import SimpleNamespace

import pytest

from edgespec import LLM, Stream
from edgespec.runtime.engines.native import NativeGraph
from edgespec.runtime.engines.portable.cpu import HostSession

PROMPT = "def twice(x):\n    return x * 2\n\n\n" * 3


class LateError(Exception):
    """What the handler of a signal raises."""


def late(*_):
    raise LateError


class Session:
    """A session during whose pass a signal comes."""

    def get_outputs(self):
        return []

    def run(self, *_):
        late()


def test_no_engine_takes_it_for_a_device_that_fails():
    graph = NativeGraph.__new__(NativeGraph)
    graph._session = Session()
    graph._inputs = ()
    graph._outputs = ()
    with pytest.raises(LateError):
        graph({})
    with pytest.raises(LateError):
        HostSession("cpu", Session(), SimpleNamespace(pools={}, recurrent={})).run({}, {}, None)


def test_a_stream_that_was_never_whole_has_nothing_to_end():
    Stream.__new__(Stream).__del__()


def test_texts_and_drafts_go_on_after_signals_at_any_time():
    before = signal.signal(signal.SIGALRM, late)
    chance = random.Random(5)
    options = {"max_new_tokens": 24, "draft_source": "model"}
    try:
        with LLM(draft="auto", threads=1, context=256) as llm:
            expected = llm.generate(PROMPT, **options)
            for _ in range(12):
                signal.setitimer(signal.ITIMER_REAL, chance.uniform(0.0005, 0.05))
                with suppress(LateError):
                    try:
                        llm.generate(PROMPT, **options)
                    finally:
                        signal.setitimer(signal.ITIMER_REAL, 0)
            again = llm.generate(PROMPT, **options)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert again.tokens == expected.tokens
    assert again.drafted
