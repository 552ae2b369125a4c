"""Conversations that are too long for the context, without their oldest messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from edgespec.errors import ContextLengthError
from edgespec.llm.chat import PreparedPrompt
from edgespec.system.waiting import require_waiting

_ROOM = 4  # the share of the context that an answer gets where messages are left out: one in 4


def room_for_prompts(context: int) -> int:
    """Returns the largest number of tokens of a prompt of which something is left out."""
    return context - context // _ROOM


def shortened(
    messages: Sequence[Mapping[str, Any]],
    make: Callable[[Sequence[Mapping[str, Any]]], PreparedPrompt],
    context: int,
) -> PreparedPrompt:
    """Prepares a conversation, without its oldest messages if it is too long.

    What systems say stays. Then the first one is a user's, since templates want that, and the last
    question stays whole, with calls and results behind it. As few as possible are left out so that
    an answer has room, too.

    Args:
        messages: the conversation.
        make: prepares messages; raises `ContextLengthError` if they are too long.
        context: maximum number of tokens of prompt and answer.

    Raises:
        ContextLengthError: if even the last question is too long.
    """
    try:
        return make(messages)
    except ContextLengthError as error:
        too_long = error
    starts = [place for place, each in enumerate(messages) if each["role"] == "user"][1:]
    roomy: PreparedPrompt | None = None
    tight: PreparedPrompt | None = None
    first = 0
    last = len(starts)
    while first < last:
        require_waiting()
        middle = (first + last) // 2
        start = starts[middle]
        told = [each for each in messages[:start] if each["role"] == "system"]
        try:
            made = replace(make([*told, *messages[start:]]), left_out=start - len(told))
        except ContextLengthError as error:
            too_long = error
            first = middle + 1
            continue
        if len(made.tokens) <= room_for_prompts(context):
            roomy, last = made, middle
        else:
            tight = made
            first = middle + 1
    if (found := roomy or tight) is None:
        raise too_long
    return found
