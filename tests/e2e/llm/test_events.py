"""All that happens to a text, as the events of its stream."""

from __future__ import annotations

from itertools import takewhile

import pytest
from native_llms import with_library
from pairs import LONG_PROMPT, SHORT_PROMPT

from edgespec.errors import InputError
from edgespec.llm.result import PromptProgress
from edgespec.llm.stream import LogprobsEvent
from edgespec.runtime.speculation.generation import PROMPT, Round
from edgespec.runtime.text.decoder import TextEvent

pytestmark = with_library

OPTIONS = {"max_new_tokens": 24, "logprobs": 1}


def of_kind(kind, events):
    return [event for event in events if isinstance(event, kind)]


@pytest.mark.parametrize("draft", ["none", "auto"])
def test_events_are_the_whole_text(natives, draft):
    stream = natives("llama", draft).stream(LONG_PROMPT, **OPTIONS)
    *events, result = stream.events()
    assert result is stream.result
    assert "".join(event.text for event in of_kind(TextEvent, events)) == result.text
    told = [each for event in of_kind(LogprobsEvent, events) for each in event.logprobs]
    assert 0 < len(told) <= result.new_tokens
    assert tuple(told) == result.logprobs[: len(told)]
    rounds = of_kind(Round, events)
    assert [made for made in rounds if made.source != PROMPT] == list(stream.rounds)
    assert [token for made in rounds for token in made.tokens] == result.tokens


def test_what_a_round_adds_comes_before_it(natives):
    events = natives("llama", "none").stream(SHORT_PROMPT, **OPTIONS).events()
    read = list(takewhile(lambda event: not isinstance(event, Round), events))
    assert isinstance(read[0], PromptProgress)
    assert {type(event) for event in read[1:]} <= {TextEvent, LogprobsEvent}
    added = list(takewhile(lambda event: not isinstance(event, Round), events))
    assert {type(event) for event in added} <= {TextEvent, LogprobsEvent}


def test_readers_of_a_stream_go_on_where_others_have_stopped(natives):
    llm = natives("llama", "none")
    stream = llm.stream(SHORT_PROMPT, **OPTIONS)
    pieces = [next(iter(stream)) for _ in range(3)]
    rest = [event.text for event in of_kind(TextEvent, stream.events())]
    assert "".join([*pieces, *rest]) == stream.result.text
    assert list(stream) == list(stream.events()) == []


def test_nothing_comes_of_a_stream_that_was_closed(natives):
    stream = natives("llama", "none").stream(SHORT_PROMPT, **OPTIONS)
    assert isinstance(next(stream.events()), PromptProgress)
    stream.close()
    assert list(stream.events()) == []
    with pytest.raises(InputError, match="was closed or failed before its end"):
        stream.result  # noqa: B018
    done = natives("llama", "none").stream(SHORT_PROMPT, **OPTIONS)
    result = done.finish()
    done.close()
    assert done.result is result
