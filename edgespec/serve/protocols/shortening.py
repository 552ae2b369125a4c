"""Conversations that are too long for the context, without their oldest messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import cast

from edgespec.errors import ContextLengthError
from edgespec.llm.chat import ChatOptions
from edgespec.llm.llm import LLM
from edgespec.llm.request import GenerationRequest
from edgespec.llm.stream import Stream
from edgespec.serve.protocols.fields import Json
from edgespec.system.waiting import require_waiting

_ROOM = 4  # the share of the context that an answer gets where messages are left out: one in 4


def submit_shortened(llm: LLM, request: GenerationRequest, shortens: bool) -> Stream:
    """Has a model prepare a text, and returns its stream.

    Args:
        llm: model to use.
        request: what is asked for.
        shortens: whether the oldest messages of a conversation are left out if all are too long for
            the context.
    """

    def make(messages: Sequence[Json]) -> Stream:
        return llm.submit(replace(request, prompt=messages))

    if not shortens or not isinstance(request.options, ChatOptions):
        return llm.submit(request)
    return shortened(cast("Sequence[Json]", request.prompt), make, llm.context_length)


def room_for_prompts(context: int) -> int:
    """Returns the largest number of tokens of a prompt of which something is left out."""
    return context - context // _ROOM


def shortened(
    messages: Sequence[Json],
    make: Callable[[Sequence[Json]], Stream],
    context: int,
) -> Stream:
    """Returns the stream of a conversation, without its oldest messages if it is too long.

    What systems say stays. Then the first one is a user's, since templates want that, and the last
    question stays whole. As few as possible are left out so that an answer has room, too.

    Args:
        messages: the conversation.
        make: makes a stream; raises `ContextLengthError` if the messages are too long.
        context: maximum number of tokens of prompt and answer.

    Raises:
        ContextLengthError: if even the last question is too long.
    """
    try:
        return make(messages)
    except ContextLengthError as error:
        too_long = error
    starts = [place for place, each in enumerate(messages) if each["role"] == "user"][1:]
    roomy: Stream | None = None
    tight: Stream | None = None
    first = 0
    last = len(starts)
    while first < last:
        require_waiting()
        middle = (first + last) // 2
        start = starts[middle]
        told = [each for each in messages[:start] if each["role"] == "system"]
        try:
            made = make([*told, *messages[start:]])
        except ContextLengthError as error:
            too_long = error
            first = middle + 1
            continue
        if len(made.prompt) <= room_for_prompts(context):
            roomy, last = made, middle
        else:
            tight = made
            first = middle + 1
    if (found := roomy or tight) is None:
        raise too_long
    return found
